"""Which finished stages a run would replace because its config is another one."""

from collections.abc import Sequence
from pathlib import Path

from ark_jax.pipeline import kept_config
from ark_jax.pipeline.stage import Stage
from ark_jax.pipeline.status import Status, examine

LENGTH = 120  # characters of a reason in a line


def replaced_stages(
    stages: Sequence[Stage], config, workdir: Path, *, only: str = ""
) -> list[Status]:
    """The finished stages that a run would replace, with a reason in a line; none if it may.

    What the workdir's own config would do again needs no question: its data have changed, a stage
    is damaged, or a run that was confirmed goes on.

    Args:
        only: the stage that runs; empty if all do.
    """
    if kept_config.is_kept(config, workdir):
        return []
    stale = [
        status
        for status in examine(stages, config, workdir)
        if status.state == "stale" and only in ("", status.stage)
    ]
    return stale if any(status.changed for status in stale) else []


def count_of(replaced: Sequence[Status], workdir: Path) -> str:
    """How many stages they are, in words."""
    return f"{len(replaced)} finished stage{'s' * (len(replaced) > 1)} of {workdir}"


def describe(replaced: Sequence[Status], workdir: Path) -> str:
    """Why stages would be replaced, how many and which, in one line."""
    reason = next(shortened(status.why) for status in replaced if status.changed)
    names = ", ".join(status.stage for status in replaced)
    return f"{reason}: this would replace {count_of(replaced, workdir)} ({names})"


def shortened(text: str) -> str:
    return text if len(text) <= LENGTH else f"{text[:LENGTH]} ..."
