"""Questions over a graph of triples: read from files, and linked to its nodes.

| format | how it is recognised |
|---|---|
| JSONL, JSON, Parquet | objects with `question`, and perhaps `answers`, `entities`, `id`, `group` |
| the same of RoG, SRTK | `answer`, `q_entity`, `a_entity`; `question_entities`, `answer_entities` |
| the same of NSM, GraftNet | answers with `kb_id` and `text`, entities by number |
| CSV, TSV | a first line that names the column `question` |
| PathQuestion | `question`, `answer(answer/...)` and a path `topic#relation#...`, tabs between |
| MetaQA | `who directed [Kismet]` and answers joined by `|`, a tab between; or a question alone |
"""

import dataclasses
import functools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from ark_jax.data.json_files import json_rows
from ark_jax.data.problems import Findings
from ark_jax.data.row_files import is_parquet
from ark_jax.data.rows import InputRow, has_surrogate, text_fault
from ark_jax.data.table_files import parquet_rows, table_header, table_rows
from ark_jax.data.text_files import file_head, file_problem, text_lines
from ark_jax.graph.name_search import Mentions, look_up, nearest
from ark_jax.graph.term_lists import TermLists
from ark_jax.graph.triple_paths import local_files
from ark_jax.graph.triples import Triples

ANSWERS = ("answers", "answer")
ENTITIES = ("entities", "q_entity", "question_entities")
ANSWER_ENTITIES = ("answer_entities", "a_entity")
LISTED = 5  # remarks of one kind; further ones are counted
_TOPIC = re.compile(r"\[(.+?)\](?!\])")


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
        answer_entities: ids or names of the answers' nodes where the file gives them beside texts.
    """

    id: str
    question: str
    answers: tuple[str, ...] = ()
    entities: tuple[str, ...] = ()
    group: str = ""
    answer_entities: tuple[str, ...] = ()


def read_questions(
    paths: str | Path | Sequence[str | Path],
) -> tuple[list[TripleQuestion], Findings]:
    """All valid questions of files, and what came up. A path may be a glob."""
    paths = [paths] if isinstance(paths, str | Path) else paths
    findings = Findings()
    questions: list[TripleQuestion] = []
    files = local_files(paths, findings)
    places: dict[str, str] = {}
    for path, stem in zip(files, _stems(files), strict=True):
        group = stem if len(files) > 1 else ""
        for line, question in _questions(path, stem, group, findings):
            place = f"{path}:{line}"
            if question.id in places:
                message = f"{question.id!r} of {places[question.id]} comes again"
                fix = "give every question its own id"
                findings.problems.append(file_problem(path, f"{message}; {fix}", line))
                continue
            places[question.id] = place
            questions.append(question)
    if files and not questions and not findings.problems:
        findings.problems.append(file_problem(files[0], "holds no question; give another file"))
    findings.problems.condense()
    findings.remarks.condense()
    return questions, findings


def _stems(files: Sequence[Path]) -> list[str]:
    """The names of files without suffix, with the folder in front where two are equal."""
    stems = [path.stem for path in files]
    return [
        f"{path.parent.name}/{stem}" if stems.count(stem) > 1 else stem
        for path, stem in zip(files, stems, strict=True)
    ]


def is_questions(path: Path) -> bool:
    """Whether a text file holds questions in PathQuestion's or MetaQA's form."""
    lines = file_head(path).decode("utf-8", "ignore").splitlines()[:20]
    rows = [line.split("\t") for line in lines if line.strip()]
    return bool(rows) and (
        all(len(row) == 3 and _is_path(row) for row in rows)
        or all(len(row) == 2 and _TOPIC.search(row[0]) for row in rows)
    )


def _is_path(fields: Sequence[str]) -> bool:
    return fields[2].count("#") > 1 and fields[1].endswith("/)")


def _questions(
    path: Path, stem: str, group: str, findings: Findings
) -> Iterator[tuple[int, TripleQuestion]]:
    """The questions of a file and their lines."""
    if is_parquet(path):
        rows = parquet_rows(path, findings, leave_out="graph")
    elif file_head(path).lstrip()[:1] in (b"{", b"["):
        rows = json_rows(path, findings)
    elif "question" in table_header(path)[1]:
        rows = table_rows(path, findings)
    else:
        yield from _text_questions(path, stem, group, findings)
        return
    lists = TermLists(path.parent, findings)
    for row in rows:
        question = _of_row(row, stem, group, lists)
        if findings.settle(row):
            yield row.line, question


def _of_row(row: InputRow, stem: str, group: str, lists: TermLists) -> TripleQuestion:
    key, numbered = row.key, f"{stem}:{row.line}"
    if isinstance(row.values.get(key), int):
        row.values = {**row.values, key: str(row.values[key])}
    id = row.text(key, required=False) if key in row.values else ""
    read = functools.partial(_terms_of, row, lists)
    answers = read(ANSWERS, "text")
    ids = read(ANSWER_ENTITIES) or (read(ANSWERS) if row.ok else ())
    return TripleQuestion(
        id or numbered,
        row.text("question").strip(),
        answers,
        read(ENTITIES),
        row.text("group", required=False, blank=True) or group,
        ids if ids != answers else (),
    )


def _terms_of(
    row: InputRow, lists: TermLists, fields: Sequence[str], part: str = "kb_id"
) -> tuple[str, ...]:
    """The strings of the first of these fields that a row has.

    An item is a string, the number of a line of entities.txt, or an object with `kb_id` and `text`,
    of which `part` is taken if it is there.
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
    width = 0
    for number, line in text_lines(path, findings):
        if not line.strip():
            continue
        findings.problems.rows += 1
        if has_surrogate(line):  # reported already
            continue
        fields = line.rstrip("\r\n").split("\t")
        width = width or len(fields)
        if fault := _text_fault(fields, width):
            findings.problems.append(file_problem(path, fault, number))
            continue
        yield number, _of_text(fields, f"{stem}:{number}", group)


