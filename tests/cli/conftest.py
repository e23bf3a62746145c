"""`ark-jax` in the process of the tests: a process of its own takes seconds to start."""

import subprocess
import sys
from collections.abc import Callable

import pytest

from ark_jax import __main__
from ark_jax.pipeline import fingerprints

Tool = Callable[..., subprocess.CompletedProcess]


@pytest.fixture
def tool(monkeypatch, capsys, tmp_path) -> Tool:
    """Runs `ark-jax WORDS`, as a shell does: -> status, standard output and standard error."""
    for name in ("JAX_COMPILATION_CACHE_DIR", "TRANSFORMERS_VERBOSITY"):
        monkeypatch.setenv(name, "")  # which the tool would set for good
    monkeypatch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    monkeypatch.setenv("ARK_CACHE", str(tmp_path / "cache"))

    def run(*words: object) -> subprocess.CompletedProcess:
        words = list(map(str, words))
        monkeypatch.setattr(sys, "argv", ["ark-jax", *words])  # ml_collections looks there
        # A process knows what it has read. Another one reads it again.
        for digest in (fingerprints.input_digest, fingerprints.model_digest):
            digest.cache_clear()
        status = __main__._main(words)
        return subprocess.CompletedProcess(words, status, *capsys.readouterr())

    return run
