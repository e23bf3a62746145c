"""Systems on a test set: a table with intervals and pairwise tests, as text, JSON and files."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

from ark_jax import __version__
from ark_jax.comparison import imported
from ark_jax.comparison.answering import (
    JUDGED,
    Answered,
    Answering,
    Values,
    judge_answers,
    read_answers,
)
from ark_jax.comparison.questions import Task, build_index, make_task, open_index, read_asked
from ark_jax.comparison.rankings import (
    ANSWERS,
    READER,
    RUN,
    WORDS,
    System,
    find_reference,
    parse_systems,
    rank,
    rerank,
)
from ark_jax.data import readers
from ark_jax.data.evidence import left_out, most_chunks, own_chunks
from ark_jax.data.problems import Reading
from ark_jax.data.records import Question
from ark_jax.evaluate import retrieval
from ark_jax.evaluate.significance import detectable_difference
from ark_jax.index.folder import is_index
from ark_jax.index.index import absolute_model
from ark_jax.index.writer import Writer
from ark_jax.pipeline.fingerprints import fingerprint
from ark_jax.pipeline.tables import save_json, save_rows
from ark_jax.recipes.core import tables
from ark_jax.recipes.core.split import document_keys
from ark_jax.recipes.documents.corpus import Passages
from ark_jax.recipes.documents.retrieve import DEPTH, ids_except
from ark_jax.report import sections
from ark_jax.report.page import render
from ark_jax.report.questions import Asked, ask_rankings, question_section
from ark_jax.report.results import by_group, results
from ark_jax.retrieval.chunks import ChunkRules
from ark_jax.runtime import storage
from ark_jax.runtime.shown import one_line

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
        reference: the system that the others are tested against; it has the first row. A metric
            that it has no value of is tested against the first row with one.
        metrics: the columns of the table.
        table: as `tabulate` makes it.
        groups: type of question -> the table of its questions; empty if the data have no types.
        rows: what each system retrieved for each question, its answer if any system answers, and
            its metrics. Those of rankings are None if no passage of the index answers the question
            or the system ranks nothing; those of answers, without a reference or answers.
        remarks: how it was measured, in sentences.
        about: label -> fact about models and data, for the report.
        asked: the questions with the ranks of what they need, by the systems that rank.
    """

    reference: str
    metrics: tuple[str, ...]
    table: list[dict]
    groups: dict[str, list[dict]]
    rows: list[dict]
    remarks: list[str]
    about: dict[str, object]
    asked: list[Asked]
    __repr__ = one_line("reference", "metrics", "measured_questions")

    def _repr_html_(self) -> str:
        return tables.html_of(self.table, self.metrics)

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
    metrics: Sequence[str] = (),
    scope: str = "auto",
    rules: ChunkRules | None = None,
    answering: Answering | None = None,
    same_id: str = "auto",
    reading: Reading = readers.AS_IT_IS,
) -> Comparison:
    """Measures systems on the questions of a test set.

    All search the same passages: those of an index among the models, or those that the first
    retriever cuts. If all are files of answers, there are none. Questions about one document are
    not independent, so intervals and tests draw documents. After a kill, call it again: finished
    vectors are kept.

    Args:
        models: systems, as `rankings.parse_systems` reads them.
        data: questions, with documents or without, in a format that `data.readers` knows.
        corpus: documents to search, instead of those of `data`.
        folder: where an index is made, if none is among the models; None: in the cache, where one
            is kept for each corpus.
        reference: the system to test against; empty: the first one.
        metrics: as `evaluate.retrieval` names them, and `imported.MEASURES` of answers; empty:
            `imported.RETRIEVAL` and `imported.SHOWN`.
        scope: see `questions.make_task`.
        rules: how documents are cut; None: `ChunkRules()`.
        answering: the language model that answers from the passages of each system, and that
            writes for "MODEL+hyde" and "MODEL+turns". It reads only if a metric measures answers.
        same_id: whether results hold the document with a question's id; see `evidence.own_chunks`.
        reading: how the files of data and corpus are read.

    Raises:
        BadInput: an input has problems; it lists all of them.
        FileNotFoundError, ValueError: a model or an argument cannot be used.
    """
    systems, answering = parse_systems(models), answering or Answering()
    _check_reader(systems, answering)
    reference = find_reference(reference, systems, models)
    of_rankings, of_answers = imported.choose_metrics(metrics, systems, answering)
    outputs = {system.name: imported.read_output(system) for system in systems if system.file}
    ordered = sorted(systems, key=lambda system: system.name != reference)
    task = None
    if any(system.model for system in systems):
        task = _make_task(systems, data, corpus, folder, scope, rules, reading)
    questions = task.questions if task else read_asked(data, reading)
    if not any(question.answers for question in questions):
        asked = next((x.file or x.name for x in systems if not x.ranks), metrics and "--reader")
        _refuse_unanswered(data, of_answers and asked)
        of_answers = ()
    rankings, remarks = {x.name: [[]] * len(questions) for x in systems}, []
    if task:
        cutoffs = [retrieval.parse_metric(name)[1] or 0 for name in of_rankings]
        depth = max([DEPTH, answering.passages, *cutoffs])
        rankings, remarks = _rank_all(task, systems, outputs, depth, same_id, answering.reader)
    answered = _answer_all(ordered, outputs, questions, task, rankings, answering, of_answers)
    tested = _Measured(
        questions, task, rankings, answered.answers, answered.values, of_rankings, of_answers
    )
    comparison = _make_comparison(tested, ordered, data)
    remarks = [*comparison.remarks, *filter(None, [*remarks, *answered.remarks])]
    return dataclasses.replace(comparison, remarks=remarks)


