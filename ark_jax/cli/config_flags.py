"""The flags of verbs that work on a config, and the config that they name."""

import dataclasses
import difflib
import re
from collections.abc import Sequence
from pathlib import Path

from ark_jax.cli.flags import Flags, bad_flag, flag, read_folder

RECIPES = Path(__file__).parents[1] / "recipes"
DEMO = "demo"
# What begins a field: `--config.train.batch=32`, and of a boolean `--noconfig.log.memory`.
FIELD = re.compile(r"--?(?:no)?config\.([\w.]+)")
FIELDS = "--config.FIELD=VALUE"
WORKDIR = "where results go"
YES = "asks nothing: replaces finished stages of other settings, trains against all doubts"


def read_workdir(text: str) -> Path | None:
    """The folder of a workdir, or the local copy of one in a bucket; None if it is empty.

    Raises:
        ValueError: as of `read_folder` and `mirror.open_workdir`.
    """
    if "://" not in text:
        return read_folder(text, "--workdir")
    from ark_jax.runtime import mirror

    return mirror.open_workdir(text)


class ConfigFlags(Flags):
    """The flags of every verb that works on a config. `open` gives the config."""

    config: str = flag(
        "--config=CONFIG",
        "ark, gpr, star, bar_rag, demo or a file; ark:paper takes a preset of it; default: the "
        "config of the last run in DIR",
        "",
    )
    fields: tuple[str, ...] = flag(FIELDS, "any field of it; `ark-jax config` lists them", ())
    workdir: Path | None = flag(
        "--workdir=DIR", f"{WORKDIR}; may be in a bucket, gs://", None, read=read_workdir
    )
    yes: bool = flag("--yes", YES, False, verbs=("demo", "run", "STAGE"))
    quiet: bool = flag("--quiet", "prints the result alone", False, verbs=("demo", "run", "STAGE"))
    max_cost: float | None = flag(
        "--max-cost=USD", "short for --config.llm.max_cost=USD", None, verbs=("run",)
    )
    columns: str | None = flag(
        "--columns=FIELD=COLUMN,...", "short for --config.data.columns", None, verbs=("run",)
    )
    encoding: str | None = flag(
        "--encoding=NAME", "short for --config.data.encoding", None, verbs=("run",)
    )
    tolerate: float | None = flag(
        "--tolerate=SHARE", "short for --config.data.tolerate", None, verbs=("run",)
    )
    store: Path | None = flag(
        "--store=DIR", "where the runs of a sweep share finished stages", None, verbs=("run",)
    )
    verify: bool = flag(
        "--verify",
        "reads all files of finished stages: was one damaged since? `ark-jax run` makes it again",
        False,
        verbs=("run", "status"),
    )
    page: bool = flag(
        "--page",
        "shows the run in a browser of this machine: progress, losses and log; with status until "
        "Ctrl-C",
        False,
        verbs=("demo", "run", "status"),
    )

    needed = ("workdir",)

    def open(self):
        """The config with its fields and default models; None if there is none.

        Raises:
            ValueError: a field is unknown or has a bad value, or a config file fails.
        """
        from ark_jax.recipes.core import models

        config, words = self.open_plain()
        if words:
            raise ValueError(
                f"unexpected {words[0]!r}; fields of the config are written --config.name=value"
            )
        if config is not None:
            models.suit_device(config)
        return config

    def open_plain(self) -> tuple:
        """The config without default models, or None, and the words that are no fields.

        Raises:
            ValueError: as `open`.
        """
        from absl import flags as absl_flags
        from ml_collections import ConfigDict, config_flags

        values, args = absl_flags.FlagValues(), _without_overridden(self.fields)
        known = None if self.config else self.default_config()
        is_file = known is None
        define = config_flags.DEFINE_config_file if is_file else config_flags.DEFINE_config_dict
        if self.config:
            args = [f"--config={_without_sweep(locate_config(self.config))}", *args]
        try:
            holder = define("config", known, flag_values=values, sys_argv=["ark-jax", *args])
            words = values(["ark-jax", *args])[1:]
            config = holder.value
            getattr(config, "recipe", None)  # raises what ml_collections kept of an OSError
        except (absl_flags.Error, KeyError, AttributeError, TypeError) as error:
            if "get_config() takes 0 positional arguments" in _error_line(error):
                raise ValueError(_words_not_taken_message(self.config)) from None
            raise bad_flag(self.verb, self._unknown_field_message() or _error_line(error)) from None
        except (Exception, SystemExit) as error:
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            raise ValueError(f"the config file fails ({reason}); correct it") from None
        if not isinstance(config, ConfigDict | None):
            raise ValueError(
                f"the config file gives {type(config).__name__}, not a ConfigDict; let "
                "get_config() return a config of ark_jax.config"
            )
        if config is not None and self.max_cost is not None:
            if "llm" not in config:
                raise ValueError("--max-cost: this recipe asks no paid model; leave the flag out")
            config.llm.max_cost = self.max_cost
        for name in ("columns", "encoding", "tolerate"):
            value = getattr(self, name)
            if config is None or value is None:
                continue
            if name not in config.get("data", {}):
                raise ValueError(f"--{name}: this recipe has no data.{name}; leave the flag out")
            config.data[name] = value
        return config, words

    def default_config(self):
        """The config where no flag names one: that of the last run in the workdir, if any."""
        return config_of_workdir(self.workdir)

    def _unknown_field_message(self) -> str:
        """Says which field the config lacks, and the most similar one; empty if it has all.

        The message of ml_collections names only the last part of the field.
        """
        from ark_jax import schema

        names = [match[1] for word in self.fields if (match := FIELD.match(word))]
        if not names:
            return ""
        try:
            config, _ = dataclasses.replace(self, fields=()).open_plain()
        except ValueError:  # the config itself fails
            return ""
        if config is None:
            return f"config.{names[0]} is a field of no config; name one, such as --config=ark"
        known = list(schema.values(config))
        sections = {name[:i] for name in known for i, sign in enumerate(name) if sign == "."}
        unknown = [name for name in names if name not in sections.union(known)]
        if not unknown:
            return ""
        # Its section may be missing.
        with_section = [name for name in known if name.endswith(f".{unknown[0]}")]
        nearest = with_section or difflib.get_close_matches(unknown[0], known, 1)
        named = " or ".join(f"--config.{name}" for name in nearest)
        hint = f"did you mean {named}?" if nearest else "`ark-jax config` lists all"
        return f"the config has no field {unknown[0]!r} ({hint})"


