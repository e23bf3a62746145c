"""A workdir in a bucket (gs://). Each process works in a local copy; the bucket holds the truth.

- A process takes the first free copy of this host in `$ARK_CACHE/workdirs`, and fetches what the
  bucket has. Stages then work as in any folder, with renames and memory maps.
- Process 0 publishes what has changed at the end of each `distributed.on_first_process`, which
  precedes every checkpoint too, and now and then. The others fetch that before they go on, so they
  may read it, as on a disk that all share.
- A stage's manifest is removed first and written last, and rows of what a stage has read precede
  its parts. So a kill at any moment leaves a bucket from which a run resumes.
- Orbax writes the shards of checkpoints from all processes to the bucket itself (`in_bucket`).
- The lock is a `Lease`.
"""

import contextlib
import dataclasses
import fcntl
import hashlib
import itertools
import json
import os
import shutil
import threading
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO, TYPE_CHECKING

from etils import epath

from ark_jax.runtime import distributed, preemption, storage
from ark_jax.runtime.lease import Lease, repeat
from ark_jax.runtime.log import say

INDEX = ".bucket.json"  # of a copy: which generation of each object a file holds
LEASES = ".lease"
INCOMING = ".incoming"  # what is being fetched
CHECKPOINTS = "checkpoints"  # folders of Orbax, which are in the bucket alone
MANIFEST = "manifest.json"  # of a finished stage
PUBLISHING = 30.0  # seconds after which unfinished work is published, at the latest

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

_mirrors: dict[Path, "Mirror"] = {}  # of this process, by folder


def open_workdir(address: str) -> Path:
    """The local copy of a workdir in a bucket, as the bucket is now.

    Raises:
        ValueError: it is not the address of a folder in a bucket of Google Cloud Storage.
        RuntimeError: gcsfs is not installed.
        OSError: this machine may not read the bucket.
    """
    scheme, _, root = address.rstrip("/").partition("://")
    if scheme != "gs" or "/" not in root:
        raise ValueError(
            f"{address}: a workdir lies on a file system or in a folder of a bucket of Google "
            "Cloud Storage, as in gs://BUCKET/FOLDER"
        )
    copies = storage.cache_folder() / "workdirs" / hashlib.sha256(root.encode()).hexdigest()[:16]
    mirror = next((mirror for mirror in _mirrors.values() if mirror.root == root), None)
    if mirror is None:
        mirror = Mirror(_file_system(), root, *_free_copy(copies))
        _mirrors[mirror.folder] = mirror
    mirror.fetch()
    return mirror.folder


