"""Questions over a graph of triples, read from files.

| format | how it is recognised |
|---|---|
| JSONL, JSON, Parquet | objects with `question`, and perhaps `answers`, `entities`, `id`, `group` |
| the same of RoG, SRTK | `answer`, `q_entity`, `a_entity`; `question_entities`, `answer_entities` |
| the same of NSM, GraftNet | answers with `kb_id` and `text`, entities by number |
| WebQSP, CWQ, GrailQA | as their authors publish them: `RawQuestion`, `sparql`, `graph_query` |
| CSV, TSV | a first line that names the column `question` |
| PathQuestion | `question`, `answer(answer/...)` and a path `topic#relation#...`, tabs between |
| MetaQA | `who directed [Kismet]` and answers joined by `|`, a tab between; or a question alone |
"""

import dataclasses
import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from ark_jax.data.json_files import json_rows
from ark_jax.data.problems import Findings, Reading
from ark_jax.data.rows import InputRow, has_surrogate, text_fault
from ark_jax.data.table_files import distinct_stems, parquet_rows, table_header, table_rows
from ark_jax.data.text_files import begins_as_json, filled_lines, is_parquet
from ark_jax.graph.terms import TermLists
from ark_jax.graph.triple_files import local_files
from ark_jax.graph.triple_rows import TOPIC, is_question_path

ANSWERS = ("answers", "answer")
ENTITIES = ("entities", "q_entity", "question_entities")
ANSWER_ENTITIES = ("answer_entities", "a_entity")


@dataclasses.dataclass(frozen=True)
class TripleQuestion:
    """A question whose answers are nodes of a graph.

    Attributes:
        id: different for each question; without one in the file, the file's stem and the line.
        question: the text, without the brackets that mark topics.
        answers: accepted answers as texts.
        entities: the topics, by id, name or alias; without any, they are looked for in the text.
        group: what results are broken down by: the field `group`, or the stem of the file where
            several are read.
        answer_entities: ids or names of the answers' nodes, if the file has them besides texts.
    """

    id: str
    question: str
    answers: tuple[str, ...] = ()
    entities: tuple[str, ...] = ()
    group: str = ""
    answer_entities: tuple[str, ...] = ()


def read_questions(
    paths: str | Path | Sequence[str | Path], encoding: str = ""
) -> tuple[list[TripleQuestion], Findings]:
    """All valid questions of files, and problems and remarks. A path may be a glob."""
    paths = [paths] if isinstance(paths, str | Path) else paths
    findings = Findings(Reading(encoding))
    questions: list[TripleQuestion] = []
    files = local_files(paths, findings)
    places: dict[str, str] = {}
    for path, stem in zip(files, distinct_stems(files), strict=True):
        group = stem if len(files) > 1 else ""
        for line, question in _read_file(path, stem, group, findings):
            place = f"{path}:{line}"
            if question.id in places:
                message = f"repeats {question.id!r} of {places[question.id]}"
                fix = "give every question its own id"
                findings.problems.add(path, f"{message}; {fix}", line)
                continue
            places[question.id] = place
            questions.append(question)
    if files and not questions and not findings.problems:
        findings.problems.add(files[0], "holds no question; give another file")
    return questions, findings.condensed()


def _read_file(
    path: Path, stem: str, group: str, findings: Findings
) -> Iterator[tuple[int, TripleQuestion]]:
    """Yields the valid questions of a file, each with its line."""
    if is_parquet(path):
        rows = parquet_rows(path, findings, leave_out="graph")
    elif begins_as_json(path):
        rows = json_rows(path, findings)
    elif "question" in table_header(path)[1]:
        rows = table_rows(path, findings)
    else:
        yield from _text_questions(path, stem, group, findings)
        return
    lists = TermLists(path.parent, findings)
    for row in map(_by_our_names, rows):
        question = _parse_row(row, stem, group, lists)
        if findings.settle(row):
            yield row.line, question


