"""What must stand before jax or transformers start, and where results and log go."""

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import TextIO

from ark_jax.runtime import storage


def prepare_environment() -> None:
    """Sets the environment variables of libraries, where the user has not."""
    # XLA's compiled programs outlive the process, also the small ones: a stage has dozens.
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(storage.cache_folder() / "xla"))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")


@contextlib.contextmanager
def log_on_stderr() -> Iterator[TextIO]:
    """Keeps the standard output, which it gives, for results: in UTF-8 whatever the terminal."""
    results = sys.stdout
    if hasattr(results, "reconfigure"):
        results.reconfigure(encoding="utf-8")
    with contextlib.redirect_stdout(sys.stderr):
        yield results
