"""Models on a test set: a table of retrieval metrics, with intervals and pairwise tests."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

from ark_jax import __version__
from ark_jax.compare.questions import Task, build_index, make_task, open_index
from ark_jax.compare.rankings import WORDS, System, find_reference, parse_systems, rank
from ark_jax.data import readers
from ark_jax.data.evidence import left_out, most_chunks, own_chunks
from ark_jax.data.reading import Reading
from ark_jax.data.records import Question
from ark_jax.evaluate import retrieval
from ark_jax.evaluate.significance import detectable_difference
from ark_jax.index.folder import is_index
from ark_jax.index.index import absolute_model
from ark_jax.pipeline.fingerprints import fingerprint
from ark_jax.recipes.core.split import document_keys
from ark_jax.recipes.core.tables import questions_by_group, tabulate
from ark_jax.recipes.documents.evaluate import RETRIEVAL
from ark_jax.recipes.documents.retrieve import DEPTH, without
from ark_jax.retrieval.chunks import ChunkRules
from ark_jax.retrieval.hyde import Write
from ark_jax.runtime import storage

SEED, CLUSTER = 0, "document"  # of intervals and tests
FEWEST_DOCUMENTS = 6  # with fewer, even a gain on every document has p > 0.05
SEARCHED = {
    "corpus": "all passages, as `ark-jax search` does",
    "documents": "the passages of its own documents",
    "asked": "the passages of all documents that are asked",
}


@dataclasses.dataclass(frozen=True)
class Comparison:
    """The result of `compare`.

    Attributes:
        reference: the system that the others are tested against; it has the first row.
        metrics: the columns of the table.
        table: as `tabulate` makes it.
        groups: type of question -> the table of its questions; empty if the data have no types.
        rows: what each system retrieved for each question, and its metrics, which are None if no
            passage of the index answers the question.
        remarks: how it was measured, in sentences.
        about: label -> fact about models and data, for the report.
    """

    reference: str
    metrics: tuple[str, ...]
    table: list[dict]
    groups: dict[str, list[dict]]
    rows: list[dict]
    remarks: list[str]
    about: dict[str, object]

    @property
    def measured_questions(self) -> int:
        """The number of questions in the table."""
        metric = self.metrics[0]
        first = (row for row in self.rows if row["system"] == self.reference)
        return sum(row[metric] is not None for row in first)


def compare(
    models: Sequence[str],
    data: str | Path,
    *,
    corpus: str | Path = "",
    folder: str | Path | None = None,
    reference: str = "",
    metrics: Sequence[str] = RETRIEVAL,
    scope: str = "auto",
    rules: ChunkRules | None = None,
    write: Write | None = None,
    same_id: str = "auto",
    reading: Reading = readers.AS_IT_IS,
) -> Comparison:
    """Measures systems on the questions of a test set.

    All search the same passages: those of an index among the models, or those that the first
    retriever cuts. Questions about one document are not independent, so intervals and tests draw
    documents. After a kill, call it again: finished vectors are kept.

    Args:
        models: folders or hub names of retrievers, the folder of an index, "bm25", "MODEL+bm25",
            and either with "+hyde".
        data: questions, with documents or without, in a format that `data.readers` knows.
        corpus: documents to search, instead of those of `data`.
        folder: where an index is made, if none is among the models; None: in the cache, where one
            is kept for each corpus.
        reference: the system to test against; empty: the first one.
        metrics: as `evaluate.retrieval` names them.
        scope: see `questions.make_task`.
        rules: how documents are cut; None: `ChunkRules()`.
        write: the language model of "MODEL+hyde", such as `Reader.write`.
        same_id: whether results hold the document with a question's id; see `evidence.own_chunks`.
        reading: how the files of data and corpus are read.

    Raises:
        BadInput: an input has problems; it lists all of them.
        FileNotFoundError, ValueError: a model or an argument cannot be used.
    """
    from ark_jax.models import hf

    systems = parse_systems(models)
    if write is None and any(system.expands for system in systems):
        raise ValueError("--models: +hyde needs a language model; name it with --reader=MODEL")
    reference = find_reference(reference, systems, models)
    cutoffs = [retrieval.parse_metric(name)[1] or 0 for name in metrics]
    named = dict.fromkeys(system.model for system in systems if system.model)
    index_folder = next((model for model in named if is_index(Path(model).expanduser())), "")
    for model in named:
        if model != index_folder:
            hf.resolve(model)  # raises on a misspelt name before any work
    if index_folder:
        if corpus:
            raise ValueError(
                f"--corpus: the index {index_folder} is the corpus; leave one of them out"
            )
        index, questions, texts = open_index(index_folder, data, reading)
    else:
        rules, model = rules or ChunkRules(), next(iter(named))
        place = storage.local_path(folder or _cache_folder(model, corpus or data, rules, reading))
        index, questions, texts = build_index(place, model, data, corpus, rules, reading)
    task = make_task(index, questions, texts, data, scope)
    own, depth = own_chunks(questions, index.chunks.by_document, same_id), max(DEPTH, *cutoffs)
    found = rank(task, systems, depth + most_chunks(own), write)
    own_of = [own.get(question.id, ()) for question in questions]
    rankings = {
        name: [without(ids, out, depth) for ids, out in zip(lists, own_of, strict=True)]
        for name, lists in found.items()
    }
    ordered = sorted(systems, key=lambda system: system.name != reference)
    comparison = _make_comparison(task, ordered, rankings, tuple(metrics), data)
    remarks = [*comparison.remarks, *filter(None, [left_out(own)])]
    return dataclasses.replace(comparison, remarks=remarks)


def _cache_folder(model: str, corpus: str | Path, rules: ChunkRules, reading: Reading) -> Path:
    """The folder in the cache for the index of a corpus, read and cut in this way."""
    names = [absolute_model(name) for name in (model, corpus)]
    of_reading = [reading.encoding, reading.columns, reading.tolerate]
    given = of_reading if any(of_reading) else []
    digest = fingerprint([*names, dataclasses.asdict(rules), *given])
    return storage.cache_folder() / "evaluate" / digest[:16]


def _make_comparison(
    task: Task,
    systems: Sequence[System],
    rankings: Mapping[str, Sequence[list[str]]],
    metrics: tuple[str, ...],
    data: str | Path,
) -> Comparison:
    """Computes tables from rankings (system -> chunk ids of each question).

    Args:
        systems: the reference first.
    """
    keys, by_document = document_keys(task.questions)
    if not by_document:
        keys = [question.id for question in task.questions]
    rows = [
        _question_row(system.name, question, key, ranked, task, metrics)
        for system in systems
        for question, key, ranked in zip(task.questions, keys, rankings[system.name], strict=True)
    ]
    names = {system.name for system in systems}
    parts = {system.name: WORDS for system in systems if system.by == "hybrid" and WORDS in names}
    groups = questions_by_group(task.questions)
    return Comparison(
        reference=systems[0].name,
        metrics=metrics,
        table=_tabulate(rows, metrics, parts),
        groups={
            name or "no type": _tabulate([x for x in rows if x["question"] in ids], metrics, parts)
            for name, ids in groups.items()
        },
        rows=rows,
        remarks=_remarks(task, len(set(keys)), by_document),
        about=_about(task, systems, data),
    )


def _question_row(
    system: str,
    question: Question,
    document: str,
    ranked: list[str],
    task: Task,
    metrics: Sequence[str],
) -> dict:
    """One row of `Comparison.rows`."""
    gold = task.gold[question.id]
    values = retrieval.measure(ranked, gold, metrics) if gold else dict.fromkeys(metrics)
    key = {"system": system, "question": question.id, "document": document}
    return {**key, "ranked": ranked, **values}


def _tabulate(rows: list[dict], metrics: Sequence[str], parts: Mapping[str, str]) -> list[dict]:
    return tabulate(rows, metrics, seed=SEED, cluster=CLUSTER, parts=parts)


def _remarks(task: Task, clusters: int, by_document: bool) -> list[str]:
    """Sentences on how it was measured.

    Args:
        clusters: how many units intervals and tests draw.
        by_document: whether these are documents, not questions.
    """
    unanswered = sum(not gold for gold in task.gold.values())
    measured = len(task.questions) - unanswered or len(task.questions)
    drawing = (
        f"intervals and tests draw the {clusters:,} documents, or groups of them, that are asked"
    )
    if not by_document:
        drawing = "intervals and tests draw questions, since these join most documents"
    remarks = [
        f"each question searches {SEARCHED[task.scope]}",
        drawing,
        f"{measured:,} questions: {detectable_difference(measured)}",
    ]
    if by_document and clusters < FEWEST_DOCUMENTS:
        remarks.append(f"with {clusters} documents no difference reaches p < 0.05")
    if unanswered:
        remarks.append(f"{unanswered:,} questions are left out: no passage answers them")
    return remarks


def _about(task: Task, systems: Sequence[System], data: str | Path) -> dict[str, object]:
    index = task.index
    return {
        "Data": str(data),
        "Questions": len(task.questions),
        "Documents": index.manifest.documents,
        "Passages": len(index),
        "Searched": SEARCHED[task.scope],
        "Index": str(index.folder),
        **{f"Model of {x.name}": x.model for x in systems if x.model},
        "Version of ark_jax": __version__,
    }
