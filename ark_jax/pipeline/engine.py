"""Runs stages that are not done. A stage's folder is complete or absent.

A stage works in `.partial/NAME`, where it may keep its own progress. Its finished folder gets a
`manifest.json` and is renamed into place. Of several processes the first one decides what has to
run, and only the first one writes.
"""

import dataclasses
import errno
import fcntl
import functools
import itertools
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import numpy as np

from ark_jax.pipeline import kept_config, store
from ark_jax.pipeline.fingerprints import fingerprint
from ark_jax.pipeline.manifest import (
    MANIFEST_FILE,
    READS,
    Damaged,
    begin,
    damage,
    finished_manifest,
    keep_read,
    output_digests,
    read_manifest,
    refuse_earlier,
    sync,
    write_manifest,
)
from ark_jax.pipeline.parts import PARTS
from ark_jax.pipeline.reads import Reads, Record, change, empty_record
from ark_jax.pipeline.recipe import schema_of
from ark_jax.pipeline.stage import Context, Interrupted, Stage
from ark_jax.pipeline.status import examine_stage, stages_to_verify
from ark_jax.runtime import distributed, mirror
from ark_jax.runtime.log import duration, keep_journal, say

CHECKPOINTS = "checkpoints"  # a folder that a finished stage no longer needs


def run(
    stages: Sequence[Stage],
    context: Context,
    *,
    only: str = "",
    verify: bool = False,
    ask: Callable[[Sequence[str]], None] | None = None,
) -> None:
    """Brings every stage up to date, or the one named `only`, whose inputs must be up to date.

    A finished stage that another one will read is compared with its manifest by digest. If it is
    damaged, it is made again.

    Args:
        verify: compares all finished stages, also if nothing has to run.
        ask: gets the doubts of a stage that ran, if it has any; may raise to end the run.

    Raises:
        ValueError: the workdir is that of an earlier version.
        Interrupted: another run works in the workdir, or an input of `only` is not up to date.
    """
    with ExitStack() as stack:
        stack.enter_context(_restore_mesh())
        distributed.on_first_process(lambda: stack.enter_context(_lock_workdir(context.workdir)))
        stack.enter_context(keep_journal(context.workdir))
        distributed.on_first_process(lambda: refuse_earlier(context.workdir))
        distributed.on_first_process(lambda: kept_config.keep(context.config, context.workdir))
        if shared := context.store:
            distributed.on_first_process(lambda: store.share_replies(shared, context.workdir))
        began = time.monotonic()
        if _run_due(stages, context, only, verify, ask):
            say(f"done in {duration(time.monotonic() - began)}")
        else:
            place = mirror.address(context.workdir)
            say(f"{only or 'all stages'}: up to date in {place}, nothing to do")


def _run_due(
    stages: Sequence[Stage],
    context: Context,
    only: str,
    verify: bool,
    ask: Callable[[Sequence[str]], None] | None,
) -> int:
    """Runs the stages that are not up to date, and returns their number."""
    verified = distributed.on_first_process(
        lambda: sorted(
            {stage.name for stage in stages}
            if verify
            else stages_to_verify(stages, context.config, context.workdir, only=only)
        )
    )
    work, runs = _Work(context, schema_of(context.config), {*verified}), 0
    for number, stage in enumerate(stages, 1):
        due = functools.partial(work.examine, stage, only, stage.name in verified)
        reason, work.fresh, work.unready = distributed.on_first_process(due)
        if reason is not None:
            words = reason or (f": {stage.purpose}" if stage.purpose else "")
            say(f"[{number}/{len(stages)}] {stage.name}{words}", stage=stage.name)
            make = work.obtain if context.store and stage.shared else work.execute
            work.fresh[stage.name] = make(stage)
            work.unready.pop(stage.name, None)
            work.whole.add(stage.name)
            runs += 1
        if stage.name == only:
            break
        if ask and reason is not None and (doubts := stage.doubts(context.workdir / stage.name)):
            ask(doubts)
    return runs


