"""Asks before a run replaces finished stages because its config is another one."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from ark_jax.pipeline import kept_config
from ark_jax.pipeline.stage import Stage
from ark_jax.pipeline.status import examine
from ark_jax.runtime.log import say

LENGTH = 120  # characters of a reason in a line


def confirm(stages: Sequence[Stage], config, workdir: Path, *, only: str = "") -> None:
    """Returns if a run replaces no finished stage, or if the user wants it to.

    What the workdir's own config would do again needs no question: its data have changed, a stage
    is damaged, or a run that was confirmed goes on.

    Args:
        only: the stage that runs; empty if all do.

    Raises:
        ValueError: nobody can be asked, or the answer is no.
    """
    if kept_config.is_kept(config, workdir):
        return
    stale = [
        status
        for status in examine(stages, config, workdir)
        if status.state == "stale" and only in ("", status.stage)
    ]
    reasons = [_shortened(status.why) for status in stale if status.changed]
    if not reasons:
        return
    names = ", ".join(status.stage for status in stale)
    count = f"{len(stale)} finished stage{'s' * (len(stale) > 1)}"
    if not sys.stdin.isatty() or os.environ.get("ARK_COORDINATOR"):
        raise ValueError(
            f"{reasons[0]}: this would replace {count} of {workdir} ({names}); add --yes if that "
            "is meant, or give another --workdir"
        )
    say(f"this would replace {count} of {workdir}:")
    for status in stale:
        say(f"  {status.stage:<12} {_shortened(status.why)}")
    if not _agrees():
        raise ValueError("nothing is replaced; another --workdir keeps both")


def _agrees() -> bool:
    try:
        return input("replace? [y/N] ").strip().lower() in ("y", "yes")
    except EOFError:
        return False


def _shortened(text: str) -> str:
    return text if len(text) <= LENGTH else f"{text[:LENGTH]} ..."
