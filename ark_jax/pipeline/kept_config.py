"""The config that a workdir keeps, and which stages another config would replace."""

import glob
import json
import os
import re
from collections.abc import Sequence
from pathlib import Path

from ark_jax.pipeline.manifest import sync
from ark_jax.pipeline.stage import Stage
from ark_jax.pipeline.status import Status, examine
from ark_jax.runtime import mirror

CONFIG_FILE = "config.json"
# Fields that name files or folders, which a command from another folder must find too. Those of
# `evaluate` are not among them: its stages are known by the names as they are written.
PATHS = re.compile(
    r"(.+[.])?(path|test|questions|names|relation_names|replies|openie)|prompts[.].+"
)


def keep(config, workdir: Path) -> None:
    """Writes a config into a workdir, with absolute paths; the file is complete or absent."""
    if is_kept(config, workdir):
        return
    unfinished = workdir / f".{CONFIG_FILE}.new"
    unfinished.write_text(_config_text(config), encoding="utf-8")
    sync(unfinished)
    os.replace(unfinished, workdir / CONFIG_FILE)


def is_kept(config, workdir: Path) -> bool:
    """Whether a workdir keeps this config."""
    try:
        return (workdir / CONFIG_FILE).read_text(encoding="utf-8") == _config_text(config)
    except (FileNotFoundError, NotADirectoryError, UnicodeDecodeError):
        return False


def read(workdir: Path) -> dict | None:
    """The config that a workdir keeps, as JSON values; None if it keeps none.

    Raises:
        ValueError: the file is damaged.
    """
    path = workdir / CONFIG_FILE
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValueError:
        config = None
    if not isinstance(config, dict):
        raise ValueError(f"{path} is damaged; give --config=FILE, and the next run writes it anew")
    return config


def _config_text(config) -> str:
    plain = config.to_dict() if hasattr(config, "to_dict") else config
    plain = _with_absolute_paths(json.loads(json.dumps(plain, default=str)), "")
    return json.dumps(plain, indent=1, ensure_ascii=False) + "\n"


def _with_absolute_paths(value, field: str):
    """The value of a field or section, with absolute paths of existing files and folders."""
    if isinstance(value, dict):
        return {
            name: _with_absolute_paths(inner, f"{field}.{name}".lstrip("."))
            for name, inner in value.items()
        }
    if isinstance(value, list):
        return [_with_absolute_paths(inner, field) for inner in value]
    is_path = isinstance(value, str) and value and PATHS.fullmatch(field)
    if is_path and (Path(value).exists() or glob.glob(value)):
        return str(Path(value).absolute())
    return value


LENGTH = 120  # characters of a reason in a line


def replaced_stages(
    stages: Sequence[Stage], config, workdir: Path, *, only: str = ""
) -> list[Status]:
    """The finished stages that a run would replace and that the user must confirm.

    Empty for the config that the workdir keeps: its stages run again because data have changed, a
    stage is damaged, or a confirmed run goes on.

    Args:
        only: the stage that runs; empty if all do.
    """
    if is_kept(config, workdir):
        return []
    stale = [
        status
        for status in examine(stages, config, workdir)
        if status.state == "stale" and only in ("", status.stage)
    ]
    return stale if any(status.changed for status in stale) else []


def describe_count(replaced: Sequence[Status], workdir: Path) -> str:
    """The number of replaced stages, in words."""
    stages = f"{len(replaced)} finished stage{'s' * (len(replaced) > 1)}"
    return f"{stages} of {mirror.address(workdir)}"


def describe(replaced: Sequence[Status], workdir: Path) -> str:
    """Why stages would be replaced, how many and which, in one line."""
    reason = next(shortened(status.why) for status in replaced if status.changed)
    names = ", ".join(status.stage for status in replaced)
    return f"{reason}: this would replace {describe_count(replaced, workdir)} ({names})"


def shortened(text: str) -> str:
    """The first `LENGTH` characters of a text, with dots if more follow."""
    return text if len(text) <= LENGTH else f"{text[:LENGTH]} ..."
