"""Chunks of documents: by sentences or tokens, beside their titles."""

import bisect
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from ark_jax.data.records import Chunk, Document
from ark_jax.runtime.log import say

MOST_CHUNK_TOKENS = 512  # of a chunk whose length the retriever decides


@dataclasses.dataclass(frozen=True)
class ChunkRules:
    """How documents are cut; the fields of `config.data` of the same meaning say more.

    Attributes:
        chunking: "sentences" or "tokens".
        tokens: length of a chunk in tokens of the retriever; 0: as many as it reads.
        overlap: tokens that consecutive chunks share.
        titles: whether a chunk keeps the title and headings of its document.
    """

    chunking: str = "sentences"
    tokens: int = 0
    overlap: int = 12
    titles: bool = True


def cut_documents(
    documents: Iterable[Document], chunks: Sequence[Chunk] | None, retriever: str, rules: ChunkRules
) -> Iterator[Chunk]:
    """The chunks of all documents, by the tokens of the retriever; those of the input as they are.

    Args:
        chunks: the chunks of the input, or None.
        retriever: folder or hub name.

    Raises:
        ValueError: the overlap leaves no room in what the retriever reads.
    """
    from ark_jax.models import hf
    from ark_jax.text.tokens import load_tokenizer, token_offsets

    if chunks is None:
        cut = document_cutter(retriever, rules)
        for document in documents:
            yield from cut(document)
        return
    tokenizer = load_tokenizer(str(hf.resolve(retriever)))
    ids = {document.id for document in documents}
    for chunk in (chunk for chunk in chunks if chunk.document in ids):
        tokens = len(token_offsets(chunk.text, tokenizer))
        title = chunk.title if rules.titles else ""
        yield dataclasses.replace(chunk, tokens=tokens, title=title)


def document_cutter(retriever: str, rules: ChunkRules) -> Callable[[Document], Iterator[Chunk]]:
    """What cuts a document; arguments and errors as those of `cut_documents`."""
    from ark_jax.models import hf
    from ark_jax.text.sentences import sentence_chunks
    from ark_jax.text.tokens import load_tokenizer, token_chunks

    folder = hf.resolve(retriever)
    tokenizer = load_tokenizer(str(folder))
    size_for = _chunk_sizes(folder, tokenizer, rules)

    def cut(document: Document) -> Iterator[Chunk]:
        limits = {"size": size_for(document), "overlap": rules.overlap}
        if rules.chunking == "sentences":
            headings = [section.start for section in document.sections]
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


def _chunk_sizes(folder: Path, tokenizer, rules: ChunkRules) -> Callable[[Document], int]:
    """Document -> most tokens of its chunks, which leave room for prompt, title and headings.

    Long titles take at most half of what the retriever reads.

    Args:
        folder: of the retriever.
    """
    if rules.tokens:
        return lambda document: rules.tokens
    from ark_jax.models import sentence_folder
    from ark_jax.text.tokens import token_offsets

    prompts, _ = sentence_folder.read_prompts_and_width(folder)
    prompt = sentence_folder.prompt_of(prompts, "document")
    limit = sentence_folder.read_max_length(folder, tokenizer)
    empty = len(tokenizer(prompt)["input_ids"])
    least = min((limit - empty) // 2, MOST_CHUNK_TOKENS)
    if least <= rules.overlap:
        raise ValueError(
            f"chunk_overlap={rules.overlap}: must be below {least}, the least tokens of a chunk, "
            f"for the retriever reads {limit}; lower it or set chunk_tokens"
        )
    say(
        f"  chunks have at most {min(limit - empty, MOST_CHUNK_TOKENS)} tokens, less their title, "
        f"for the retriever reads {limit}; chunk_tokens sets another length"
    )

    def size(document: Document) -> int:
        starts = (0, *(section.start for section in document.sections)) if rules.titles else ()
        titles = {_title(document, start) for start in starts} - {""}
        lengths = (len(token_offsets(f"{title}\n", tokenizer)) for title in titles)
        room = limit - empty - max(lengths, default=0)
        return min(max(room, least), MOST_CHUNK_TOKENS)

    return size


def _title(document: Document, start: int) -> str:
    """The document's title and the headings above an offset, as one line."""
    i = bisect.bisect_right([section.start for section in document.sections], start)
    heading = document.sections[i - 1].path if i else ""
    return " > ".join(" ".join(part.split()) for part in (document.title, heading) if part.strip())
