"""The questions of a test set on an index: which passages answer them, and which are searched."""

import collections
import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path

from ark_jax.data import readers
from ark_jax.data.evidence import needed_passages
from ark_jax.data.problems import Reading
from ark_jax.data.records import Chunk, Document, Question
from ark_jax.evaluate.retrieval import Gold
from ark_jax.index.index import Index
from ark_jax.recipes.documents.ingest import choose_pool
from ark_jax.recipes.documents.retrieve import chunks_in_scope
from ark_jax.retrieval.chunks import ChunkRules
from ark_jax.runtime import storage
from ark_jax.runtime.log import say

SCOPES = ("auto", "documents", "asked", "corpus")
_EVALUATE_SCOPES = {"documents": "document", "asked": "held_out"}  # as `evaluate.scope` says it


@dataclasses.dataclass(frozen=True)
class Task:
    """An index, and questions whose answers are known.

    Attributes:
        gold: question -> the passages or judged chunks that it needs.
        scope: "documents", "asked" or "corpus".
        searched: the chunks that questions search; empty if they search the whole index.
        positions: the positions of `searched` in the index.
        scopes: for each question, which of `searched` it searches, by position there.
        texts: document id -> text.
    """

    index: Index
    questions: list[Question]
    gold: dict[str, Gold]
    scope: str
    searched: Sequence[Chunk] = ()
    positions: Sequence[int] = ()
    scopes: Sequence[Sequence[int]] = ()
    texts: Mapping[str, str] = dataclasses.field(default_factory=dict)


def build_index(
    folder: Path,
    model: str,
    data: str | Path,
    corpus: str | Path,
    rules: ChunkRules,
    reading: Reading = readers.AS_IT_IS,
) -> tuple[Index, list[Question], Mapping[str, str]]:
    """An index of the documents of a test set or of a corpus, and the questions on it.

    Args:
        folder: of the index, which may be there from an earlier call.
        model: whose tokens decide how documents are cut.
        data: documents and questions, or questions on the corpus.
        corpus: documents to search; those of `data` that it lacks are searched too. Empty: those of
            `data` alone.
        rules: how documents are cut.
        reading: how the files are read.

    Returns:
        The index, the questions, and document id -> text.

    Raises:
        BadInput: an input has problems; it lists all of them.
    """
    of_corpus = dataclasses.replace(reading, is_shared=bool(corpus))
    source = test = readers.load(corpus or data, reading=of_corpus)
    new: list[Document] = []
    if corpus:
        read = readers.read_test(data, source.texts, reading)
        test = readers.within_tolerance(*read, reading.tolerate)
        new = [document for document in test.documents if document.id not in source.texts]
    for remark in test.remarks:
        say(f"  {remark}")
    _check_not_empty(test.questions, data)
    if new and source.chunks is None:
        index = Index.build(folder, model, itertools.chain(source.documents, new), rules=rules)
    else:
        index = Index.build(folder, model, corpus or data, rules=rules, reading=of_corpus)
    return index, test.questions, collections.ChainMap(source.texts, test.texts)


def open_index(
    folder: str, data: str | Path, reading: Reading = readers.AS_IT_IS
) -> tuple[Index, list[Question], Mapping[str, str]]:
    """An existing index, and questions on its documents. Returns the same as `build_index`.

    Raises:
        BadInput: the data have problems.
        ValueError: the data have other documents than the index.
    """
    index = Index.open(folder)
    test, problems = readers.read(data, reading=reading)
    texts = test.texts if test.documents else _joined_texts(index)
    if not test.documents:
        test, problems = readers.read_test(data, texts, reading)
    test = readers.within_tolerance(test, problems, reading.tolerate)
    _check_not_empty(test.questions, data)
    for chunk in index.chunks if test.documents else ():
        text = texts.get(chunk.document)
        if text is not None and text[chunk.start : chunk.end] != chunk.text:
            raise ValueError(
                f"{data}: the document {chunk.document!r} has another text in the index {folder}; "
                "make the index again"
            )
    return index, test.questions, texts


def read_asked(data: str | Path, reading: Reading = readers.AS_IT_IS) -> list[Question]:
    """The questions of a test set, whose documents nobody needs.

    Raises:
        BadInput: the data have problems.
        ValueError: there is no question.
    """
    read = readers.read_test(data, {}, reading)
    questions = readers.within_tolerance(*read, reading.tolerate).questions
    _check_not_empty(questions, data)
    return questions


