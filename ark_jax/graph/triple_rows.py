"""Reads rows of triples from text and JSON files, and turns them into columns."""

import mmap
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from ark_jax.data.json_files import json_rows
from ark_jax.data.problems import Findings
from ark_jax.data.rows import InputRow, has_surrogate, type_name
from ark_jax.data.table_files import csv_cells
from ark_jax.data.text_files import filled_lines, head_text
from ark_jax.graph.parquet import TEXT
from ark_jax.graph.terms import TermLists, name_fault

PARTS = ("head", "relation", "tail")
TABLES = ("triples", "nodes", "relations")  # the files of a saved graph, NAME.arrow
# A name that is valid at first sight: it has a visible ASCII character, no tab and no break.
_PLAIN = "^[^\t\n\r\\x00]*[!-~][^\t\n\r\\x00]*$"


def encode(columns: Sequence[pa.Array | pa.ChunkedArray]) -> tuple[list[np.ndarray], pa.Array]:
    """Columns of strings as indices of their distinct strings, in order of appearance.

    The columns may be dictionary-encoded, which saves a look-up a row.
    """
    chunks = [c for x in columns for c in (x.chunks if isinstance(x, pa.ChunkedArray) else [x])]
    joined = joined_chunks(chunks)
    if pa.types.is_dictionary(joined.type):
        codes, ids = _renumbered(joined.unify_dictionaries().chunks)
    else:
        encoded = joined.dictionary_encode().chunks  # all chunks get one dictionary
        ids = encoded[-1].dictionary if encoded else pa.array([], TEXT)
        codes = _indices(encoded)
    return np.split(codes, np.cumsum([len(x) for x in columns])[:-1]), ids


def joined_chunks(chunks: Sequence[pa.Array]) -> pa.ChunkedArray:
    """One column of chunks; plain strings if not all are dictionary-encoded in one way."""
    if len({chunk.type for chunk in chunks}) == 1:
        return pa.chunked_array(chunks)
    return pa.chunked_array([chunk.cast(TEXT) for chunk in chunks], TEXT)


def _indices(chunks: Sequence[pa.DictionaryArray]) -> np.ndarray:
    """The indices of all chunks, one chunk after another."""
    arrays = [chunk.indices.to_numpy() for chunk in chunks]
    return np.concatenate([np.zeros(0, np.int32), *arrays])


def _renumbered(chunks: Sequence[pa.DictionaryArray]) -> tuple[np.ndarray, pa.Array]:
    """Indices and strings of chunks with one dictionary, the strings in order of appearance."""
    codes, values = _indices(chunks), chunks[0].dictionary.cast(TEXT)
    numbers, count = by_first_appearance(codes, len(values))
    return numbers[codes].astype(np.int32), values.take(pa.array(np.argsort(numbers)[:count]))


def by_first_appearance(codes: np.ndarray, count: int) -> tuple[np.ndarray, int]:
    """Numbers the codes below `count` in the order in which they first appear in `codes`.

    Returns:
        The number of each code, int64 `[count]`, where codes that do not appear come last; and how
        many appear.
    """
    first = np.full(count, len(codes))
    first[codes[::-1]] = np.arange(len(codes))[::-1]  # of equal codes the last assignment stays
    numbers = np.empty(count, np.int64)
    numbers[np.argsort(first, kind="stable")] = np.arange(count)
    return numbers, int(np.count_nonzero(first < len(codes)))


def bit_widths(*columns: np.ndarray) -> list[int]:
    """The bits that the numbers of each column need."""
    return [int(column.max(initial=0)).bit_length() for column in columns]


def sort_rows(head: np.ndarray, relation: np.ndarray, tail: np.ndarray) -> tuple[np.ndarray, ...]:
    """The rows in order. One integer a row is sorted if it can hold all three numbers."""
    _, b, c = widths = bit_widths(head, relation, tail)
    if sum(widths) > 62:
        order = np.lexsort((tail, relation, head))
        return head[order], relation[order], tail[order]
    keys = head.astype(np.int64)
    for column, bits in ((relation, b), (tail, c)):
        keys <<= bits
        keys |= column
    keys.sort()
    unpacked = lambda shift, bits, like: ((keys >> shift) & ((1 << bits) - 1)).astype(like.dtype)
    return (keys >> (b + c)).astype(head.dtype), unpacked(c, b, relation), unpacked(0, c, tail)


