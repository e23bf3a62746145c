"""Stages, manifests, resume: what is done, what is stale and why, and nothing half-written.

A stage is a function that fills a folder. It works in `.partial/NAME`, where it may keep its own progress;
the finished folder is renamed into place with a `manifest.json`, so a stage is there whole or not at all.
Of several processes the first decides what is to be done, and it alone writes.
"""

import dataclasses
import errno
import fcntl
import functools
import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from ark_jax import __version__, hosts, share
from ark_jax.log import Metrics, duration, say

MANIFEST = "manifest.json"
BEGUN = "inputs.json"  # by what settings a stage that is not finished was begun
CHECKPOINTS = "checkpoints"  # what a stage needs no more when it is finished


class Interrupted(RuntimeError):
    """A stage cannot run yet; the message says what to do first."""


@dataclasses.dataclass(frozen=True)
class Stage:
    """One step of the pipeline.

    `run(context, folder)` fills `folder` and returns counts for the manifest. `settings` are the dotted
    config fields that decide its output, `external(config)` fingerprints what lies outside the workdir.
    Of several processes each runs it, to use its devices, and the first writes; `alone`, the first runs it for all.
    """

    name: str
    after: tuple[str, ...]
    settings: tuple[str, ...]
    run: Callable[["Context", Path], dict]
    external: Callable[[object], dict] = lambda config: {}
    alone: bool = False


@dataclasses.dataclass
class Context:
    """What a running stage sees: the config, the workdir, and models already in memory.

    `store` is where runs share finished stages (`share`), if they do.
    """

    config: object
    workdir: Path
    metrics: Metrics
    store: Path | None = None
    models: dict = dataclasses.field(default_factory=dict)

    def __truediv__(self, stage: str) -> Path:
        """The folder of a finished stage."""
        return self.workdir / stage


@dataclasses.dataclass(frozen=True)
class Status:
    stage: str
    state: str  # done | stale | missing
    why: str = ""


def setting(config, field: str):
    """`setting(c, "train.epochs.0")` -> `c.train.epochs[0]`, as plain JSON values."""
    value = config
    for part in field.split("."):
        value = value[int(part) if isinstance(value, (tuple, list)) else part]
    return json.loads(json.dumps(value.to_dict() if hasattr(value, "to_dict") else value, default=list))


def fingerprint(value) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def examine(stages: Sequence[Stage], config, workdir: Path) -> Iterator[Status]:
    """Where each stage stands, in order; a stage after a stale one is stale too."""
    fresh: dict[str, str] = {}
    for stage in stages:
        yield _examine(stage, config, workdir, fresh)


def _examine(stage: Stage, config, workdir: Path, fresh: dict[str, str]) -> Status:
    """`fresh` maps stages that are up to date to the fingerprints of their outputs; a done stage is added."""
    manifest = read_manifest(workdir / stage.name)
    if manifest is None:
        begun = (workdir / ".partial" / stage.name).is_dir()
        return Status(stage.name, "missing", "begun, will go on where it stopped" if begun else "")
    late = [name for name in stage.after if name not in fresh]
    if late:
        return Status(stage.name, "stale", f"{late[0]} has to run first")
    why = _difference(manifest, _inputs(stage, config, fresh), workdir / stage.name)
    if why:
        return Status(stage.name, "stale", why)
    fresh[stage.name] = fingerprint(manifest["outputs"])
    return Status(stage.name, "done")


def read_manifest(folder: Path) -> dict | None:
    try:
        return json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValueError as error:
        raise ValueError(f"{folder / MANIFEST} is damaged ({error}); delete {folder}, and the stage is made again") from None


def _inputs(stage: Stage, config, fresh: dict[str, str]) -> dict:
    """Everything that decides a stage's output."""
    return {"inputs": {name: fresh[name] for name in stage.after},
            "config": {field: setting(config, field) for field in stage.settings},
            "external": stage.external(config), "version": __version__}


def _difference(manifest: dict, now: dict, folder: Path) -> str:
    """Why a finished stage no longer fits, in words; empty if it does."""
    for field, value in now["config"].items():
        if field not in manifest["config"]:
            return f"config.{field} is new"
        if manifest["config"][field] != value:
            return f"config.{field} was {manifest['config'][field]}, is {value}"
    if manifest["inputs"].keys() != now["inputs"].keys():
        return f"was made from {', '.join(manifest['inputs'])}, is from {', '.join(now['inputs'])}"
    for kind in ("inputs", "external"):
        for name, value in now[kind].items():
            if manifest[kind].get(name) != value:
                return f"{name} changed"
    if manifest["version"] != now["version"]:
        return f"made by ark_jax {manifest['version']}"
    for name, (size, _) in manifest["outputs"].items():
        path = folder / name
        if not path.is_file() or path.stat().st_size != size:
            return f"{name} is {'damaged' if path.is_file() else 'missing'}"
    return ""


