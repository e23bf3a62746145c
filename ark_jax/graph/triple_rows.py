"""Rows of triples in text and JSON files."""

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from ark_jax.data.json_files import json_rows
from ark_jax.data.problems import Findings
from ark_jax.data.rows import InputRow, has_surrogate, type_name
from ark_jax.data.table_files import csv_cells
from ark_jax.data.text_files import filled_lines, head_text
from ark_jax.graph.term_lists import TermLists
from ark_jax.graph.terms import name_fault
from ark_jax.graph.triple_columns import PARTS

TOPIC = re.compile(r"\[(.+?)\](?!\])")  # of a question of MetaQA
RDF_PARTS = ("subject", "predicate", "object")

Row = tuple[int, Sequence[object]]  # its number, and head, relation and tail


def checked(
    rows: Iterable[Row], path: Path, findings: Findings, fields: Sequence[str] = PARTS
) -> Iterator[tuple]:
    """The rows whose fields are all valid names; the faults of others are problems."""
    for number, values in rows:
        faults = [name_fault(value) if isinstance(value, str) else None for value in values]
        if not any(faults) and all(isinstance(value, str) for value in values):
            yield tuple(values)
            continue
        for field, value, fault in zip(fields, values, faults, strict=True):
            if not isinstance(value, str):
                fault = f"is {type_name(value)}", "write a string"
            if fault:
                findings.problems.add(path, f"{fault[0]}; {fault[1]}", number, field)


def first_fields(path: Path) -> tuple[str, list[str]]:
    """What separates the fields of a text file, and those of its first line that is not blank.

    It is a comma in CSV, and else the first of tab, bar and comma that this line has.
    """
    first = next((line for line in head_text(path).splitlines() if line.strip()), "")
    separator = next((mark for mark in "\t|," if mark in first), "\t")
    separator = "," if path.suffix == ".csv" else separator
    return separator, first.split(separator) if first else []


def columns_of(columns: Sequence[str]) -> list[int] | None:
    """Where head, relation and tail are among the names of columns; None if they are not."""
    lowered = [str(column).strip().lower() for column in columns]
    for parts in (PARTS, RDF_PARTS):
        if all(lowered.count(part) == 1 for part in parts):
            return [lowered.index(part) for part in parts]
    return None


def text_triples(path: Path, findings: Findings) -> Iterator[Row]:
    separator, _ = first_fields(path)
    order, width, first, quoted = [0, 1, 2], 3, True, 0
    for number, fields in _fields(path, separator, findings):
        if first:
            first = False
            if places := columns_of(fields):
                order, width = places, len(fields)
                continue
        findings.problems.rows += 1
        if any(map(has_surrogate, fields)):  # reported already
            continue
        if len(fields) != width:
            findings.problems.add(path, _wrong_width(len(fields), separator), number)
            continue
        values = [fields[place] for place in order]
        quoted += separator != "," and any(
            len(value) > 1 and value[0] == value[-1] == '"' for value in values
        )
        yield number, values
    if quoted:
        message = f"{quoted:,} rows have a field in quotes; the quotes are part of the name"
        findings.remarks.add(path, message, rows=quoted)


def _wrong_width(width: int, separator: str) -> str:
    shown = {"\t": "a tab"}.get(separator, repr(separator))
    if width > 3:
        fix = f"no name may hold {shown}" + (" outside quotes" if separator == "," else "")
    else:
        fix = f"write head, relation and tail with {shown} between"
    return f"{width} field(s), a triple has three; {fix}"


def _fields(path: Path, separator: str, findings: Findings) -> Iterator[tuple[int, list[str]]]:
    """The fields of each line that is not blank. Only CSV knows quotes."""
    if separator == ",":
        return csv_cells(path, findings)
    return ((number, line.split(separator)) for number, line in filled_lines(path, findings))


def json_kind(values: dict) -> str | None:
    """Which of the three forms an object has."""
    if isinstance(values.get("subgraph"), dict) and "tuples" in values["subgraph"]:
        return "subgraph.tuples"
    if isinstance(values.get("graph"), list):
        return "graph"
    return "triple" if columns_of(list(values)) else None


def json_triples(path: Path, findings: Findings) -> Iterator[Row]:
    """The triples of objects that are triples themselves or hold a question's graph."""
    lists, graphs = TermLists(path.parent, findings), 0
    for row in json_rows(path, findings):
        kind = json_kind(row.values)
        if kind == "triple":
            values = list(row.values.values())
            yield row.line, [values[place] for place in columns_of(list(row.values))]
        elif kind:
            graphs += 1
            yield from _triple_list(row, kind, lists, findings)
        else:
            fields = ", ".join(map(repr, list(row.values)[:5]))
            row.add_problem("", f"has the fields {fields}", "name them head, relation and tail")
            findings.settle(row)
    remark_graphs(path, graphs, findings)


def remark_graphs(path: Path, count: int, findings: Findings) -> None:
    """Says that the graphs of several questions become one."""
    if count > 1:
        findings.remarks.add(path, f"{count:,} graphs, one a question, are read as one", rows=count)


def _triple_list(row: InputRow, kind: str, lists: TermLists, findings: Findings) -> Iterator[Row]:
    """The triples of a question's graph."""
    triples = row.values["graph"] if kind == "graph" else row.values["subgraph"]["tuples"]
    for i, triple in enumerate(triples if isinstance(triples, list) else []):
        if not isinstance(triple, list) or len(triple) != 3:
            row.add_problem(f"{kind}[{i}]", "is no list of three", "write [head, relation, tail]")
        elif kind == "graph":
            yield row.line, triple
        else:
            values = [lists.id(part, value) for part, value in zip(PARTS, triple, strict=True)]
            if None in values:
                fix = "mend it, or put entities.txt and relations.txt beside the file"
                row.add_problem(f"{kind}[{i}]", f"{triple} names no line of them", fix)
            else:
                yield row.line, values
    findings.settle(row)


def is_questions(path: Path) -> bool:
    """Whether a text file holds questions in PathQuestion's or MetaQA's form."""
    lines = head_text(path).splitlines()[:20]
    rows = [line.split("\t") for line in lines if line.strip()]
    return bool(rows) and (
        all(len(row) == 3 and is_question_path(row) for row in rows)
        or all(len(row) == 2 and TOPIC.search(row[0]) for row in rows)
    )


def is_question_path(fields: Sequence[str]) -> bool:
    """Whether the fields of a line are a question of PathQuestion: question, answers, path."""
    return fields[2].count("#") > 1 and fields[1].endswith("/)")