def config_of_workdir(workdir: Path | None):
    """The config that a workdir keeps, with new fields at their defaults, if any."""
    from ark_jax import config
    from ark_jax.pipeline import kept_config

    plain = kept_config.read(workdir) if workdir else None
    return None if plain is None else config.from_json(plain)


def packaged_files() -> dict[str, Path]:
    """The configs of the package, which `--config` takes by name: name -> its file."""
    files = {path.parent.name: path for path in sorted(RECIPES.glob("*/config.py"))}
    tables = {f"papers/{path.stem}": path for path in sorted(RECIPES.glob("papers/*_table?.py"))}
    return files | {DEMO: RECIPES / "demo.py"} | tables


def locate_config(named: str) -> str:
    """`NAME:WORDS` with the file of the packaged config; a path of a file stays.

    Raises:
        ValueError: NAME is neither.
    """
    name, colon, words = named.partition(":")
    if Path(name).is_file():
        return named
    known = packaged_files()
    if name in known:
        return f"{known[name]}{colon}{words}"
    beside = map(str, Path(name).parent.glob("*.py"))
    nearest = difflib.get_close_matches(name, [*known, *beside], 1)
    hint = f"did you mean {nearest[0]}? " if nearest else ""
    raise ValueError(
        f"--config={named}: no such file; {hint}the presets are {', '.join(known)}, and `ark-jax "
        "init DATA` writes a file"
    )


def _without_sweep(located: str) -> str:
    """`FILE:WORDS` without the name of a sweep, which is for `ark-jax sweep`."""
    file, _, words = located.partition(":")
    parts = ",".join(word for word in words.split(",") if not word.startswith("sweep="))
    return f"{file}:{parts}" if parts else file


def _words_not_taken_message(named: str) -> str:
    """Says that a config file takes no words, and how it would."""
    file, _, words = named.partition(":")
    return (
        f"--config={named}: get_config() of {file} takes no words, so {words!r} means nothing to "
        'it; write `def get_config(words=""):`, and begin with `c = config.get_config(words)` of '
        "`from ark_jax.recipes.ark import config`"
    )


def _without_overridden(words: Sequence[str]) -> list[str]:
    """The words without a field that a later word sets again, as in a sweep.

    absl would join the tuples of both.
    """
    names = [re.match(r"--?config\.[\w.]+=|", word)[0].lstrip("-") for word in words]
    last = {name: i for i, name in enumerate(names)}
    return [word for i, word in enumerate(words) if not names[i] or last[names[i]] == i]


def _error_line(error: Exception) -> str:
    """The error of a bad field in one line; of a failing config file, the end of its trace."""
    text = str(error.args[0] if error.args else error).replace("\\n", "\n").strip()
    text = text.splitlines()[-1] if "Traceback" in text else text
    text = " ".join(text.replace("'", "").split())
    return re.sub(r"\. Did you mean: (.+?) ?\?$", r" (did you mean --\1?)", text)
