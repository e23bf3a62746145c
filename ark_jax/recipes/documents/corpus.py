"""Questions, chunks and evidence of a workdir, and the vectors of its passages."""

import contextlib
import dataclasses
import hashlib
import itertools
import json
import operator
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ark_jax import __version__
from ark_jax.data.records import Chunk, Document, Question
from ark_jax.data.spool import StoredChunks, record_blocks
from ark_jax.data.text_columns import LookedUp
from ark_jax.pipeline.fingerprints import file_digest, fingerprint, model_digest
from ark_jax.pipeline.manifest import read_manifest
from ark_jax.pipeline.stage import Context
from ark_jax.pipeline.tables import load_json, load_rows, read_table, stream_rows
from ark_jax.recipes.core.models import load_retriever, retriever_path
from ark_jax.recipes.core.tables import questions_by_group
from ark_jax.retrieval.array_files import array_rows, write_array
from ark_jax.runtime import distributed
from ark_jax.runtime.log import say
from ark_jax.schema import setting
from ark_jax.text.token_vectors import TokenVectors, Vectors

POOL_FILE = "pool.json"


class Passages(LookedUp[str]):
    """chunk id -> its passage, read on access: of several processes, each reads its share."""

    def __init__(self, chunks: StoredChunks):
        by_id = chunks.by_id
        super().__init__(by_id, lambda chunk_id: by_id[chunk_id].passage)


def save_documents(documents: Iterable[Document], folder: Path) -> list[str]:
    """Writes documents.parquet, without sections, block by block; returns the ids in order."""
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


TRAINING = "training"  # the folder of the chunks that are trained on, where they are others


def training_chunks(context: Context) -> StoredChunks:
    """The chunks that are trained on: those of the corpus, or of `data.training_sentences`."""
    sentences = context.config.data.get("training_sentences", 0)
    return StoredChunks(context / "data" / TRAINING) if sentences else stored_chunks(context)


def chunks_by_document(context: Context) -> Mapping[str, list[Chunk]]:
    """document id -> its chunks, in the order of the text."""
    return stored_chunks(context).by_document


def load_questions(context: Context, part: str) -> list[Question]:
    """The questions of "train" or "held_out": those of the input, then those that were written."""
    return [*given_questions(context, part), *written_questions(context, part)]


def given_questions(context: Context, part: str) -> list[Question]:
    """The questions of the input, without written ones; the data stage stores them."""
    return load_rows(context / "data" / f"questions_{part}.parquet", Question)


def save_questions(questions: Sequence[Question], path: Path) -> None:
    """Writes questions; a column of negatives only if one has any, as in files of earlier runs."""
    rows = [dataclasses.asdict(question) for question in questions]
    columns = [field.name for field in dataclasses.fields(Question)]
    if not any(question.negatives for question in questions):
        columns.remove("negatives")
    table = pa.table({name: [row[name] for row in rows] for name in columns})
    if distributed.is_first_process():
        pq.write_table(table, path)


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


def questions_by_test_set(context: Context, questions: Sequence[Question]) -> dict[str, set[str]]:
    """test set -> the ids of its questions; empty unless `data.test` names several."""
    has_several = load_json(context / "data" / POOL_FILE).get("test_sets")
    return questions_by_group(questions) if has_several else {}


def candidate_chunks(question: Question, chunks: Mapping[str, list[Chunk]]) -> list[Chunk]:
    """The chunks of the question's documents, and of the documents marked as irrelevant to it."""
    documents = (*question.documents, *question.negatives)
    return [chunk for document in documents for chunk in chunks.get(document, ())]


class SearchedChunks(NamedTuple):
    """The chunks that training questions search.

    Attributes:
        texts: their passages, each read when it is asked for.
        position: chunk id -> its place among them.
    """

    ids: Sequence[str]
    texts: Sequence[str]
    position: Callable[[str], int]


def searched_in_training(
    questions: Sequence[Question], chunks: StoredChunks, *, whole: bool
) -> SearchedChunks:
    """All chunks if the whole corpus is searched, else those of `candidate_chunks`."""
    if whole:
        return SearchedChunks(chunks.ids, passages_of(views_of(chunks)), chunks.ids.position)
    groups = (candidate_chunks(question, chunks.by_document) for question in questions)
    by_id = {chunk.id: chunk for group in groups for chunk in group}
    positions = {id: i for i, id in enumerate(by_id)}
    return SearchedChunks([*by_id], passages_of([*by_id.values()]), positions.__getitem__)


def views_of(chunks: StoredChunks) -> distributed.LazySequence[Chunk]:
    """All chunks; a field of a chunk is read when it is asked for."""
    return distributed.LazySequence(chunks.view, range(len(chunks)))


def passages_of(chunks: Sequence[Chunk]) -> distributed.LazySequence[str]:
    """The passage of each chunk, read when it is asked for."""
    return distributed.LazySequence(operator.attrgetter("passage"), chunks)


def evidence_chunks(
    context: Context, questions: Sequence[Question], chunks: Mapping[str, list[Chunk]]
) -> dict[str, list[list[str]]]:
    """question -> its marked passages; see `evidence.marked_passages`."""
    from ark_jax.data.evidence import marked_passages

    return marked_passages(questions, chunks, _document_texts(context, questions))


def gold_passages(
    context: Context, questions: Sequence[Question], chunks: Mapping[str, list[Chunk]]
) -> tuple[dict[str, list[list[str]]], int]:
    """question -> its needed passages by the rule `evaluate.gold`, each as the chunks that hold it.

    Also returns how many questions lack marked evidence.
    """
    from ark_jax.data.evidence import needed_passages

    texts = _document_texts(context, questions)
    return needed_passages(questions, chunks, texts, context.config.evaluate.gold)