def _text_fault(fields: Sequence[str], width: int) -> str:
    """What is wrong with a line, and the fix; empty if nothing is."""
    if width > 3 or (width == 3 and not _is_path(fields[:3] if len(fields) >= 3 else [""] * 3)):
        return "is no question of MetaQA or PathQuestion; write JSONL with `question` and `answers`"
    if len(fields) != width:
        return f"{len(fields)} field(s), the first line has {width}; write as many, tabs between"
    for part, value in zip(("question", "answer", "path"), fields, strict=False):
        if fault := text_fault(value):
            return f"the {part} {fault[0]}; {fault[1]}"
    return ""


def _of_text(fields: Sequence[str], id: str, group: str) -> TripleQuestion:
    text = fields[0].strip()
    if len(fields) == 3:
        entities, answers = (fields[2].split("#")[0],), _path_answers(fields[1])
    else:
        entities = tuple(dict.fromkeys(_TOPIC.findall(text)))
        text = _TOPIC.sub(r"\1", text)
        answers = [answer for field in fields[1:] for answer in field.split("|") if answer.strip()]
    return TripleQuestion(id, text, tuple(dict.fromkeys(answers)), entities, group)


def _path_answers(field: str) -> list[str]:
    """The answers of `answer(answer/another/)`; an answer may have brackets itself."""
    for place, mark in enumerate(field):
        main, listed = field[:place], field[place + 1 : -2].split("/")
        if mark == "(" and main in listed:
            return listed
    return [field.rpartition("(")[0] or field]


@dataclasses.dataclass(frozen=True)
class Linked:
    """Questions whose answers and topics are nodes of a graph.

    Attributes:
        questions: as they were given.
        topics: for each question, the nodes of its topics, ascending. A name of several nodes
            gives all of them.
        answers: for each question and each of its answers, the nodes that it may be; none if it is
            not in the graph.
        counts: what was looked for, what is absent; see `link`.
        remarks: what a user should know, a sentence each.
    """

    questions: list[TripleQuestion]
    topics: list[tuple[int, ...]]
    answers: list[tuple[tuple[int, ...], ...]]
    counts: dict[str, int]
    remarks: list[str]

    def answer_nodes(self, question: int) -> np.ndarray:
        """All nodes that are an answer to a question, ascending: int64 [n]."""
        return np.unique(np.array([n for nodes in self.answers[question] for n in nodes], np.int64))

    def summary(self) -> str:
        """The counts, a line each."""
        return "\n".join(f"{name.replace('_', ' ')}: {n:,}" for name, n in self.counts.items())


