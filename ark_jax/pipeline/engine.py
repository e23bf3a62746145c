"""Runs stages: which are done, which are stale and why; a stage is there whole or not at all.

A stage works in `.partial/NAME`, where it may keep its own progress. Its finished folder gets a
`manifest.json` and is renamed into place. Of several processes the first one decides what has to
run, and only the first one writes.
"""

import dataclasses
import errno
import fcntl
import functools
import json
import os
import shutil
import sys
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np

from ark_jax.pipeline import kept_config, store
from ark_jax.pipeline.fingerprints import fingerprint
from ark_jax.pipeline.manifest import (
    MANIFEST_FILE,
    Damaged,
    changed_settings,
    damage,
    difference,
    inputs_of,
    outputs_of,
    read_manifest,
    settings_of,
    sync,
    write_manifest,
)
from ark_jax.pipeline.parts import PARTS
from ark_jax.pipeline.stage import Context, Interrupted, Stage
from ark_jax.runtime import distributed
from ark_jax.runtime.log import duration, say

BEGUN = "inputs.json"  # the inputs that an unfinished stage was begun with
NEW_BEGUN = f".{BEGUN}.new"  # while it is written
CHECKPOINTS = "checkpoints"  # a finished stage needs them no more


@dataclasses.dataclass(frozen=True)
class Status:
    """Where a stage stands.

    Attributes:
        state: done, stale or missing.
        why: in words.
        changed: whether it was finished, whole and of other settings or inputs.
    """

    stage: str
    state: str
    why: str = ""
    changed: bool = False


def examine(
    stages: Sequence[Stage], config, workdir: Path, *, verify: Collection[str] = ()
) -> Iterator[Status]:
    """Where each stage stands, in order. A stage that reads from a stale one is stale too.

    Args:
        verify: stages whose files are compared by digest; those of the others by size.
    """
    fresh: dict[str, str] = {}
    for stage in stages:
        yield _examine(stage, config, workdir, fresh, verify=stage.name in verify)


def _examine(stage: Stage, config, workdir: Path, fresh: dict[str, str], *, verify: bool) -> Status:
    """The status of one stage. A done stage enters `fresh` with its outputs' fingerprint."""
    try:
        manifest = read_manifest(workdir / stage.name)
    except Damaged as error:
        return Status(stage.name, "stale", error.why)
    if manifest is None:
        begun = (workdir / ".partial" / stage.name).is_dir()
        return Status(stage.name, "missing", "begun, will go on where it stopped" if begun else "")
    pending = [name for name in stage.after if name not in fresh]
    if pending:
        changed = changed_settings(manifest, settings_of(stage, config))
        why = changed or f"{pending[0]} has to run first"
        return Status(stage.name, "stale", why, bool(changed))
    inputs, folder = inputs_of(stage, config, fresh), workdir / stage.name
    if why := difference(manifest, inputs, folder, verify=verify):
        is_damaged = damage(manifest, folder, verify=verify)
        return Status(stage.name, "stale", why, not is_damaged)
    fresh[stage.name] = fingerprint(manifest["outputs"])
    return Status(stage.name, "done")


def stages_to_verify(
    stages: Sequence[Stage], config, workdir: Path, *, only: str = ""
) -> frozenset[str]:
    """Finished stages that a run will read.

    A damaged one among them has to run again, and reads from stages before it in turn.

    Args:
        only: the stage that runs; empty if all do.
    """
    verified = frozenset()
    while True:
        statuses = examine(stages, config, workdir, verify=verified)
        due = {status.stage for status in statuses if status.state != "done"}
        running = due & {only} if only else due
        read = {name for stage in stages if stage.name in running for name in stage.after}
        if read - due <= verified:
            return verified
        verified |= read - due


def run(stages: Sequence[Stage], context: Context, *, only: str = "", verify: bool = False) -> None:
    """Brings every stage up to date, or the one named `only`, whose inputs must be up to date.

    A finished stage that another one will read is compared with its manifest by digest. If it is
    damaged, it is made again.

    Args:
        verify: compares all finished stages, also if nothing has to run.

    Raises:
        Interrupted: another run works in the workdir, or an input of `only` is not up to date.
    """
    with ExitStack() as stack:
        stack.enter_context(_mesh_restored())
        distributed.on_first_process(lambda: stack.enter_context(_locked(context.workdir)))
        distributed.on_first_process(lambda: kept_config.keep(context.config, context.workdir))
        if context.store:
            distributed.on_first_process(
                lambda: store.share_replies(context.store, context.workdir)
            )
        began = time.monotonic()
        if _run_due(stages, context, only, verify):
            say(f"done in {duration(time.monotonic() - began)}")
        else:
            say(f"{only or 'all stages'}: up to date in {context.workdir}, nothing to do")


