"""Asks before a run replaces finished stages because its config is another one."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from ark_jax.pipeline.replaced import count_of, describe, replaced_stages, shortened
from ark_jax.pipeline.stage import Stage
from ark_jax.runtime.log import say


def confirm(stages: Sequence[Stage], config, workdir: Path, *, only: str = "") -> None:
    """Returns if a run replaces no finished stage, or if the user wants it to.

    Args:
        only: the stage that runs; empty if all do.

    Raises:
        ValueError: nobody can be asked, or the answer is no.
    """
    replaced = replaced_stages(stages, config, workdir, only=only)
    if not replaced:
        return
    if not sys.stdin.isatty() or os.environ.get("ARK_COORDINATOR"):
        raise ValueError(
            f"{describe(replaced, workdir)}; add --yes if that is meant, or give another --workdir"
        )
    say(f"this would replace {count_of(replaced, workdir)}:")
    for status in replaced:
        say(f"  {status.stage:<12} {shortened(status.why)}")
    if not _agrees():
        raise ValueError("nothing is replaced; another --workdir keeps both")


def _agrees() -> bool:
    try:
        return input("replace? [y/N] ").strip().lower() in ("y", "yes")
    except EOFError:
        return False
