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

`subject`, `predicate`, `object` are read as `head`, `relation`, `tail`. Freebase's triples of
type.object.name and common.topic.alias give names, and are no facts of the graph.
"""

import dataclasses
import glob
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from ark_jax.data.encodings import open_bytes
from ark_jax.data.formats.pairs import are_triples_of_sentences, is_pair
from ark_jax.data.json_files import json_rows
from ark_jax.data.problems import Findings, Reading
from ark_jax.data.text_files import (
    begins_as_json,
    filled_lines,
    head_text,
    is_parquet,
    unreadable_file,
)
from ark_jax.graph.parquet import TEXT
from ark_jax.graph.terms import Names
from ark_jax.graph.triple_parquet import has_triples, parquet_columns
from ark_jax.graph.triple_rows import (
    TABLES,
    faultless_columns,
    first_fields,
    is_questions,
    joined_chunks,
    json_kind,
    json_triples,
    part_positions,
    text_triples,
    valid_rows,
)
from ark_jax.runtime import storage

FREEBASE = "http://rdf.freebase.com/ns/"
FREEBASE_NAMES = ("type.object.name", "common.topic.alias")  # relations to a name, to an alias
_LABELS = {  # predicate -> whether it gives a name, or an alias alone
    "http://www.w3.org/2000/01/rdf-schema#label": True,
    "http://www.w3.org/2004/02/skos/core#prefLabel": True,
    "http://www.w3.org/2004/02/skos/core#altLabel": False,
}


def n_triples(path: Path, findings: Findings, names: Names) -> Iterator[tuple[str, str, str]]:
    """The triples of an N-Triples file, whose ids are terms as N-Triples writes them.

    A literal keeps its language or datatype in its id, and its text is its name. The name of an IRI
    is its rdfs:label or skos:prefLabel; further labels and skos:altLabel are aliases.
    """
    try:
        import pyoxigraph
    except ImportError:
        message = "is N-Triples, which pyoxigraph reads; run: pip install 'ark-jax[graphs]'"
        findings.problems.add(path, message)
        return
    try:
        with open_bytes(path) as file:
            quads = pyoxigraph.parse(file, format=pyoxigraph.RdfFormat.N_TRIPLES)
            for quad in _readable_quads(quads, path, findings):
                is_name = _term_id(quad.predicate) in FREEBASE_NAMES  # a file of TSV has them too
                if isinstance(quad.object, pyoxigraph.Literal) and not is_name:
                    _name_literal(quad, names)
                yield _term_id(quad.subject), _term_id(quad.predicate), _term_id(quad.object)
    except (OSError, EOFError, MemoryError) as error:  # the last for a term of 16 MiB
        reason = getattr(error, "strerror", None) or error
        findings.problems.stop(path, f"cannot be read ({reason}); copy it again")


def _readable_quads(quads: Iterator, path: Path, findings: Findings) -> Iterator:
    """Yields the quads of a parser; what it cannot read becomes a problem.

    Reading continues after a broken line, but not after bytes that are not UTF-8.
    """
    last = 0
    while True:
        try:
            quad = next(quads)
        except StopIteration:
            return
        except SyntaxError as error:
            findings.problems.rows += 1
            reason = error.args[0].partition(": ")[2].partition(" (line")[0]
            line = error.lineno or 0
            if "UTF-8" in reason or line <= last:
                message = f"{reason}; save the file as UTF-8: nothing after it was read"
                if "UTF-8" in reason:
                    findings.problems.stop(path, message, line)
                return
            last = line
            findings.problems.add(path, f"is not N-Triples ({reason}); mend the line", line)
            continue
        findings.problems.rows += 1
        yield quad


def _term_id(term) -> str:
    """An IRI without its angle brackets; any other term as N-Triples writes it.

    Of Freebase's IRIs it is the mid or the relation, by which questions name them.
    """
    return term.value.removeprefix(FREEBASE) if type(term).__name__ == "NamedNode" else str(term)


def _name_literal(quad, names: Names) -> None:
    """Adds the text of a literal as its name, and a label as a name or alias of its subject."""
    text = " ".join(quad.object.value.split())
    if not text:
        return
    names.names.setdefault(str(quad.object), text)
    if (named := _LABELS.get(quad.predicate.value)) is not None:
        names.add(_term_id(quad.subject), text, alias=not named)


_BATCH = 1 << 16
LONGEST_RELATION = 8  # words
FORMATS = "TSV, CSV, JSONL, Parquet, N-Triples, or a folder that `Triples.save` wrote"


@dataclasses.dataclass
class TripleRows:
    """The triples of files, row by row; equal rows may occur several times.

    Attributes:
        columns: heads, relations and tails as chunks of Arrow strings, which take less memory than
            Python's.
        names: of the nodes; None: each id is its own name.
        relation_names: likewise, of the relations.
        findings: problems and remarks.
        path: the first file.
    """

    columns: tuple[list[pa.Array], ...]
    names: Names | None
    relation_names: Names | None
    findings: Findings
    path: Path | None

    def add_triples(self, triples: Iterable[tuple[str, str, str]]) -> None:
        """Adds triples after the rows so far."""
        triples = iter(triples)
        while batch := list(itertools.islice(triples, _BATCH)):
            for chunks, values in zip(self.columns, zip(*batch, strict=True), strict=True):
                chunks.append(pa.array(values, TEXT))

    def add_columns(self, columns: Sequence[pa.ChunkedArray]) -> None:
        """Adds head, relation and tail of triples after the rows so far."""
        for chunks, column in zip(self.columns, columns, strict=True):
            chunks += column.chunks


def read_rows(
    paths: Sequence[str | Path],
    names: str | Path | None = None,
    relation_names: str | Path | None = None,
    encoding: str = "",
) -> TripleRows:
    """The valid rows of files. Arguments are those of `Triples.read`."""
    findings = Findings(Reading(encoding))
    local = local_files(paths, findings, recognises)
    named, named_relations = (_read_names(file, findings) for file in (names, relation_names))
    rows = TripleRows(([], [], []), named, named_relations, findings, next(iter(local), None))
    inner_names = Names()  # in the files of triples themselves
    for path in local:
        _read_file(path, rows, inner_names)
    _take_freebase_names(rows, named or inner_names)
    if not named and (inner_names.names or inner_names.aliases):
        rows.names = inner_names
    return rows


_LITERAL = re.compile(r'"(.*)"(?:@([\w-]+)|\^\^.*)?', re.DOTALL)


def _take_freebase_names(rows: TripleRows, names: Names) -> None:
    """Turns triples that name nodes of Freebase into names; English ones come first."""
    known = pa.array(FREEBASE_NAMES, TEXT)
    if not any(pc.any(pc.is_in(_distinct(chunk), known)).as_py() for chunk in rows.columns[1]):
        return
    head, relation, tail = (joined_chunks(chunks).cast(TEXT) for chunks in rows.columns)
    is_name = pc.is_in(relation, known)
    named = []
    for id, kind, text in zip(
        *(c.filter(is_name).to_pylist() for c in (head, relation, tail)), strict=True
    ):
        literal = _LITERAL.fullmatch(text)
        language = literal[2] or "en" if literal else "en"
        named.append(
            (language != "en", kind != FREEBASE_NAMES[0], id, literal[1] if literal else text)
        )
    for _, is_alias, id, text in sorted(named, key=lambda name: name[:2]):
        names.add(id, text, alias=is_alias)
    for chunks, column in zip(rows.columns, (head, relation, tail), strict=True):
        chunks[:] = column.filter(pc.invert(is_name)).chunks
    message = f"{len(named):,} triples name nodes of Freebase; they are names, not facts"
    rows.findings.remarks.add(rows.path, message, rows=0)


def _distinct(chunk: pa.Array) -> pa.Array:
    """The strings of a chunk, which may be dictionary-encoded."""
    return (chunk.dictionary if pa.types.is_dictionary(chunk.type) else chunk).cast(TEXT)


def is_saved(path: Path) -> bool:
    """Whether a path is a folder with any file of a saved graph."""
    return any((path / f"{name}.arrow").is_file() for name in TABLES)


def recognises(path: Path) -> bool:
    """Whether a file, a saved folder, or any file of a folder or glob is a graph of triples.

    A file of documents or questions is not.
    """
    if path.is_dir():
        return is_saved(path) or any(map(recognises, files_in(path)))
    if is_glob(path):
        return any(map(recognises, matching_files(path)))
    if path.name.endswith((".nt", ".nt.gz")):
        return True
    if is_parquet(path):
        return has_triples(path)
    lines = [line for line in head_text(path).splitlines() if line]
    if lines[:1] and lines[0].lstrip()[:1] == "{":
        row = next(json_rows(path, Findings()), None)
        return row is not None and json_kind(row.values) is not None
    return _is_text_of_triples(path, lines)


def _is_text_of_triples(path: Path, lines: Sequence[str]) -> bool:
    """Whether a text file names columns of triples, or most of its first lines are triples."""
    separator, fields = first_fields(path)
    first = [field.strip().lower() for field in fields]
    if part_positions(first):
        return True
    if is_pair(dict.fromkeys(first)) or are_triples_of_sentences(path):
        return False
    if separator == "," or path.suffix not in ("", ".txt", ".tsv") or path.parent.name == "qrels":
        return False
    # A table of documents or questions names its columns; a text has few lines of three fields.
    rows = [line.split(separator) for line in lines[:20]]
    triples = [row for row in rows if len(row) == 3 and all(map(str.strip, row))]  # not indented
    sentences = [row for row in triples if _is_sentence(row[1])]
    named = {"id", "_id", "text", "title", "question", "query-id", "answer", "answers"}
    return (
        not named & set(first)
        and 2 * len(triples) > len(rows)
        and 2 * len(sentences) <= len(triples)
        and not is_questions(path)
    )


def _is_sentence(text: str) -> bool:
    """Whether a text is too long for a relation, or ends as sentences do."""
    words = text.split()
    ends = text.rstrip().endswith
    return (
        len(words) > LONGEST_RELATION
        or (len(words) > 2 and ends((".", "?", "!")))
        or ends(("。", "？", "！"))
    )


def _read_file(path: Path, rows: TripleRows, names: Names) -> None:
    """Adds the triples of a file to `rows`, and names that it gives to `names`."""
    findings = rows.findings
    if path.name.endswith((".nt", ".nt.gz")):
        rows.add_triples(n_triples(path, findings, names))
    elif is_parquet(path):
        rows.add_columns(parquet_columns(path, findings))
    elif begins_as_json(path):
        rows.add_triples(valid_rows(json_triples(path, findings), path, findings))
    elif is_questions(path):
        message = "holds questions, not triples; give the graph, and this file as its questions"
        findings.problems.add(path, message)
    elif not findings.reading.encoding and (
        (faultless := faultless_columns(path)) and len(faultless[0])
    ):
        findings.problems.rows += len(faultless[0])
        rows.add_columns(faultless)
    else:
        rows.add_triples(valid_rows(text_triples(path, findings), path, findings))


def _read_names(path: str | Path | None, findings: Findings) -> Names | None:
    """Reads a file with a line per id: id, name and aliases joined by "|", with tabs between."""
    if path is None:
        return None
    path, names = storage.local_copy(str(path)), Names()
    lines: dict[str, int] = {}
    for number, line in filled_lines(path, findings):
        findings.problems.rows += 1
        fields = line.split("\t")
        if len(fields) not in (2, 3):
            message = f"{len(fields)} field(s); write id, name and perhaps aliases, tabs between"
            findings.problems.add(path, message, number)
            continue
        for id, name in valid_rows([(number, fields[:2])], path, findings, ("id", "name")):
            if id in lines and name != names.names[id]:
                message = f"{id!r} of line {lines[id]} has a second name; it becomes an alias"
                findings.remarks.add(path, message, number, "name")
            lines.setdefault(id, number)
            names.add(id, name)
            for alias in "".join(fields[2:]).split("|"):
                if alias.strip():
                    names.add(id, alias, alias=True)
    return names


SUFFIXES = (".tsv", ".txt", ".csv", ".nt", ".nt.gz", ".parquet", ".jsonl", ".json")
_ID_LISTS = ("entities.txt", "relations.txt")  # a file of triples may name their lines by number


def is_glob(path: Path) -> bool:
    """Whether a path is a pattern and not the name of a file."""
    return glob.has_magic(str(path)) and not path.exists()


def matching_files(pattern: Path) -> list[Path]:
    """The files that match a pattern, in order."""
    paths = map(Path, sorted(glob.glob(str(pattern), recursive=True)))
    return [path for path in paths if path.is_file()]


def files_in(folder: Path) -> list[Path]:
    """The files in a folder that may hold triples or questions, by their suffix, in order."""
    return [
        path
        for path in sorted(folder.iterdir())
        if path.name.endswith(SUFFIXES) and path.name not in _ID_LISTS and path.is_file()
    ]


def local_files(
    paths: Sequence[str | Path],
    findings: Findings,
    recognises: Callable[[Path], bool] | None = None,
) -> list[Path]:
    """The files that paths name, in order; a path that names none is a problem.

    Args:
        paths: files, globs and, with `recognises`, folders.
        recognises: whether a file in a folder is of the kind wanted. All of its files must be.
    """
    files: list[Path] = []
    for path in paths:
        local = storage.local_copy(str(path))
        if is_glob(local):
            matches = matching_files(local)
            if not matches:
                findings.problems.add(local, "matches no file; mend the pattern")
            files += matches
            continue
        try:
            local.stat()
        except OSError as error:
            findings.problems.add(local, unreadable_file(local, error))
            continue
        if not local.is_dir():
            files.append(local)
        elif recognises is None:
            findings.problems.add(local, "is a folder; give a file or a pattern such as *.jsonl")
        else:
            files += _recognised_files(local, findings, recognises)
    return files


def _recognised_files(
    folder: Path, findings: Findings, recognises: Callable[[Path], bool]
) -> list[Path]:
    """The files of a folder, if all are recognised; otherwise none, and a problem."""
    files = files_in(folder)
    graph_files = [path for path in files if recognises(path)]
    other_names = [path.name for path in files if path not in graph_files]
    if graph_files and not other_names:
        return graph_files
    if not graph_files:
        message = "is not a saved graph and holds no file of triples; give a file, such as TSV"
    else:
        listed = ", ".join(other_names[:3]) + (
            f" and {len(other_names) - 3} more" if other_names[3:] else ""
        )
        fix = f"give {_pattern_or_names(folder, graph_files)}"
        message = f"also holds files without triples ({listed}); {fix}"
    findings.problems.add(folder, message)
    return []


def _pattern_or_names(folder: Path, paths: Sequence[Path]) -> str:
    """A pattern that matches these files alone, or else their names."""
    names = [path.name for path in paths]
    start, end = _common_start(names), _common_start([name[::-1] for name in names])[::-1]
    if len(names) > 1 and (start or end):
        pattern = folder / f"{start}*{end}"
        if matching_files(pattern) == list(paths):
            return str(pattern)
    return ", ".join(names[:5]) + (" ..." if names[5:] else "")


def _common_start(names: Sequence[str]) -> str:
    """The letters that all names begin with."""
    equal = itertools.takewhile(lambda letters: len(set(letters)) == 1, zip(*names, strict=False))
    return "".join(letters[0] for letters in equal)
