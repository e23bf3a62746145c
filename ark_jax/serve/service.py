"""The models and the index of a server, and the work that it does for a request."""

import asyncio
import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
from starlette.requests import Request

from ark_jax.data.records import with_title
from ark_jax.index.index import RERANKED, Hit, Index
from ark_jax.index.reader import Answer, Reader
from ark_jax.serve import requests
from ark_jax.serve.metrics import Metrics
from ark_jax.serve.models import Embedder, Pairs, Reranker, Texts
from ark_jax.serve.work import CALLS, Calls, Work
from ark_jax.text.token_vectors import Vectors, stack

READS = Calls(room=1)  # a local reader holds the device for seconds
MOST_ASKED = 32  # questions that may wait for an endpoint


@dataclasses.dataclass(frozen=True)
class ServedIndex:
    """An index, and the model that embeds its questions."""

    index: Index
    embedder: Embedder


@dataclasses.dataclass(frozen=True)
class Service:
    """The models and the index of a server.

    Attributes:
        name: name of the index.
        tuned: the index with its own model.
        base: the same passages with another model, to compare with.
        reranker: orders what is found.
        reader: answers questions.
        local: whether the reader computes on the device of this process.
        token: the token that requests must send; empty: none.
        places: limits the questions that wait for an endpoint.
    """

    name: str
    work: Work
    metrics: Metrics
    tuned: ServedIndex
    base: ServedIndex | None = None
    reranker: Reranker | None = None
    reader: Reader | None = None
    local: bool = False
    token: str = ""
    places: asyncio.Semaphore = dataclasses.field(
        default_factory=lambda: asyncio.Semaphore(MOST_ASKED)
    )

    async def search(
        self,
        request: Request,
        question: str,
        k: int,
        by: str,
        searched: ServedIndex | None = None,
        rerank: bool = True,
    ) -> list[Hit]:
        """The passages of a question, as `Index.search` finds them.

        Args:
            searched: the index and model to search with; None: `tuned`.
            rerank: whether the reranker, if there is one, orders them.

        Raises:
            Refused: see `requests.result`.
        """
        searched = searched or self.tuned
        vectors: Vectors | None = None
        if by != "bm25":
            embedder = searched.embedder
            texts = Texts([question], "query", embedder.width, cut=True)
            embedded = await requests.result(request, self.work, embedder, texts)
            vectors = stack([embedded[0].vector])
        reranker = self.reranker if rerank else None
        depth = max(k, RERANKED) if reranker else k
        given = {"k": depth, "by": by, "vectors": vectors, "rerank": False}
        find = lambda: searched.index.search([question], **given)[0]
        hits = (await requests.result(request, self.work, CALLS, find))[0]
        if not reranker or not hits:
            return hits
        pairs = Pairs(question, [with_title(hit.title, hit.text) for hit in hits], cut=True)
        logits = np.array(await requests.result(request, self.work, reranker, pairs))
        best = np.argsort(-logits, kind="stable")[:k]
        return [dataclasses.replace(hits[i], score=float(logits[i])) for i in best]

    async def compare(self, request: Request, question: str, k: int, by: str) -> Mapping:
        """The passages of a question by both models: name -> passages, those of the base first."""
        if self.base is None:
            raise requests.bad_input(
                "`compare`: there is no other model; start the server with --compare=MODEL"
            )
        base, tuned = self.base.embedder.name, self.tuned.embedder.name
        names = (f"{base} (base)", f"{tuned} (tuned)") if base == tuned else (base, tuned)
        hits = [
            await self.search(request, question, k, by, searched)
            for searched in (self.base, self.tuned)
        ]
        return dict(zip(names, hits, strict=True))

    async def answer(self, request: Request, question: str, hits: Sequence[Hit]) -> Answer:
        """The reader's answer from passages.

        Raises:
            Refused: there is no reader, it fails, or nothing was found.
        """
        if self.reader is None:
            raise requests.bad_input("there is no reader; start the server with --reader=MODEL")
        passages = [with_title(hit.title, hit.text) for hit in hits]
        ask = lambda: self.reader.answer(question, passages)
        if self.local:
            return (await requests.result(request, self.work, READS, ask))[0]
        if self.places.locked():
            raise requests.overloaded("too many questions wait for the reader; try again later")
        try:
            async with self.places:
                return await asyncio.to_thread(ask)
        except (ValueError, RuntimeError, OSError) as error:
            raise requests.Refused(424, "Backend", str(error)) from error
