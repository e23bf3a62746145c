"""A folder of finished stages that several runs draw on: what one run has made, no other makes again.

It holds a folder `STAGE-FINGERPRINT` for each stage under each set of inputs, and a run that needs it gets it as hard
links, which cost no space and outlive the store, and move with the run.
"""

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ark_jax.log import say


@contextmanager
def claim(store: Path, key: str) -> Iterator[None]:
    """Only one process at a time makes what lies under `key`; the next one waits. A dead process claims nothing."""
    (store / ".locks").mkdir(parents=True, exist_ok=True)
    with (store / ".locks" / key).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("  another run is making it: waiting")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def clear(store: Path) -> None:
    """Removes what was left half-made and nobody is making: once all runs are done, none will go on with it."""
    for begun in (store / ".partial").glob("*"):
        with (store / ".locks" / begun.name).open("w") as file, suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(begun)


def link(source: Path, target: Path) -> None:
    """`target` becomes a folder of its own with the files of `source`; what stood there goes."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target, copy_function=_link)


def share_replies(store: Path, workdir: Path) -> None:
    """The runs keep one ledger of LLM replies (`text.replies`): what one has paid for, even for a stage it did not
    finish, none pays for again."""
    for name in ("replies.jsonl", "replies.lock"):
        ours, theirs = workdir / "llm" / name, store / "llm" / name
        if not ours.exists():
            theirs.parent.mkdir(parents=True, exist_ok=True)
            ours.parent.mkdir(parents=True, exist_ok=True)
            theirs.touch()
            _link(theirs, ours)


def _link(source: str | Path, target: str | Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without hard links
        shutil.copy2(source, target)
