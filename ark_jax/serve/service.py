"""The models and the index of a server, and the work that it does for a request."""

import asyncio
import dataclasses
import threading
from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import Executor, Future

import numpy as np
from starlette.requests import Request

from ark_jax.data.records import with_title
from ark_jax.index.index import RERANKED, Hit, Index
from ark_jax.index.reader import Answer, Reader
from ark_jax.serve import requests
from ark_jax.serve.metrics import Metrics
from ark_jax.serve.models import CHARACTERS, Embedder, Pairs, Reranker, Texts
from ark_jax.serve.work import CALLS, Work
from ark_jax.text.token_vectors import Vectors, stack

MOST_ASKED = 32  # questions that may wait for the reader


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
        reads: the threads that it answers in, beside the one of `work`: it may take minutes.
        token: the token that requests must send; empty: none.
        damage: which file of the index is damaged, in words, once all have been read.
        places: limits the questions that wait for the reader.
    """

    name: str
    work: Work
    metrics: Metrics
    tuned: ServedIndex
    base: ServedIndex | None = None
    reranker: Reranker | None = None
    reader: Reader | None = None
    reads: Executor | None = None
    token: str = ""
    damage: "Future[str] | None" = None
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
        where: str = "",
    ) -> list[Hit]:
        """The passages of a question, as `Index.search` finds them.

        Args:
            searched: the index and model to search with; None: `tuned`.
            rerank: whether the reranker, if there is one, orders them.
            where: a filter on the metadata of documents.

        Raises:
            Refused: the filter is wrong; else see `requests.result`.
        """
        searched = searched or self.tuned
        await self._check_length(request, question)
        if where:
            try:
                await asyncio.to_thread(searched.index.metadata.passing, where)
            except ValueError as error:
                raise requests.bad_input(f"`where`{str(error).removeprefix('where')}") from None
        vectors: Vectors | None = None
        if by != "bm25":
            embedder = searched.embedder
            texts = Texts([question], "query", embedder.width, cut=True)
            embedded = await requests.result(request, self.work, embedder, texts)
            vectors = stack([embedded[0].vector])
        reranker = self.reranker if rerank else None
        depth = max(k, RERANKED) if reranker else k
        options = {"k": depth, "by": by, "vectors": vectors, "rerank": False, "where": where}
        find = lambda: searched.index.search([question], **options)[0]
        hits = (await requests.result(request, self.work, CALLS, find))[0]
        if not reranker or not hits:
            return hits
        pairs = Pairs(question, [with_title(hit.title, hit.text) for hit in hits], cut=True)
        logits = np.array(await requests.result(request, self.work, reranker, pairs))
        best = np.argsort(-logits, kind="stable")[:k]
        return [dataclasses.replace(hits[i], score=float(logits[i])) for i in best]

    async def _check_length(self, request: Request, question: str) -> None:
        """Raises Refused if a question has more than `requests.MOST_TOKENS` tokens."""
        limit, size = requests.MOST_TOKENS, len(question.encode())
        if size <= limit:  # a token has at least a byte
            return
        tokenizer = self.tuned.embedder.retriever.tokenizer
        count = lambda: len(tokenizer(question, truncation=False, verbose=False)["input_ids"])
        if size <= CHARACTERS * limit:
            size = (await requests.result(request, self.work, CALLS, count))[0]
        if size > limit:
            message = f"a question may have {limit:,} tokens, and this one has more; shorten it"
            raise requests.too_large(message)

    async def compare(
        self, request: Request, question: str, k: int, by: str, where: str = ""
    ) -> Mapping:
        """The passages of a question by both models: name -> passages, those of the base first."""
        if self.base is None:
            raise requests.bad_input(
                "`compare`: there is no other model; start the server with --compare=MODEL"
            )
        base, tuned = self.base.embedder.name, self.tuned.embedder.name
        names = (f"{base} (base)", f"{tuned} (tuned)") if base == tuned else (base, tuned)
        hits = [
            await self.search(request, question, k, by, searched, where=where)
            for searched in (self.base, self.tuned)
        ]
        return dict(zip(names, hits, strict=True))

    def close(self) -> None:
        """Finishes what waits, and ends the threads."""
        self.work.close()
        if self.reads:
            self.reads.shutdown()

    async def answer(self, request: Request, question: str, hits: Sequence[Hit]) -> Answer:
        """The reader's answer from passages. Raises Refused as `read` does."""
        *_, answer = [part async for part in self.read(request, question, hits)]
        return answer

    async def read(
        self, request: Request, question: str, hits: Sequence[Hit]
    ) -> AsyncIterator[str | Answer]:
        """The text of the reader's answer so far, again and again; at last the answer.

        A client that goes away ends it.

        Raises:
            Refused: there is no reader, it fails, nothing was found, or the client is gone.
        """
        if self.reader is None or self.reads is None:
            raise requests.bad_input("there is no reader; start the server with --reader=MODEL")
        if self.places.locked():
            raise requests.overloaded("too many questions wait for the reader; try again later")
        loop, gone, texts = asyncio.get_running_loop(), threading.Event(), asyncio.Queue()
        passages = [with_title(hit.title, hit.text) for hit in hits]

        def show(text: str) -> None:
            """Hands over the text so far; ends the reader if the client is gone."""
            if gone.is_set():
                raise requests.client_gone()
            loop.call_soon_threadsafe(texts.put_nowait, text)

        async with self.places:
            asked = self.reads.submit(self.reader.answer, question, passages, show)
            answer = asyncio.wrap_future(asked)
            answer.add_done_callback(lambda _: texts.put_nowait(None))
            try:
                while (text := await requests.unless_gone(request, texts.get())) is not None:
                    yield text
                yield await answer
            except (ValueError, RuntimeError, ArithmeticError, OSError, MemoryError) as error:
                raise requests.Refused(424, "Backend", str(error) or "out of memory") from error
            finally:
                gone.set()
                answer.cancel()