@dataclasses.dataclass
class _Work:
    """A run of some stages, and its progress.

    Attributes:
        schema: of the config.
        whole: stages whose files were compared with their digests, or made by this run.
        fresh: stages that are up to date -> the fingerprints of their outputs.
        unready: other stages -> their state, in words.
    """

    context: Context
    schema: type | None
    whole: set[str]
    fresh: dict[str, str] = dataclasses.field(default_factory=dict)
    unready: dict[str, str] = dataclasses.field(default_factory=dict)

    def examine(self, stage: Stage, only: str, verify: bool) -> tuple[str | None, dict, dict]:
        """(reason, fresh, unready), after the stage's status was added to the last two.

        The reason ends the stage's line of the log; None if it does not have to run.
        """
        config, workdir = self.context.config, self.context.workdir
        status = examine_stage(stage, config, workdir, self.fresh, verify=verify)
        reason = None
        if status.state != "done":
            self.unready[stage.name] = f"{status.state}{f': {status.why}' if status.why else ''}"
            if only in ("", stage.name):
                reason = f" (again: {status.why})" if status.state == "stale" else ""
                if not status.changed:
                    self._refuse_without_inputs(stage)
        return reason, self.fresh, self.unready

    def _refuse_without_inputs(self, stage: Stage) -> None:
        """Raises Interrupted if an earlier run of a stage read one that is not up to date now."""
        with suppress(Damaged):
            manifest = read_manifest(self.context.workdir / stage.name)
            for name in manifest["inputs"] if manifest else ():
                if name in self.unready:
                    self._refuse(stage, name)

    def _refuse(self, stage: Stage, name: str) -> None:
        """Raises an error since a stage cannot read the stage `name`."""
        if name not in self.unready:
            raise LookupError(f"stage {stage.name} reads {name}, which is not a stage before it")
        raise Interrupted(
            f"stage {stage.name} needs {name}, which is {self.unready[name]}; run `ark-jax {name}` "
            "or `ark-jax run` first"
        )

    def _check_files(self, stage: Stage, name: str) -> None:
        """Raises Interrupted if the stage `name`, which is read for the first time, is damaged."""
        folder = self.context.workdir / name
        manifest = None if name in self.whole else finished_manifest(folder)
        if manifest and (reason := damage(manifest, folder, verify=True)):
            raise Interrupted(
                f"stage {stage.name} reads {name}, but {reason}: run the same command again, "
                f"which makes {name} again"
            )
        self.whole.add(name)

    def change_finder(self, stage: Stage) -> Callable[[Record], str]:
        """A function of a record that says which of its reads has changed; see `reads.change`."""
        config, fresh = self.context.config, self.fresh
        return lambda record: change(record, stage.arguments, config, fresh)

    def obtain(self, stage: Stage) -> str:
        """Takes a stage from the store and returns the fingerprint of its outputs.

        If the store lacks it, the stage is made there. Its progress is stored there too, so that
        any run can go on where another was killed.
        """
        shared = self.context.store
        assert shared is not None
        with ExitStack() as stack:

            def find_or_claim() -> tuple[str, str]:
                """(finished folder, ""), or ("", folder to work in)."""
                found, partial = store.find(shared, stage.name, self.change_finder(stage), stack)
                return str(found or ""), str(partial or "")

            found, partial = distributed.on_first_process(find_or_claim)
            if found:
                say(f"  made already, taken from {found}")
                self.context.metrics.write(stage.name, taken=Path(found).name)
            else:
                place = lambda record: store.place(shared, stage.name, record)
                found = self._run_stage(stage, Path(partial), place)
            return distributed.on_first_process(lambda: self._link_stored(stage, Path(found)))

    def _link_stored(self, stage: Stage, stored: Path) -> str:
        """Links a stored stage into the workdir; returns the fingerprint of its outputs."""
        partial, final = self._partial_folder(stage), self.context.workdir / stage.name
        store.link(stored, partial)
        _put_into_place(partial, final)
        return fingerprint(finished_manifest(final)["outputs"])

    def execute(self, stage: Stage) -> str:
        """Runs a stage in the workdir and returns the fingerprint of its outputs."""
        final = self.context.workdir / stage.name
        self._run_stage(stage, self._partial_folder(stage), lambda record: final)
        outputs = lambda: finished_manifest(final)["outputs"]
        return distributed.on_first_process(lambda: fingerprint(outputs()))

    def _partial_folder(self, stage: Stage) -> Path:
        return self.context.workdir / ".partial" / stage.name

    def _run_stage(self, stage: Stage, partial: Path, place: Callable[[Record], Path]) -> str:
        """Runs a stage in `partial`, moves it to the folder of its reads, and returns that."""
        start = time.monotonic()

        def prepare() -> tuple[Record, dict | None]:
            """The reads so far, and the counts if the stage was finished but not moved."""
            record = begin(partial, stage.arguments, self.change_finder(stage))
            finished = read_manifest(partial)
            return record, finished and finished["counts"]

        record, counts = distributed.on_first_process(prepare)
        if counts is None:
            reads = self._new_reads(stage, record, partial)
            context = dataclasses.replace(self.context, config=reads.view(self.schema), reads=reads)
            run = functools.partial(stage.run, context, partial)
            counts = distributed.on_first_process(run) if stage.alone else run()
            # Process 0 moves the folder once every process has read what it needs there.
            for part, name in itertools.chain.from_iterable(
                distributed.gather_from_processes(reads.names())
            ):
                reads.note(part, name)
            record = reads.record
        return distributed.on_first_process(
            lambda: str(_finish(stage, self.context, record, partial, place(record), counts, start))
        )

    def _new_reads(self, stage: Stage, record: Record, partial: Path) -> Reads:
        """Continues `record` on the first process. The others start an empty one."""
        config, refuse = self.context.config, functools.partial(self._refuse, stage)
        if not distributed.is_first_process():
            return Reads(empty_record({}), config, self.fresh, refuse, None)

        def keep(read: list) -> None:
            """Stores a read; checks the files of a stage that is read."""
            keep_read(partial, read)
            if read[0] == "inputs":
                self._check_files(stage, read[1])

        return Reads(record, config, self.fresh, refuse, keep)