def link(questions: Sequence[TripleQuestion], graph: Triples) -> Linked:
    """Finds the nodes of topics and answers.

    A given name is looked up by `name_search.look_up`. The topics of a question that names none are
    found in its text by the rule of `name_search.Mentions`.

    `counts` has: questions; topics_given and topics_absent, names of topics in all;
    topics_from_text and without_topic, questions; answers and answers_absent; and
    without_answer_in_graph, questions with answers of which none is a node. An absent answer is a
    miss of whoever searches for it.
    """
    questions = list(questions)
    searched_names = [name for q in questions for name in (*q.entities, *_answer_names(q))]
    lookup = look_up(searched_names, graph.nodes)
    nodes_of = lambda name: lookup.nodes.get(name, ())
    answers = [tuple(map(nodes_of, _answer_names(q))) for q in questions]
    silent = [i for i, q in enumerate(questions) if not q.entities]
    mentions: list[dict[str, tuple[int, ...]]] = []
    if silent:
        mentions = Mentions(graph.nodes).find([questions[i].question for i in silent])
    topics = [_union(map(nodes_of, q.entities)) for q in questions]
    for i, names in zip(silent, mentions, strict=True):
        topics[i] = _union(names.values())
    given_names = [name for q in questions for name in q.entities]
    listed = [nodes for nodes_by_answer in answers for nodes in nodes_by_answer]
    counts = {
        "questions": len(questions),
        "topics_given": len(given_names),
        "topics_absent": sum(not nodes_of(name) for name in given_names),
        "topics_from_text": sum(map(bool, mentions)),
        "without_topic": sum(not nodes for nodes in topics),
        "answers": len(listed),
        "answers_absent": sum(not nodes for nodes in listed),
        "without_answer_in_graph": sum(
            bool(nodes_by_answer) and not any(nodes_by_answer) for nodes_by_answer in answers
        ),
    }
    several = {name: nodes for name, nodes in lookup.nodes.items() if len(nodes) > 1}
    for names in mentions:
        several |= {name: nodes for name, nodes in names.items() if len(nodes) > 1}
    remarks = [
        *_absent_topics(questions, nodes_of, graph),
        *_absent_answers(questions, answers, counts),
        *_several(several, graph),
    ]
    if lookup.also_ids:
        examples = ", ".join(map(repr, lookup.also_ids[:3]))
        remarks.append(
            f"{len(lookup.also_ids):,} names are also ids of other nodes ({examples}); "
            "they are read as names"
        )
    return Linked(questions, topics, answers, counts, remarks)


def _answer_names(question: TripleQuestion) -> tuple[str, ...]:
    return question.answer_entities or question.answers


def _union(groups: Iterable[Iterable[int]]) -> tuple[int, ...]:
    return tuple(sorted({node for nodes in groups for node in nodes}))


def _absent_topics(questions: Sequence[TripleQuestion], nodes_of, graph: Triples) -> list[str]:
    first: dict[str, str] = {}
    for question in questions:
        for name in question.entities:
            if not nodes_of(name):
                first.setdefault(name, question.id)
    lines = []
    for name, id in list(first.items())[:LISTED]:
        near = ", ".join(map(repr, nearest(name, graph.nodes))) or "none"
        lines.append(f"topic {name!r} of question {id!r} is not in the graph; nearest: {near}")
    return _brief(lines, len(first), "topics are not in the graph")


def _absent_answers(questions, answers, counts) -> list[str]:
    if not counts["answers_absent"]:
        return []
    absent = (
        f"{name!r} of {q.id!r}"
        for q, nodes_by_answer in zip(questions, answers, strict=True)
        for name, nodes in zip(_answer_names(q), nodes_by_answer, strict=True)
        if not nodes
    )
    examples = ", ".join(name for name, _ in zip(absent, range(3), strict=False))
    lines = [
        f"{counts['answers_absent']:,} answers are not in the graph ({examples}); each counts as a "
        "miss"
    ]
    if 2 * counts["without_answer_in_graph"] > len(questions):
        lines.append(
            f"{counts['without_answer_in_graph']:,} of {len(questions):,} questions have no answer "
            "in the graph: look whether they belong together"
        )
    return lines


def _several(names: Mapping[str, Sequence[int]], graph: Triples) -> list[str]:
    """A remark on each of the first names that lead to several nodes."""
    lines = []
    for name, nodes in list(names.items())[:LISTED]:
        ids = ", ".join(graph.nodes.ids[node].as_py() for node in nodes[:LISTED])
        more = f" and {len(nodes) - LISTED:,} more" if len(nodes) > LISTED else ""
        lines.append(f"{name!r} may be {len(nodes):,} nodes, all are taken: {ids}{more}")
    return _brief(lines, len(names), "names lead to several nodes")


def _brief(lines: list[str], total: int, kind: str) -> list[str]:
    """The first remarks of a kind, and how many more there are."""
    more = total - len(lines)
    return lines + ([f"{more:,} more {kind}"] if more else [])
