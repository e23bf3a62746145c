"""Triples and relations as texts that an encoder reads."""

import collections
import re
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ark_jax.graph.triples import Triples

By = Literal["last", "whole"]
_BATCH = 1 << 16
# What separates the parts of an id: `people.person.spouse`, `__people__person`, an IRI. A blank
# makes it a phrase, and a dot before a digit a number: neither is divided.
_MARKS = re.compile(r"[/#:]+|__+|\.+(?=[^\W\d_])")


def relation_texts(graph: Triples, by: By = "last") -> list[str]:
    """A text for each relation.

    The text is the name of the relation, or its id if it has none. "last" shortens a dotted or
    slashed id to its last part with blanks for underscores: `people.person.place_of_birth` becomes
    "place of birth". Equal texts get further parts in front until they differ.

    Args:
        graph: the graph.
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
        graph: the graph.
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
    for start in range(0, len(rows), _BATCH):
        batch = rows[start : start + _BATCH]
        parts = (
            nodes.take(pa.array(graph.head[batch])),
            relations.take(pa.array(graph.relation[batch])),
            nodes.take(pa.array(graph.tail[batch])),
        )
        texts += pc.binary_join_element_wise(*parts, " | ").to_pylist()
    return texts
