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
| several | a glob, or a folder whose files all hold triples, of one format or several |

`subject`, `predicate`, `object` are read as `head`, `relation`, `tail`.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

import pyarrow as pa

from ark_jax.data.json_files import json_rows
from ark_jax.data.problems import Findings
from ark_jax.data.records import BadInput, Problem
from ark_jax.data.row_files import is_parquet
from ark_jax.data.text_files import file_head, file_problem, text_lines
from ark_jax.graph.parquet import TEXT
from ark_jax.graph.rdf_files import n_triples
from ark_jax.graph.terms import Names
from ark_jax.graph.triple_columns import joined_chunks
from ark_jax.graph.triple_parquet import has_triples, parquet_columns
from ark_jax.graph.triple_paths import files_in, is_glob, local_files, matches_of
from ark_jax.graph.triple_questions import is_questions
from ark_jax.graph.triple_rows import (
    checked,
    columns_of,
    json_kind,
    json_triples,
    separator_of,
    text_triples,
)
from ark_jax.graph.triple_text import faultless_columns
from ark_jax.graph.triples import TABLES, Triples
from ark_jax.runtime import storage
from ark_jax.runtime.log import say

_BATCH = 1 << 16
_FORMATS = "TSV, CSV, JSONL, Parquet, N-Triples, or a folder that `Triples.save` wrote"


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
    if len(paths) == 1 and is_saved(folder := storage.local_copy(str(paths[0]))):
        return _saved(folder, findings), findings
    local = local_files(paths, findings, recognises)
    terms = [_read_names(file, findings) for file in (names, relation_names)]
    inner_names = Names()  # in the files of triples themselves
    for path in local:
        _read_file(path, findings, columns, inner_names)
    # No file of names, and no names beside the triples: each id is its own name.
    nodes = terms[0] or (inner_names if inner_names.names or inner_names.aliases else None)
    graph = _graph(columns, nodes, terms[1])
    if not len(graph) and not findings.problems:
        findings.problems.append(file_problem(local[0], "holds no triple; give another file"))
    if local:
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
        *map(joined_chunks, columns.parts),
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


def is_saved(path: Path) -> bool:
    """Whether a path is a folder with any file of a saved graph."""
    return any((path / f"{name}.arrow").is_file() for name in TABLES)


def recognises(path: Path) -> bool:
    """Whether a file, a saved folder, or any file of a folder or glob is a graph of triples.

    A file of documents or questions is none.
    """
    if path.is_dir():
        return is_saved(path) or any(map(recognises, files_in(path)))
    if is_glob(path):
        return any(map(recognises, matches_of(path)))
    if path.name.endswith((".nt", ".nt.gz")):
        return True
    if is_parquet(path):
        return has_triples(path)
    lines = [line for line in file_head(path).decode("utf-8", "ignore").splitlines() if line]
    if lines[:1] and lines[0].lstrip()[:1] == "{":
        row = next(json_rows(path, Findings()), None)
        return row is not None and json_kind(row.values) is not None
    return _is_text_of_triples(path, lines)


def _is_text_of_triples(path: Path, lines: Sequence[str]) -> bool:
    separator = separator_of(path, lines[:1])
    first = [field.strip().lower() for field in lines[0].split(separator)] if lines else []
    if columns_of(first):
        return True
    if separator == "," or path.suffix not in ("", ".txt", ".tsv") or path.parent.name == "qrels":
        return False
    # A table of documents or questions names its columns; a text has few lines of three fields.
    triple_lines = [line for line in lines[:20] if len(line.split(separator)) == 3]
    named = {"id", "_id", "text", "title", "question", "query-id", "answer", "answers"}
    return (
        not named & set(first)
        and 2 * len(triple_lines) > len(lines[:20])
        and not is_questions(path)
    )


def _read_file(path: Path, findings: Findings, columns: _Columns, names: Names) -> None:
    if path.name.endswith((".nt", ".nt.gz")):
        columns.extend(n_triples(path, findings, names))
    elif is_parquet(path):
        columns.add(parquet_columns(path, findings))
    elif file_head(path).lstrip()[:1] in (b"{", b"["):
        columns.extend(checked(json_triples(path, findings), path, findings))
    elif is_questions(path):
        message = "holds questions, not triples; give the graph, and this file as its questions"
        findings.problems.append(file_problem(path, message))
    elif (faultless := faultless_columns(path)) is not None and len(faultless[0]):
        findings.problems.rows += len(faultless[0])
        columns.add(faultless)
    else:
        columns.extend(checked(text_triples(path, findings), path, findings))


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
        for id, name in checked([(number, fields[:2])], path, findings, ("id", "name")):
            if id in lines and name != names.names[id]:
                message = f"{id!r} of line {lines[id]} has a second name; it becomes an alias"
                findings.remarks.append(Problem(str(path), number, "name", message))
            lines.setdefault(id, number)
            names.add(id, name)
            for alias in "".join(fields[2:]).split("|"):
                if alias.strip():
                    names.add(id, alias, alias=True)
    return names
