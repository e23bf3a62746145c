"""The lock of a workdir in a bucket, where no process can hold a file."""

import contextlib
import dataclasses
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from ark_jax.runtime.log import say

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

LEASE = 30.0  # seconds that a lease holds unless it is renewed
RENEWAL = 5.0  # seconds between two renewals
POLL = 1.0  # seconds between two looks at the lease of another run


@dataclasses.dataclass
class Lease:
    """The lock of a workdir: the newest of numbered objects, which says until when it holds.

    A run takes over a lease that has run out by creating the next number, which a bucket lets one
    run do. Only that run writes the object again. Clocks of the hosts must agree to some seconds.

    Attributes:
        folder: BUCKET/FOLDER of the objects.
        reaching: the context of calls, which turns errors of the client into OSError.
    """

    file_system: "AbstractFileSystem"
    folder: str
    reaching: Callable[[], AbstractContextManager]
    number: int = 0
    until: float = 0.0

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Holds the lease in the block.

        Raises:
            RuntimeError: another run holds it.
        """
        self.take()
        try:
            with repeat(self.renew_or_exit, RENEWAL):
                yield
        finally:
            with contextlib.suppress(OSError):  # it runs out
                self.release()

    def take(self) -> None:
        """Takes the lease. That of a killed run is waited for, as it is not renewed.

        Raises:
            RuntimeError: another run renews it.
        """
        seen = None
        while True:
            newest = number, content = self._newest()
            if content.get("until", 0) <= time.time():
                self.number, seen = number + 1, None
                with contextlib.suppress(FileExistsError):  # another run was faster
                    self._write(time.time() + LEASE, mode="create")
                    return
            elif seen not in (None, newest):
                raise RuntimeError(
                    f"{self._workdir}: another run is working here ({content.get('owner')}); wait "
                    "for it or give another --workdir"
                )
            else:
                if seen is None:
                    say("  waiting whether a run that began earlier still works here")
                seen = newest
                time.sleep(POLL)

    @property
    def _workdir(self) -> str:
        """The address of the folder that the lease is of."""
        return f"gs://{self.folder.rpartition('/')[0]}"

    def _newest(self) -> tuple[int, dict]:
        """The highest number, 0 if there is none, and what its object says."""
        with self.reaching():
            names = self.file_system.find(self.folder)
            if not names:
                return 0, {}
            newest = max(names)
            try:
                return _number(newest), dict(json.loads(self.file_system.cat_file(newest)))
            except (ValueError, FileNotFoundError):
                return _number(newest), {}

    def _write(self, until: float, mode: str = "overwrite") -> None:
        """Writes this run's object."""
        content = {"owner": f"{socket.gethostname()}, process {os.getpid()}", "until": until}
        name = f"{self.folder}/{self.number:08d}"
        with self.reaching():
            self.file_system.pipe_file(name, json.dumps(content).encode(), mode=mode)
        self.until = until

    def renew_or_exit(self) -> None:
        """Renews the lease; ends the process if another run has it or it cannot be renewed."""
        try:
            if self._newest()[0] == self.number:
                self._write(time.time() + LEASE)
            else:
                self.until = 0.0
        except OSError as error:
            say(f"  warning: {error}")
        if time.time() + RENEWAL > self.until:
            self.exit()

    def check(self) -> None:
        """Ends the process if the lease has run out."""
        if time.time() > self.until:
            self.exit()

    def exit(self) -> None:
        """Ends the process, which may write no more."""
        text = "the lease of the workdir is lost, and another run may work there: this one ends"
        print(f"error: {self._workdir}: {text}", file=sys.stderr, flush=True)
        os._exit(1)

    def release(self) -> None:
        """Lets the next run take the lease at once. Older objects are deleted."""
        self._write(0.0)
        with self.reaching():
            older = [n for n in self.file_system.find(self.folder) if _number(n) < self.number]
            if older:
                self.file_system.rm(older)


def _number(name: str) -> int:
    """The number that the name of an object ends with."""
    return int(name.rpartition("/")[2])


@contextlib.contextmanager
def repeat(function: Callable[[], None], seconds: float) -> Iterator[None]:
    """Calls a function again and again in a thread, while the block runs."""
    ended = threading.Event()

    def work() -> None:
        while not ended.wait(seconds):
            function()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
