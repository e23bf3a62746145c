"""A graph of facts: triples (head, relation, tail) as columns.

Direction, parallel relations and self-loops are kept. Identity is the id alone: Comedy, comedy and
The Comedy are three nodes. `KnowledgeGraph` is the undirected graph that communities are taken
from.
"""

import collections
import dataclasses
import functools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ark_jax.data.problems import Findings
from ark_jax.data.records import BadInput, Problem
from ark_jax.graph.parquet import TEXT, TEXTS
from ark_jax.graph.terms import Terms, name_fault
from ark_jax.graph.triple_files import FORMATS, is_saved, read_rows
from ark_jax.graph.triple_rows import (
    PARTS,
    TABLES,
    encode,
    is_strictly_sorted,
    joined_chunks,
    mapped_columns,
    order_by,
    row_bounds,
    sort_rows,
    suspects,
    value_slice,
)
from ark_jax.runtime.log import say
from ark_jax.runtime.storage import local_copy, local_path

_BATCH = 1 << 16
_TERM_TYPES = {"id": TEXT, "name": TEXT, "aliases": TEXTS}


@dataclasses.dataclass(frozen=True, eq=False)
class Triples:
    """A directed multigraph. Row i says that `head[i]` has `relation[i]` to `tail[i]`.

    The rows are in order of head, relation and tail, and all different. They are the outgoing edges
    in CSR form: those of node n are rows `outgoing[n]` to `outgoing[n + 1]`.
    """

    head: np.ndarray  # int32 or int64 [m], indices of nodes
    relation: np.ndarray  # [m], indices of relations
    tail: np.ndarray  # [m], indices of nodes
    nodes: Terms
    relations: Terms
    duplicates: int = 0  # how many repeated triples were read and stored once

    def __len__(self) -> int:
        return len(self.head)

    def __repr__(self) -> str:
        return (
            f"Triples({len(self):,} triples, {len(self.nodes):,} nodes, "
            f"{len(self.relations):,} relations)"
        )

    def __iter__(self) -> Iterator[tuple[str, str, str]]:
        """The triples as ids, in order of the rows."""
        terms = self.nodes, self.relations, self.nodes
        for start in range(0, len(self), _BATCH):
            rows = slice(start, start + _BATCH)
            columns = (
                part.ids.take(pa.array(column[rows])).to_pylist()
                for part, column in zip(terms, (self.head, self.relation, self.tail), strict=True)
            )
            yield from zip(*columns, strict=True)

    @classmethod
    def from_triples(
        cls,
        triples: Iterable[Sequence[str]],
        names: Mapping[str, str] | None = None,
        aliases: Mapping[str, Sequence[str]] | None = None,
    ) -> "Triples":
        """Makes a graph of (head, relation, tail) triples of ids.

        Args:
            triples: three strings each. A repeated triple is stored once and counted.
            names: id of a node -> its name. Without it, each id is its own name.
            aliases: id of a node -> other names.

        Raises:
            ValueError: a triple is not three strings, or one of them is empty or holds a tab or a
                line break.
        """
        rows = triples if isinstance(triples, list | tuple) else list(triples)
        try:
            # Whole columns at once take a tenth of the time of a loop over rows.
            if set(map(len, rows)) - {3} or str in set(map(type, rows)):
                raise ValueError
            columns = [pa.array([row[i] for row in rows], TEXT) for i in range(3)]
            if any(column.null_count for column in columns):
                raise ValueError
        except (TypeError, ValueError, pa.ArrowException):
            _raise_for_bad_triple(rows)
            raise
        graph = cls.from_columns(*columns, names=names, aliases=aliases)
        ids = pa.chunked_array([graph.nodes.ids, graph.relations.ids], TEXT)
        if any(map(name_fault, suspects(ids))):
            _raise_for_bad_triple(rows)
            raise ValueError("an id of `names` or `aliases` is empty or holds a tab; mend it")
        return graph

    @classmethod
    def from_columns(
        cls,
        heads: pa.Array | pa.ChunkedArray,
        relations: pa.Array | pa.ChunkedArray,
        tails: pa.Array | pa.ChunkedArray,
        *,
        names: Mapping[str, str] | None = None,
        aliases: Mapping[str, Sequence[str]] | None = None,
        relation_names: Mapping[str, str] | None = None,
        relation_aliases: Mapping[str, Sequence[str]] | None = None,
    ) -> "Triples":
        """Makes a graph of three columns of ids, of equal length and without a null.

        They are strings, which may be dictionary-encoded. Names and aliases are as in
        `from_triples`, of nodes and of relations.
        """
        (head, tail), node_ids = encode([heads, tails])
        (relation,), relation_ids = encode([relations])
        head, relation, tail = sort_rows(head, relation, tail)
        distinct = np.ones(len(head), bool)
        distinct[1:] = (np.diff(head) != 0) | (np.diff(relation) != 0) | (np.diff(tail) != 0)
        duplicates = len(head) - int(np.count_nonzero(distinct))
        if duplicates:
            head, relation, tail = head[distinct], relation[distinct], tail[distinct]
        return cls(
            head,
            relation,
            tail,
            Terms.join(node_ids, names, aliases),
            Terms.join(relation_ids, relation_names, relation_aliases),
            duplicates,
        )

    @classmethod
    def read(
        cls,
        *paths: str | Path,
        names: str | Path | None = None,
        relation_names: str | Path | None = None,
        encoding: str = "",
    ) -> "Triples":
        """Reads a graph from files in any format of `triple_files`, or a saved folder.

        Args:
            paths: files or globs, whose triples are one graph, or a folder whose files all hold
                triples.
            names: a file with a line per node: id, name, and aliases joined by "|"; tabs between.
            relation_names: the same for relations.
            encoding: of all texts; "": detected in each file.

        Raises:
            BadInput: the files have problems; it lists all of them.
        """
        graph, findings = cls.examine(paths, names, relation_names, encoding)
        if findings.problems:
            raise BadInput(findings.problems)
        for remark in findings.remarks:
            say(f"  {remark}")
        return graph

    @classmethod
    def examine(
        cls,
        paths: Sequence[str | Path],
        names: str | Path | None = None,
        relation_names: str | Path | None = None,
        encoding: str = "",
    ) -> tuple["Triples", Findings]:
        """The graph of all valid rows, and problems and remarks. Arguments are those of `read`."""
        if len(paths) == 1 and is_saved(folder := local_copy(str(paths[0]))):
            return cls._load_saved(folder)
        rows = read_rows(paths, names, relation_names, encoding)
        findings, nodes, relations = rows.findings, rows.names, rows.relation_names
        graph = cls.from_columns(
            *map(joined_chunks, rows.columns),
            names=nodes and nodes.names,
            aliases=nodes and nodes.aliases,
            relation_names=relations and relations.names,
            relation_aliases=relations and relations.aliases,
        )
        if not len(graph) and not findings.problems:
            findings.problems.add(rows.path, "holds no triple; give another file")
        if rows.path:
            findings.remarks.extend(graph._remarks_on_names(rows.path))
        return graph, findings.condensed()

    @classmethod
    def _load_saved(cls, folder: Path) -> tuple["Triples", Findings]:
        """A saved graph; if it is damaged, an empty graph and a problem."""
        findings = Findings()
        try:
            return cls.load(folder), findings
        except (OSError, ValueError) as error:
            findings.problems.add(folder, f"is not a saved graph ({error}); give {FORMATS}")
            return cls.from_triples([]), findings

    def _remarks_on_names(self, path: Path) -> Iterator[Problem]:
        """Remarks on ids without a name, and on names of several ids."""
        for field, terms in (("names", self.nodes), ("relation_names", self.relations)):
            if count := terms.unnamed:
                message = f"{count:,} ids have no name; the id stands for it"
                yield Problem(str(path), 0, field, message, count)
            if count := terms.shared_names:
                message = f"{count:,} names belong to several ids, which stay apart"
                yield Problem(str(path), 0, field, message, count)

    @functools.cached_property
    def outgoing(self) -> np.ndarray:
        """int64 [n + 1]: where the rows of each head begin."""
        return row_bounds(self.head, len(self.nodes))

    @functools.cached_property
    def incoming(self) -> tuple[np.ndarray, np.ndarray]:
        """Where the rows of each tail begin in the second array, int64 [n + 1]; and the rows
        themselves in order of tail, relation and head, int64 [m]."""
        return row_bounds(self.tail, len(self.nodes)), order_by(self.tail, self.relation)

    def rows(self, node: int) -> np.ndarray:
        """The rows with a node as head or tail: int64, ascending.

        Raises:
            IndexError: there is no such node.
        """
        self._check_index(node, self.nodes, "node")
        bounds, order = self.incoming
        leaving = np.arange(self.outgoing[node], self.outgoing[node + 1])
        return np.union1d(leaving, order[bounds[node] : bounds[node + 1]])  # a loop counts once

    def tails(self, head: int, relation: int) -> np.ndarray:
        """All t of triples (head, relation, t), ascending.

        Raises:
            IndexError: there is no such node or relation.
        """
        self._check_index(head, self.nodes, "node")
        self._check_index(relation, self.relations, "relation")
        rows = slice(self.outgoing[head], self.outgoing[head + 1])
        return self.tail[rows][value_slice(self.relation[rows], relation)]

    @staticmethod
    def _check_index(index: int, terms: Terms, kind: str) -> None:
        """Raises IndexError if there is no such node or relation."""
        if not 0 <= index < len(terms):
            raise IndexError(f"{kind} {index}: this graph has {len(terms):,}, from 0")

    def find(self, name: str) -> list[int]:
        """All nodes with this name, alias or id, as `Terms.find`."""
        return self.nodes.find(name)

    def degrees(self) -> np.ndarray:
        """int64 [n]: how many triples each node is in; a self-loop counts twice."""
        return self._degrees

    @functools.cached_property
    def _degrees(self) -> np.ndarray:
        count = lambda column: np.bincount(column, minlength=len(self.nodes))
        return count(self.head) + count(self.tail)

    def summary(self) -> dict:
        """Sizes and counts for JSON. `hubs` are the three nodes with most triples."""
        degrees = self.degrees()
        hubs = np.argsort(-degrees, kind="stable")[:3].tolist()
        return {
            "triples": len(self),
            "nodes": len(self.nodes),
            "relations": len(self.relations),
            "duplicates": self.duplicates,
            "self_loops": int(np.count_nonzero(self.head == self.tail)),
            "without_triple": int(np.count_nonzero(degrees == 0)),
            "without_name": self.nodes.unnamed,
            "shared_names": self.nodes.shared_names,
            "hubs": [(self.nodes.name(node), int(degrees[node])) for node in hubs],
        }

    def to_networkx(self):
        """A networkx.MultiDiGraph of ids; relation ids are its keys, names an attribute."""
        import networkx as nx

        graph = nx.MultiDiGraph()
        for index, id in enumerate(self.nodes.ids.to_pylist()):
            graph.add_node(id, name=self.nodes.name(index))
        graph.add_edges_from((head, tail, relation) for head, relation, tail in self)
        return graph

    def save(self, folder: str | Path) -> None:
        """Writes triples.arrow, nodes.arrow and relations.arrow, which `load` maps into memory."""
        folder = local_path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        columns = {part: pa.array(getattr(self, part)) for part in PARTS}
        note = {"duplicates": str(self.duplicates)}
        tables = {"triples": pa.table(columns).replace_schema_metadata(note)}
        for kind, terms in (("nodes", self.nodes), ("relations", self.relations)):
            values = (terms.ids, terms.names, terms.aliases)
            tables[kind] = pa.table(dict(zip(_TERM_TYPES, values, strict=True)))
        for kind, table in tables.items():
            with (
                pa.OSFile(str(folder / f"{kind}.arrow"), "wb") as file,
                pa.ipc.new_file(file, table.schema) as writer,
            ):
                writer.write_table(table, max_chunksize=max(len(table), 1))

    @classmethod
    def load(cls, folder: str | Path) -> "Triples":
        """Maps what `save` wrote into memory; nothing is copied.

        Raises:
            FileNotFoundError: a file is missing.
            ValueError: a file is damaged: a column is missing or of another type, ids repeat, a
                triple names a node or relation that does not exist, or the rows are not in order.
        """
        paths = [local_path(folder) / f"{kind}.arrow" for kind in TABLES]
        nodes, relations = (Terms(*mapped_columns(path, _TERM_TYPES)[0]) for path in paths[1:])
        for path, terms in zip(paths[1:], (nodes, relations), strict=True):
            if terms.ids.null_count or len(terms.ids.unique()) < len(terms):
                raise ValueError(f"{path}: an id is empty or repeated: save the graph again")
        types = dict.fromkeys(PARTS, (pa.int32(), pa.int64()))
        columns, note = mapped_columns(paths[0], types)
        head, relation, tail = (column.to_numpy() for column in columns)
        for part, column, terms in zip(
            PARTS, (head, relation, tail), (nodes, relations, nodes), strict=True
        ):
            outside = (column < 0) | (column >= len(terms))
            if outside.any():
                row = int(outside.argmax())
                raise ValueError(
                    f"{paths[0]}: row {row}, {part} is {column[row]}, but there are "
                    f"{len(terms):,}: save the graph again"
                )
        if not is_strictly_sorted(head, relation, tail):
            raise ValueError(f"{paths[0]}: rows are not in order: save the graph again")
        return cls(head, relation, tail, nodes, relations, int(note.get(b"duplicates", 0)))