def order_by(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """The stable order of rows by `first`, then `second`: int64 [m]."""
    rows = np.arange(len(first))
    a, b, c = bit_widths(first, second, rows)
    if a + b + c > 62:
        return np.lexsort((second, first))
    keys = ((first.astype(np.int64) << b) | second) << c | rows
    keys.sort()
    return keys & ((1 << c) - 1)


def row_bounds(column: np.ndarray, size: int) -> np.ndarray:
    """Where the rows of each number below `size` begin in a sorted column: int64 `[size + 1]`."""
    return np.append(0, np.cumsum(np.bincount(column, minlength=size)))


def ranges(starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """The numbers from each start to its end, one range after the other: int64."""
    if len(starts) == 1:
        return np.arange(starts[0], ends[0])
    sizes = ends - starts
    offsets = np.cumsum(sizes) - sizes
    return np.arange(sizes.sum()) + np.repeat(starts - offsets, sizes)


def value_slice(ascending: np.ndarray, value: int) -> slice:
    """The slice of a sorted array that equals a value."""
    # A value of the array's own type: numpy would copy the array to compare another one.
    ends = np.searchsorted(ascending, np.array([value, value + 1], ascending.dtype))
    return slice(*ends.tolist())


def is_strictly_sorted(head: np.ndarray, relation: np.ndarray, tail: np.ndarray) -> bool:
    """Whether the rows are in order of head, relation and tail, and all different."""
    ordered = np.diff(tail) > 0
    for column in (relation, head):
        step = np.diff(column)
        ordered = (step > 0) | ((step == 0) & ordered)
    return bool(ordered.all())


def suspects(column: pa.ChunkedArray) -> Iterator[str | None]:
    """The distinct names of a column that may have a fault; None if there is a null."""
    if column.null_count:
        yield None
    encoded = pa.types.is_dictionary(column.type)
    for chunk in column.chunks:
        names = (chunk.dictionary if encoded else chunk).drop_null()
        yield from names.filter(pa.array(~_plain_at_first_sight(names))).unique().to_pylist()


def _plain_at_first_sight(names: pa.StringArray) -> np.ndarray:
    """Whether each name has a visible ASCII character, no tab and no break: bool [n]."""
    if not len(names):
        return np.zeros(0, bool)
    _, offsets, letters = names.buffers()
    ends = np.frombuffer(offsets, np.int32)[names.offset : names.offset + len(names) + 1]
    letters = np.frombuffer(letters or b"", np.uint8)[ends[0] : ends[-1]]
    if letters.min(initial=32) < 32:
        return pc.match_substring_regex(names, _PLAIN).to_numpy(zero_copy_only=False)
    # Without control characters the first byte tells; a pattern takes ten times as long.
    filled = np.flatnonzero(np.diff(ends))
    first = letters[ends[filled] - ends[0]]
    plain = np.zeros(len(names), bool)
    plain[filled] = (first > 32) & (first < 127)
    return plain


def mapped_columns(path: Path, types: Mapping) -> tuple[list[pa.Array], dict[bytes, bytes]]:
    """Columns of an Arrow file as views of it, and the metadata of its schema.

    Args:
        types: column -> its type, or a tuple of allowed types.

    Raises:
        FileNotFoundError: the file is missing.
        ValueError: it is damaged, or a column is missing or has another type.
    """
    try:
        table = pa.ipc.open_file(pa.memory_map(str(path))).read_all()
    except FileNotFoundError:
        raise FileNotFoundError(f"{path} is absent") from None
    except (pa.ArrowException, OSError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ValueError(f"{path} is not a whole Arrow file ({reason}): save it again") from error
    columns = []
    for name, kind in types.items():
        kinds = kind if isinstance(kind, tuple) else (kind,)
        if table.column_names.count(name) != 1 or table.schema.field(name).type not in kinds:
            raise ValueError(f"{path}: needs one column {name!r} of {kinds[0]}: save it again")
        chunks = table.column(name).chunks
        columns.append(chunks[0] if len(chunks) == 1 else table.column(name).combine_chunks())
    return columns, table.schema.metadata or {}


TOPIC = re.compile(r"\[(.+?)\](?!\])")  # of a question of MetaQA
RDF_PARTS = ("subject", "predicate", "object")

Row = tuple[int, Sequence[object]]  # its number, and head, relation and tail


def valid_rows(
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
    """The separator of a text file, and the fields of its first line that is not blank.

    The separator is a comma in CSV, otherwise the first of tab, bar and comma that this line has.
    """
    first = next((line for line in head_text(path).splitlines() if line.strip()), "")
    separator = next((mark for mark in "\t|," if mark in first), "\t")
    separator = "," if path.suffix == ".csv" else separator
    return separator, first.split(separator) if first else []


def part_positions(columns: Sequence[str]) -> list[int] | None:
    """The positions of head, relation and tail among column names; None if one is missing."""
    lowered = [str(column).strip().lower() for column in columns]
    for parts in (PARTS, RDF_PARTS):
        if all(lowered.count(part) == 1 for part in parts):
            return [lowered.index(part) for part in parts]
    return None


def text_triples(path: Path, findings: Findings) -> Iterator[Row]:
    """Yields the triples of a text file; lines with another number of fields become problems."""
    separator, _ = first_fields(path)
    order, width, first, quoted = [0, 1, 2], 3, True, 0
    for number, fields in _line_fields(path, separator, findings):
        if first:
            first = False
            if places := part_positions(fields):
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
    """The problem of a line with the wrong number of fields, and the fix."""
    shown = {"\t": "a tab"}.get(separator, repr(separator))
    if width > 3:
        fix = f"no name may hold {shown}" + (" outside quotes" if separator == "," else "")
    else:
        fix = f"write head, relation and tail with {shown} between"
    return f"{width} field(s), a triple has three; {fix}"


def _line_fields(path: Path, separator: str, findings: Findings) -> Iterator[tuple[int, list[str]]]:
    """Number and fields of each line that is not blank. Only fields of CSV may be quoted."""
    if separator == ",":
        return csv_cells(path, findings)
    return ((number, line.split(separator)) for number, line in filled_lines(path, findings))


def json_kind(values: dict) -> str | None:
    """Which of the three forms an object has; None for any other object."""
    if isinstance(values.get("subgraph"), dict) and "tuples" in values["subgraph"]:
        return "subgraph.tuples"
    if isinstance(values.get("graph"), list):
        return "graph"
    return "triple" if part_positions(list(values)) else None


def json_triples(path: Path, findings: Findings) -> Iterator[Row]:
    """The triples of objects that are triples themselves or hold a question's graph."""
    lists, graphs = TermLists(path.parent, findings), 0
    for row in json_rows(path, findings):
        kind = json_kind(row.values)
        if kind == "triple":
            values = list(row.values.values())
            yield row.line, [values[place] for place in part_positions(list(row.values))]
        elif kind:
            graphs += 1
            yield from _triple_list(row, kind, lists, findings)
        else:
            fields = ", ".join(map(repr, list(row.values)[:5]))
            row.add_problem("", f"has the fields {fields}", "name them head, relation and tail")
            findings.settle(row)
    remark_graphs(path, graphs, findings)


def remark_graphs(path: Path, count: int, findings: Findings) -> None:
    """Adds a remark if the graphs of several questions become one."""
    if count > 1:
        findings.remarks.add(path, f"{count:,} graphs, one a question, are read as one", rows=count)


def _triple_list(row: InputRow, kind: str, lists: TermLists, findings: Findings) -> Iterator[Row]:
    """The triples of a question's graph; faults become problems."""
    triples = row.values["graph"] if kind == "graph" else row.values["subgraph"]["tuples"]
    for i, triple in enumerate(triples if isinstance(triples, list) else []):
        if not isinstance(triple, list) or len(triple) != 3:
            row.add_problem(
                f"{kind}[{i}]", "is not a list of three", "write [head, relation, tail]"
            )
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


_BLOCK = 1 << 24  # bytes; no line may be longer


def faultless_columns(path: Path) -> list[pa.ChunkedArray] | None:
    """Head, relation and tail of a text file without faults, many times as fast as `text_triples`.

    None for a file that must be read by `text_triples`: CSV, a file with column names or quotes,
    and any file with a fault.
    """
    separator, fields = first_fields(path)
    if separator == "," or part_positions(fields):
        return None
    try:
        if _has_lone_return(path):
            return None
        table = csv.read_csv(
            path,
            csv.ReadOptions(column_names=list(PARTS), block_size=_BLOCK),
            csv.ParseOptions(delimiter=separator, quote_char=False, double_quote=False),
            csv.ConvertOptions(column_types=dict.fromkeys(PARTS, TEXT), strings_can_be_null=False),
        )
    except (pa.ArrowException, OSError):
        return None
    for column in table.columns:
        quoted = pc.any(pc.starts_with(column, '"')).as_py()
        if quoted or any(map(name_fault, suspects(column))):
            return None
    return table.columns


def _has_lone_return(path: Path) -> bool:
    """Whether a file has a carriage return without a line feed. Arrow ends a line there, and
    Python does not."""
    with path.open("rb") as file:
        if not file.read(1):
            return False
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return re.search(rb"\r(?!\n)", data) is not None