_FIELDS = ("id", "question", "answers", "entities")
# A data set -> what its authors call our fields, in the same order.
_NAMES = {
    "WebQSP": ("QuestionId", "RawQuestion", "Parses", "TopicEntityMid"),
    "CWQ": ("ID", "question", "answers", "sparql"),
    "GrailQA": ("qid", "question", "answer", "graph_query"),
}
_MID = re.compile(r"\bns:([mg]\.\w+)")
_FILTER = re.compile(r"FILTER\s*\([^)]*\)")  # excludes an entity from the answers


def published_form(values: Mapping[str, object]) -> str:
    """Which data set a row is of, as its authors publish it: a key of `_NAMES`, or ""."""
    if "RawQuestion" in values:
        return "WebQSP"
    if {"ID", "question", "sparql"} <= values.keys():
        return "CWQ"
    return "GrailQA" if {"qid", "question"} <= values.keys() else ""


def form_of_file(path: Path) -> str:
    """As `published_form`, of the first row of a JSON file; "" for any other file."""
    row = next(json_rows(path, Findings()), None) if begins_as_json(path) else None
    return published_form(row.values) if row else ""


def _by_our_names(row: InputRow) -> InputRow:
    """A row of WebQSP, CWQ or GrailQA by the names of our fields; any other row as it is."""
    if not (form := published_form(row.values)):
        return row
    names = dict(zip(_FIELDS, _NAMES[form], strict=True))
    values = {
        field: row.values[names[field]] for field in _FIELDS[:2] if names[field] in row.values
    }
    if names["answers"] in row.values:  # a test set may hide them
        answers, entities = {"WebQSP": _webqsp, "CWQ": _cwq, "GrailQA": _grailqa}[form](row)
        values |= {"answers": answers, "entities": entities}
    values["group"] = row.values.get("level", "")
    return row.with_values(values, names | {"group": "level"})


def _answer(part: InputRow, id: str, name: str, kind: str = "") -> dict | str:
    """An answer as `_field_terms` takes it; the arguments are names of fields."""
    value = part.text(id)
    if part.values.get(kind) == "Value":
        return value
    return {"kb_id": value, "text": part.values.get(name) or value}


def _webqsp(row: InputRow) -> tuple[list, list]:
    """The answers and topics of all parses of a question of WebQSP."""
    answers, topics = [], []
    for parse in row.objects("Parses"):
        topics += filter(None, [parse.values.get("TopicEntityMid")])
        objects = parse.objects("Answers", required=False)
        answers += [_answer(x, "AnswerArgument", "EntityName", "AnswerType") for x in objects]
    return answers, topics


def _cwq(row: InputRow) -> tuple[list, list]:
    """The answers of a question of CWQ, and the entities of its query."""
    answers = []
    for part in row.objects("answers", required=False):
        answers.append(_answer(part, "answer_id", "answer"))
        if part.values.get("aliases"):
            row.remark_unread("answers", "their aliases are not read; an answer is one node")
    return answers, _MID.findall(_FILTER.sub("", row.text("sparql")))


def _grailqa(row: InputRow) -> tuple[list, list]:
    """The answers of a question of GrailQA, and the entities of its graph query."""
    objects = row.objects("answer")
    answers = [_answer(x, "answer_argument", "entity_name", "answer_type") for x in objects]
    query = row.values.get("graph_query")
    if not isinstance(query, dict):
        row.add_problem("graph_query", "is missing or no object", "copy the row as it is published")
        return answers, []
    nodes = InputRow(row.file, row.line, query, row.unit)
    topics = [x.text("id") for x in nodes.objects("nodes") if x.values.get("node_type") == "entity"]
    row.problems += nodes.problems
    return answers, topics