def _raise_for_bad_triple(rows: Sequence[object]) -> None:
    """Raises ValueError for the first triple with a fault; returns if none has one."""
    for i, row in enumerate(rows):
        if isinstance(row, str) or not isinstance(row, Sequence) or len(row) != 3:
            raise ValueError(f"triples[{i}] is {row!r}: give (head, relation, tail), three strings")
        for part, value in zip(PARTS, row, strict=True):
            if fault := name_fault(value):
                raise ValueError(f"triples[{i}]: {part} {fault[0]}; {fault[1]}")


By = Literal["last", "whole"]
_TEXTS_AT_ONCE = 1 << 16
# What separates the parts of an id: `people.person.spouse`, `__people__person`, an IRI. A blank
# makes it a phrase, and a dot before a digit a number: neither is divided.
_MARKS = re.compile(r"[/#:]+|__+|\.+(?=[^\W\d_])")


def relation_texts(graph: Triples, by: By = "last") -> list[str]:
    """A text for each relation.

    The text is the name of the relation, or its id if it has none. "last" shortens a dotted or
    slashed id to its last part with blanks for underscores: `people.person.place_of_birth` becomes
    "place of birth". Equal texts get further parts in front until they differ.

    Args:
        by: "last", or "whole" for the ids as they are.

    Raises:
        ValueError: `by` is another word.
    """
    if by not in ("last", "whole"):
        raise ValueError(f"by is {by!r}: give 'last' or 'whole'")
    ids, names = graph.relations.ids.to_pylist(), graph.relations.names.to_pylist()
    texts = [name or id for id, name in zip(ids, names, strict=True)]
    if by == "last":
        short = {i: _id_parts(id) for i, id in enumerate(ids) if texts[i] == id}
        for i, text in _shortest_distinct(short, taken=texts).items():
            texts[i] = text
    return texts


