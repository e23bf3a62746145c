"""Whether a process has ended. One that has ended stays listed until its parent asks: a zombie."""

import time
from pathlib import Path

SECONDS = 20  # for a busy machine; what a test waits for takes tenths of one


def _living() -> dict[int, int]:
    """The group of each process that is no zombie."""
    groups = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, group = path.read_text().rpartition(")")[2].split()[:3]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if state not in "ZX":
            groups[int(path.parent.name)] = int(group)
    return groups


def wait_until_gone(process: int) -> None:
    deadline = time.monotonic() + SECONDS
    while process in _living():
        assert time.monotonic() < deadline, f"process {process} still runs"
        time.sleep(0.02)


def wait_until_group_is_gone(group: int) -> None:
    deadline = time.monotonic() + SECONDS
    while left := [process for process, its in _living().items() if its == group]:
        assert time.monotonic() < deadline, f"processes {left} still run"
        time.sleep(0.02)
