"""Questions, chunks and evidence of a workdir, as the data stage stored them."""

import dataclasses
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from ark_jax.data.chunk_files import StoredChunks, record_blocks
from ark_jax.data.records import Chunk, Document, Question
from ark_jax.data.stored_strings import LookedUp
from ark_jax.pipeline.stage import Context
from ark_jax.pipeline.tables import load_json, load_rows, read_table, stream_rows
from ark_jax.runtime import distributed

POOL_FILE = "pool.json"


class Passages(LookedUp[str]):
    """chunk id -> its passage, read on access: of several processes, each reads its share."""

    def __init__(self, chunks: StoredChunks):
        by_id = chunks.by_id
        super().__init__(by_id, lambda chunk_id: by_id[chunk_id].passage)


def save_documents(documents: Iterable[Document], folder: Path) -> list[str]:
    """Writes documents without their sections, block by block; returns their ids."""
    names, ids = ("id", "title", "text"), []
    schema = pa.schema([(name, pa.string()) for name in names])
    with pq.ParquetWriter(folder / "documents.parquet", schema) as file:
        for block in record_blocks(documents):
            columns = [[getattr(document, name) for document in block] for name in names]
            file.write_table(pa.table(columns, schema=schema))
            ids += columns[0]
    return ids


def stored_chunks(context: Context) -> StoredChunks:
    """The chunks of the corpus."""
    return StoredChunks(context / "data")


def chunks_by_document(context: Context) -> Mapping[str, list[Chunk]]:
    """document id -> its chunks, in the order of the text."""
    return stored_chunks(context).by_document


def load_questions(context: Context, part: str) -> list[Question]:
    """The questions of "train" or "held_out": those of the input, and those that were written."""
    return [*given_questions(context, part), *written_questions(context, part)]


def given_questions(context: Context, part: str) -> list[Question]:
    """The questions of the input alone, which are there before any is written."""
    return load_rows(context / "data" / f"questions_{part}.parquet", Question)


def written_questions(context: Context, part: str) -> list[Question]:
    """The questions that the stage `questions` wrote; none if the config has no such stage."""
    config = context.config
    if "questions" not in config or config.questions.source == "given":
        return []
    rows = load_rows(context / "questions" / "questions.parquet")
    names = [field.name for field in dataclasses.fields(Question)]
    value = lambda row, name: tuple(row[name]) if isinstance(row[name], list) else row[name]
    return [
        Question(**{name: value(row, name) for name in names if name in row})
        for row in rows
        if row["part"] == part
    ]


def load_documents(context: Context) -> Iterator[Document]:
    """The documents without their sections, each read when it is asked for."""
    rows = stream_rows(read_table(context / "data" / "documents.parquet"))
    return (Document(**row) for row in rows)


def searches_corpus(context: Context) -> bool:
    """Whether questions are answered from the whole corpus, or each from its own documents."""
    return load_json(context / "data" / POOL_FILE)["pool"] == "corpus"


def candidate_chunks(question: Question, chunks: Mapping[str, list[Chunk]]) -> list[Chunk]:
    """The chunks of the question's documents."""
    return [chunk for document in question.documents for chunk in chunks.get(document, ())]


class SearchedChunks(NamedTuple):
    """The chunks that training questions search.

    Attributes:
        ids: their ids.
        texts: their passages, each read when it is asked for.
        position: chunk id -> its place among them.
    """

    ids: Sequence[str]
    texts: Sequence[str]
    position: Callable[[str], int]


def searched_in_training(
    questions: Sequence[Question], chunks: StoredChunks, *, whole: bool
) -> SearchedChunks:
    """All chunks if the whole corpus is searched, else those of the questions' documents."""
    if whole:
        return SearchedChunks(chunks.ids, passages_of(views_of(chunks)), chunks.ids.position)
    groups = (candidate_chunks(question, chunks.by_document) for question in questions)
    by_id = {chunk.id: chunk for group in groups for chunk in group}
    positions = {id: i for i, id in enumerate(by_id)}
    return SearchedChunks([*by_id], passages_of([*by_id.values()]), positions.__getitem__)


def views_of(chunks: StoredChunks) -> distributed.LazySequence[Chunk]:
    """All chunks, each read field by field."""
    return distributed.LazySequence(chunks.view, range(len(chunks)))


def passages_of(chunks: Sequence[Chunk]) -> distributed.LazySequence[str]:
    """The passage of each chunk, read when it is asked for."""
    return distributed.LazySequence(operator.attrgetter("passage"), chunks)


def evidence_chunks(
    context: Context, questions: Sequence[Question], chunks: Mapping[str, list[Chunk]]
) -> dict[str, list[list[str]]]:
    """question -> its marked passages, as of `evidence.marked_passages`."""
    from ark_jax.data.evidence import marked_passages

    return marked_passages(questions, chunks, _texts(context, questions))


def gold_passages(
    context: Context, questions: Sequence[Question], chunks: Mapping[str, list[Chunk]]
) -> tuple[dict[str, list[list[str]]], int]:
    """question -> needed passages, as of `evidence.needed_passages` by `evaluate.gold`."""
    from ark_jax.data.evidence import needed_passages

    texts = _texts(context, questions)
    return needed_passages(questions, chunks, texts, context.config.evaluate.gold)


def _texts(context: Context, questions: Sequence[Question]) -> dict[str, str]:
    """document id -> text, if any question has evidence."""
    if not any(question.evidence for question in questions):
        return {}
    return {document.id: document.text for document in load_documents(context)}
