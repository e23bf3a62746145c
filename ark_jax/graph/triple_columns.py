"""Columns of triples: encoded, checked, in order, searched, and mapped from disk."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ark_jax.graph.parquet import TEXT

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
        codes, ids = _by_appearance(joined.unify_dictionaries().chunks)
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
    arrays = [chunk.indices.to_numpy() for chunk in chunks]
    return np.concatenate([np.zeros(0, np.int32), *arrays])


def _by_appearance(chunks: Sequence[pa.DictionaryArray]) -> tuple[np.ndarray, pa.Array]:
    """Indices and strings of chunks with one dictionary, whose order and extent may be any."""
    codes, values = _indices(chunks), chunks[0].dictionary.cast(TEXT)
    numbers, count = by_first_appearance(codes, len(values))
    return numbers[codes].astype(np.int32), values.take(pa.array(np.argsort(numbers)[:count]))


def by_first_appearance(codes: np.ndarray, count: int) -> tuple[np.ndarray, int]:
    """Numbers codes below `count` in the order in which they first appear: the number of each
    code, and how many appear; the others come last."""
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
    cut = lambda shift, bits, like: ((keys >> shift) & ((1 << bits) - 1)).astype(like.dtype)
    return (keys >> (b + c)).astype(head.dtype), cut(c, b, relation), cut(0, c, tail)


def order_by(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """The stable order of rows by `first`, then `second`: int64 [m]."""
    rows = np.arange(len(first))
    a, b, c = bit_widths(first, second, rows)
    if a + b + c > 62:
        return np.lexsort((second, first))
    keys = ((first.astype(np.int64) << b) | second) << c | rows
    keys.sort()
    return keys & ((1 << c) - 1)


def bounds_of(column: np.ndarray, size: int) -> np.ndarray:
    return np.append(0, np.cumsum(np.bincount(column, minlength=size)))


def run(ascending: np.ndarray, value: int) -> slice:
    """Where a value lies in a sorted array."""
    # A value of the array's own type: numpy would copy the array to compare another one.
    ends = np.searchsorted(ascending, np.array([value, value + 1], ascending.dtype))
    return slice(*ends.tolist())


def in_order(head: np.ndarray, relation: np.ndarray, tail: np.ndarray) -> bool:
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
    """Columns of an Arrow file as views of it, and the notes beside them."""
    try:
        table = pa.ipc.open_file(pa.memory_map(str(path))).read_all()
    except FileNotFoundError:
        raise FileNotFoundError(f"{path} is absent") from None
    except (pa.ArrowException, OSError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ValueError(f"{path} is no whole Arrow file ({reason}): save it again") from error
    columns = []
    for name, kind in types.items():
        kinds = kind if isinstance(kind, tuple) else (kind,)
        if table.column_names.count(name) != 1 or table.schema.field(name).type not in kinds:
            raise ValueError(f"{path}: needs one column {name!r} of {kinds[0]}: save it again")
        chunks = table.column(name).chunks
        columns.append(chunks[0] if len(chunks) == 1 else table.column(name).combine_chunks())
    return columns, table.schema.metadata or {}