def _parse_row(row: InputRow, stem: str, group: str, lists: TermLists) -> TripleQuestion:
    """The question of a row; faults become problems of the row."""
    key, id_by_line = row.key, f"{stem}:{row.line}"
    if isinstance(row.values.get(key), int):
        row.values = {**row.values, key: str(row.values[key])}
    id = row.text(key, required=False) if key in row.values else ""
    read = functools.partial(_field_terms, row, lists)
    answers = read(ANSWERS, "text")
    ids = read(ANSWER_ENTITIES) or (read(ANSWERS) if row.ok else ())
    return TripleQuestion(
        id or id_by_line,
        row.text("question").strip(),
        answers,
        read(ENTITIES),
        row.text("group", required=False, blank=True) or group,
        ids if ids != answers else (),
    )


def _field_terms(
    row: InputRow, lists: TermLists, fields: Sequence[str], part: str = "kb_id"
) -> tuple[str, ...]:
    """The different strings of the first of these fields that a row has.

    An item is a string, the number of a line of entities.txt, or an object with `kb_id` and `text`,
    which gives its `part`, or else what it has. Faults become problems of the row.
    """
    field = next((name for name in fields if name in row.values), fields[0])
    if not row.has(field, required=False):
        return ()
    value = row.values[field]
    terms = []
    for i, item in enumerate(value if isinstance(value, list) else [value], 1):
        if isinstance(item, dict):
            item = item.get(part) or item.get("kb_id") or item.get("text")
        term = lists.id("entity", item)
        if term is None and item is not None:
            fix = "write a string, or put that file beside this one"
            row.add_problem(field, f"item {i} is {item}, no line of entities.txt", fix)
        elif fault := text_fault(term):
            row.add_problem(field, f"item {i} {fault[0]}", fault[1])
        else:
            terms.append(term)
    return tuple(dict.fromkeys(terms))


def _text_questions(
    path: Path, stem: str, group: str, findings: Findings
) -> Iterator[tuple[int, TripleQuestion]]:
    """Yields the questions of a MetaQA or PathQuestion file, each with its line."""
    width = 0
    for number, line in filled_lines(path, findings):
        findings.problems.rows += 1
        if has_surrogate(line):  # reported already
            continue
        fields = line.split("\t")
        width = width or len(fields)
        if fault := _line_fault(fields, width):
            findings.problems.add(path, fault, number)
            continue
        yield number, _parse_line(fields, f"{stem}:{number}", group)


def _line_fault(fields: Sequence[str], width: int) -> str:
    """What is wrong with the fields of a line, and the fix; empty if nothing is."""
    if width > 3 or (width == 3 and not (len(fields) >= 3 and is_question_path(fields))):
        return "is not a MetaQA or PathQuestion question; write JSONL with `question` and `answers`"
    if len(fields) != width:
        return f"{len(fields)} field(s), the first line has {width}; write as many, tabs between"
    for part, value in zip(("question", "answer", "path"), fields, strict=False):
        if fault := text_fault(value):
            return f"the {part} {fault[0]}; {fault[1]}"
    return ""


def _parse_line(fields: Sequence[str], id: str, group: str) -> TripleQuestion:
    """The question of a line of PathQuestion, which has three fields, or of MetaQA."""
    text = fields[0].strip()
    if len(fields) == 3:
        entities, answers = (fields[2].split("#")[0],), _path_answers(fields[1])
    else:
        entities = tuple(dict.fromkeys(TOPIC.findall(text)))
        text = TOPIC.sub(r"\1", text)
        answers = [answer for field in fields[1:] for answer in field.split("|") if answer.strip()]
    return TripleQuestion(id, text, tuple(dict.fromkeys(answers)), entities, group)


def _path_answers(field: str) -> list[str]:
    """The answers of `answer(answer/another/)`; an answer may have brackets itself."""
    for place, mark in enumerate(field):
        main, listed = field[:place], field[place + 1 : -2].split("/")
        if mark == "(" and main in listed:
            return listed
    return [field.rpartition("(")[0] or field]
