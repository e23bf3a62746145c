"""Where stages stand: which are done, which are stale and why."""

import dataclasses
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from ark_jax.pipeline.fingerprints import fingerprint
from ark_jax.pipeline.manifest import (
    Damaged,
    changed_settings,
    damage,
    difference,
    inputs_of,
    read_manifest,
    settings_of,
)
from ark_jax.pipeline.stage import Stage


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
        yield examine_stage(stage, config, workdir, fresh, verify=stage.name in verify)


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
