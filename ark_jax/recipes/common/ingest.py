"""The data stage: documents and questions are read, split and cut into chunks."""

import collections
import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from ark_jax.data import readers
from ark_jax.data.evidence import count_absent_answers
from ark_jax.data.records import Chunk, Corpus, Document, Question
from ark_jax.pipeline.stage import Context
from ark_jax.pipeline.tables import save_rows
from ark_jax.recipes.common import written_from
from ark_jax.recipes.common.corpus import save_chunks
from ark_jax.runtime.log import say

INGEST_SETTINGS = (
    "data.held_out",
    "data.held_out_documents",
    "data.held_out_questions",
    "data.ignored_documents",
    "data.ignored_questions",
    "data.chunk_tokens",
    "data.chunk_overlap",
    "questions.source",
    "seed",
)


def ingest(context: Context, folder: Path) -> dict:
    """Stores documents, their chunks, and the questions of "train" and "held_out".

    Raises:
        ValueError: an id in the config that the input lacks, or a side of the split is empty.
    """
    settings = context.config.data
    corpus = readers.load(settings.path)
    _check_ids(corpus, settings)
    parts, split_by = _split(corpus.questions, context.config)
    parts = written_from.reserve_for_test(parts, context.config)
    for part in written_from.parts_of_the_input(corpus.questions, context.config):
        if not parts[part]:
            raise ValueError(
                f"{settings.path}: the split leaves no {part.replace('_', '-')} question of "
                f"{len(corpus.questions)}; change config.data.held_out or name "
                "config.data.held_out_documents"
            )
    ignored = _id_set(settings.ignored_documents)
    documents = [document for document in corpus.documents if document.id not in ignored]
    chunks = list(_cut(documents, context.config))
    written_from.save_sides(documents, parts, split_by, context.config, folder)
    save_rows(documents, folder / "documents.parquet", Document)
    save_chunks(chunks, folder)
    for part in ("train", "held_out"):
        save_rows(parts[part], folder / f"questions_{part}.parquet", Question)
    with_chunks = {chunk.document for chunk in chunks}
    without_chunks = sum(
        with_chunks.isdisjoint(question.documents) for part in parts.values() for question in part
    )
    texts = {document.id: document.text for document in documents}
    absent, _ = count_absent_answers([*parts["train"], *parts["held_out"]], texts)
    if without_chunks:
        say(f"  {without_chunks:,} questions ask documents without any text, and teach nothing")
    return {
        "format": corpus.format,
        "documents": len(documents),
        "chunks": len(chunks),
        "train_questions": len(parts["train"]),
        "held_out_questions": len(parts["held_out"]),
        "unused_questions": len(parts["ignored"]),
        "split_by": split_by,
        **({"questions_without_text": without_chunks} if without_chunks else {}),
        **({"answers_not_in_documents": absent} if absent else {}),
        **({"passed_over": len(corpus.remarks)} if corpus.remarks else {}),
    }


def _check_ids(corpus: Corpus, settings) -> None:
    for kind, rows in (("document", corpus.documents), ("question", corpus.questions)):
        named = _id_set(settings[f"held_out_{kind}s"]) | _id_set(settings[f"ignored_{kind}s"])
        if unknown := named - {row.id for row in rows}:
            raise ValueError(
                f"config.data: no {kind} {min(unknown)!r} in {settings.path}; see `ark-jax check`"
            )


def _id_set(ids: Iterable) -> set[str]:
    """Ids that a config lists; on the command line 7 is a number."""
    return {str(id) for id in ids}


def _cut(documents: list[Document], config) -> Iterator[Chunk]:
    """The chunks of all documents, by the tokens of the retriever."""
    from ark_jax.models import hf
    from ark_jax.text.tokens import load_tokenizer, token_chunks

    size, overlap = config.data.chunk_tokens, config.data.chunk_overlap
    tokenizer = load_tokenizer(str(hf.resolve(config.retriever.path)))
    for document in documents:
        spans = token_chunks(document.text, tokenizer, size=size, overlap=overlap)
        for i, span in enumerate(spans):
            text = document.text[span.start : span.end]
            stripped = text.strip()
            if not stripped:  # a page of blank lines holds nothing to find
                continue
            start = span.start + len(text) - len(text.lstrip())
            chunk_id, end = f"{document.id}#{i:04d}", start + len(stripped)
            yield Chunk(chunk_id, document.id, start, end, span.tokens, stripped)


def _split(questions: list[Question], config) -> tuple[dict[str, list[Question]], str]:
    """The questions of "train", "held_out" and "ignored"; whether documents or questions are split.

    The config names held-out questions or documents. Else a hash of ids draws a share, so that a
    new document moves no other one. Documents that one question joins are drawn together; if a
    question joins nearly all of them, questions are drawn instead.
    """
    settings = config.data
    ignored_documents = _id_set(settings.ignored_documents)
    ignored_questions = _id_set(settings.ignored_questions)
    named_documents = _id_set(settings.held_out_documents)
    named_questions = _id_set(settings.held_out_questions)
    if named_questions and named_documents:
        raise ValueError("config.data: name held_out_questions or held_out_documents, not both")
    parts: dict[str, list[Question]] = {"train": [], "held_out": [], "ignored": []}
    used = []
    for question in questions:
        ignored = question.id in ignored_questions or ignored_documents & set(question.documents)
        (parts["ignored"] if ignored else used).append(question)
    if named_questions:
        for question in used:
            parts["held_out" if question.id in named_questions else "train"].append(question)
        return parts, "question"
    if named_documents:
        for question in used:
            parts[_part_by_documents(question, named_documents)].append(question)
        return parts, "document"
    keys, split_by = _draw_keys(used, settings.held_out)
    for question, key in zip(used, keys, strict=True):
        held_out = _uniform(f"{config.seed} {key}") < settings.held_out
        parts["held_out" if held_out else "train"].append(question)
    return parts, split_by


def _part_by_documents(question: Question, held_out: set[str]) -> str:
    """A question of training and held-out documents takes part in neither."""
    documents = set(question.documents)
    if documents <= held_out:
        return "held_out"
    return "ignored" if documents & held_out else "train"


def _draw_keys(questions: list[Question], share: float) -> tuple[list[str], str]:
    """What is drawn for each question: its group of joined documents, or the question itself."""
    from networkx.utils import UnionFind

    joined = UnionFind()
    for question in questions:
        joined.union(*question.documents)
    groups = joined.to_sets()
    group_key = {document: min(group) for group in groups for document in group}
    keys = [group_key[question.documents[0]] for question in questions]
    if not questions or max(collections.Counter(keys).values()) <= (1 - share) * len(questions):
        return keys, "document"
    say(
        "  questions join nearly all documents: the split is by question, so a held-out question "
        "may share passages with a training question"
    )
    return [question.id for question in questions], "question"


def _uniform(text: str) -> float:
    """A number in [0, 1) that a hash of `text` decides."""
    return int(hashlib.sha256(text.encode()).hexdigest()[:8], 16) / 2**32
