"""The command line in the test's own process: a process of its own takes seconds to import jax.

Bytes are those of a process with eight devices, whose threads round otherwise than a user's.
"""

import contextlib
import io
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import jax
import pytest

from ark_jax import __main__
from ark_jax.pipeline import fingerprints


def call_here(
    words: list[str], folder: Path, environment: Mapping[str, str]
) -> subprocess.CompletedProcess:
    """What `ark-jax WORDS` does and says in this folder with these variables."""
    said, errors = io.StringIO(), io.StringIO()
    # jax has been imported: what is compiled is kept in this process, and in no folder.
    kept = {"JAX_COMPILATION_CACHE_DIR": "", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.redirect_stdout(said),
        contextlib.redirect_stderr(errors),
    ):
        patch.chdir(folder)
        patch.setattr(sys, "argv", ["ark-jax", *words])  # where ml_collections looks
        patch.setattr(sys, "path", list(sys.path))
        for name, value in {"TRANSFORMERS_VERBOSITY": "error", **environment, **kept}.items():
            patch.setenv(name, value)
        mesh = jax.sharding.get_mesh()
        fingerprints.input_digest.cache_clear()
        fingerprints.model_digest.cache_clear()  # another process would read the files again
        try:
            status = __main__._main(words)
        finally:
            jax.set_mesh(mesh)
    return subprocess.CompletedProcess(words, status, said.getvalue(), errors.getvalue())
