"""Rankings and answers that other systems wrote, by the id of the question."""

import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from ark_jax.data.json_files import json_rows, parse_json
from ark_jax.data.problems import Findings
from ark_jax.data.records import BadInput
from ark_jax.data.rows import InputRow, text_fault, type_name
from ark_jax.data.table_files import parquet_rows
from ark_jax.data.text_files import (
    begins_as_json,
    filled_lines,
    head_text,
    is_parquet,
    missing_file,
    read_text,
)

# What files call a field; the first name that a row has counts.
QUESTION = ("question_id", "query_id", "query-id", "q_id", "qid", "id", "_id", "question")
LIST = ("ranking", "ranked", "results")
DOCUMENT = ("document_id", "doc_id", "corpus-id", "docno", "docid", "id", "_id")
ANSWER = ("prediction", "pred", "answer", "answers")
SYSTEM = "system"
TREC = (QUESTION[0], "Q0", DOCUMENT[0], "rank", "score", SYSTEM)  # the fields of a line

Scores = dict[str, float]  # document -> score


def read_rankings(path: Path, system: str = "") -> dict[str, Scores]:
    """question -> document -> score, of a file of rankings.

    The file is a TREC run; or JSONL, JSON or Parquet with a row for each question, which lists
    documents best first (ids, or objects of an id and a score) or maps them to scores, or with a
    row for each document; or a JSON object of question -> list or map. Documents without a score
    get falling numbers. As for trec_eval, a rank counts only where there is no score.

    Args:
        system: whose rows are read; empty if the file has those of one system.

    Raises:
        BadInput: the file has problems, such as a document that a question lists twice.
    """
    rankings: dict[str, Scores] = {}
    lines: dict[str, int] = {}  # of questions whose rows hold lists

    def take(row: InputRow, question: str) -> None:
        if name := _field(row, LIST):
            row.claim_id(lines, "question", question)
            listed = _listed(row, name, row.values[name])
        else:
            listed = [(_document(row, row.values), _score(row, row.values))]
        ranking = rankings.setdefault(question, {})
        for place, (document, score) in enumerate(listed):
            if document in ranking:
                defect = f"{document!r} comes twice for the question {question!r}"
                row.add_problem("", defect, "list a document once")
            ranking[document] = -place if score is None else score

    _read(path, system, LIST[0], "run", take)
    return rankings


def read_answers(path: Path, system: str = "") -> dict[str, str]:
    """question -> answer, of a file of JSONL, JSON or Parquet, or a JSON object of them.

    A list of answers becomes a text with a line for each. Null is an empty answer.

    Args:
        system: whose rows are read; empty if the file has those of one system.

    Raises:
        BadInput: the file has problems, such as a question that is answered twice.
    """
    answers: dict[str, str] = {}
    lines: dict[str, int] = {}

    def take(row: InputRow, question: str) -> None:
        row.claim_id(lines, "question", question)
        name = _field(row, ANSWER) or next((x for x in ANSWER if x in row.columns), "")
        if not name:
            row.add_problem(ANSWER[0], "is missing", f"name the answer one of {', '.join(ANSWER)}")
            return
        value = row.values.get(name)
        parts = value if isinstance(value, list) else [] if value is None else [value]
        for part in parts:
            if isinstance(part, bool) or not isinstance(part, str | int | float):
                row.add_problem(name, f"holds {type_name(part)}", "write strings")
                break
        answers[question] = "\n".join(map(str, parts))

    _read(path, system, ANSWER[0], "answers", take)
    return answers


def _read(
    path: Path, system: str, field: str, word: str, take: Callable[[InputRow, str], None]
) -> None:
    """Takes each row of a system, with its question."""
    findings, seen = Findings(), {}
    if not path.is_file():
        findings.problems.add(path, missing_file(path))
    for row in _rows(path, field, findings) if path.is_file() else ():
        named = str(row.values.get(SYSTEM, ""))
        seen.setdefault(named)
        if named != (system or next(iter(seen))):
            continue
        question = _id(row, row.values, QUESTION)
        if row.ok:
            take(row, question)
        findings.settle(row)
    if not findings.problems and (system not in seen if system else len(seen) > 1):
        names = ", ".join(map(repr, seen))
        message = f"holds the systems {names}; name one of them, as in {word}:{path.name}#NAME"
        findings.problems.add(path, message)
    if findings.problems:
        raise BadInput(findings.condensed().problems)


