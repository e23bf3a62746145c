"""Rankings and answers of other systems, joined to the questions and passages of a test set."""

from collections.abc import Mapping, Sequence

from ark_jax.comparison.answering import JUDGED, Answering
from ark_jax.comparison.rankings import ANSWERS, RUN, System
from ark_jax.data.predictions import Scores, read_answers, read_rankings
from ark_jax.data.records import Question
from ark_jax.evaluate.answer_lists import list_scores
from ark_jax.evaluate.answers import ANSWER_COLUMNS, ANSWER_METRICS, LIKELIHOOD, check_rouge
from ark_jax.evaluate.retrieval import parse_metric, ranking
from ark_jax.index.index import Index
from ark_jax.recipes.documents.evaluate import RETRIEVAL
from ark_jax.recipes.graphs import LISTS
from ark_jax.runtime import storage

MEASURES = (*ANSWER_COLUMNS, *LISTS.values(), *JUDGED)  # metrics of answers
SHOWN = ("exact_match", "answer_f1", "any_hit")  # of them by default

Rankings = dict[str, Scores]  # question -> document -> score
Answers = dict[str, str]  # question -> answer


def choose_metrics(
    names: Sequence[str], systems: Sequence[System], answering: Answering
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The metrics of rankings, and those of answers; the defaults of both if none is named.

    Raises:
        ValueError: a metric is unknown, nothing named measures the answers of a system, a metric
            has nothing to measure, or nobody answers or judges.
        RuntimeError: the package of ROUGE-L is not installed.
    """
    reader, judge = answering.reader, answering.judge
    only_answers = any(not system.ranks for system in systems)
    has_answers = only_answers or reader is not None
    has_rankings = any(system.ranks for system in systems)
    if not names:
        judged = ("judge_overall",) if judge else ()
        return RETRIEVAL if has_rankings else (), (*SHOWN, *judged) if has_answers else ()
    of_answers = tuple(name for name in names if name in MEASURES)
    of_rankings = tuple(name for name in names if name not in MEASURES)
    for name in of_rankings:
        parse_metric(name)  # raises for an unknown one
    judged = [name for name in of_answers if name in JUDGED]
    local = reader is not None and reader.lm is not None
    for chosen, has_any, kind, fix in (
        (of_answers, has_answers, "answers", f"add {ANSWERS}:FILE to --models, or --reader=MODEL"),
        (of_rankings, has_rankings, "rankings", f"add a retriever or {RUN}:FILE to --models"),
        (judged, judge, "answers by a judge", "name one with --judge=NAME and --endpoint=URL"),
        ([LIKELIHOOD] if LIKELIHOOD in names else [], local, "references", "add a local --reader"),
    ):
        if chosen and not has_any:
            raise ValueError(f"--metrics: {chosen[0]} measures {kind}; {fix}")
    if judge and not judged:
        of_answers += ("judge_overall",)
    reads = reader is not None and not any(system.expands or system.turns for system in systems)
    if (only_answers or reads) and not of_answers:
        raise ValueError(f"--metrics: add one that measures answers: {', '.join(MEASURES)}")
    if "rouge_l" in of_answers:
        check_rouge()
    return of_rankings, of_answers


def read_output(system: System) -> Rankings | Answers:
    """What the file of a system holds: rankings of a run, or answers.

    Raises:
        BadInput: the file has problems.
    """
    read = read_rankings if system.by == RUN else read_answers
    return read(storage.local_copy(system.file), system.part)


def join_rankings(
    system: System,
    rankings: Rankings,
    questions: Sequence[Question],
    index: Index,
    depth: int,
    spare: int = 0,
) -> tuple[list[list[str]], str]:
    """The first `depth` chunk ids of each question and `spare` more; and a remark on what is
    absent, or "".

    A ranking names chunks, or documents of one chunk. One that the index lacks keeps its place and
    its id.

    Raises:
        ValueError: no question or no document is that of the test set, a document has several
            chunks, or a ranking names a chunk twice.
    """
    _check_questions(system, rankings, questions)
    joined, unknown = [], set()
    for question in questions:
        ids = ranking(rankings.get(question.id, {}))[: depth + spare]
        chunks = [_chunk_id(id, system, question, index) for id in ids]
        unknown.update(id for id, chunk in zip(ids, chunks, strict=True) if chunk is None)
        entries = [id if chunk is None else chunk for id, chunk in zip(ids, chunks, strict=True)]
        if len(set(entries)) < len(entries):
            raise ValueError(
                f"{system.file}: the question {question.id!r} ranks a passage both by its id and "
                "by its document's; name it once"
            )
        joined.append(entries)
    listed = {id for entries in joined for id in entries}
    if listed and not listed - unknown:
        raise ValueError(
            f"{system.file}: none of its documents, such as {min(unknown)!r}, is in the corpus, "
            f"which has {next(iter(index.chunks.by_document))!r}; rankings and corpus must use the "
            "same ids"
        )
    short = sum(0 < len(entries) < depth for entries in joined)
    counts = {
        f"{len(unknown):,} of {len(listed):,} ranked documents are not in the corpus": unknown,
        f"{short:,} rankings have fewer than {depth} documents": short,
    }
    remarks = [_absent_questions(rankings, questions, "ranking"), *(x for x in counts if counts[x])]
    return joined, _remark(system, remarks)


def _chunk_id(id: str, system: System, question: Question, index: Index) -> str | None:
    """The chunk with an id, or the one chunk of the document with it; None for an unknown id."""
    if group := index.chunks.by_document.get(id):
        if len(group) == 1:
            return group[0].id
        raise ValueError(
            f"{system.file}: the question {question.id!r} ranks the document {id!r}, which has "
            f"{len(group)} passages; --chunk-tokens=100000 keeps documents whole, or rank passages "
            f"by their ids, such as {group[0].id!r}"
        )
    return id if id in index.chunks.ids else None


def join_answers(
    system: System, answers: Answers, questions: Sequence[Question]
) -> tuple[list[str], str]:
    """The answer to each question, empty where there is none, and a remark on these, or "".

    Raises:
        ValueError: no question is one of the test set.
    """
    _check_questions(system, answers, questions)
    stripped = {id: answer.strip() for id, answer in answers.items()}
    asked = {question.id for question in questions}
    known = {id: answer for id, answer in stripped.items() if answer or id not in asked}
    remark = _remark(system, [_absent_questions(known, questions, "answer")])
    return [stripped.get(question.id, "") for question in questions], remark


def score(answer: str, references: Sequence[str], metrics: Sequence[str]) -> dict[str, float]:
    """The metrics of an answer that follow from it alone; an empty one scores 0."""
    metrics = [name for name in metrics if name != LIKELIHOOD and name not in JUDGED]
    if not answer:
        return dict.fromkeys(metrics, 0.0)
    lists = list_scores(answer, references) if {*LISTS.values()} & {*metrics} else {}
    scores = {LISTS[name]: value for name, value in lists.items()}
    return {
        name: scores[name] if name in scores else ANSWER_METRICS[name](answer, references)
        for name in metrics
    }


def _check_questions(
    system: System, rows: Mapping[str, object], questions: Sequence[Question]
) -> None:
    if not any(question.id in rows for question in questions):
        raise ValueError(
            f"{system.file}: none of its {len(rows):,} questions, such as "
            f"{next(iter(rows))!r}, is in the test set, which has {questions[0].id!r}; both must "
            "use the same ids"
        )


def _absent_questions(rows: Mapping[str, object], questions: Sequence[Question], kind: str) -> str:
    """How many questions have nothing in a file, and how many of the file are not asked; or ""."""
    ids = {question.id for question in questions}
    absent, unknown = len(ids - rows.keys()), len(rows.keys() - ids)
    parts = []
    if absent:
        parts.append(f"{absent:,} of {len(ids):,} questions have no {kind}, which counts 0")
    if unknown:
        parts.append(f"{unknown:,} of its questions are not in the test set and are passed over")
    return "; ".join(parts)


def _remark(system: System, parts: Sequence[str]) -> str:
    text = "; ".join(filter(None, parts))
    return f"{system.name}: {text}" if text else ""