def _joined_texts(index: Index) -> dict[str, str]:
    """document id -> its text from its chunks; line breaks fill what no chunk covers."""
    texts: dict[str, str] = {}
    for chunk in index.chunks:
        text = texts.get(chunk.document, "")[: chunk.start]
        texts[chunk.document] = text.ljust(chunk.start, "\n") + chunk.text
    return texts


def _check_not_empty(questions: Sequence[Question], data: str | Path) -> None:
    if not questions:
        raise ValueError(
            f"{data} holds no question, so there is nothing to measure; `ark-jax check {data}` "
            "says what is understood"
        )


def make_task(
    index: Index,
    questions: list[Question],
    texts: Mapping[str, str],
    data: str | Path,
    scope: str = "auto",
) -> Task:
    """Decides which passages questions need, and which passages they search.

    What they need is decided as in a run: marked evidence, else chunks that hold an answer, else
    the documents of the question. Judgements of BEIR and TREC count with their grades, if each
    document is one passage.

    Args:
        texts: document id -> text.
        data: where the questions come from.
        scope: which chunks a question searches: those of its own documents, of all documents that
            are asked, or all. "auto" decides as a run does.

    Raises:
        ValueError: a question names a document that the index lacks, none can be answered, or
            the scope is unknown.
    """
    if scope not in SCOPES:
        raise ValueError(f"scope={scope!r}: must be {', '.join(SCOPES)}")
    groups = index.chunks.by_document
    _check_documents(index, questions, groups, texts)
    gold, _ = needed_passages(questions, groups, texts)
    if not any(gold.values()):
        raise ValueError(
            f"{data}: no passage holds the evidence or an answer of any question, so nothing can "
            "be measured; `ark-jax check` says what is understood"
        )
    gold = _with_absent_documents(gold, questions, groups)
    gold |= _beir_grades(data, questions, groups)
    if scope == "auto":
        sizes = {document: len(group) for document, group in groups.items()}
        scope = choose_pool("auto", questions, sizes, setting="--scope")
    if scope == "corpus":
        return Task(index, questions, gold, scope, texts=texts)
    choose_pool(scope, questions, {}, setting="--scope")
    searched, scopes = chunks_in_scope(_EVALUATE_SCOPES[scope], questions, index.chunks)
    positions = [index.chunks.ids.position(chunk.id) for chunk in searched]
    return Task(index, questions, gold, scope, searched, positions, scopes, texts)


def _check_documents(
    index: Index,
    questions: Sequence[Question],
    groups: Mapping[str, list[Chunk]],
    texts: Mapping[str, str],
) -> None:
    named = {document for question in questions for document in question.documents}
    # A document of blanks has no chunk.
    if absent := {x for x in named - groups.keys() if x not in texts or texts[x].strip()}:
        raise ValueError(
            f"{len(absent):,} documents that questions name, such as {min(absent)!r}, are not in "
            f"the index {index.folder}; make the index of all documents, or name a model in "
            "its place"
        )


def _with_absent_documents(
    gold: Mapping[str, Gold], questions: Sequence[Question], groups: Mapping[str, list[Chunk]]
) -> dict[str, Gold]:
    """The needed passages; one that no chunk holds is a document without text, held by its id.

    No search finds it, but the ranking of another system may name it.
    """
    completed = {}
    for question in questions:
        empty = iter([document for document in question.documents if not groups.get(document)])
        passages = gold[question.id]
        completed[question.id] = [holders or [next(empty)] for holders in passages]
    return completed


def _beir_grades(
    data: str | Path, questions: Sequence[Question], groups: Mapping[str, list[Chunk]]
) -> dict[str, Gold]:
    """question -> chunk -> grade, of BEIR questions that name documents alone.

    Empty if no grade is above 1, or if documents have several chunks.
    """
    path = storage.local_copy(str(data))
    grades = readers.read_grades(path)
    plain = [q for q in questions if not (q.answers or q.evidence) and q.id in grades]
    if not any(grade > 1 for question in plain for grade in grades[question.id].values()):
        return {}
    if any(len(group) > 1 for group in groups.values()):
        say(
            "  the grades of judgements count as 1, since documents have several passages; "
            "--chunk-tokens=100000 keeps documents whole"
        )
        return {}
    chunk_of = {document: group[0].id for document, group in groups.items()}
    return {
        question.id: {chunk_of.get(x, x): grade for x, grade in grades[question.id].items()}
        for question in plain
    }
