"""Chunks of the documents of a run: by sentences or tokens, beside their titles."""

import bisect
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from ark_jax.data.records import Chunk, Document
from ark_jax.recipes.common.settings import MOST_CHUNK_TOKENS
from ark_jax.runtime.log import say


def cut_documents(
    documents: Iterable[Document], chunks: Sequence[Chunk] | None, config
) -> Iterator[Chunk]:
    """The chunks of all documents, by the tokens of the retriever; those of the input as they are.

    Args:
        chunks: the chunks of the input, or None.
    """
    from ark_jax.models import hf
    from ark_jax.text.sentences import sentence_chunks
    from ark_jax.text.tokens import load_tokenizer, token_chunks, token_offsets

    by_sentences = config.data.chunking == "sentences"
    folder = hf.resolve(config.retriever.path)
    tokenizer = load_tokenizer(str(folder))
    if chunks is not None:
        ids = {document.id for document in documents}
        for chunk in (chunk for chunk in chunks if chunk.document in ids):
            tokens = len(token_offsets(chunk.text, tokenizer))
            title = chunk.title if config.data.titles else ""
            yield dataclasses.replace(chunk, tokens=tokens, title=title)
        return
    size_for = _chunk_sizes(folder, tokenizer, config.data)
    for document in documents:
        text = document.text
        limits = {"size": size_for(document), "overlap": config.data.chunk_overlap}
        if by_sentences:
            headings = [section.start for section in document.sections]
            spans = sentence_chunks(text, tokenizer, **limits, breaks=headings)
        else:
            spans = token_chunks(text, tokenizer, **limits)
        for i, span in enumerate(spans):
            text = document.text[span.start : span.end]
            stripped = text.strip()
            if not stripped:  # a page of blank lines holds nothing to find
                continue
            start = span.start + len(text) - len(text.lstrip())
            chunk_id, end = f"{document.id}#{i:04d}", start + len(stripped)
            title = _title(document, start) if config.data.titles else ""
            yield Chunk(chunk_id, document.id, start, end, span.tokens, stripped, title)


def _chunk_sizes(folder: Path, tokenizer, data) -> Callable[[Document], int]:
    """Document -> most tokens of its chunks, which leave room for prompt, title and headings.

    Long titles take at most half of what the retriever reads.

    Args:
        folder: of the retriever.
        data: `config.data`.
    """
    if data.chunk_tokens:
        return lambda document: data.chunk_tokens
    from ark_jax.models import sentence_folder
    from ark_jax.text.tokens import token_offsets

    prompts, _ = sentence_folder.read_prompts_and_width(folder)
    prompt = sentence_folder.prompt_of(prompts, "document")
    limit = sentence_folder.read_max_length(folder, tokenizer)
    empty = len(tokenizer(prompt)["input_ids"])
    least = min((limit - empty) // 2, MOST_CHUNK_TOKENS)
    if least <= data.chunk_overlap:
        raise ValueError(
            f"config.data.chunk_overlap={data.chunk_overlap}: must be below {least}, the least "
            f"tokens of a chunk, for the retriever reads {limit}; lower it or set "
            "config.data.chunk_tokens"
        )
    say(
        f"  chunks have at most {min(limit - empty, MOST_CHUNK_TOKENS)} tokens, less their title, "
        f"for the retriever reads {limit}; config.data.chunk_tokens sets another length"
    )

    def size(document: Document) -> int:
        starts = (0, *(section.start for section in document.sections)) if data.titles else ()
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
