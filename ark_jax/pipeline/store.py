"""A folder of finished stages that several runs share: a stage is made once for all of them.

The folder holds `STAGE-FINGERPRINT` for each stage under each set of inputs. A run gets it as hard
links: they take no space, stay when the store is deleted, and move with the run.
"""

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ark_jax.runtime.log import say


@contextmanager
def claim(store: Path, key: str) -> Iterator[None]:
    """Lets one process at a time make the stage `key`; the next one waits.

    The claim of a process ends when the process dies.
    """
    (store / ".locks").mkdir(parents=True, exist_ok=True)
    with (store / ".locks" / key).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("  another run is making it: waiting")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def clear(store: Path) -> None:
    """Removes unfinished stages that no process works on; call it when all runs are done."""
    for begun in (store / ".partial").glob("*"):
        with (store / ".locks" / begun.name).open("w") as file, suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(begun)


def link(source: Path, target: Path) -> None:
    """Replaces the folder `target` by hard links to the files of `source`."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target, copy_function=_link)


def share_replies(store: Path, workdir: Path) -> None:
    """Gives the workdir the store's cache of LLM replies (`llm.reply_cache`).

    A reply that one run has paid for costs no other run, even if its stage was not finished.
    """
    for name in ("replies.jsonl", "replies.lock"):
        linked, shared = workdir / "llm" / name, store / "llm" / name
        if not linked.exists():
            shared.parent.mkdir(parents=True, exist_ok=True)
            linked.parent.mkdir(parents=True, exist_ok=True)
            shared.touch()
            _link(shared, linked)


def _link(source: str | Path, target: str | Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without hard links
        shutil.copy2(source, target)