def _finish(
    stage: Stage,
    context: Context,
    record: Record,
    partial: Path,
    final: Path,
    counts: dict,
    start: float,
) -> Path:
    """Writes the manifest, moves the folder to `final` and reports. A kill loses nothing."""
    names = (READS, PARTS, MANIFEST_FILE, f"{MANIFEST_FILE}.new", CHECKPOINTS)
    outputs = output_digests(partial, tuple(partial / name for name in names))
    write_manifest(partial, stage.name, record, outputs, counts)
    mirror.remove_tree(partial / CHECKPOINTS)
    _put_into_place(partial, final)
    (final / READS).unlink()
    (final / PARTS).unlink(missing_ok=True)
    seconds = time.monotonic() - start
    context.metrics.write(stage.name, seconds=round(seconds, 3), **counts)
    say(f"  {_describe_counts(counts) or 'done'} ({duration(seconds)})")
    return final


def _describe_counts(counts: dict) -> str:
    """`{"chunks": 1200, "cut": 0, "first_loss": 1.25}` -> "1,200 chunks, first loss 1.25"."""
    words = []
    for name, value in counts.items():
        label = name.replace("_", " ")
        if isinstance(value, int):
            words += [f"{value:,} {label}"] if value else []
        elif not isinstance(value, dict):
            words.append(f"{label} {value:.4g}" if isinstance(value, float) else f"{label} {value}")
    return ", ".join(words)


def _put_into_place(partial: Path, final: Path) -> None:
    """Replaces `final` by the finished folder, by one rename."""
    sync(partial)
    if final.is_dir() and not final.is_symlink():
        shutil.rmtree(final)
    else:
        final.unlink(missing_ok=True)  # a file, or a link, perhaps to a folder on another disk
    os.replace(partial, final)
    sync(final.parent)


@contextmanager
def _restore_mesh() -> Iterator[None]:
    """Restores the mesh that was set before the block, if jax has been started."""
    jax = sys.modules.get("jax")
    former = jax.sharding.get_mesh() if jax else None
    try:
        yield
    finally:
        if jax := sys.modules.get("jax"):
            jax.set_mesh(former or jax.sharding.Mesh(np.empty((), object), ()))


@contextmanager
def _lock_workdir(workdir: Path) -> Iterator[None]:
    """Keeps a second run out of the workdir; it would write into the same partial folders."""
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
