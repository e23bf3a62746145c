"""Runs stages that are not done; a stage is there whole or not at all.

A stage works in `.partial/NAME`, where it may keep its own progress. Its finished folder gets a
`manifest.json` and is renamed into place. Of several processes the first one decides what has to
run, and only the first one writes.
"""

import errno
import fcntl
import functools
import os
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np

from ark_jax.pipeline import kept_config, store
from ark_jax.pipeline.fingerprints import fingerprint
from ark_jax.pipeline.manifest import (
    MANIFEST_FILE,
    inputs_of,
    outputs_of,
    read_manifest,
    sync,
    write_manifest,
)
from ark_jax.pipeline.parts import PARTS
from ark_jax.pipeline.stage import Context, Interrupted, Stage
from ark_jax.pipeline.status import Status, examine_stage, stages_to_verify
from ark_jax.pipeline.unfinished import BEGUN, NEW_BEGUN, begin, is_whole
from ark_jax.runtime import distributed
from ark_jax.runtime.log import duration, say

CHECKPOINTS = "checkpoints"  # a finished stage needs them no more


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
    status = examine_stage(stage, context.config, context.workdir, fresh, verify=verify)
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
            return not is_whole(stored, inputs)

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
    counts = distributed.on_first_process(lambda: begin(inputs, partial))
    if counts is None:
        run = functools.partial(stage.run, context, partial)
        counts = distributed.on_first_process(run) if stage.alone else run()
        # Process 0 moves the folder once every process has read what it needs there.
        distributed.on_first_process(lambda: None)
    return distributed.on_first_process(
        lambda: _finish(stage, context, inputs, final, counts, start)
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
