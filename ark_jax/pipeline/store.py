"""A folder of finished stages that several runs share: a stage is made once for all of them.

It holds `STAGE-FINGERPRINT` for each stage and each record of what it has read, and unfinished ones
in `.partial`. A run takes a stage if each recorded read has the same value there. It gets hard
links: they take no space, remain when the store is deleted, and move with the run.
"""

import fcntl
import os
import shutil
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from ark_jax.pipeline.fingerprints import fingerprint
from ark_jax.pipeline.manifest import Change, is_whole, read_so_far
from ark_jax.pipeline.reads import Record
from ark_jax.runtime.log import say

POLL = 0.5  # seconds between two checks of what another run is making


def place(store: Path, stage: str, record: Record) -> Path:
    """The folder of a finished stage with this record of reads."""
    return store / f"{stage}-{fingerprint(record)[:32]}"


def find(
    store: Path, stage: str, change: Change, stack: ExitStack
) -> tuple[Path | None, Path | None]:
    """(finished folder of a stage that fits this run, None), or (None, folder to make it in).

    Another run may be making the stage, perhaps with other settings that it has not read yet. This
    run waits for it as long as its reads so far are the same here.

    Args:
        stack: holds the lock on the folder to work in, which also ends with the process.
    """
    is_waiting = False
    while True:
        with locked(store / ".locks" / stage):
            if folder := _find_finished(store, stage, change):
                return folder, None
            partial = _claim_unfinished(store, stage, change, stack)
        if partial:
            return None, partial
        if not is_waiting:
            say("  another run is making it: waiting")
        is_waiting = True
        time.sleep(POLL)


def _find_finished(store: Path, stage: str, change: Change) -> Path | None:
    """An undamaged finished folder whose recorded reads are the same now; None if there is none."""
    for folder in sorted(store.glob(f"{stage}-{'[0-9a-f]' * 32}")):
        if is_whole(folder, change):
            return folder
    return None


def _claim_unfinished(store: Path, stage: str, change: Change, stack: ExitStack) -> Path | None:
    """A folder to work in, with a lock on it; None while another run makes what may fit."""
    begun = store / ".partial"
    for partial in sorted(begun.glob(f"{stage}-{'[0-9a-f]' * 32}")):
        record = read_so_far(partial)
        if record is not None and change(record):
            continue
        with suppress(BlockingIOError):
            stack.enter_context(locked(store / ".locks" / partial.name, wait=False))
            return partial
        return None
    partial = begun / f"{stage}-{uuid.uuid4().hex}"
    stack.enter_context(locked(store / ".locks" / partial.name))
    partial.mkdir(parents=True)
    return partial


@contextmanager
def locked(path: Path, *, wait: bool = True) -> Iterator[None]:
    """Holds a lock of the store that ends when the process dies.

    Raises:
        BlockingIOError: another process holds it, and this one does not wait.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        yield


def clear(store: Path) -> None:
    """Removes unfinished stages that no process works on; call it when all runs are done."""
    for begun in (store / ".partial").glob("*"):
        with suppress(BlockingIOError), locked(store / ".locks" / begun.name, wait=False):
            shutil.rmtree(begun)


def link(source: Path, target: Path) -> None:
    """Replaces the folder `target` by hard links to the files of `source`."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target, copy_function=_link_or_copy)


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
            _link_or_copy(shared, linked)


def _link_or_copy(source: str | Path, target: str | Path) -> None:
    """Makes a hard link, or a copy if that is not possible."""
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without hard links
        shutil.copy2(source, target)