def _id_parts(id: str) -> list[str]:
    """The parts of an id; a phrase is one part."""
    pieces = [id] if re.search(r"\s", id) else _MARKS.split(id)
    words = (" ".join(piece.replace("_", " ").split()) for piece in pieces)
    return [piece for piece in words if piece] or [id]


def _shortest_distinct(parts: dict[int, list[str]], taken: list[str]) -> dict[int, str]:
    """For each relation, the fewest last parts that no other text equals, or else its whole id."""
    names = {text for i, text in enumerate(taken) if i not in parts}
    lengths = dict.fromkeys(parts, 1)
    while True:
        texts = {i: " ".join(parts[i][-lengths[i] :]) for i in parts}
        counts = collections.Counter(texts.values())
        equal = [i for i, text in texts.items() if counts[text] > 1 or text in names]
        longer = [i for i in equal if lengths[i] < len(parts[i])]
        if not longer:
            return texts | {i: taken[i] for i in equal}
        for i in longer:
            lengths[i] += 1


def triple_texts(graph: Triples, rows: np.ndarray, by: By = "last") -> list[str]:
    """Triples as "head | relation | tail": names of nodes, or ids where a node has no name.

    Args:
        rows: int [m], rows of it.
        by: as in `relation_texts`.

    Raises:
        IndexError: there is no such row.
        ValueError: `by` is another word.
    """
    rows = np.asarray(rows)
    if len(rows) and not 0 <= rows.min() <= rows.max() < len(graph):
        raise IndexError(f"rows {rows.min()} to {rows.max()}: this graph has {len(graph):,}")
    relations = pa.array(relation_texts(graph, by), pa.string())
    nodes = pc.coalesce(graph.nodes.names, graph.nodes.ids)
    texts: list[str] = []
    for start in range(0, len(rows), _TEXTS_AT_ONCE):
        batch = rows[start : start + _TEXTS_AT_ONCE]
        parts = (
            nodes.take(pa.array(graph.head[batch])),
            relations.take(pa.array(graph.relation[batch])),
            nodes.take(pa.array(graph.tail[batch])),
        )
        texts += pc.binary_join_element_wise(*parts, " | ").to_pylist()
    return texts