def _rows(path: Path, field: str, findings: Findings) -> Iterator[InputRow]:
    """The rows of a file; those of a JSON object have the id of a question and its `field`."""
    if is_parquet(path):
        yield from parquet_rows(path, findings)
    elif not begins_as_json(path):
        yield from _trec_rows(path, findings)
    elif (values := _whole_object(path)) is not None:
        for number, (question, value) in enumerate(values.items(), 1):
            yield InputRow(str(path), number, {QUESTION[0]: question, field: value}, "row")
    else:
        yield from json_rows(path, findings)


def _whole_object(path: Path) -> dict | None:
    """The JSON object of question -> value that a .json file is; None if it holds rows."""
    if path.suffix.lower() != ".json" or head_text(path).lstrip().startswith("["):
        return None
    try:
        values = parse_json(read_text(path, Findings()))
    except (ValueError, RecursionError):
        return None
    is_map = isinstance(values, dict) and values and not values.keys() & {*QUESTION}
    return values if is_map else None


def _trec_rows(path: Path, findings: Findings) -> Iterator[InputRow]:
    """The rows of a file as trec_eval reads it: question, Q0, document, rank, score, name."""
    for number, line in filled_lines(path, findings):
        cells = line.split()
        if len(cells) == len(TREC):
            yield InputRow(str(path), number, dict(zip(TREC, cells, strict=True)))
        else:
            message = (
                f"{len(cells)} field(s); write question, Q0, document, rank, score and name, or "
                "JSON objects"
            )
            findings.problems.add(path, message, number)


def _field(row: InputRow, names: tuple[str, ...]) -> str:
    """The first of the names that the row has; empty if it has none."""
    return next((name for name in names if name in row.values), "")


def _id(row: InputRow, values: Mapping[str, object], names: tuple[str, ...]) -> str:
    """The id in the first of the fields that there is; numbers are ids too."""
    name = next((name for name in names if name in values), "")
    if not name:
        row.add_problem(names[0], "is missing", f"name the id one of {', '.join(names)}")
        return ""
    value = values[name]
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if fault := text_fault(value):
        row.add_problem(name, *fault)
    return str(value)


def _document(row: InputRow, value: object) -> str:
    """The id of a document, which may stand in an object."""
    return _id(row, value if isinstance(value, Mapping) else {DOCUMENT[0]: value}, DOCUMENT)


def _score(row: InputRow, values: Mapping[str, object]) -> float | None:
    """The score of a document, or else its rank, negative; None without both."""
    name = "score" if "score" in values else "rank"
    value = values.get(name)
    if value is None:
        return None
    try:
        score = float(value) if isinstance(value, str | int | float) else math.nan
    except ValueError:
        score = math.nan
    if not math.isfinite(score):
        row.add_problem(name, f"is {value!r:.20}", "write a number")
    return score if name == "score" else -score


def _listed(row: InputRow, name: str, value: object) -> list[tuple[str, float | None]]:
    """The documents of a list or map with their scores, which all of them have or none."""
    if isinstance(value, dict):
        value = [{DOCUMENT[0]: id, "score": score} for id, score in value.items()]
    if not isinstance(value, list):
        row.add_problem(name, f"is {type_name(value)}", "list the ids of documents, best first")
        return []
    listed = [
        (_document(row, item), _score(row, item) if isinstance(item, Mapping) else None)
        for item in value
    ]
    unscored = sum(score is None for _, score in listed)
    if 0 < unscored < len(listed):
        row.add_problem(name, f"{unscored} of {len(listed)} lack a score", "give all, or none")
    return listed
