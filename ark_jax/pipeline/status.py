"""The status of stages: which are done, which are stale and why."""

import dataclasses
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path

from ark_jax.pipeline.fingerprints import fingerprint
from ark_jax.pipeline.manifest import Damaged, damage, read_manifest, read_so_far, refuse_earlier
from ark_jax.pipeline.reads import change, changed_settings
from ark_jax.pipeline.stage import Stage
from ark_jax.runtime.log import duration, read_journal


@dataclasses.dataclass(frozen=True)
class Status:
    """The status of a stage.

    Attributes:
        state: done, stale, missing or, of `watch` alone, running.
        why: the reason in words.
        changed: whether it is finished and undamaged, but was made with other settings or inputs.
    """

    stage: str
    state: str
    why: str = ""
    changed: bool = False


def examine(
    stages: Sequence[Stage], config, workdir: Path, *, verify: Collection[str] = ()
) -> Iterator[Status]:
    """The status of each stage, in order. A stage that reads a stale one is stale too.

    Args:
        verify: stages whose files are compared by digest; those of the others by size.

    Raises:
        ValueError: the workdir is that of an earlier version.
    """
    refuse_earlier(workdir)
    fresh: dict[str, str] = {}
    for stage in stages:
        yield examine_stage(stage, config, workdir, fresh, verify=stage.name in verify)


def watch(
    stages: Sequence[Stage],
    config,
    workdir: Path,
    *,
    verify: Collection[str] = (),
    journal: tuple[bool, list[dict]] | None = None,
) -> Iterator[Status]:
    """As `examine`; the stage that a run works on now is running, and says what is left.

    Args:
        journal: as `read_journal` returns it; None: it is read.
    """
    current, progress = current_stage(*(journal or read_journal(workdir)))
    for status in examine(stages, config, workdir, verify=verify):
        is_now = status.stage == current and status.state != "done"
        yield dataclasses.replace(status, state="running", why=progress) if is_now else status


def current_stage(is_running: bool, rows: Iterable[dict]) -> tuple[str, str]:
    """The stage that a run works on now, and its progress: "step 4 of 60, 3m05s left".

    Both are empty if no run works. Arguments are as `read_journal` returns them.
    """
    stage, progress = "", ""
    for row in rows if is_running else ():
        if "stage" in row:
            stage, progress = row["stage"], ""
        elif "counts" in row:
            count, total, unit = row["counts"]
            progress = f"{unit} {count:,} of {total:,}"
            if row["seconds_left"] is not None:
                seconds = row["seconds_left"] - (time.time() - row["time"])
                progress += f", {duration(max(seconds, 0))} left"
    return stage, progress


def examine_stage(
    stage: Stage, config, workdir: Path, fresh: dict[str, str], *, verify: bool
) -> Status:
    """The status of one stage. A done stage enters `fresh` with its outputs' fingerprint."""
    try:
        manifest = read_manifest(workdir / stage.name)
    except Damaged as error:
        return Status(stage.name, "stale", error.why)
    if manifest is None:
        begun = (workdir / ".partial" / stage.name).is_dir()
        return Status(stage.name, "missing", "begun, will go on where it stopped" if begun else "")
    pending = [name for name in manifest["inputs"] if name not in fresh]
    if pending:
        changed = changed_settings(manifest, stage.arguments, config)
        reason = changed or f"{pending[0]} has to run first"
        return Status(stage.name, "stale", reason, bool(changed))
    is_damaged = damage(manifest, workdir / stage.name, verify=verify)
    if reason := change(manifest, stage.arguments, config, fresh) or is_damaged:
        return Status(stage.name, "stale", reason, not is_damaged)
    fresh[stage.name] = fingerprint(manifest["outputs"])
    return Status(stage.name, "done")


def stages_to_verify(
    stages: Sequence[Stage], config, workdir: Path, *, only: str = ""
) -> frozenset[str]:
    """Finished stages that a run will read, or may read if its reads are not known.

    A damaged one among them has to run again, and reads earlier stages in turn.

    Args:
        only: the stage that runs; empty if all do.
    """
    verified: frozenset[str] = frozenset()
    while True:
        statuses = examine(stages, config, workdir, verify=verified)
        due = {status.stage for status in statuses if status.state != "done"}
        running = due & {only} if only else due
        read = _stages_read_by(running, stages, workdir)
        if read - due <= verified:
            return verified
        verified |= read - due


def _stages_read_by(running: Collection[str], stages: Sequence[Stage], workdir: Path) -> set[str]:
    """The stages that `running` read before; all stages before one whose reads are not known."""
    names, read = [stage.name for stage in stages], set()
    for place, name in enumerate(names):
        if name in running:
            known = _recorded_inputs(workdir, name)
            read |= {*names[:place]} if known is None else known & {*names}
    return read


def _recorded_inputs(workdir: Path, name: str) -> set[str] | None:
    """The stages that a stage read when it ran; None if that is not known."""
    try:
        records = [read_manifest(workdir / name), read_so_far(workdir / ".partial" / name)]
    except Damaged:
        return None
    known = [{*record["inputs"]} for record in records if record]
    return set.union(*known) if known else None