def _document_texts(context: Context, questions: Sequence[Question]) -> dict[str, str]:
    """document id -> text; empty if no question has evidence."""
    if not any(question.evidence for question in questions):
        return {}
    return {document.id: document.text for document in load_documents(context)}


FOLDER = "vectors"


def encode_passages(
    context: Context, system: str, passages: Sequence[str], label: str
) -> tuple[Vectors, int]:
    """Unit vectors of passages by a system's retriever, and how many passages it cuts.

    They are `[n e]`, or `TokenVectors`. If the run searches the whole corpus, they are stored on
    disk and mapped from there; those of tokens have 16 bits.
    """
    retriever, settings = load_retriever(context, system), context.config.retriever
    options = {"kind": "document", "batch_tokens": settings.batch_tokens, "label": label}
    if not searches_corpus(context):
        return retriever.encode(passages, **options), retriever.truncated[label]
    path = context.workdir / FOLDER / f"{system}.npy"

    def look_up() -> tuple[str, int | None]:
        key = _vectors_key(context.config, _system_digest(context, system), passages)
        return key, _stored_cut_count(path, key)

    key, cut = distributed.on_first_process(look_up)
    if cut is not None:
        say(f"  {label}: {len(passages):,} vectors are taken from {path}")
    else:
        cut = _write_vectors(retriever, passages, options, path.with_suffix(".new"))
        distributed.on_first_process(lambda: _replace_stored(path, key, cut))
    vectors = np.load(path, mmap_mode="r", allow_pickle=False)
    if not (offsets := _offsets_file(path)).is_file():
        return vectors, cut
    return TokenVectors(vectors, np.load(offsets, allow_pickle=False)), cut


def _offsets_file(path: Path) -> Path:
    return path.with_name(f"{path.name}.offsets")


def _write_vectors(retriever, passages: Sequence[str], options: dict, unfinished: Path) -> int:
    """Writes vectors to a file for `np.load`, batch by batch; returns the number of cut passages.

    All vectors may be more than a process's memory. If each token has a vector, the first row of
    each passage is written too.
    """
    from ark_jax.models.multi_vector import MultiVectorRetriever

    shape, dtype, offsets = (len(passages), retriever.width), np.float32, None
    if isinstance(retriever, MultiVectorRetriever):
        offsets = retriever.vector_offsets(passages, kind="document")
        shape, dtype = (int(offsets[-1]), retriever.width), np.float16
    batches = retriever.encode_batches(passages, **options)
    with contextlib.ExitStack() as stack:
        write = lambda numbers, vectors: None
        if distributed.is_first_process():
            unfinished.parent.mkdir(parents=True, exist_ok=True)
            write = stack.enter_context(array_rows(unfinished, shape, dtype))
            if offsets is not None:
                write_array(_offsets_file(unfinished), offsets.shape, offsets.dtype, [offsets])
        for numbers, vectors in batches:
            if offsets is not None:
                rows = [range(offsets[number], offsets[number + 1]) for number in numbers]
                numbers, vectors = itertools.chain(*rows), np.concatenate(vectors)
            write(numbers, vectors)
    return retriever.truncated[options["label"]]


def _vectors_key(config, model: str, passages: Sequence[str]) -> str:
    """The fingerprint of everything on which the vectors depend.

    Their last bits depend on the batches, and these on settings, mesh and devices.
    """
    import jax

    digest = hashlib.sha256()
    for passage in passages:
        data = passage.encode()
        digest.update(len(data).to_bytes(8, "little") + data)
    devices = [[device.platform, device.device_kind] for device in jax.devices()]
    return fingerprint(
        {
            "passages": digest.hexdigest(),
            "model": model,
            "retriever": {
                name: value if isinstance(value := config.retriever[name], str | int) else {**value}
                for name in config.retriever
                if name not in ("path", "export_dtype")
            },
            "mesh": setting(config, "mesh"),
            "devices": devices,
            "version": __version__,
        }
    )


def _system_digest(context: Context, system: str) -> str:
    """The digest of a system's model; for a trained one it comes from its stage's manifest."""
    path = retriever_path(context, system)
    if path != str(context.workdir / system / "model"):
        return model_digest(path)
    outputs = read_manifest(context / system)["outputs"]
    return fingerprint({name: x for name, x in outputs.items() if name.startswith("model/")})


def _stored_cut_count(path: Path, key: str) -> int | None:
    """How many passages were cut for the stored vectors; None if these are not valid for `key`."""
    try:
        stored = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
        fits, digest, cut = stored["key"] == key, stored["sha256"], int(stored["cut"])
    except (OSError, ValueError, TypeError, KeyError):
        return None
    if not fits or not path.is_file():
        return None
    if _vectors_digest(path) != digest:
        say(f"  warning: {path} has been damaged: it is made again")
        return None
    return cut


def _vectors_digest(path: Path) -> str:
    files = [path, _offsets_file(path)]
    return " ".join(file_digest(file) for file in files if file.is_file())


def _replace_stored(path: Path, key: str, cut: int) -> None:
    """Replaces a system's stored vectors; a kill at any moment leaves no wrong description."""
    description, unfinished = path.with_suffix(".json"), path.with_suffix(".new")
    description.unlink(missing_ok=True)
    os.replace(unfinished, path)
    _offsets_file(path).unlink(missing_ok=True)
    if _offsets_file(unfinished).is_file():
        os.replace(_offsets_file(unfinished), _offsets_file(path))
    row = {"key": key, "sha256": _vectors_digest(path), "cut": cut}
    description.write_text(json.dumps(row) + "\n", encoding="utf-8")
