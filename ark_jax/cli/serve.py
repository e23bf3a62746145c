"""`ark-jax serve`: an index and its models behind HTTP."""

import contextlib
import os
from pathlib import Path

from ark_jax.cli.flags import flag
from ark_jax.cli.process import log_on_stderr, prepare_environment
from ark_jax.cli.search import IndexFlags
from ark_jax.runtime import log

TOKEN = "ARK_SERVE_TOKEN"  # the environment variable


def _read_port(text: str) -> int:
    """The port that a flag gives. Raises ValueError if there is no such port."""
    if not text.isdecimal() or int(text) > 65535:
        raise ValueError(f"{text!r} is not a port from 0 to 65535")
    return int(text)


class Serve(IndexFlags):
    """Answers requests until SIGTERM or Ctrl-C."""

    port: int = flag("--port=N", "0: any that is free", 8000, read=_read_port)
    host: str = flag(
        "--host=ADDRESS",
        f"default: only this machine reaches it; with another, requests need the token in ${TOKEN}",
        "127.0.0.1",
    )
    compare: str = flag(
        "--compare=MODEL",
        "another model, such as the one before tuning, for the page and /search",
        "",
    )

    example = "ark-jax serve my_index --port=8000"
    remarks = (
        "http://localhost:8000 is the page. Programs use /v1/embeddings as OpenAI's, /embed and "
        "/rerank as text-embeddings-inference's, /search, and /ask, which takes --reader; "
        "ark_jax/README.md describes them. Needs .[serve]."
    )
    prints = False

    def run(self) -> int:
        self.check()
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
        token = _token(self.host)
        with log_on_stderr() as results:
            # Bind first, so that a port in use is an error before models are loaded.
            listener = server.bind(self.host, self.port)
            service, description = self.open_service(token)
            host, port = listener.getsockname()[:2]
            address = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
            with contextlib.redirect_stdout(results):
                log.show(f"{description}: {address}; Ctrl-C ends it\n")
            server.run(make_app(service), listener)
            service.close()
        return 0

    def open_service(self, token: str) -> tuple:
        """The service, whose models are loaded and compiled, and a line that describes it."""
        from ark_jax.index.index import Index
        from ark_jax.serve.open_service import open_service

        opened = Index.open(self.index, model=self.model, engine=self.engine)
        service = open_service(
            opened,
            compare=self.compare,
            rerank=not self.no_rerank,
            reader=self.open_reader if self.reader else None,
            local=not self.endpoint,
            token=token,
        )
        name, manifest = Path(self.index).name or self.index, opened.manifest
        return service, f"{name}, {manifest.documents:,} documents, {manifest.chunks:,} passages"


def _token(host: str) -> str:
    """The token of $ARK_SERVE_TOKEN, which requests must send; empty if it is not set.

    Raises:
        ValueError: other machines reach the host without a token, or the token has bad characters.
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
