"""Reads graphs of triples from files, or reports their problems by file, row and field.

| format | how it is recognised |
|---|---|
| N-Triples | its name ends in .nt or .nt.gz |
| JSONL | an object with `head`, `relation`, `tail`; or with `graph`, a list of triples (RoG); or
with `subgraph.tuples` (NSM, GraftNet), whose numbers count the lines of entities.txt and
relations.txt from 0 |
| Parquet | columns `head`, `relation`, `tail` of strings or whole numbers |
| text | a triple a line, three fields between tabs, `|` or, in CSV, commas; a first line with the
names of the columns may be there |
| saved | the folder that `Triples.save` wrote |

`subject`, `predicate`, `object` are read as `head`, `relation`, `tail`.
"""

import collections
import csv
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from ark_jax.data.json_files import json_rows
from ark_jax.data.problems import Findings
from ark_jax.data.records import BadInput, Problem
from ark_jax.data.row_files import is_parquet
from ark_jax.data.rows import InputRow, has_surrogate, type_name
from ark_jax.data.text_files import (
    file_head,
    file_problem,
    missing_file,
    text_lines,
    unreadable_file,
)
from ark_jax.graph.parquet import TEXT
from ark_jax.graph.rdf_files import n_triples
from ark_jax.graph.term_lists import TermLists
from ark_jax.graph.terms import Names, name_fault
from ark_jax.graph.triples import PARTS, TABLES, Triples
from ark_jax.runtime import storage
from ark_jax.runtime.log import say

RDF_PARTS = ("subject", "predicate", "object")
_BATCH = 1 << 16
# A name that is valid at first sight: it has a visible ASCII character, no tab and no break.
_PLAIN = "^[^\t\n\r\\x00]*[!-~][^\t\n\r\\x00]*$"
_FORMATS = "TSV, CSV, JSONL, Parquet, N-Triples, or a folder that `Triples.save` wrote"

Row = tuple[int, Sequence[object]]  # its number, and head, relation and tail


def load(
    paths: Sequence[str | Path],
    names: str | Path | None = None,
    relation_names: str | Path | None = None,
) -> Triples:
    """The graph of files or of a saved folder; arguments and errors are those of `Triples.read`."""
    graph, findings = read(paths, names, relation_names)
    if findings.problems:
        raise BadInput(findings.problems)
    for remark in findings.remarks:
        say(f"  {remark}")
    return graph


def read(
    paths: Sequence[str | Path],
    names: str | Path | None = None,
    relation_names: str | Path | None = None,
) -> tuple[Triples, Findings]:
    """The graph of all valid rows, and what came up. Arguments are those of `Triples.read`."""
    findings, columns = Findings(), _Columns()
    local = [storage.local_copy(str(path)) for path in paths]
    if len(local) == 1 and local[0].is_dir():
        return _saved(local[0], findings), findings
    terms = [_read_names(file, findings) for file in (names, relation_names)]
    found = Names()  # in the files of triples themselves
    for path in local:
        _read_file(path, findings, columns, found)
    # No file of names, and no names beside the triples: each id is its own name.
    nodes = terms[0] or (found if found.names or found.aliases else None)
    graph = _graph(columns, nodes, terms[1])
    if not len(graph) and not findings.problems:
        findings.problems.append(file_problem(local[0], "holds no triple; give another file"))
    _remark_names(graph, local[0], findings)
    findings.problems.condense()
    findings.remarks.condense()
    return graph, findings


class _Columns:
    """Heads, relations and tails as chunks of Arrow strings, which take less memory than Python's.

    Attributes:
        parts: the chunks of each of the three.
    """

    def __init__(self):
        self.parts: tuple[list[pa.Array], ...] = ([], [], [])

    def extend(self, triples: Iterable[tuple[str, str, str]]) -> None:
        batch: list[tuple[str, str, str]] = []
        for triple in triples:
            batch.append(triple)
            if len(batch) == _BATCH:
                self._close(batch)
        self._close(batch)

    def _close(self, batch: list[tuple[str, str, str]]) -> None:
        for i, chunks in enumerate(self.parts):
            chunks.append(pa.array([triple[i] for triple in batch], TEXT))
        batch.clear()

    def add(self, columns: Sequence[pa.ChunkedArray]) -> None:
        for chunks, column in zip(self.parts, columns, strict=True):
            chunks += column.chunks


