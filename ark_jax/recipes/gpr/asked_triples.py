"""Which triples questions are asked about, and by which names."""

import dataclasses
import functools
from collections.abc import Iterator, Sequence

import numpy as np

from ark_jax.graph.triples import Triples
from ark_jax.recipes.common.split import uniform

_BATCH = 1 << 16


def hash_triples(graph: Triples, seed: int) -> np.ndarray:
    """A number in [0, 1) for each triple, by a hash of its ids, so that new triples move none."""
    numbers = (uniform(f"{seed} {head}\t{relation}\t{tail}") for head, relation, tail in graph)
    return np.fromiter(numbers, np.float64, len(graph))


def draw_rows(graph: Triples, count: int, seed: int) -> np.ndarray:
    """The rows to ask about, in order: `count` drawn evenly over the relations by hashes.

    A relation with fewer triples than its share leaves the rest to the others.

    Args:
        count: 0 or less: all rows.
    """
    if count <= 0 or count >= len(graph):
        return np.arange(len(graph))
    order = np.lexsort((hash_triples(graph, seed), graph.relation))
    sizes = np.bincount(graph.relation, minlength=len(graph.relations))
    ends = np.cumsum(sizes)
    shares = _even_shares(sizes, count)
    parts = zip(ends - sizes, shares, strict=True)
    return np.sort(np.concatenate([order[start : start + share] for start, share in parts]))


def _even_shares(sizes: np.ndarray, count: int) -> np.ndarray:
    """How many of each relation are drawn: `count` in all, and nowhere more than there are."""
    shares = np.zeros_like(sizes)
    while (lacking := count - int(shares.sum())) > 0:
        open_ones = np.flatnonzero(shares < sizes)
        if lacking < len(open_ones):
            # What cannot be divided goes to the relations with most triples.
            largest = np.argsort(-sizes[open_ones], kind="stable")
            shares[open_ones[largest[:lacking]]] += 1
            break
        step = min(lacking // len(open_ones), int((sizes - shares)[open_ones].min()))
        shares[open_ones] += max(step, 1)
    return shares


@dataclasses.dataclass(frozen=True)
class NodeNames:
    """What the nodes of a graph are called.

    Attributes:
        names: a name for each node, or None.
        ids: the id of each node.
        aliases: node -> its other names, for nodes that have some.
    """

    names: Sequence[str | None]
    ids: Sequence[str]
    aliases: dict[int, tuple[str, ...]]

    @classmethod
    def from_graph(cls, graph: Triples) -> "NodeNames":
        lengths = np.diff(graph.nodes.aliases.offsets.to_numpy())
        with_some = np.flatnonzero(lengths).tolist()
        aliases = {node: tuple(graph.nodes.aliases[node].as_py()) for node in with_some}
        return cls(graph.nodes.names.to_pylist(), graph.nodes.ids.to_pylist(), aliases)

    def answers(self, node: int) -> tuple[str, ...]:
        """All that a question for this node must not hold: its name, or its id; and its aliases."""
        name = self.names[node] or self.ids[node]
        return name, *self.aliases.get(node, ())

    def shown(self, node: int) -> str:
        """What a prompt calls the node."""
        return self.names[node] or "(without a name)"


@dataclasses.dataclass(frozen=True)
class Triple:
    """One row of the graph, as indices of its nodes and its relation."""

    row: int
    head: int
    relation: int
    tail: int

    def ends(self, side: str) -> tuple[int, int]:
        """The node that is known and the node that is asked for."""
        return (self.tail, self.head) if side == "head" else (self.head, self.tail)


def triples_at(graph: Triples, rows: np.ndarray) -> Iterator[Triple]:
    """The triples at these rows, in this order."""
    for start in range(0, len(rows), _BATCH):
        batch = rows[start : start + _BATCH]
        columns = (batch, graph.head[batch], graph.relation[batch], graph.tail[batch])
        yield from map(Triple, *(column.tolist() for column in columns))


@dataclasses.dataclass(frozen=True)
class AskedTriples:
    """The triples that questions are asked about, and what they are called.

    Attributes:
        rows: of the graph, in order.
        seed: of the draws among wordings.
    """

    graph: Triples
    rows: np.ndarray
    seed: int

    @classmethod
    def from_config(cls, graph: Triples, config) -> "AskedTriples":
        rows = draw_rows(graph, config.questions.triples, config.seed)
        return cls(graph, rows, config.seed)

    @functools.cached_property
    def nodes(self) -> NodeNames:
        return NodeNames.from_graph(self.graph)

    def __iter__(self) -> Iterator[Triple]:
        return triples_at(self.graph, self.rows)

    def draw(self, triple: Triple, side: str) -> float:
        """A number in [0, 1) by a hash of the triple's ids and the side."""
        head, tail = self.nodes.ids[triple.head], self.nodes.ids[triple.tail]
        return uniform(f"{self.seed} {side} {head}\t{self.relations[triple.relation]}\t{tail}")

    @functools.cached_property
    def relations(self) -> list[str]:
        """The ids of all relations of the graph."""
        return self.graph.relations.ids.to_pylist()
