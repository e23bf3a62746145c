"""The process of a command: its environment and output, and what an error becomes."""

import contextlib
import errno
import os
import re
import sys
import tempfile
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from ark_jax.runtime.shown import printable

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def prepare_environment() -> None:
    """Sets variables that jax and transformers read when they start, where the user has not."""
    from ark_jax.runtime import storage

    # XLA's compiled programs outlive the process, also the small ones: a stage has dozens.
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(storage.cache_folder() / "xla"))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")


@contextlib.contextmanager
def log_on_stderr() -> Iterator[TextIO]:
    """Sends prints to stderr; gives the standard output, in UTF-8, for results alone."""
    results = sys.stdout
    if hasattr(results, "reconfigure"):
        results.reconfigure(encoding="utf-8")
    with contextlib.redirect_stdout(sys.stderr):
        yield results


def message_with_fix(error: OSError, workdir: Path, *, flag: str = "--workdir") -> str:
    """The message of a file system error, with a fix if results could not be written."""
    path = Path(error.filename or workdir)
    if error.errno in FULL:
        fix = "free some space or inodes there"
    elif error.errno == errno.EPIPE:
        fix = "keep its reader open, or let it be a file,"
    elif workdir not in (path, *path.parents):
        return str(error)
    elif error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        fix = f"make {workdir} writable or give another {flag}"
    elif error.errno in (errno.EEXIST, errno.ENOTDIR, errno.EISDIR):
        fix = f"move away what is there or give another {flag},"
    else:
        return str(error)
    return (
        f"{path}: {error.strerror or error}; {fix} and run the same command again, what is "
        "finished is kept"
    )


def save_trace(flags: list[str]) -> Path:
    """Writes the trace of the current error into the workdir, or a temporary folder."""
    named = [flag.partition("=")[2] for flag in flags if re.match("--?workdir=", flag)]
    folders = [Path(name).expanduser() for name in named[-1:]]
    folder = next((f for f in folders if f.is_dir() and os.access(f, os.W_OK)), None)
    path = (folder or Path(tempfile.mkdtemp(prefix="ark-jax-"))) / "error.txt"
    path.write_text(printable(traceback.format_exc()), encoding="utf-8", errors="replace")
    return path


def drop_output() -> None:
    """Discards all further standard output, whose reader is gone."""
    # Else Python would complain when it flushes at exit.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.__stdout__.fileno())


def is_closed_output(error: BaseException | None) -> bool:
    """Whether an error says that nobody reads the standard output any more."""
    return isinstance(error, BrokenPipeError) and error.filename == "standard output"