def _run_due(stages: Sequence[Stage], context: Context, only: str, verify: bool) -> int:
    """Runs what has to run and returns how many stages that were."""
    read_from = {name for stage in stages for name in stage.after}
    fresh: dict[str, str] = {}
    states: dict[str, Status] = {}
    runs = 0
    verified = distributed.on_first_process(
        lambda: sorted(
            {stage.name for stage in stages}
            if verify
            else stages_to_verify(stages, context.config, context.workdir, only=only)
        )
    )
    for number, stage in enumerate(stages, 1):
        reason = distributed.on_first_process(
            functools.partial(_due, stage, context, fresh, states, only, stage.name in verified)
        )
        if reason is not None:
            say(f"[{number}/{len(stages)}] {stage.name}{reason}")
            inputs = distributed.on_first_process(
                functools.partial(inputs_of, stage, context.config, fresh)
            )
            # A stage that nothing reads, such as the report, tells of this run alone.
            shared = context.store and stage.name in read_from
            bring = _obtain if shared else _execute
            fresh[stage.name] = bring(stage, context, inputs, context.workdir / stage.name)
            runs += 1
        if stage.name == only:
            break
    return runs


def _due(
    stage: Stage,
    context: Context,
    fresh: dict[str, str],
    states: dict[str, Status],
    only: str,
    verify: bool,
) -> str | None:
    """Why a stage has to run, as its line of the log ends; None if it does not.

    Its status enters `states`.
    """
    status = _examine(stage, context.config, context.workdir, fresh, verify=verify)
    states[stage.name] = status
    if status.state == "done" or only not in ("", stage.name):
        return None
    pending = [name for name in stage.after if name not in fresh]
    if pending:
        needed = states[pending[0]]
        why = f": {needed.why}" if needed.why else ""
        raise Interrupted(
            f"stage {stage.name} needs {needed.stage}, which is {needed.state}{why}; run "
            f"`ark-jax {needed.stage}` or `ark-jax run` first"
        )
    return f" (again: {status.why})" if status.state == "stale" else ""


def _obtain(stage: Stage, context: Context, inputs: dict, final: Path) -> str:
    """Takes a stage from the store and returns the fingerprint of its outputs.

    If the store lacks it, the stage is made there. Its progress lies there too, so that any run
    goes on where another was killed.
    """
    key = f"{stage.name}-{fingerprint(inputs)[:32]}"
    stored = context.store / key
    with ExitStack() as stack:

        def missing() -> bool:
            stack.enter_context(store.claim(context.store, key))
            return not _is_whole(stored, inputs)

        def take() -> str:
            partial = context.workdir / ".partial" / stage.name
            store.link(stored, partial)
            _put_into_place(partial, final)
            return fingerprint(read_manifest(final)["outputs"])

        if distributed.on_first_process(missing):
            _execute(stage, context, inputs, stored)
        else:
            say(f"  made already, taken from {stored}")
            context.metrics.write(stage.name, taken=key)
        return distributed.on_first_process(take)


def _execute(stage: Stage, context: Context, inputs: dict, final: Path) -> str:
    """Runs a stage into the folder `final` and returns the fingerprint of its outputs."""
    partial, start = final.parent / ".partial" / final.name, time.monotonic()
    counts = distributed.on_first_process(lambda: _begin(inputs, partial))
    if counts is None:
        run = functools.partial(stage.run, context, partial)
        counts = distributed.on_first_process(run) if stage.alone else run()
        # Process 0 moves the folder once every process has read what it needs there.
        distributed.on_first_process(lambda: None)
    return distributed.on_first_process(
        lambda: _finish(stage, context, inputs, final, counts, start)
    )


def _begin(inputs: dict, partial: Path) -> dict | None:
    """Prepares the folder that a stage works in.

    Returns:
        the counts, if a kill came after the manifest: the folder has only to be put into place.
    """
    if partial.exists() and (why := _other_inputs(partial, inputs)) is not None:
        _set_aside(partial, why)
    earlier = _place_aside(partial, inputs)
    if earlier.is_dir() and not partial.exists():
        os.replace(earlier, partial)
        say(f"  goes on with {earlier.name}, which was set aside")
    if (partial / MANIFEST_FILE).exists():
        if _is_whole(partial, inputs):
            return read_manifest(partial)["counts"]
        say("  what was finished here has been damaged since: it is made again")
        shutil.rmtree(partial)
    partial.mkdir(parents=True, exist_ok=True)
    if not (partial / BEGUN).is_file():
        unfinished = partial / NEW_BEGUN
        unfinished.write_text(json.dumps(inputs, indent=1, ensure_ascii=False), encoding="utf-8")
        sync(unfinished)
        os.replace(unfinished, partial / BEGUN)
    return None