def _graph(columns: _Columns, nodes: Names | None, relations: Names | None) -> Triples:
    return Triples.from_columns(
        *(pa.chunked_array(chunks, TEXT) for chunks in columns.parts),
        names=nodes.names if nodes else None,
        aliases=nodes.aliases if nodes else None,
        relation_names=relations.names if relations else None,
        relation_aliases=relations.aliases if relations else None,
    )


def _saved(folder: Path, findings: Findings) -> Triples:
    try:
        return Triples.load(folder)
    except (OSError, ValueError) as error:
        fix = f"give {_FORMATS}"
        findings.problems.append(file_problem(folder, f"is no saved graph ({error}); {fix}"))
        return Triples.from_triples([])


def _remark_names(graph: Triples, path: Path, findings: Findings) -> None:
    """Remarks on ids without a name, and on names of several ids."""
    for field, terms in (("names", graph.nodes), ("relation_names", graph.relations)):
        if terms.unnamed:
            message = f"{terms.unnamed:,} ids have no name; the id stands for it"
            findings.remarks.append(Problem(str(path), 0, field, message, terms.unnamed))
        if terms.shared_names:
            message = f"{terms.shared_names:,} names belong to several ids, which stay apart"
            findings.remarks.append(Problem(str(path), 0, field, message, terms.shared_names))


def summary(graph: Triples) -> str:
    """Describes a graph in a few lines."""
    counts = graph.summary()
    lines = ["format: a graph of triples"]
    for key, value in counts.items():
        if key == "hubs":
            value = ", ".join(f"{name} ({degree:,} triples)" for name, degree in value)
        else:
            value = f"{value:,}"
        lines.append(f"{key.replace('_', ' ')}: {value}")
    return "\n".join(lines)


def recognises(path: Path) -> bool:
    """Whether a path is a graph of triples, and no file of documents or questions."""
    if path.is_dir():
        return all((path / f"{name}.arrow").is_file() for name in TABLES)
    if path.name.endswith((".nt", ".nt.gz")):
        return True
    if is_parquet(path):
        try:
            return _header(pq.read_schema(path).names) is not None
        except (pa.ArrowException, OSError):
            return False
    lines = [line for line in file_head(path).decode("utf-8", "ignore").splitlines() if line]
    if lines[:1] and lines[0].lstrip()[:1] == "{":
        row = next(json_rows(path, Findings()), None)
        return row is not None and _json_kind(row.values) is not None
    separator = _separator(path, lines[:1])
    first = [field.strip().lower() for field in lines[0].split(separator)] if lines else []
    if _header(first):
        return True
    if separator == "," or path.suffix not in ("", ".txt", ".tsv") or path.parent.name == "qrels":
        return False
    # A table of documents or questions names its columns; a text has few lines of three fields.
    whole = [line for line in lines[:20] if len(line.split(separator)) == 3]
    named = {"id", "_id", "text", "title", "question", "query-id", "answer", "answers"}
    return not named & set(first) and 2 * len(whole) > len(lines[:20])


def _read_file(path: Path, findings: Findings, columns: _Columns, names: Names) -> None:
    try:
        path.stat()
    except OSError as error:
        absent = isinstance(error, FileNotFoundError)
        problem = missing_file(path) if absent else unreadable_file(path, error)
        findings.problems.append(problem)
        return
    if path.is_dir():
        findings.problems.append(file_problem(path, f"is a folder; give files, or {_FORMATS}"))
        return
    if path.name.endswith((".nt", ".nt.gz")):
        columns.extend(n_triples(path, findings, names))
    elif is_parquet(path):
        columns.add(_parquet_columns(path, findings))
    elif file_head(path).lstrip()[:1] in (b"{", b"["):
        columns.extend(_checked(_json_triples(path, findings), path, findings))
    else:
        columns.extend(_checked(_text_triples(path, findings), path, findings))