def _refuse_unanswered(data: str | Path, asked: object) -> None:
    if asked:
        raise ValueError(
            f"{data}: no question has an answer, so {asked} cannot be measured; add answers to the "
            "questions"
        )


def _check_reader(systems: Sequence[System], answering: Answering) -> None:
    writing = {"+hyde": "expands", "+turns": "turns"}
    needs = [word for word, field in writing.items() if any(getattr(x, field) for x in systems)]
    needs += [system.name for system in systems if system.by == READER]
    if needs and answering.reader is None:
        raise ValueError(
            f"--models: {needs[0]} needs a language model; name it with --reader=MODEL"
        )


def _make_task(
    systems: Sequence[System],
    data: str | Path,
    corpus: str | Path,
    folder: str | Path | None,
    scope: str,
    rules: ChunkRules | None,
    reading: Reading,
) -> Task:
    """The questions on an index, which is among the systems or is built; see `compare`."""
    from ark_jax.models import hf

    named = dict.fromkeys(system.model for system in systems if system.model)
    for reranker in filter(None, (system.reranker for system in systems)):
        hf.resolve(reranker)
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
    return make_task(index, questions, texts, data, scope)


def _rank_all(
    task: Task,
    systems: Sequence[System],
    outputs: Mapping[str, Mapping],
    depth: int,
    same_id: str,
    reader: Writer | None,
) -> tuple[dict[str, list[list[str]]], list[str]]:
    """system -> the first chunk ids of each question, none without a ranking; and remarks."""
    excluded = own_chunks(task.questions, task.index.chunks.by_document, same_id)
    own_of, spare = (
        [excluded.get(question.id, ()) for question in task.questions],
        most_chunks(excluded),
    )
    searching = [system for system in systems if system.ranks and not system.file]
    id_lists, remarks = rank(task, searching, depth + spare, reader and reader.write), []
    rankings = {}
    for system in systems:
        if system.by == RUN:
            id_lists[system.name], remark = imported.join_rankings(
                system, outputs[system.name], task.questions, task.index, depth, spare
            )
            remarks.append(remark)
        lists = id_lists.get(system.name, [[]] * len(task.questions))
        ranked = [
            ids_except(ids, unwanted, depth) for ids, unwanted in zip(lists, own_of, strict=True)
        ]
        rankings[system.name] = rerank(task, system, ranked) if system.reranker else ranked
    return rankings, [*remarks, left_out(excluded)]


def _answer_all(
    systems: Sequence[System],
    outputs: Mapping[str, Mapping],
    questions: Sequence[Question],
    task: Task | None,
    rankings: Mapping[str, Sequence[list[str]]],
    answering: Answering,
    metrics: Sequence[str],
) -> Answered:
    """The answers of files, and those of the reader, if any metric measures answers."""
    answered = Answered({}, {}, {}, [])
    if metrics and answering.reader:
        reading = [system for system in systems if system.by != ANSWERS]
        answered = read_answers(answering, reading, questions, task, rankings, metrics)
    for system in (system for system in systems if system.by == ANSWERS):
        joined, remark = imported.join_answers(system, outputs[system.name], questions)
        answered.answers[system.name] = joined
        answered.remarks.append(remark)
    if answering.judge and not JUDGED.keys().isdisjoint(metrics):
        reference = next(x.name for x in systems if x.name in answered.answers)
        values, remark = judge_answers(answering.judge, answered, questions, reference)
        answered.values.update(values)
        answered.remarks.append(remark)
    return answered


