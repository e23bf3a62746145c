"""`ark-jax` in the process of the tests."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from support.command_line import call_here

Tool = Callable[..., subprocess.CompletedProcess]


@pytest.fixture
def tool(tmp_path) -> Tool:
    """Runs `ark-jax WORDS`, as a shell does: -> status, standard output and standard error."""
    cache = {"ARK_CACHE": str(tmp_path / "cache")}
    return lambda *words: call_here(list(map(str, words)), Path.cwd(), cache)
