"""Runs a server: its port, its start, and its end."""

import resource
import socket
from types import FrameType

import uvicorn
from starlette.applications import Starlette

BACKLOG = 2048  # connections that may wait to be accepted
PATIENCE = 60  # seconds after a signal to finish accepted requests


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; clients that connect wait until the server answers.

    Args:
        port: 0 takes any free one.

    Raises:
        OSError: the port is in use, or the host is not an address of this machine.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise OSError(f"--host={host}: no such address ({error})") from None
    try:
        # Allow the port of a server that has just ended.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise OSError(
            f"port {port} of {host} cannot be used ({error.strerror or error}); end the program "
            "that has it, or give another with --port=N"
        ) from None
    return listener


def run(app: Starlette, listener: socket.socket) -> None:
    """Serves until SIGTERM or Ctrl-C, then finishes accepted requests. A second signal ends it."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # each client needs an open file
    make_server(app).run(sockets=[listener])


def make_server(app: Starlette) -> uvicorn.Server:
    """A server without logs, for the socket of `bind`."""
    config = uvicorn.Config(
        app,
        loop="asyncio",
        http="h11",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=BACKLOG,
        timeout_graceful_shutdown=PATIENCE,
    )
    return _Server(config)


class _Server(uvicorn.Server):
    """A server that ends on a signal with status 0; uvicorn's would raise the signal again."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.should_exit:
            self.force_exit = True
        self.should_exit = True
