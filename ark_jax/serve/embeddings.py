"""Vectors in OpenAI's form, and vectors and scores in text-embeddings-inference's."""

import asyncio
import base64
import json
from collections.abc import Iterable, Mapping

import numpy as np
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ark_jax import __version__
from ark_jax.serve import requests
from ark_jax.serve.models import Embedder, Pairs, Texts
from ark_jax.serve.service import Service

KINDS = ("query", "document")


async def openai(service: Service, request: Request) -> Response:
    """POST /v1/embeddings: vectors of texts, as OpenAI's API gives them."""
    body = await requests.read_json(request)
    value = body.get("input")
    if isinstance(value, list) and value and isinstance(value[0], int | list):
        raise requests.bad_input(
            "`input` holds token ids, and those of another tokenizer; send texts (with LangChain: "
            "check_embedding_ctx_length=False)"
        )
    encoding = requests.choice(body, "encoding_format", "float", ("float", "base64"))
    embedder = _text_embedder(service)
    texts = _read_texts(body, "input", embedder.width, cut=False)
    embedded = await requests.result(request, service.work, embedder, texts)
    tokens = sum(one.tokens for one in embedded)
    data = (
        {"object": "embedding", "index": i, "embedding": _encode_vector(one.vector, encoding)}
        for i, one in enumerate(embedded)
    )
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    rest = json.dumps({"object": "list", "model": embedder.name, "usage": usage})
    return _json(b'{"data":' + await _json_rows(data) + b"," + rest[1:].encode())


async def models(service: Service, request: Request) -> Response:
    """GET /v1/models: the model that /v1/embeddings serves, as OpenAI's API lists it."""
    model = {"id": service.tuned.embedder.name, "object": "model", "created": 0}
    return JSONResponse({"object": "list", "data": [model | {"owned_by": "ark-jax"}]})


async def embed(service: Service, request: Request) -> Response:
    """POST /embed: vectors of texts, as text-embeddings-inference gives them."""
    body = await requests.read_json(request)
    requests.choice(body, "truncation_direction", "Right", ("Right", "right"))
    embedder = _text_embedder(service)
    texts = _read_texts(
        body,
        "inputs",
        embedder.width,
        cut=requests.switch(body, "truncate"),
        unit=requests.switch(body, "normalize") if "normalize" in body else None,
    )
    embedded = await requests.result(request, service.work, embedder, texts)
    return _json(await _json_rows(one.vector.tolist() for one in embedded))


async def rerank(service: Service, request: Request) -> Response:
    """POST /rerank: scores of texts for a query, the highest first."""
    body = await requests.read_json(request)
    if service.reranker is None:
        message = "there is no reranker; make the index again with --reranker=FOLDER"
        raise requests.Refused(424, "Backend", message)
    query, texts = requests.text(body, "query"), requests.texts(body, "texts")
    raw, shown = (requests.switch(body, name) for name in ("raw_scores", "return_text"))
    requests.choice(body, "truncation_direction", "Right", ("Right", "right"))
    pairs = Pairs(query, texts, requests.switch(body, "truncate"))
    logits = np.array(await requests.result(request, service.work, service.reranker, pairs))
    scores = logits if raw else np.exp(-np.logaddexp(0, -logits))
    return JSONResponse(
        [
            {"index": i, "score": float(scores[i])} | ({"text": texts[i]} if shown else {})
            for i in np.argsort(-logits, kind="stable").tolist()
        ]
    )


async def info(service: Service, request: Request) -> Response:
    """GET /info: names and limits of the models."""
    embedder = service.tuned.embedder
    return JSONResponse(
        {
            "model_id": embedder.name,
            "model_type": {"embedding": {"pooling": embedder.retriever.pooling}},
            "reranker": service.reranker.name if service.reranker else None,
            "index": service.name,
            "max_input_length": embedder.max_length,
            "max_client_batch_size": requests.MOST_TEXTS,
            "version": __version__,
        }
    )


def _text_embedder(service: Service) -> Embedder:
    """The embedder of a model with one vector for each text. Raises Refused for other models."""
    if service.tuned.embedder.of_tokens:
        raise requests.bad_input(
            "this model keeps a vector for each token, which this path has no form for; ask /search"
        )
    return service.tuned.embedder


def _read_texts(
    body: Mapping, field: str, width: int, *, cut: bool, unit: bool | None = None
) -> Texts:
    """The texts in a field of a body, with the kind and width of their vectors."""
    kind = requests.choice(body, "prompt_name", "document", KINDS)
    dimensions = requests.number(body, "dimensions", width, width)
    return Texts(requests.one_or_more(body, field), kind, dimensions, cut, unit)


async def _json_rows(rows: Iterable) -> bytes:
    """A JSON array. Others are answered while it is written: 2,048 vectors take a second."""
    parts = []
    for row in rows:
        parts.append(json.dumps(row, separators=(",", ":")).encode())
        if len(parts) % 32 == 0:
            await asyncio.sleep(0)
    return b"[" + b",".join(parts) + b"]"


def _json(body: bytes) -> Response:
    return Response(body, media_type="application/json")


def _encode_vector(vector: np.ndarray, encoding: str) -> list[float] | str:
    """A vector as numbers, or as base64 of its little-endian float32 bytes."""
    if encoding == "base64":
        return base64.b64encode(vector.astype("<f4").tobytes()).decode()
    return vector.tolist()