def _cache_folder(model: str, corpus: str | Path, rules: ChunkRules, reading: Reading) -> Path:
    """The folder in the cache for the index of a corpus, read and cut in this way."""
    names = [absolute_model(name) for name in (model, corpus)]
    of_reading = [reading.encoding, reading.columns, reading.tolerate]
    options = of_reading if any(of_reading) else []
    digest = fingerprint([*names, dataclasses.asdict(rules), *options])
    return storage.cache_folder() / "evaluate" / digest[:16]


@dataclasses.dataclass(frozen=True)
class _Measured:
    """What the systems gave for each question, and how it is measured.

    Attributes:
        task: None if only answers are compared.
        rankings: system -> chunk ids of each question.
        answers: system -> answer to each question, of systems that answer.
        values: of metrics that do not follow from an answer alone.
        of_rankings, of_answers: names of metrics.
    """

    questions: Sequence[Question]
    task: Task | None
    rankings: Mapping[str, Sequence[list[str]]]
    answers: Mapping[str, Sequence[str | None]]
    values: Values
    of_rankings: tuple[str, ...]
    of_answers: tuple[str, ...]

    @property
    def metrics(self) -> tuple[str, ...]:
        return (*self.of_rankings, *self.of_answers)

    def rows(self, system: System, keys: Sequence[str]) -> list[dict]:
        """The rows of `Comparison.rows` of one system; `keys` name each question's documents."""
        name, rows = system.name, []
        ranked, answers = self.rankings[name], self.answers.get(name)
        extra = {
            metric: columns[name] for metric, columns in self.values.items() if name in columns
        }
        for i, (question, key) in enumerate(zip(self.questions, keys, strict=True)):
            row = {"system": name, "question": question.id, "document": key, "ranked": ranked[i]}
            values: dict[str, float | None] = dict.fromkeys(self.metrics)
            gold = self.task and self.task.gold[question.id]
            if gold and system.ranks:
                values |= retrieval.measure(ranked[i], gold, self.of_rankings)
            if question.answers and answers is not None:
                values |= imported.score(answers[i], question.answers, self.of_answers)
            values |= {x: column[i] for x, column in extra.items() if x in values}
            if self.answers:
                row["answer"] = answers[i] if answers is not None else None
            rows.append(row | values)
        return rows


def _make_comparison(
    measured: _Measured, systems: Sequence[System], data: str | Path
) -> Comparison:
    """Computes tables."""
    questions, metrics = measured.questions, measured.metrics
    keys, by_document = document_keys(questions)
    if not by_document:
        keys = [question.id for question in questions]
    rows = [row for system in systems for row in measured.rows(system, keys)]
    names = {system.name for system in systems}
    parts = {system.name: WORDS for system in systems if system.by == "hybrid" and WORDS in names}
    groups = tables.questions_by_group(questions)
    return Comparison(
        reference=systems[0].name,
        metrics=metrics,
        table=_tabulate(rows, metrics, parts),
        groups={
            name or "no type": _tabulate([x for x in rows if x["question"] in ids], metrics, parts)
            for name, ids in groups.items()
        },
        rows=rows,
        remarks=_remarks(measured, systems, len(set(keys)), by_document),
        about=_about(measured, systems, data),
        asked=_ranked_questions(measured, systems, rows),
    )


def _ranked_questions(
    measured: _Measured, systems: Sequence[System], rows: Sequence[dict]
) -> list[Asked]:
    """The questions that a passage answers; none without rankings."""
    ranking = {system.name for system in systems if system.ranks}
    task = measured.task
    if task is None or not ranking:
        return []

    def needed(question: Question) -> set[str]:
        """The chunks that answer a question, or are judged relevant."""
        gold = task.gold[question.id]
        if isinstance(gold, Mapping):
            return {chunk for chunk, grade in gold.items() if grade > 0}
        return {chunk for holders in gold for chunk in holders}

    texts = Passages(task.index.chunks)
    return ask_rankings(
        [question for question in measured.questions if task.gold[question.id]],
        tables.by_system([row for row in rows if row["system"] in ranking]),
        needed,
        lambda row: row["ranked"][:DEPTH],
        lambda chunk: texts.get(chunk, chunk),  # an imported ranking may name others
    )


def _tabulate(rows: list[dict], metrics: Sequence[str], parts: Mapping[str, str]) -> list[dict]:
    return tables.tabulate(rows, metrics, seed=SEED, cluster=CLUSTER, parts=parts)


