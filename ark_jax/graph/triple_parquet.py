"""Columns of triples in Parquet files."""

import collections
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ark_jax.data.problems import Findings
from ark_jax.data.records import Problem
from ark_jax.data.text_files import file_problem
from ark_jax.graph.parquet import TEXT
from ark_jax.graph.terms import name_fault
from ark_jax.graph.triple_rows import columns_of
from ark_jax.graph.triples import PARTS

# A name that is valid at first sight: it has a visible ASCII character, no tab and no break.
_PLAIN = "^[^\t\n\r\\x00]*[!-~][^\t\n\r\\x00]*$"


def parquet_columns(path: Path, findings: Findings) -> list[pa.ChunkedArray]:
    """Head, relation and tail without the rows that have a fault."""
    try:
        names = pq.read_schema(path).names
        if not (places := columns_of(names)):
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
