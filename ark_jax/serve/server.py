"""Runs a server: its port, its start, and its end."""

import asyncio
import functools
import logging
import resource
import socket
import time
from types import FrameType

import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.h11_impl import H11Protocol

BACKLOG = 2048  # connections that may wait to be accepted
CONNECTIONS = 8192  # that are open
HEADERS = 10.0  # seconds to receive the headers of a request
LOGGED = 60  # messages a minute
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
    """A server without a log of requests, for the socket of `bind`."""
    for name in ("uvicorn.error", "asyncio"):
        logging.getLogger(name).addFilter(_log_rate)
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]  # asyncio logs each one that is missing
    limit = min(CONNECTIONS, files // 2)
    config = uvicorn.Config(
        app,
        loop="asyncio",
        http=functools.partial(_Protocol, idle={}, limit=limit),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=min(BACKLOG, files // 4),
        timeout_graceful_shutdown=PATIENCE,
    )
    return _Server(config)


class _Server(uvicorn.Server):
    """A server that ends on a signal with status 0; uvicorn's would raise the signal again."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.should_exit:
            self.force_exit = True
        self.should_exit = True


class _Protocol(H11Protocol):
    """A connection on which headers come in time.

    Args:
        idle: the server's connections without a request, the longest idle first, and their timers.
        limit: connections that may be open. One more closes the one that has been idle for longest.
    """

    def __init__(self, *args, idle: dict["_Protocol", asyncio.TimerHandle], limit: int, **options):
        super().__init__(*args, **options)
        self.idle, self.limit = idle, limit

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self._set_timer()
        if len(self.connections) > self.limit:
            next(iter(self.idle)).timeout_keep_alive_handler()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._set_timer()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._set_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._stop_timer()

    def timeout_keep_alive_handler(self) -> None:
        self._stop_timer()
        super().timeout_keep_alive_handler()

    def _set_timer(self) -> None:
        """Starts the time for headers, if it does not run; a request stops it."""
        if self.cycle and not self.cycle.response_complete:
            self._stop_timer()
        elif self not in self.idle and not self.transport.is_closing():
            self.idle[self] = self.loop.call_later(HEADERS, self.timeout_keep_alive_handler)

    def _stop_timer(self) -> None:
        if timer := self.idle.pop(self, None):
            timer.cancel()


class _LogRate(logging.Filter):
    """Drops what is more than `LOGGED` messages in a minute, and says so once."""

    minute, count = 0, 0

    def filter(self, record: logging.LogRecord) -> bool:
        minute = int(time.monotonic() // 60)
        self.count = self.count + 1 if minute == self.minute else 1
        self.minute = minute
        if self.count == LOGGED:
            record.msg = f"{record.getMessage()} (the last message of this minute)"
            record.args = ()
        return self.count <= LOGGED


_log_rate = _LogRate()
