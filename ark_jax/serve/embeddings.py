"""Vectors in OpenAI's form, and vectors and scores in text-embeddings-inference's."""

import base64
from collections.abc import Mapping

import numpy as np
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ark_jax import __version__
from ark_jax.serve import requests
from ark_jax.serve.models import Embedder, Pairs, Texts
from ark_jax.serve.service import Service

KINDS = ("query", "document")


async def openai(service: Service, request: Request) -> Response:
    """POST /v1/embeddings."""
    body = await requests.read_json(request)
    value = body.get("input")
    if isinstance(value, list) and value and isinstance(value[0], int | list):
        raise requests.bad_input(
            "`input` holds token ids, and those of another tokenizer; send texts (with LangChain: "
            "check_embedding_ctx_length=False)"
        )
    form = requests.choice(body, "encoding_format", "float", ("float", "base64"))
    embedder = _embedder(service)
    texts = _texts_of(body, "input", embedder.width, cut=False)
    embedded = await requests.result(request, service.work, embedder, texts)
    tokens = sum(x.tokens for x in embedded)
    data = [
        {"object": "embedding", "index": i, "embedding": _in_form(x.vector, form)}
        for i, x in enumerate(embedded)
    ]
    return JSONResponse(
        {
            "object": "list",
            "data": data,
            "model": embedder.name,
            "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        }
    )


async def embed(service: Service, request: Request) -> Response:
    """POST /embed."""
    body = await requests.read_json(request)
    requests.choice(body, "truncation_direction", "Right", ("Right", "right"))
    embedder = _embedder(service)
    texts = _texts_of(
        body,
        "inputs",
        embedder.width,
        cut=requests.switch(body, "truncate"),
        unit=requests.switch(body, "normalize", default=True),
    )
    embedded = await requests.result(request, service.work, embedder, texts)
    return JSONResponse([x.vector.tolist() for x in embedded])


async def rerank(service: Service, request: Request) -> Response:
    """POST /rerank."""
    body = await requests.read_json(request)
    if service.reranker is None:
        message = "there is no reranker; start the server with --reranker=FOLDER"
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
    """GET /info."""
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


def _embedder(service: Service) -> Embedder:
    """What embeds texts for clients, who expect one vector for each."""
    if service.tuned.embedder.of_tokens:
        raise requests.bad_input(
            "this model keeps a vector for each token, which this path has no form for; ask /search"
        )
    return service.tuned.embedder


def _texts_of(body: Mapping, field: str, width: int, *, cut: bool, unit: bool = True) -> Texts:
    kind = requests.choice(body, "prompt_name", "document", KINDS)
    dimensions = requests.number(body, "dimensions", width, width)
    return Texts(requests.one_or_more(body, field), kind, dimensions, cut, unit)


def _in_form(vector: np.ndarray, form: str) -> list[float] | str:
    if form == "base64":
        return base64.b64encode(vector.astype("<f4").tobytes()).decode()
    return vector.tolist()