def _is_whole(folder: Path, inputs: dict) -> bool:
    """Whether a folder holds a stage that was finished with these inputs, bit for bit."""
    try:
        manifest = read_manifest(folder)
    except Damaged:
        return False
    return manifest is not None and not difference(manifest, inputs, folder, verify=True)


def _other_inputs(partial: Path, inputs: dict) -> str | None:
    """In what an unfinished stage was begun with other inputs, in words; None if with these."""
    begun = _read_begun(partial)
    if begun is None:
        return None if not any(partial.glob("[!.]*")) else "what it was begun with is unknown"
    if begun == inputs:
        return None
    return difference(begun | {"outputs": {}}, inputs, partial) or "its inputs changed"


def _read_begun(partial: Path) -> dict | None:
    """The inputs that an unfinished stage was begun with; None if they are missing or damaged."""
    try:
        begun = json.loads((partial / BEGUN).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    parts = ("inputs", "config", "external", "version")
    return begun if isinstance(begun, dict) and all(part in begun for part in parts) else None


def _place_aside(partial: Path, inputs: object) -> Path:
    return partial.with_name(f"{partial.name}.{fingerprint(inputs)[:8]}")


def _set_aside(partial: Path, why: str) -> None:
    """Keeps unfinished work that was begun with other inputs, in a folder of its own."""
    place = _place_aside(partial, _read_begun(partial))
    if place.exists():
        shutil.rmtree(place)  # of the same inputs, and older
    os.replace(partial, place)
    say(
        f"  unfinished work is set aside ({why}): a run with its settings goes on with it; delete "
        f"{place} if none will"
    )


def _finish(
    stage: Stage, context: Context, inputs: dict, final: Path, counts: dict, start: float
) -> str:
    """Puts the folder into its place, with its manifest. A kill at any moment loses nothing."""
    partial = final.parent / ".partial" / final.name
    names = (BEGUN, NEW_BEGUN, PARTS, MANIFEST_FILE, f"{MANIFEST_FILE}.new", CHECKPOINTS)
    outputs = outputs_of(partial, tuple(partial / name for name in names))
    write_manifest(partial, stage.name, inputs, outputs, counts)
    if (partial / CHECKPOINTS).is_dir():
        shutil.rmtree(partial / CHECKPOINTS)
    _put_into_place(partial, final)
    (final / BEGUN).unlink()
    (final / PARTS).unlink(missing_ok=True)
    seconds = time.monotonic() - start
    context.metrics.write(stage.name, seconds=round(seconds, 3), **counts)
    say(f"  {_in_words(counts)} ({duration(seconds)})")
    return fingerprint(outputs)


def _in_words(counts: dict) -> str:
    """`{"chunks": 1200, "first_loss": 1.25}` -> "1,200 chunks, first loss 1.25"."""
    words = []
    for name, value in counts.items():
        label = name.replace("_", " ")
        if isinstance(value, int):
            words.append(f"{value:,} {label}")
        elif not isinstance(value, dict):
            words.append(f"{label} {value:.4g}" if isinstance(value, float) else f"{label} {value}")
    return ", ".join(words)


def _put_into_place(partial: Path, final: Path) -> None:
    """Replaces `final` by the finished folder, by one rename."""
    sync(partial)
    if final.is_dir() and not final.is_symlink():
        shutil.rmtree(final)
    else:
        final.unlink(missing_ok=True)  # a link, to a folder on another disk perhaps, or a file
    os.replace(partial, final)
    sync(final.parent)


@contextmanager
def _mesh_restored() -> Iterator[None]:
    """The mesh that stages set is taken away at the end, if they started jax."""
    jax = sys.modules.get("jax")
    before = jax.sharding.get_mesh() if jax else None
    try:
        yield
    finally:
        if jax := sys.modules.get("jax"):
            jax.set_mesh(before or jax.sharding.Mesh(np.empty((), object), ()))


@contextmanager
def _locked(workdir: Path) -> Iterator[None]:
    """One run a workdir: a second one would write into the same partial folders."""
    workdir.mkdir(parents=True, exist_ok=True)
    with (workdir / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EAGAIN):
                raise
            raise Interrupted(
                f"{workdir}: another run is working here; wait for it or give another --workdir"
            ) from None
        yield
