"""Small decoders, written once."""

import functools

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
