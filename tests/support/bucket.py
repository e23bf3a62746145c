"""A bucket that is a folder of this machine."""

import functools
from pathlib import Path

from etils.epath import backend, gpath


class FolderBucket(backend._OsPathBackend):
    """Serves gs:// from a local folder."""

    def __init__(self, root: Path):
        self._root = root
        for name in ["open", "exists", "isdir", "listdir", "mkdir", "makedirs", "stat", "rename"]:
            setattr(self, name, functools.partial(self._call, getattr(super(), name)))

    def _call(self, method, *args, **options):
        local = lambda arg: str(arg).replace("gs://", f"{self._root}/")
        return method(*map(local, args), **options)


def serve(root: Path, monkeypatch) -> Path:
    """Makes gs:// the folder `root`, which is returned, until the test ends."""
    monkeypatch.setitem(gpath._PREFIX_TO_BACKEND, "gs", FolderBucket(root))
    root.mkdir()
    return root