def _free_copy(copies: Path) -> tuple[Path, IO]:
    """The first folder that no other process of this host works in, and its lock."""
    for number in itertools.count():
        folder = copies / str(number)
        folder.mkdir(parents=True, exist_ok=True)
        lock = (copies / f"{number}.lock").open("w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return folder, lock
        except BlockingIOError:
            lock.close()


def _file_system() -> "AbstractFileSystem":
    """fsspec's client of Google Cloud Storage, which asks the bucket at every call."""
    import fsspec

    # Other processes write there too. Orbax's client, of etils, is the same one.
    fsspec.config.conf.setdefault("gcs", {})["use_listings_cache"] = False
    try:
        return fsspec.filesystem("gs", finalize_on_close=True)
    except ImportError:
        install = "pip install 'ark-jax[gcs]'"
        raise RuntimeError(f"a workdir in a bucket needs gcsfs: {install}") from None


def _mirror_of(path: Path) -> "Mirror | None":
    """The mirror that a path lies in, if it lies in one."""
    return next((_mirrors[folder] for folder in (path, *path.parents) if folder in _mirrors), None)


def address(path: Path) -> str:
    """What users know a path by: its address in the bucket, or the path."""
    mirror = _mirror_of(path)
    return mirror.address(path) if mirror else str(path)


def in_bucket(path: Path) -> Path | epath.Path:
    """The place of a path in the bucket, for what all processes write; else the path."""
    return epath.Path(address(path)) if _mirror_of(path) else path


def remove_tree(folder: Path) -> None:
    """Deletes a folder of a workdir, and its checkpoints once all other changes are published."""
    if mirror := _mirror_of(folder):
        mirror.publish()
        mirror.remove_checkpoints(folder)
    if folder.exists():
        shutil.rmtree(folder)


def rename(source: Path, target: Path) -> None:
    """Renames a folder of a workdir, with its checkpoints."""
    os.replace(source, target)
    if mirror := _mirror_of(source):
        mirror.rename_checkpoints(source, target)


@contextlib.contextmanager
def hold(workdir: Path) -> Iterator[None]:
    """Keeps other runs out of a workdir in a bucket, and publishes what the block writes there.

    Every process must enter it. A folder that is in no bucket needs nothing.

    Raises:
        RuntimeError: another run works there.
    """
    mirror = _mirror_of(workdir)
    if mirror is None:
        yield
        return
    with contextlib.ExitStack() as stack:
        distributed.on_first_process(lambda: stack.enter_context(mirror.leased()))
        mirror.fetch()  # nobody else writes now
        distributed.gather_from_processes(None)  # all have fetched, before process 0 writes
        if distributed.is_first_process():
            stack.enter_context(mirror.publishing())
        stack.enter_context(distributed.share_files(mirror.take_changes, mirror.apply_changes))
        yield


@dataclasses.dataclass
class Mirror:
    """A local copy of a folder in a bucket.

    Attributes:
        root: BUCKET/FOLDER.
        folder: the copy.
        lock: an open file, by whose lock no other process takes this copy.
        index: name of a file -> [generation of the object, size and mtime_ns of the file] when the
            two were the same.
        changes: what the other processes have not fetched: name -> [generation], with the name and
            generation that it had before if it was renamed; None if it was removed.
    """

    file_system: "AbstractFileSystem"
    root: str
    folder: Path
    lock: IO
    index: dict[str, list] = dataclasses.field(default_factory=dict)
    changes: dict[str, list[str] | None] = dataclasses.field(default_factory=dict)
    lease: Lease | None = None
    guard: AbstractContextManager = dataclasses.field(default_factory=threading.RLock)

    def __post_init__(self):
        with contextlib.suppress(OSError, ValueError):
            self.index = dict(json.loads((self.folder / INDEX).read_text()))

    def address(self, path: Path) -> str:
        """The address of a path of the copy."""
        return f"gs://{self.root}/{path.relative_to(self.folder).as_posix()}".removesuffix("/.")

    @contextlib.contextmanager
    def reaching(self) -> Iterator[None]:
        """Turns errors of the client into an OSError that names the bucket.

        Except FileExistsError, which is an answer.
        """
        try:
            yield
        except FileExistsError:
            raise
        except Exception as error:  # gcsfs has errors of several kinds
            reason = " ".join(str(error).split())[:300] or type(error).__name__
            raise OSError(
                f"gs://{self.root} cannot be read or written ({reason}): check the address, the "
                "network and what this machine may do there, then run the same command again to "
                "go on"
            ) from error

    def fetch(self) -> None:
        """Makes the copy equal to the bucket."""
        with self.guard, self.reaching():
            generations = self._generations()
            present = self._files()
            kept = {name: [generations.get(name), *stat] for name, stat in present.items()}
            for name in present:
                if name not in generations:
                    self._delete(name)
            self._download(
                {
                    name: generation
                    for name, generation in generations.items()
                    if name not in kept or kept[name] != self.index.get(name)
                }
            )
            self.index = {name: self.index[name] for name in generations}
            self._save_index()

    def _generations(self) -> dict[str, str]:
        """name -> generation of the bucket's objects, except checkpoints and leases."""
        objects = self.file_system.find(self.root, detail=True)
        names = {path.removeprefix(f"{self.root}/"): info for path, info in objects.items()}
        return {
            name: str(info["generation"])
            for name, info in names.items()
            if not _is_left_out(name) and not name.endswith("/")
        }

    def _files(self) -> dict[str, list]:
        """name -> [size, mtime_ns] of the copy's files that belong into the bucket."""
        files = {}
        for parent, folders, names in os.walk(self.folder):
            folders[:] = [name for name in folders if name != CHECKPOINTS]
            for name in names:
                path = Path(parent, name)
                relative = path.relative_to(self.folder).as_posix()
                if _is_left_out(relative):
                    continue
                with contextlib.suppress(FileNotFoundError):  # renamed meanwhile
                    stat = path.stat()
                    files[relative] = [stat.st_size, stat.st_mtime_ns]
        return files

    def _delete(self, name: str) -> None:
        """Deletes a file of the copy, and folders that are empty then."""
        path = self.folder / name
        path.unlink(missing_ok=True)
        self.index.pop(name, None)
        with contextlib.suppress(OSError):  # not empty
            while (path := path.parent) != self.folder:
                path.rmdir()

    def _download(self, generations: dict[str, str]) -> None:
        """Fetches files, each of which is replaced in one move, and notes them in the index."""
        incoming = self.folder / INCOMING
        shutil.rmtree(incoming, ignore_errors=True)
        names = sorted(generations)
        new = [incoming / str(number) for number in range(len(names))]
        incoming.mkdir()
        if names:
            self.file_system.get([f"{self.root}/{name}" for name in names], list(map(str, new)))
        for name, path in zip(names, new, strict=True):
            target = self.folder / name
            if not target.resolve().is_relative_to(self.folder.resolve()):
                raise ValueError(f"{name}: its name leads out of the workdir; rename it")
            target.parent.mkdir(parents=True, exist_ok=True)
            os.replace(path, target)
            stat = target.stat()
            self.index[name] = [generations[name], stat.st_size, stat.st_mtime_ns]
        incoming.rmdir()

    def publish(self) -> None:
        """Makes the bucket equal to the copy; see the module on the order."""
        with self.guard, self.reaching():
            if self.lease:
                self.lease.check()
            files = self._files()
            changed = [name for name in files if self.index.get(name, [0])[1:] != files[name]]
            removed = [name for name in self.index if name not in files]
            # A finished stage is renamed, which changes neither size nor time of its files.
            gone = {(Path(name).name, *self.index[name][1:]): name for name in removed}
            origins = {
                name: old for name in changed if (old := gone.get((Path(name).name, *files[name])))
            }
            withdrawn = {*filter(_is_manifest, (*changed, *removed))} - {*origins.values()}
            self._remove(withdrawn)
            order = lambda name: (_is_manifest(name), not name.endswith(".jsonl"))
            sent = []
            for _, names in itertools.groupby(sorted(changed, key=order), order):
                sent += self._send(list(names), origins)
            if sent:
                generations = self._generations()
                for name in sent:
                    old = [origins[name], self.index[origins[name]][0]] if name in origins else []
                    self.changes[name] = [generations[name], *old]
                    self.index[name] = [generations[name], *files[name]]
            self._remove(removed)
            if sent or removed:
                self._save_index()

    def _send(self, names: list[str], origins: dict[str, str]) -> list[str]:
        """Writes files to the bucket, or copies them there; returns those that were not renamed.

        Args:
            origins: the objects of files that have been renamed, by their new names.
        """
        for name in names:
            self.index.setdefault(name, [""])  # so that it is deleted again, if it is renamed
        moved = [name for name in names if name in origins]
        new = [name for name in names if name not in origins]
        places = lambda names: [f"{self.root}/{name}" for name in names]
        if moved:
            self.file_system.copy(places(origins[name] for name in moved), places(moved))
        try:
            if new:
                self.file_system.put([str(self.folder / name) for name in new], places(new))
        except FileNotFoundError:  # renamed meanwhile; the next round writes it
            return moved
        return names

    def _remove(self, names: Iterable[str]) -> None:
        """Deletes objects that the index has."""
        names = [name for name in names if name in self.index]
        if names:
            with contextlib.suppress(FileNotFoundError):
                self.file_system.rm([f"{self.root}/{name}" for name in names])
        for name in names:
            del self.index[name]
            self.changes[name] = None

    def _save_index(self) -> None:
        """Writes the index; a kill leaves the old one or the new one."""
        new = self.folder / f"{INDEX}.new"
        new.write_text(json.dumps(self.index))
        new.replace(self.folder / INDEX)

    def take_changes(self) -> dict[str, list[str] | None]:
        """Publishes, and returns what the other processes have not fetched."""
        with self.guard:
            self.publish()
            changes, self.changes = self.changes, {}
            return changes

    def apply_changes(self, changes: dict[str, list[str] | None]) -> None:
        """Fetches what process 0 has published."""
        missing = {}
        with self.guard, self.reaching():
            for name, change in changes.items():
                generation, *before = change or [""]
                if before and self.index.get(before[0], [""])[0] == before[1]:
                    (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
                    os.replace(self.folder / before[0], self.folder / name)
                    self.index[name] = [generation, *self.index[before[0]][1:]]
                elif change:
                    missing[name] = generation
            for name in changes:
                if changes[name] is None:
                    self._delete(name)
            self._download(missing)
            self._save_index()

    @contextlib.contextmanager
    def publishing(self) -> Iterator[None]:
        """Publishes every `PUBLISHING` seconds in the block, and at its end."""
        try:
            with repeat(self._publish_or_warn, PUBLISHING):
                yield
        finally:
            with preemption.defer_signals():
                self.publish()

    def _publish_or_warn(self) -> None:
        """Publishes; a failure is logged, and the next round repairs it."""
        try:
            self.publish()
        except OSError as error:
            say(f"  warning: {error}")

    def _checkpoints(self, folder: Path) -> list[str]:
        """The objects of checkpoints below a folder of the copy."""
        objects = self.file_system.find(self.address(folder))
        return [name for name in objects if CHECKPOINTS in name.split("/")[:-1]]

    def remove_checkpoints(self, folder: Path) -> None:
        """Deletes the checkpoints below a folder from the bucket."""
        with self.reaching():
            if objects := self._checkpoints(folder):
                self.file_system.rm(objects)

    def rename_checkpoints(self, source: Path, target: Path) -> None:
        """Moves the checkpoints of a folder in the bucket."""
        old, new = (self.address(path).removeprefix("gs://") for path in (source, target))
        with self.reaching():
            for name in self._checkpoints(source):
                self.file_system.cp_file(name, new + name.removeprefix(old))
                self.file_system.rm_file(name)

    @contextlib.contextmanager
    def leased(self) -> Iterator[None]:
        """Holds the lease of the workdir in the block, and ends the process if it is lost.

        Raises:
            RuntimeError: another run holds it.
        """
        self.lease = Lease(self.file_system, f"{self.root}/{LEASES}", self.reaching)
        try:
            with self.lease.held():
                yield
        finally:
            self.lease = None


def _is_manifest(name: str) -> bool:
    """Whether a file says that a stage is finished."""
    return name.rpartition("/")[2] == MANIFEST


def _is_left_out(name: str) -> bool:
    """Whether a file is of this host alone, unfinished, or Orbax's."""
    parts = name.split("/")
    return (
        parts[0] in (INDEX, LEASES, INCOMING)
        or CHECKPOINTS in parts[:-1]
        or name.endswith((".lock", ".new"))
    )
