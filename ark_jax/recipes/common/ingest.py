"""The data stage: documents and questions are read, split and cut into chunks."""

import bisect
import statistics
from collections.abc import Iterable, Iterator
from pathlib import Path

from ark_jax.data import readers
from ark_jax.data.evidence import count_absent_answers
from ark_jax.data.records import Chunk, Corpus, Document, Question
from ark_jax.pipeline.stage import Context
from ark_jax.pipeline.tables import save_json, save_rows
from ark_jax.recipes.common import written_from
from ark_jax.recipes.common.corpus import POOL_FILE, save_chunks
from ark_jax.recipes.common.split import Split, id_set, split_questions
from ark_jax.runtime.log import say

INGEST_SETTINGS = (
    "data.held_out",
    "data.held_out_documents",
    "data.held_out_questions",
    "data.ignored_documents",
    "data.ignored_questions",
    "data.titles",
    "data.pool",
    "data.chunking",
    "data.chunk_tokens",
    "data.chunk_overlap",
    "questions.source",
    "seed",
)
# A question whose documents have fewer chunks, in the median, is searched for in the whole corpus:
# among so few there is hardly a hard negative, and every retriever finds the right one.
FEW_CHUNKS = 10


def ingest(context: Context, folder: Path) -> dict:
    """Stores documents, their chunks, and the questions of "train" and "held_out".

    Raises:
        ValueError: an id in the config that the input lacks, or a side of the split is empty.
    """
    settings = context.config.data
    corpus = readers.load(settings.path)
    test = readers.load(settings.test) if settings.test else None
    _check_ids(corpus, settings)
    parts = split_questions(corpus.questions, test.questions if test else (), context.config)
    parts = written_from.reserve_for_test(parts, context.config)
    _check_parts(parts, written_from.parts_of_the_input(len(parts), context.config), settings)
    documents = _documents(corpus, test, settings)
    chunks = list(_cut(documents, context.config))
    pool = _pool(settings.pool, [*parts.train, *parts.held_out], chunks)
    written_from.save_sides(documents, parts, context.config, folder)
    stored = [{"id": x.id, "title": x.title, "text": x.text} for x in documents]
    save_rows(stored, folder / "documents.parquet")
    save_chunks(chunks, folder)
    save_json({"pool": pool}, folder / POOL_FILE)
    save_rows(parts.train, folder / "questions_train.parquet", Question)
    save_rows(parts.held_out, folder / "questions_held_out.parquet", Question)
    return {
        "format": corpus.format,
        "documents": len(documents),
        "chunks": len(chunks),
        "train_questions": len(parts.train),
        "held_out_questions": len(parts.held_out),
        "unused_questions": len(parts.unused),
        "split_by": parts.by,
        "pool": pool,
        **_losses(corpus, parts, documents, chunks),
    }


def _check_parts(parts: Split, needed: Iterable[str], settings) -> None:
    for part in needed:
        if not getattr(parts, part):
            raise ValueError(
                f"{settings.path}: the split leaves no {part.replace('_', '-')} question of "
                f"{len(parts)}; change config.data.held_out or name config.data.held_out_documents"
            )


def _documents(corpus: Corpus, test: Corpus | None, settings) -> list[Document]:
    """The documents of input and test set, without those that the config ignores.

    Raises:
        ValueError: the test set has another document of the same id.
    """
    ignored = id_set(settings.ignored_documents)
    documents = {document.id: document for document in corpus.documents}
    for document in test.documents if test else ():
        if documents.setdefault(document.id, document).text != document.text:
            raise ValueError(
                f"config.data.test: the document {document.id!r} of {settings.test} has another "
                f"text in {settings.path}; give one of them another id"
            )
    return [document for id, document in documents.items() if id not in ignored]


def _pool(choice: str, questions: list[Question], chunks: list[Chunk]) -> str:
    """Where candidates and results come from: "documents" or "corpus"."""
    unnamed = sum(not question.documents for question in questions)
    if choice == "documents" and unnamed:
        raise ValueError(
            f"config.data.pool=documents: {unnamed:,} questions name no document; name them, or "
            "set config.data.pool=corpus"
        )
    if choice != "auto":
        return choice
    if unnamed:
        say(f"  {unnamed:,} questions name no document, so the whole corpus is searched")
        return "corpus"
    sizes: dict[str, int] = {}
    for chunk in chunks:
        sizes[chunk.document] = sizes.get(chunk.document, 0) + 1
    asked = [sum(sizes.get(d, 0) for d in question.documents) for question in questions]
    # A question that is yet to be written asks one document.
    median = statistics.median(asked or sizes.values() or [0])
    if median >= FEW_CHUNKS or median >= len(chunks):
        return "documents"
    say(
        f"  the documents of a question have {median:g} chunks (median), so candidates come from "
        f"all {len(chunks):,} chunks; config.data.pool=documents keeps to its documents"
    )
    return "corpus"


def _losses(
    corpus: Corpus, parts: Split, documents: list[Document], chunks: list[Chunk]
) -> dict[str, int]:
    """What of the input teaches or measures nothing, by reason."""
    with_chunks = {chunk.document for chunk in chunks}
    used = [*parts.train, *parts.held_out]
    named = [question for question in (*used, *parts.unused) if question.documents]
    without_chunks = sum(with_chunks.isdisjoint(question.documents) for question in named)
    texts = {document.id: document.text for document in documents}
    absent, _ = count_absent_answers(used, texts)
    unanswered = sum(not question.answers for question in used)
    if without_chunks:
        say(f"  {without_chunks:,} questions ask documents without any text, and teach nothing")
    if unanswered:
        say(f"  {unanswered:,} questions have no answer: they are held out and measure retrieval")
    counts = {
        "questions_without_text": without_chunks,
        "questions_without_answers": unanswered,
        "answers_not_in_documents": absent,
        "passed_over": len(corpus.remarks),
    }
    return {name: count for name, count in counts.items() if count}


def _check_ids(corpus: Corpus, settings) -> None:
    for kind, rows in (("document", corpus.documents), ("question", corpus.questions)):
        named = id_set(settings[f"held_out_{kind}s"]) | id_set(settings[f"ignored_{kind}s"])
        if unknown := named - {row.id for row in rows}:
            raise ValueError(
                f"config.data: no {kind} {min(unknown)!r} in {settings.path}; see `ark-jax check`"
            )


def _cut(documents: Iterable[Document], config) -> Iterator[Chunk]:
    """The chunks of all documents, by the tokens of the retriever."""
    from ark_jax.models import hf
    from ark_jax.text.sentences import sentence_chunks
    from ark_jax.text.tokens import load_tokenizer, token_chunks

    by_sentences = config.data.chunking == "sentences"
    size, overlap = config.data.chunk_tokens, config.data.chunk_overlap
    tokenizer = load_tokenizer(str(hf.resolve(config.retriever.path)))
    for document in documents:
        text, limits = document.text, {"size": size, "overlap": overlap}
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


def _title(document: Document, start: int) -> str:
    """The document's title and the headings above an offset, as one line."""
    i = bisect.bisect_right([section.start for section in document.sections], start)
    heading = document.sections[i - 1].path if i else ""
    return " > ".join(" ".join(part.split()) for part in (document.title, heading) if part.strip())
