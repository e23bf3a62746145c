"""Small decoders, written once."""

import functools
import subprocess
import sys

import jax
import pytest
from support import tiny
from support.decoders import FAMILY

from ark_jax.models import generate


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """`folder(kind)` -> a decoder with a tokenizer of that kind, written once."""
    return functools.cache(
        lambda kind: tiny.write(tmp_path_factory.mktemp(kind), FAMILY[kind], tokenizer=kind)
    )


@pytest.fixture
def heard(monkeypatch):
    """Name and argument shapes of each function that `Generation` calls on the device."""
    calls = []

    def hear(name: str, real) -> None:
        def run(*args):
            calls.append(
                (name, tuple(x.shape for x in jax.tree.leaves(args) if hasattr(x, "shape")))
            )
            return real(*args)

        monkeypatch.setattr(generate, name, run)

    for name in ("_prefill", "_decode", "_select"):
        hear(name, getattr(generate, name))
    return calls


@pytest.fixture(scope="session")
def old_libraries(tmp_path_factory):
    """The oldest release of sentence-transformers that is promised, with the libraries of its time,
    in a folder of their own beside today's torch.
    """
    pytest.importorskip(
        "torch", reason="the reference implementation; extra [reference] is not installed"
    )
    folder = tmp_path_factory.mktemp("old")
    libraries = (
        "sentence-transformers==5.1.*",
        "transformers==4.57.*",
        "huggingface_hub==0.36.*",
        "tokenizers==0.22.*",
        "datasets==4.0.*",
    )
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(folder)]
    subprocess.run([*pip, *libraries], check=True)
    return folder
