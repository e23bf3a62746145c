"""The requests of a server: bodies, fields, and the errors of bad ones."""

import asyncio
import json
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request

from ark_jax.serve.models import TooLong
from ark_jax.serve.work import Busy, Lane, Work

MOST_BYTES = 4 << 20  # of a body
MOST_TEXTS = 2048  # of a request, as OpenAI allows
MOST_TOKENS = 2000  # of a question
PATIENCE = 30.0  # seconds to receive a body
Value = TypeVar("Value")


class Refused(Exception):
    """The error that a request is answered with.

    Args:
        status: HTTP status.
        kind: one of text-embeddings-inference's types of errors.
        message: what is wrong, and the fix.
    """

    def __init__(self, status: int, kind: str, message: str):
        super().__init__(message)
        self.status, self.kind = status, kind


def bad_input(message: str) -> Refused:
    return Refused(422, "Validation", message)


def too_large(message: str) -> Refused:
    return Refused(413, "Validation", message)


def overloaded(message: str) -> Refused:
    return Refused(429, "Overloaded", message)


def client_gone() -> Refused:
    return Refused(499, "Validation", "the client is gone")


async def read_json(request: Request) -> Mapping:
    """The body of a request, a JSON object.

    Raises:
        Refused: it is too large, does not come, or is no such object.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        # A page of another site can make a browser send other types without a CORS preflight.
        message = "the body must be JSON: send the header content-type: application/json"
        raise Refused(415, "Validation", message)
    try:
        async with asyncio.timeout(PATIENCE):
            body = await _read_body(request)
    except TimeoutError:
        message = f"the body has not come within {PATIENCE:g} seconds"
        raise Refused(408, "Validation", message) from None
    try:
        value = json.loads(body.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise bad_input(f"the body is not UTF-8: byte {error.start} is wrong") from None
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else error
        raise bad_input(f"the body is not JSON: {reason}") from None
    if not isinstance(value, dict):
        raise bad_input("the body must be a JSON object with fields")
    return value


async def _read_body(request: Request) -> bytes:
    """The body of a request. Raises Refused if it is too large or the client is gone."""
    body, size = bytearray(), 0
    try:
        async for part in request.stream():
            size += len(part)
            # Read and drop the rest too: a client reads no answer while it still sends.
            if size <= MOST_BYTES:
                body += part
            if size > 16 * MOST_BYTES:
                break
    except ClientDisconnect:
        raise client_gone() from None
    if size > MOST_BYTES:
        raise too_large(f"the body has more than {MOST_BYTES:,} bytes; send fewer texts at once")
    return bytes(body)


def choice(body: Mapping, name: str, default: Any, choices: Sequence) -> Any:
    """A field that has one of several values; null is the default. Raises Refused."""
    value = body.get(name)
    if value is None:
        return default
    if value not in choices or type(value) is not type(choices[choices.index(value)]):
        shown = ", ".join(json.dumps(choice) for choice in choices)
        raise bad_input(f"`{name}` must be one of {shown}")
    return value


def switch(body: Mapping, name: str) -> bool:
    """A field that is true or false, the default. Raises Refused."""
    return choice(body, name, False, (True, False))


def number(body: Mapping, name: str, default: int, maximum: int) -> int:
    """A field that is a whole number from 1 to `maximum`. Raises Refused."""
    value = body.get(name)
    if value is None:
        return default
    if type(value) is not int or not 1 <= value <= maximum:
        raise bad_input(f"`{name}` must be a whole number from 1 to {maximum:,}")
    return value


def text(body: Mapping, name: str) -> str:
    """A field that is a text, not only blanks. Raises Refused."""
    value = body.get(name)
    if not isinstance(value, str):
        raise bad_input(f"`{name}` must be a text" if name in body else f"`{name}` is missing")
    _check_text(value, name)
    return value


def texts(body: Mapping, name: str) -> list[str]:
    """A field that is a list of texts.

    Raises:
        Refused: it is no such list, it is empty, or it has too many texts.
    """
    value = body.get(name)
    if name not in body:
        raise bad_input(f"`{name}` is missing")
    if not isinstance(value, list) or not all(isinstance(x, str) for x in value):
        raise bad_input(f"`{name}` must be a list of texts")
    if not value:
        raise Refused(400, "Empty", f"`{name}` cannot be empty")
    if len(value) > MOST_TEXTS:
        raise too_large(f"batch size {len(value)} > maximum allowed batch size {MOST_TEXTS}")
    for x in value:
        _check_text(x, name)
    return value


def one_or_more(body: Mapping, name: str) -> list[str]:
    """A field that is a text or a list of texts. Raises Refused."""
    return [text(body, name)] if isinstance(body.get(name), str) else texts(body, name)


def _check_text(value: str, name: str) -> None:
    """Raises Refused if a text is blank or cannot be encoded in UTF-8."""
    if not value.strip():
        raise Refused(400, "Empty", f"`{name}` cannot be empty")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise bad_input(f"`{name}` holds half of a surrogate pair, which is not text") from None


async def result(request: Request, work: Work, lane: Lane, items: Any) -> list:
    """The results of a request's items. If the client goes away, they are not computed.

    Raises:
        Refused: too much waits, a text is too long, the client is gone, or the model fails.
    """
    try:
        future = work.submit(lane, items)
    except Busy:
        raise overloaded("too many texts wait; try again later") from None
    except RuntimeError as error:
        raise Refused(503, "Unhealthy", str(error)) from None
    try:
        return await unless_gone(request, asyncio.wrap_future(future))
    except TooLong as error:
        raise too_large(str(error)) from None
    except (ValueError, RuntimeError, ArithmeticError, OSError, MemoryError) as error:
        raise Refused(424, "Backend", str(error) or "out of memory") from error


async def unless_gone(request: Request, awaited: Awaitable[Value]) -> Value:
    """What is awaited; if the client disconnects first, cancels it and raises Refused."""
    waiting = asyncio.ensure_future(awaited)
    watch = asyncio.ensure_future(_await_disconnect(request))
    try:
        await asyncio.wait({waiting, watch}, return_when=asyncio.FIRST_COMPLETED)
        if waiting.done():
            return waiting.result()
        raise client_gone()
    finally:
        watch.cancel()
        waiting.cancel()


async def _await_disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
