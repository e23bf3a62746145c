"""`ark-jax serve`: an index and its models behind HTTP."""

import argparse
import contextlib
import os
from pathlib import Path

from ark_jax.cli.arguments import Parser
from ark_jax.cli.environment import log_on_stderr, prepare_environment
from ark_jax.cli.run_index import of_run
from ark_jax.cli.search import check_endpoint, reader_of
from ark_jax.runtime import log

TOKEN = "ARK_SERVE_TOKEN"  # the environment variable


def serve(verb: str, args: list[str]) -> int:
    """Answers requests until SIGTERM or Ctrl-C."""
    values = parse(verb, args)
    prepare_environment()
    try:
        from ark_jax.serve import server
        from ark_jax.serve.app import make_app
    except ModuleNotFoundError as error:
        if error.name not in ("starlette", "uvicorn", "prometheus_client"):
            raise
        raise ValueError(
            f"{error.name} is not installed: install ark-jax with its extra, as in "
            "`pip install -e '.[serve]'`"
        ) from None
    token = _token(values.host)
    with log_on_stderr() as results:
        # A port that is taken is told before models are loaded.
        listener = server.bind(values.host, values.port)
        service, description = _open(values, token)
        host, port = listener.getsockname()[:2]
        address = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        with contextlib.redirect_stdout(results):
            log.show(f"{description}: {address}; Ctrl-C ends it\n")
        server.run(make_app(service), listener)
        service.work.close()
    return 0


def parse(verb: str, args: list[str]) -> argparse.Namespace:
    """The values of the verb's flags.

    Raises:
        ValueError: a flag is unknown, missing or has a bad value.
    """
    parser = Parser(verb)
    parser.add_argument("index")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=_port, default=8000)
    for name in ("model", "compare", "reranker", "reader", "endpoint"):
        parser.add_argument(f"--{name}", default="")
    values = parser.values(of_run(verb, args))
    check_endpoint(parser, values)
    return values


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is no port from 0 to 65535")
    return int(text)


def _token(host: str) -> str:
    """What requests must bear; empty for a server that only this machine reaches.

    Raises:
        ValueError: other machines reach the host, and there is no token.
    """
    from ark_jax.serve.guard import is_loopback

    token = os.environ.get(TOKEN, "")
    if not token and not is_loopback(host):
        raise ValueError(
            f"--host={host}: other machines reach this address, so requests need a token: set "
            f"${TOKEN} to a long random word, or leave --host out"
        )
    if token and (not token.isascii() or any(c.isspace() for c in token)):
        raise ValueError(f"${TOKEN} must hold ASCII characters without blanks")
    return token


def _open(values: argparse.Namespace, token: str):
    """What the flags ask for, with models that are loaded and compiled, and a line about it."""
    from ark_jax.index.index import Index
    from ark_jax.serve.open_service import open_service

    opened = Index.open(values.index, model=values.model)
    service = open_service(
        opened,
        compare=values.compare,
        reranker=values.reranker,
        reader=(lambda: reader_of(values)) if values.reader else None,
        local=not values.endpoint,
        token=token,
    )
    manifest = opened.manifest
    name = Path(values.index).name or values.index
    description = f"{name}, {manifest.documents:,} documents, {manifest.chunks:,} passages"
    return service, description
