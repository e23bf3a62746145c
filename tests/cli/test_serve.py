"""The verb serve: its flags, and what is refused before anything is loaded."""

import sys

import pytest

import ark_jax.serve
from ark_jax import __main__


@pytest.fixture(autouse=True)
def environment(mesh, monkeypatch, tmp_path):
    """What the verb would set for good."""
    for name in ("JAX_COMPILATION_CACHE_DIR", "TRANSFORMERS_VERBOSITY", "ARK_SERVE_TOKEN"):
        monkeypatch.setenv(name, "")
    monkeypatch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    monkeypatch.setenv("ARK_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "ark-jax serve needs INDEX, as in: ark-jax serve my_index"),
        (("i", "--port=70000"), "argument --port: '70000' is not a port from 0 to 65535"),
        (("i", "--port=web"), "argument --port: 'web' is not a port"),
        (("i", "--no-reranker"), "--no-reranker (did you mean --no-rerank?)"),
        (("i", "--endpoint=http://x"), "--endpoint needs --reader=NAME"),
        (("i", "--host=0.0.0.0"), "other machines reach this address, so requests need a token"),
        (("i", "--host=::"), "set $ARK_SERVE_TOKEN to a long random word"),
        (("i", "--host=localhost", "--port=0"), "i: no index; `ark-jax index MODEL CORPUS"),
        (("--workdir=w", "--port=0"), "w/index: no index; `ark-jax index MODEL CORPUS"),
    ],
)
def test_invalid_serve_arguments_are_refused(words, message, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert __main__._main(["serve", *words]) == 1
    shown = capsys.readouterr()
    assert shown.out == "" and message in shown.err and len(shown.err.splitlines()) == 1


def test_an_address_of_another_machine_is_refused_without_showing_the_token(capsys, monkeypatch):
    monkeypatch.setenv("ARK_SERVE_TOKEN", "long-random-word")
    assert __main__._main(["serve", "i", "--host=192.0.2.1"]) == 1
    error = capsys.readouterr().err
    assert "port 8000 of 192.0.2.1 cannot be used" in error and "long-random" not in error


def test_a_token_with_a_blank_is_refused(capsys, monkeypatch):
    monkeypatch.setenv("ARK_SERVE_TOKEN", "two words")
    assert __main__._main(["serve", "i", "--host=0.0.0.0"]) == 1
    assert "$ARK_SERVE_TOKEN must hold ASCII" in capsys.readouterr().err


def test_a_missing_server_package_is_reported(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.delitem(sys.modules, "ark_jax.serve.server", raising=False)
    monkeypatch.delattr(ark_jax.serve, "server", raising=False)
    assert __main__._main(["serve", "i"]) == 1
    assert "uvicorn is not installed" in capsys.readouterr().err
