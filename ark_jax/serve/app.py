"""The application of a server: its paths, access to them, errors, and counts."""

import contextlib
import importlib.resources
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable

from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ark_jax import __version__
from ark_jax.index.folder import AGAIN
from ark_jax.index.passages import answer_row, comparison_row, search_row
from ark_jax.serve import embeddings, guard, metrics, page, requests
from ark_jax.serve.service import Service

MOST_K = 100  # passages of a search
BY = ("hybrid", "dense", "bm25")
Handler = Callable[[Service, Request], Awaitable[Response]]


async def search(service: Service, request: Request) -> Response:
    """POST /search: the passages of a question, by both models if `compare` is true."""
    body = await requests.read_json(request)
    question, k, by, where = _search_fields(body, 10)
    if requests.switch(body, "compare"):
        compared = await service.compare(request, question, k, by, where)
        return JSONResponse(comparison_row(question, by, compared))
    hits = await service.search(request, question, k, by, where=where)
    return JSONResponse(search_row(question, by, hits))


async def ask(service: Service, request: Request) -> Response:
    """POST /ask: the reader's answer to a question, with its sources; as events if `stream`.

    An event `text` has a piece of the answer; the last one, `answer` or `error`,
    what the path returns without `stream`.
    """
    body = await requests.read_json(request)
    question, k, by, where = _search_fields(body, 5)
    is_stream = requests.switch(body, "stream")
    hits = await service.search(request, question, k, by, where=where)
    if not is_stream:
        answer = await service.answer(request, question, hits)
        return JSONResponse(answer_row(question, answer, hits))
    parts = service.read(request, question, hits)
    first = await anext(parts)  # what fails before the reply begins has a status

    async def events() -> AsyncIterator[str]:
        part, sent = first, ""
        try:
            async with contextlib.aclosing(parts):
                while isinstance(part, str):
                    whole = part.rstrip("\ufffd")  # half of a character, whose rest will come
                    if whole.startswith(sent) and whole != sent:
                        yield _event("text", {"text": whole[len(sent) :]})
                        sent = whole
                    part = await anext(parts)
            yield _event("answer", answer_row(question, part, hits))
        except requests.Refused as error:
            yield _event("error", {"error": str(error), "error_type": error.kind})

    return StreamingResponse(events(), media_type="text/event-stream")


def _event(name: str, value: dict) -> str:
    """A server-sent event."""
    return f"event: {name}\ndata: {json.dumps(value, ensure_ascii=False)}\n\n"


def _search_fields(body: dict, k: int) -> tuple[str, int, str, str]:
    """The fields question, k, by and where of a body; `k` is the default. Raises Refused."""
    return (
        requests.text(body, "question"),
        requests.number(body, "k", k, MOST_K),
        requests.choice(body, "by", "hybrid", BY),
        requests.text(body, "where") if body.get("where") is not None else "",
    )


async def health(service: Service, request: Request) -> Response:
    """GET /health: status 503 if the thread with the models has ended, or the index is damaged."""
    if not service.work.alive:
        raise requests.Refused(503, "Unhealthy", "the models are gone; start the server again")
    checked = service.damage is not None and service.damage.done()
    if checked and (reason := service.damage.result()):
        raise requests.Refused(503, "Unhealthy", f"the index: {reason}; {AGAIN}")
    return JSONResponse({"status": "ok", "index": "intact" if checked else "not checked yet"})


async def ready(service: Service, request: Request) -> Response:
    """GET /readyz: status 503 as for /health, and while no more texts can wait."""
    if service.work.waiting >= service.work.capacity:
        raise requests.Refused(503, "Overloaded", "too many texts wait; try again later")
    return await health(service, request)


async def openapi(service: Service, request: Request) -> Response:
    """GET /openapi.json: the paths, their fields and what they return."""
    text = (importlib.resources.files("ark_jax.serve") / "openapi.json").read_text("utf-8")
    document = json.loads(text)
    document["info"]["version"] = __version__
    return JSONResponse(document)


async def show_metrics(service: Service, request: Request) -> Response:
    """GET /metrics: all counts, for Prometheus."""
    return Response(service.metrics.text(), headers={"content-type": metrics.CONTENT_TYPE})


PATHS: dict[str, tuple[str, Handler]] = {
    "/v1/embeddings": ("POST", embeddings.openai),
    "/v1/models": ("GET", embeddings.models),
    "/embed": ("POST", embeddings.embed),
    "/rerank": ("POST", embeddings.rerank),
    "/search": ("POST", search),
    "/ask": ("POST", ask),
    "/health": ("GET", health),
    "/readyz": ("GET", ready),
    "/openapi.json": ("GET", openapi),
    "/info": ("GET", embeddings.info),
    "/metrics": ("GET", show_metrics),
    "/": ("GET", page.page),
    "/page.css": ("GET", page.style),
    "/page.js": ("GET", page.script),
    "/page/search": ("POST", page.search),
    "/page/answer": ("POST", page.answer),
}


def make_app(service: Service) -> Starlette:
    """The application that answers the requests to a server."""

    def route(path: str, method: str, handler: Handler) -> Route:
        async def endpoint(request: Request) -> Response:
            return await handler(service, request)

        return Route(path, endpoint, methods=[method])

    return Starlette(
        routes=[route(path, method, handler) for path, (method, handler) in PATHS.items()],
        middleware=[Middleware(_GuardAndCount, service=service)],
        exception_handlers={
            requests.Refused: _answer_refusal,
            HTTPException: _answer_http_error,
            Exception: _answer_bug,
        },
    )


class _GuardAndCount:
    """Refuses requests that `guard` does not admit, sets headers, and counts responses."""

    def __init__(self, app: ASGIApp, service: Service):
        self.app, self.service = app, service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        path, start, status = scope["path"], time.monotonic(), 500

        async def send_counted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers.setdefault("x-content-type-options", "nosniff")
                headers.setdefault("referrer-policy", "no-referrer")
                headers.setdefault("cache-control", "no-store")
            await send(message)

        try:
            refusal = guard.refusal(path, Headers(scope=scope), self.service.token)
            if refusal:
                response = _error_response(path, *refusal, "Validation")
                response.headers["connection"] = "close"  # what follows may be no request
                await response(scope, receive, send_counted)
            else:
                await self.app(scope, receive, send_counted)
        finally:
            known = path if path in PATHS else "other"
            self.service.metrics.add_request(known, status, time.monotonic() - start)


def _error_response(path: str, status: int, message: str, kind: str) -> Response:
    """An error as JSON, in the form that clients of this path expect."""
    if path.startswith("/v1/"):
        status = 400 if status == 422 else status
        type_ = "server_error" if status >= 500 or status == 424 else "invalid_request_error"
        error = {"message": message, "type": type_, "param": None, "code": None}
        body = {"error": error}
    else:
        body = {"error": message, "error_type": kind}
    headers = {401: {"www-authenticate": "Bearer"}, 429: {"retry-after": "1"}}.get(status)
    return JSONResponse(body, status, headers)


async def _answer_refusal(request: Request, error: Exception) -> Response:
    return _error_response(request.url.path, error.status, str(error), error.kind)


async def _answer_http_error(request: Request, error: Exception) -> Response:
    path, method = request.url.path, request.method
    message = f"{method} {path}: {error.detail}; there are {', '.join(PATHS)}"
    return _error_response(path, error.status_code, message, "Validation")


async def _answer_bug(request: Request, error: Exception) -> Response:
    """Tells the client nothing of an unexpected error, whose trace uvicorn logs."""
    message = "an error of the server, which its log shows"
    return _error_response(request.url.path, 500, message, "Backend")