def _checked(
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
                message = f"{fault[0]}; {fault[1]}"
                findings.problems.append(Problem(str(path), number, field, message))


def _separator(path: Path, head: Sequence[str]) -> str:
    """What separates the fields of a text file: by its first line, a comma in CSV."""
    if path.suffix == ".csv":
        return ","
    first = head[0] if head else ""
    return next((mark for mark in "\t|," if mark in first), "\t")


def _header(columns: Sequence[str]) -> list[int] | None:
    """Where head, relation and tail are among the names of columns; None if they are not."""
    lowered = [str(column).strip().lower() for column in columns]
    for parts in (PARTS, RDF_PARTS):
        if all(lowered.count(part) == 1 for part in parts):
            return [lowered.index(part) for part in parts]
    return None


def _text_triples(path: Path, findings: Findings) -> Iterator[Row]:
    head = file_head(path).decode("utf-8", "ignore").splitlines()
    separator = _separator(path, [line for line in head if line.strip()][:1])
    order, width, first, quoted = [0, 1, 2], 3, True, 0
    for number, fields in _fields(path, separator, findings):
        if first:
            first = False
            if places := _header(fields):
                order, width = places, len(fields)
                continue
        findings.problems.rows += 1
        if any(map(has_surrogate, fields)):  # reported already
            continue
        if len(fields) != width:
            findings.problems.append(_wrong_width(path, number, len(fields), separator))
            continue
        values = [fields[place] for place in order]
        quoted += separator != "," and any(
            len(value) > 1 and value[0] == value[-1] == '"' for value in values
        )
        yield number, values
    if quoted:
        message = f"{quoted:,} rows have a field in quotes; the quotes are part of the name"
        findings.remarks.append(Problem(str(path), 0, "", message, quoted))


def _wrong_width(path: Path, number: int, width: int, separator: str) -> Problem:
    shown = {"\t": "a tab"}.get(separator, repr(separator))
    if width > 3:
        fix = f"no name may hold {shown}" + (" outside quotes" if separator == "," else "")
    else:
        fix = f"write head, relation and tail with {shown} between"
    return file_problem(path, f"{width} field(s), a triple has three; {fix}", number)


def _fields(path: Path, separator: str, findings: Findings) -> Iterator[tuple[int, list[str]]]:
    """The fields of each line that is not blank. Only CSV knows quotes."""
    if separator != ",":
        for number, line in text_lines(path, findings):
            line = line.rstrip("\r\n")
            if line.strip():
                yield number, line.split(separator)
        return
    csv.field_size_limit(sys.maxsize)
    reader = csv.reader((line for _, line in text_lines(path, findings, newline="")), strict=True)
    next_line = 1
    try:
        for fields in reader:
            line, next_line = next_line, reader.line_num + 1
            if any(fields):
                yield line, fields
    except csv.Error as error:
        message = f"the row is broken CSV ({error}); check its quotes: nothing behind it was read"
        findings.problems.stop(file_problem(path, message, next_line))


def _json_kind(values: dict) -> str | None:
    """Which of the three forms an object has."""
    if isinstance(values.get("subgraph"), dict) and "tuples" in values["subgraph"]:
        return "subgraph.tuples"
    if isinstance(values.get("graph"), list):
        return "graph"
    return "triple" if _header(list(values)) else None


def _json_triples(path: Path, findings: Findings) -> Iterator[Row]:
    beside = TermLists(path.parent, findings)
    for row in json_rows(path, findings):
        kind = _json_kind(row.values)
        if kind == "triple":
            values = list(row.values.values())
            yield row.line, [values[place] for place in _header(list(row.values))]
        elif kind:
            yield from _triple_list(row, kind, beside, findings)
        else:
            fields = ", ".join(map(repr, list(row.values)[:5]))
            row.add_problem("", f"has the fields {fields}", "name them head, relation and tail")
            findings.settle(row)


def _triple_list(row: InputRow, kind: str, beside: TermLists, findings: Findings) -> Iterator[Row]:
    """The triples of a question's graph."""
    triples = row.values["graph"] if kind == "graph" else row.values["subgraph"]["tuples"]
    for i, triple in enumerate(triples if isinstance(triples, list) else []):
        if not isinstance(triple, list) or len(triple) != 3:
            row.add_problem(f"{kind}[{i}]", "is no list of three", "write [head, relation, tail]")
        elif kind == "graph":
            yield row.line, triple
        else:
            values = [beside.id(part, value) for part, value in zip(PARTS, triple, strict=True)]
            if None in values:
                fix = "mend it, or put entities.txt and relations.txt beside the file"
                row.add_problem(f"{kind}[{i}]", f"{triple} names no line of them", fix)
            else:
                yield row.line, values
    findings.settle(row)


def _parquet_columns(path: Path, findings: Findings) -> list[pa.ChunkedArray]:
    """Head, relation and tail without the rows that have a fault."""
    import pyarrow.compute as pc

    try:
        names = pq.read_schema(path).names
        if not (places := _header(names)):
            message = f"has the columns {', '.join(names[:5])}; name them {', '.join(PARTS)}"
            findings.problems.append(file_problem(path, message))
            return [pa.chunked_array([], TEXT)] * 3
        columns = []
        for part, place in zip(PARTS, places, strict=True):
            column = pq.read_table(path, columns=[names[place]]).column(0)
            if pa.types.is_dictionary(column.type):
                column = column.cast(column.type.value_type)
            if not (pa.types.is_integer(column.type) or _is_text(column.type)):
                message = f"is of type {column.type}; give strings or whole numbers"
                findings.problems.append(Problem(str(path), 0, part, message))
                return [pa.chunked_array([], TEXT)] * 3
            columns.append(column.cast(TEXT))
    except (pa.ArrowException, OSError) as error:
        reason = " ".join(str(error).split())[:200]
        message = f"cannot be read as Parquet ({reason}); copy it again"
        findings.problems.append(file_problem(path, message))
        return [pa.chunked_array([], TEXT)] * 3
    findings.problems.rows += len(columns[0])
    bad: dict[int, list[Problem]] = collections.defaultdict(list)
    for part, column in zip(PARTS, columns, strict=True):
        # A pattern passes most names. Only the others are looked at one by one, and rows only if
        # one of those has a fault.
        plain = pc.fill_null(pc.match_substring_regex(column, _PLAIN), False)
        faults = {
            name: name_fault(name) for name in column.filter(pc.invert(plain)).unique().to_pylist()
        }
        faulty = pa.array([name for name, fault in faults.items() if fault], TEXT)
        if len(faulty):
            hit = pc.or_(pc.is_in(column, faulty), column.is_null())
            for row in pc.indices_nonzero(hit).to_pylist():
                defect, fix = faults[column[row].as_py()]
                message = f"{defect} in row {row + 1}; {fix}"
                bad[row].append(Problem(str(path), row + 1, part, message))
    if bad:
        findings.problems.extend(problem for row in sorted(bad) for problem in bad[row])
        valid = pa.array([row not in bad for row in range(len(columns[0]))])
        columns = [column.filter(valid) for column in columns]
    return columns


def _is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def _read_names(path: str | Path | None, findings: Findings) -> Names | None:
    """A file with a line per id: id, name and aliases joined by "|", with tabs between."""
    if path is None:
        return None
    path, names = storage.local_copy(str(path)), Names()
    lines: dict[str, int] = {}
    for number, line in text_lines(path, findings):
        if not line.strip():
            continue
        findings.problems.rows += 1
        fields = line.rstrip("\r\n").split("\t")
        if len(fields) not in (2, 3):
            message = f"{len(fields)} field(s); write id, name and perhaps aliases, tabs between"
            findings.problems.append(file_problem(path, message, number))
            continue
        for id, name in _checked([(number, fields[:2])], path, findings, ("id", "name")):
            if id in lines and name != names.names[id]:
                message = f"{id!r} of line {lines[id]} has a second name; it becomes an alias"
                findings.remarks.append(Problem(str(path), number, "name", message))
            lines.setdefault(id, number)
            names.add(id, name)
            for alias in "".join(fields[2:]).split("|"):
                if alias.strip():
                    names.add(id, alias, alias=True)
    return names
