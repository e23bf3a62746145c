"""Cuts documents into chunks of sentences or tokens, which keep their titles."""

import bisect
import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence

from ark_jax.data.records import Chunk, Document
from ark_jax.data.spool import chunk_table
from ark_jax.data.text_columns import ROWS
from ark_jax.runtime.log import say
from ark_jax.runtime.map_shards import RunShards, map_shards, shards_of
from ark_jax.runtime.packed_tables import pack, unpack

MOST_CHUNK_TOKENS = 512  # of a chunk whose length the retriever decides


@dataclasses.dataclass(frozen=True)
class ChunkRules:
    """How documents are cut; the fields of `config.data` of the same meaning say more.

    Attributes:
        chunking: "sentences" or "tokens".
        tokens: length of a chunk in tokens of the retriever; 0: as many as it reads.
        overlap: tokens that consecutive chunks share.
        titles: whether a chunk keeps the title and headings of its document.
        sentences: most sentences of a chunk, without overlap; 0: `tokens` decide alone.
    """

    chunking: str = "sentences"
    tokens: int = 0
    overlap: int = 12
    titles: bool = True
    sentences: int = 0


@dataclasses.dataclass(frozen=True)
class Cutter:
    """The settings by which documents are cut, which can be sent to another process.

    Attributes:
        tokenizer: of the retriever, as JSON.
        room: tokens that the retriever reads of a title and a chunk; 0: `rules.tokens` decide.
    """

    tokenizer: str
    rules: ChunkRules
    room: int

    def open(self) -> Callable[[Document], Iterator[Chunk]]:
        """A function that cuts a document."""
        from ark_jax.text.sentences import sentence_chunks
        from ark_jax.text.tokens import open_backend, token_chunks

        tokenizer, rules = open_backend(self.tokenizer), self.rules

        def cut(document: Document) -> Iterator[Chunk]:
            """Yields the chunks of a document, in order, without outer blanks."""
            limits = {"size": self._chunk_size(document, tokenizer), "overlap": rules.overlap}
            if rules.chunking == "sentences":
                headings = [section.start for section in document.sections]
                limits["sentences"] = rules.sentences
                spans = sentence_chunks(document.text, tokenizer, **limits, breaks=headings)
            else:
                spans = token_chunks(document.text, tokenizer, **limits)
            for i, span in enumerate(spans):
                text = document.text[span.start : span.end]
                stripped = text.strip()
                if not stripped:  # a page of blank lines holds nothing to find
                    continue
                start = span.start + len(text) - len(text.lstrip())
                chunk_id, end = f"{document.id}#{i:04d}", start + len(stripped)
                title = _title(document, start) if rules.titles else ""
                yield Chunk(chunk_id, document.id, start, end, span.tokens, stripped, title)

        return cut

    def _chunk_size(self, document: Document, tokenizer) -> int:
        """Most tokens of the document's chunks, which leave room for title and headings.

        Long titles take at most half of what the retriever reads.
        """
        if not self.room:
            return self.rules.tokens
        from ark_jax.text.tokens import token_offsets

        starts = (0, *(section.start for section in document.sections)) if self.rules.titles else ()
        titles = {_title(document, start) for start in starts} - {""}
        lengths = (len(token_offsets(f"{title}\n", tokenizer)) for title in titles)
        room = self.room - max(lengths, default=0)
        return min(max(room, _least_chunk_size(self.room)), MOST_CHUNK_TOKENS)