def _remarks(
    measured: _Measured, systems: Sequence[System], clusters: int, by_document: bool
) -> list[str]:
    """Sentences on how it was measured."""
    task, questions = measured.task, measured.questions
    drawing = (
        f"intervals and tests draw the {clusters:,} documents, or groups of them, that are asked"
    )
    if not any(question.documents for question in questions):
        drawing = "intervals and tests draw questions"
    elif not by_document:
        drawing = "intervals and tests draw questions, since these join most documents"
    remarks = [drawing]
    unanswered = sum(not gold for gold in task.gold.values()) if task else 0
    if task:
        count = len(questions) - unanswered or len(questions)
        remarks.insert(0, f"each question searches {SEARCHED[task.scope]}")
        remarks.append(f"{count:,} questions: {detectable_difference(count)}")
    if by_document and clusters < FEWEST_DOCUMENTS:
        remarks.append(f"with {clusters} documents no difference reaches p < 0.05")
    if unanswered:
        remarks.append(f"{unanswered:,} questions are left out: no passage answers them")
    return remarks + _remarks_on_answers(measured, systems)


def _remarks_on_answers(measured: _Measured, systems: Sequence[System]) -> list[str]:
    """Sentences on rows of answers beside rows of rankings, if there are any."""
    alone = [system.name for system in systems if not system.ranks]
    ranking = [system.name for system in systems if system.ranks]
    answering = [system.name for system in systems if system.name in measured.answers]
    remarks = []
    if answering and (without := sum(not question.answers for question in measured.questions)):
        remarks.append(f"{without:,} questions have no reference answer, so answers leave them out")
    if alone and ranking and measured.of_rankings:
        remarks.append(f"{', '.join(alone)}: answers alone, so metrics of rankings are –")
    for kind, names in (("rankings", ranking), ("answers", answering)):
        if len(names) > 1 and systems[0].name not in names:
            remarks.append(f"metrics of {kind} are tested against {names[0]}")
    return remarks


def _about(measured: _Measured, systems: Sequence[System], data: str | Path) -> dict[str, object]:
    about: dict[str, object] = {"Data": str(data), "Questions": len(measured.questions)}
    if task := measured.task:
        about |= {
            "Documents": task.index.manifest.documents,
            "Passages": len(task.index),
            "Searched": SEARCHED[task.scope],
            "Index": str(task.index.folder),
        }
    return {
        **about,
        **{f"Model of {x.name}": x.model for x in systems if x.model},
        **{f"Reranker of {x.name}": x.reranker for x in systems if x.reranker},
        **{f"File of {x.name}": x.file for x in systems if x.file},
        "Version of ark_jax": __version__,
    }


def text_of(comparison: Comparison) -> str:
    """The table for a terminal, after a table for each type of question."""
    lines = []
    for name, table in comparison.groups.items():
        lines += [f"  {name}", tables.as_text(table, comparison.metrics, comparison.reference)]
    if comparison.groups:
        lines.append("  all questions")
    lines.append(tables.as_text(comparison.table, comparison.metrics, comparison.reference))
    return "\n".join([*lines, *(f"  {remark}" for remark in comparison.remarks)]) + "\n"


def json_of(comparison: Comparison) -> dict:
    """The comparison as JSON values, without the rows of questions."""
    return {
        "reference": comparison.reference,
        "metrics": comparison.metrics,
        "table": comparison.table,
        "groups": comparison.groups,
        "remarks": comparison.remarks,
        "about": comparison.about,
    }


def save(comparison: Comparison, folder: Path) -> Path:
    """Writes metrics.json, questions.parquet and report.html; returns the path of the page."""
    save_json(json_of(comparison), folder / "metrics.json")
    save_rows(comparison.rows, folder / "questions.parquet")
    page = folder / "report.html"
    page.write_text(_page(comparison), encoding="utf-8")
    return page


def _page(comparison: Comparison) -> str:
    verdict = tables.best_system(
        comparison.rows,
        comparison.metrics[0],
        against=(comparison.reference, WORDS),
        seed=SEED,
        cluster=CLUSTER,
        questions="the questions of the test set",
    )
    remarks = [[f"Remark {i}", remark] for i, remark in enumerate(comparison.remarks, 1)]
    parts = [
        results(
            comparison.table,
            comparison.metrics,
            comparison.reference,
            "the questions of the test set",
        ),
        sections.facts([*comparison.about.items(), *remarks]),
    ]
    if comparison.asked:
        names = list(comparison.asked[0].values)
        shown = question_section(
            comparison.asked, (names[0], names[-1]), "rank of the first needed passage"
        )
        parts.insert(1, shown)
    if comparison.groups:
        groups = by_group(comparison.groups, comparison.metrics, "By type of question", "types")
        parts.insert(1, groups)
    return render("Retrievers compared", [verdict], parts)