def run(stages: Sequence[Stage], context: Context, *, only: str = "") -> None:
    """Brings every stage up to date, or just the one named `only`, whose inputs must be."""
    built_on = {name for stage in stages for name in stage.after}
    with ExitStack() as stack:
        hosts.first(lambda: stack.enter_context(_locked(context.workdir)))
        if context.store:
            hosts.first(lambda: share.share_replies(context.store, context.workdir))
        fresh: dict[str, str] = {}
        began = time.monotonic()
        worked = 0

        def due(stage: Stage) -> str | None:
            """What is said of a stage that has to run."""
            status = _examine(stage, context.config, context.workdir, fresh)
            if status.state == "done" or only not in ("", stage.name):
                return None
            late = [name for name in stage.after if name not in fresh]
            if late:
                raise Interrupted(f"stage {stage.name} needs {late[0]}, which is not up to date: "
                                  f"run `ark-jax {late[0]}` or `ark-jax run` first")
            return f" (again: {status.why})" if status.state == "stale" else ""

        for number, stage in enumerate(stages, 1):
            again = hosts.first(functools.partial(due, stage))
            if again is not None:
                say(f"[{number}/{len(stages)}] {stage.name}{again}")
                inputs = hosts.first(functools.partial(_inputs, stage, context.config, fresh))
                # What nothing builds on, the report, tells of this run: it is never another's.
                bring = _obtain if context.store and stage.name in built_on else _execute
                fresh[stage.name] = bring(stage, context, inputs, context.workdir / stage.name)
                worked += 1
            if stage.name == only:
                break
        if worked:
            say(f"done in {duration(time.monotonic() - began)}")
        else:
            say(f"{only or 'all stages'}: up to date in {context.workdir}, nothing to do")


def _obtain(stage: Stage, context: Context, inputs: dict, final: Path) -> str:
    """Takes one stage from the store and returns the fingerprint of its outputs. What the store lacks is made there,
    also in part, so that any run goes on where another was killed."""
    key = f"{stage.name}-{fingerprint(inputs)[:32]}"
    stored = context.store / key
    with ExitStack() as stack:
        def lacks() -> bool:
            stack.enter_context(share.claim(context.store, key))
            manifest = read_manifest(stored)
            return manifest is None or bool(_difference(manifest, inputs, stored))

        def take() -> str:
            share.link(stored, context.workdir / ".partial" / stage.name)
            _settle(context.workdir / ".partial" / stage.name, final)
            return fingerprint(read_manifest(final)["outputs"])

        if hosts.first(lacks):
            _execute(stage, context, inputs, stored)
        else:
            say(f"  made already, taken from {stored}")
            context.metrics.write(stage.name, taken=key)
        return hosts.first(take)


def _execute(stage: Stage, context: Context, inputs: dict, final: Path) -> str:
    """Runs one stage into the folder `final` and returns the fingerprint of its outputs."""
    partial, start = final.parent / ".partial" / final.name, time.monotonic()
    counts = hosts.first(lambda: _begin(inputs, partial))
    if counts is None:
        run = functools.partial(stage.run, context, partial)
        counts = hosts.first(run) if stage.alone else run()
    return hosts.first(lambda: _finish(stage, context, inputs, partial, final, counts, start))


def _begin(inputs: dict, partial: Path) -> dict | None:
    """Makes the folder ready; what was counted, if a kill left nothing to do but to put it into its place."""
    begun = partial / BEGUN
    if partial.exists() and (not begun.is_file() or begun.read_text() != fingerprint(inputs)):
        shutil.rmtree(partial)  # begun under other settings
    partial.mkdir(parents=True, exist_ok=True)
    begun.write_text(fingerprint(inputs))
    manifest = read_manifest(partial)
    return manifest and manifest["counts"]


def _finish(stage: Stage, context: Context, inputs: dict, partial: Path, final: Path, counts: dict, start: float) -> str:
    """Puts the folder into its place, with its manifest. A kill at any moment costs nothing of what was made."""
    new = partial / f"{MANIFEST}.new"
    ours = (partial / BEGUN, partial / MANIFEST, new)
    files = sorted(path for path in partial.rglob("*")
                   if path.is_file() and path not in ours and not path.is_relative_to(partial / CHECKPOINTS))
    outputs = {path.relative_to(partial).as_posix(): [path.stat().st_size, file_digest(path)] for path in files}
    for path in files:
        _sync(path)
    manifest = {"stage": stage.name, **inputs, "outputs": outputs, "counts": counts}
    new.write_text(json.dumps(manifest, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    _sync(new)
    os.replace(new, partial / MANIFEST)
    if (partial / CHECKPOINTS).is_dir():
        shutil.rmtree(partial / CHECKPOINTS)
    _settle(partial, final)
    (final / BEGUN).unlink()
    seconds = time.monotonic() - start
    context.metrics.write(stage.name, seconds=round(seconds, 3), **counts)
    tell = lambda x: f"{x:,}" if isinstance(x, int) else f"{x:.4g}" if isinstance(x, float) else x
    told = ", ".join(f"{tell(x)} {name}" if isinstance(x, int) else f"{name} {tell(x)}"
                     for name, x in ((name.replace("_", " "), x) for name, x in counts.items()) if not isinstance(x, dict))
    say(f"  {told} ({duration(seconds)})")
    return fingerprint(outputs)


def _settle(partial: Path, final: Path) -> None:
    """The finished folder takes its place at once."""
    _sync(partial)
    if final.exists():
        shutil.rmtree(final)
    os.replace(partial, final)
    _sync(final.parent)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


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
            raise Interrupted(f"{workdir}: another run is working here; wait for it or give another --workdir") from None
        yield