def _least_chunk_size(room: int) -> int:
    """The least chunk size, below the longest titles, if a retriever reads `room` tokens."""
    return min(room // 2, MOST_CHUNK_TOKENS)


def cut_documents(
    documents: Iterable[Document],
    chunks: Sequence[Chunk] | None,
    retriever: str,
    rules: ChunkRules,
    run: RunShards = map_shards,
) -> Iterator[Chunk]:
    """Yields the chunks of all documents. Tokens are those of the retriever.

    Args:
        chunks: the chunks of the input, which stay as they are; None cuts the documents.
        retriever: folder or hub name.
        run: `run(prepare, shards)` maps work that makes bytes over shards, as `map_shards` does.

    Raises:
        ValueError: the overlap is not below the least chunk size.
    """
    if chunks is None:
        prepare = functools.partial(_cut_shards, _cutter(retriever, rules))
        items = documents
    else:
        tokenizer = _load_tokenizer(retriever).backend_tokenizer.to_str()
        prepare = functools.partial(_count_shards, tokenizer, titles=rules.titles)
        ids = {document.id for document in documents}
        items = (chunk for chunk in chunks if chunk.document in ids)
    for data in run(prepare, shards_of(items, lambda item: len(item.text))):
        (table,) = unpack(data)
        for batch in table.to_batches(max_chunksize=ROWS):
            yield from (Chunk(**row) for row in batch.to_pylist())


def _cut_shards(cutter: Cutter) -> Callable[[Sequence[Document]], bytes]:
    """Work for `map_shards` that cuts documents into a packed table of chunks."""
    cut = cutter.open()
    chunks = lambda documents: itertools.chain.from_iterable(map(cut, documents))
    return lambda documents: pack(chunk_table(list(chunks(documents))))


def _count_shards(tokenizer: str, *, titles: bool) -> Callable[[Sequence[Chunk]], bytes]:
    """Work for `map_shards` that packs chunks with their numbers of tokens.

    Args:
        titles: whether the chunks keep their titles.
    """
    from ark_jax.text.tokens import open_backend, token_offsets

    backend = open_backend(tokenizer)

    def with_token_count(chunk: Chunk) -> Chunk:
        tokens = len(token_offsets(chunk.text, backend))
        return dataclasses.replace(chunk, tokens=tokens, title=chunk.title if titles else "")

    return lambda chunks: pack(chunk_table(list(map(with_token_count, chunks))))


def _load_tokenizer(retriever: str):
    """The tokenizer of a retriever, by folder or hub name."""
    from ark_jax.models import hf, sentence_folder
    from ark_jax.text.tokens import load_tokenizer

    return load_tokenizer(str(sentence_folder.weights_folder(hf.resolve(retriever))))


def _cutter(retriever: str, rules: ChunkRules) -> Cutter:
    """The cutter for a retriever; ValueError if the overlap leaves no room for a chunk."""
    from ark_jax.models import hf, sentence_folder

    tokenizer = _load_tokenizer(retriever)
    backend = tokenizer.backend_tokenizer.to_str()
    if rules.tokens:
        return Cutter(backend, rules, 0)
    model = sentence_folder.read_models(hf.resolve(retriever))["document"]
    prompt = sentence_folder.prompt_for_kind(model.settings.prompts, "document")
    limit = sentence_folder.read_max_length(model.folder, tokenizer)
    limit = min(limit, (model.late and model.late.document_length) or limit)
    marker = bool(model.late and model.late.document_prefix)
    room = limit - len(tokenizer(prompt)["input_ids"]) - marker
    least = _least_chunk_size(room)
    if least <= rules.overlap:
        raise ValueError(
            f"chunk_overlap={rules.overlap}: must be below {least}, the least tokens of a "
            f"chunk, for the retriever reads {limit}; lower it or set chunk_tokens"
        )
    say(
        f"  chunks have at most {min(room, MOST_CHUNK_TOKENS)} tokens, less their title, "
        f"for the retriever reads {limit}; chunk_tokens sets another length"
    )
    return Cutter(backend, rules, room)


def _title(document: Document, start: int) -> str:
    """The document's title and the headings above an offset, as one line."""
    i = bisect.bisect_right([section.start for section in document.sections], start)
    heading = document.sections[i - 1].path if i else ""
    return " > ".join(" ".join(part.split()) for part in (document.title, heading) if part.strip())
