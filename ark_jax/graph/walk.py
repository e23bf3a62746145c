"""The random walk on a graph, laid out on the devices for many columns at once.

A step of the walk computes for every node the sum of the values of the nodes that lead to it. XLA
is fast at this only in fixed shapes, so the incoming edges are stored in two tables. A node with at
most `NARROW` incoming edges has one row in the narrow table. Any other node has as many rows of
`WIDE` edges in the wide table as it needs, and their sums are added. Unused places point to a node
whose value is zero.
"""

import dataclasses
import functools
import typing
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse
from jax.sharding import PartitionSpec as P
from jaxtyping import Float, Int

from ark_jax import layout
from ark_jax.graph.store import KnowledgeGraph

NARROW, WIDE = 4, 8  # more widths gain nothing on a CPU and compile eight times as long
STATISTICS = 2  # rows that a shard sends with its values; `pagerank` shares its residuals in them


@typing.no_type_check  # tree operations put other leaves into it
@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Edges:
    """Incoming edges of the nodes of every shard.

    A table is a pair (sources, weights); weights are None if all are 1.
    """

    narrow: tuple[jax.Array, jax.Array | None]  # [r 4]
    wide: tuple[jax.Array, jax.Array | None]  # [c 8]
    owner: jax.Array  # int32 [c], ascending: the row of the shard that a row of `wide` belongs to
    strength: jax.Array  # [n], sums of outgoing weights; 1 for a node without outgoing edges

    def incoming_sums(self, v: Float[jax.Array, "p c"]) -> Float[jax.Array, "n c"]:
        """For every node the weighted sum of `v` over the nodes that lead to it.

        Args:
            v: values of the rows that the sources index.
        """
        wide_nodes = len(self.strength) - len(self.narrow[0])
        wide = jax.ops.segment_sum(
            _row_sums(v, *self.wide), self.owner, wide_nodes, indices_are_sorted=True
        )
        return jnp.concatenate([wide, _row_sums(v, *self.narrow)])


def _row_sums(
    v: Float[jax.Array, "p c"],
    sources: Int[jax.Array, "rows width"],
    weights: Float[jax.Array, "rows width"] | None,
) -> Float[jax.Array, "rows c"]:
    """Sums of the rows of a table.

    One expression per column of the table: XLA:CPU vectorises it, unlike a reduction over gathered
    rows.
    """
    parts = (v.at[sources[:, k]].get(mode="promise_in_bounds") for k in range(sources.shape[1]))
    if weights is None:
        return functools.reduce(jnp.add, parts)
    return functools.reduce(jnp.add, (weights[:, k, None] * part for k, part in enumerate(parts)))


class Walk:
    """A graph laid out for `personalized_pagerank`, for use in many calls.

    Attributes:
        incoming: the weights on the host; row i has the edges that lead to node i.
        devices: number of devices of the mesh.
        reversible: whether every edge has the same weight in both directions.
        node_rows: the row of each node, int64 `[n]`. All arrays below are ordered by row.
        dangling: whether the row has no outgoing edges.
        strength: sums of outgoing weights, 1 for dangling rows.
    """

    def __init__(self, graph: KnowledgeGraph | scipy.sparse.sparray, *, shard: str = "seeds"):
        """
        Args:
            graph: a KnowledgeGraph, whose edges have weight 1 in both directions; or a square
                matrix whose entry (i, j) is the weight of an edge from i to j. Repeated entries are
                summed.
            shard: "seeds" or "nodes". With "seeds", every device holds the graph and walks from its
                own seed sets without communication. With "nodes", every device holds a share of the
                nodes and their incoming edges, and the ranks are gathered once per step; this is
                for graphs larger than a device.

        Raises:
            ValueError: `shard` is unknown, a weight is negative or not finite, or the matrix is not
                square.
        """
        if shard not in ("seeds", "nodes"):
            raise ValueError(f"shard={shard!r}: must be seeds or nodes")
        self.shard = shard
        self.incoming = incoming = _rescaled(_incoming(graph))
        self.size = incoming.shape[0]
        self.reversible = isinstance(graph, KnowledgeGraph) or _is_symmetric(incoming)
        layout.enter_mesh()
        self.devices = jax.sharding.get_mesh().size
        self._lay_out(incoming)

    def _lay_out(self, incoming: scipy.sparse.csr_array) -> None:
        """Distributes the nodes over the shards, by descending degree, and fills their tables."""
        shards = self.devices if self.shard == "nodes" else 1
        degree = np.diff(incoming.indptr)
        # By degree, because rows of hubs are read most and then share cache lines.
        order = np.argsort(-degree, kind="stable")
        hub_count = int((degree > NARROW).sum())
        hubs, non_hubs = order[:hub_count], order[hub_count:]
        hub_rows = round_size(-(-len(hubs) // shards))
        non_hub_rows = round_size(-(-len(non_hubs) // shards) + 1)  # + 1: the row that stays zero
        rows = hub_rows + non_hub_rows
        self.node_rows = np.empty(len(degree), np.int64)
        self.node_rows[hubs] = _dealt_rows(len(hubs), shards, rows, 0)
        self.node_rows[non_hubs] = _dealt_rows(len(non_hubs), shards, rows, hub_rows)
        outgoing = np.zeros(shards * rows)
        outgoing[self.node_rows] = incoming.sum(axis=0)
        self.dangling = outgoing == 0
        self.strength = np.where(self.dangling, 1, outgoing)

        # After a gather the rows of a shard are followed by its statistics.
        stride = rows + (STATISTICS if shards > 1 else 0)
        address = self.node_rows // rows * stride + self.node_rows % rows
        builder = _TableBuilder(incoming, degree, address, unused=rows - 1)
        narrow = [builder.build(non_hubs[i::shards], NARROW, non_hub_rows) for i in range(shards)]
        chunks = [int((-(-degree[hubs[i::shards]] // WIDE)).sum()) for i in range(shards)]
        chunk_rows = round_size(max(chunks))
        wide = [builder.build(hubs[i::shards], WIDE, chunk_rows) for i in range(shards)]
        self._tables = [self._join_tables(narrow), self._join_tables(wide)]
        owners = [
            np.pad(table.owners, (0, chunk_rows - len(table.owners)), constant_values=hub_rows - 1)
            for table in wide
        ]
        self._owner = self._put(np.concatenate(owners))
        self._placed: dict[str, Edges] = {}

    def _join_tables(self, tables: Sequence["_Table"]) -> tuple[jax.Array, np.ndarray | None]:
        """Sources of all shards on the devices, and their weights on the host."""
        sources = self._put(np.concatenate([table.sources for table in tables]))
        if tables[0].weights is None:
            return sources, None
        return sources, np.concatenate([table.weights for table in tables])

    def _put(self, x: np.ndarray) -> jax.Array:
        return layout.put(x, P(layout.AXES) if self.shard == "nodes" else P())

    def edges(self, dtype: str) -> Edges:
        """The tables on the devices, with weights in `dtype`."""
        if dtype not in self._placed:
            narrow, wide = (
                (sources, None if weights is None else self._put(weights.astype(dtype)))
                for sources, weights in self._tables
            )
            strength = self._put(self.strength.astype(dtype))
            self._placed[dtype] = Edges(narrow, wide, self._owner, strength)
        return self._placed[dtype]


@dataclasses.dataclass(frozen=True)
class _Table:
    """Incoming edges of some nodes, `width` in a row; see `Edges`."""

    sources: np.ndarray  # int32 [count width]
    weights: np.ndarray | None  # float64 [count width]
    owners: np.ndarray  # int32, for each filled row the position of its node


@dataclasses.dataclass(frozen=True)
class _TableBuilder:
    """Builds the tables of one graph."""

    incoming: scipy.sparse.csr_array
    degree: np.ndarray  # [n]
    address: np.ndarray  # [n], what a source that refers to the node is stored as
    unused: int  # address of a row whose value is zero

    def build(self, nodes: np.ndarray, width: int, count: int) -> _Table:
        """A table of `count` rows with the incoming edges of `nodes`."""
        length = self.degree[nodes]
        rows = np.maximum(-(-length // width), 1)
        k = np.arange(length.sum()) - np.repeat(np.cumsum(length) - length, length)
        place = np.repeat(np.cumsum(rows) - rows, length) + k // width, k % width
        edge = np.repeat(self.incoming.indptr[nodes], length) + k
        sources = np.full((count, width), self.unused, np.int32)
        sources[place] = self.address[self.incoming.indices[edge]]
        owners = np.repeat(np.arange(len(nodes), dtype=np.int32), rows)
        if np.all(self.incoming.data == 1):
            return _Table(sources, None, owners)
        weights = np.zeros((count, width))
        weights[place] = self.incoming.data[edge]
        return _Table(sources, weights, owners)


def round_size(n: int) -> int:
    """Rounds up to eight sizes per octave, so that graphs of similar size share a program."""
    step = 1 << max(n.bit_length() - 4, 5)
    return max(-(-n // step) * step, step)


def _dealt_rows(count: int, shards: int, rows: int, first: int) -> np.ndarray:
    """The rows of `count` nodes that are dealt to the shards in turn, from row `first` of each."""
    i = np.arange(count)
    return i % shards * rows + first + i // shards


def _rescaled(incoming: scipy.sparse.csr_array) -> scipy.sparse.csr_array:
    """Scales the weights so that the largest is about one.

    Ranks depend only on ratios of weights, and float32 cannot hold values below 1e-38. The factor
    is a power of two, so nothing is rounded.
    """
    largest = incoming.data.max(initial=0)
    if largest in (0, 1):
        return incoming
    scaled = np.ldexp(incoming.data, -int(np.frexp(largest)[1]))
    return scipy.sparse.csr_array((scaled, incoming.indices, incoming.indptr), incoming.shape)


def incoming_of_graph(graph: KnowledgeGraph) -> scipy.sparse.csr_array:
    """A matrix `[n n]` of ones; row i holds the edges that lead to node i."""
    source, target = graph.neighbours()
    first = np.searchsorted(target, np.arange(len(graph) + 1))
    return scipy.sparse.csr_array((np.ones(len(source)), source, first), (len(graph), len(graph)))


def _incoming(matrix: KnowledgeGraph | scipy.sparse.sparray) -> scipy.sparse.csr_array:
    """A matrix whose row i holds the weights of the edges that lead to node i, without zeros."""
    if isinstance(matrix, KnowledgeGraph):
        return incoming_of_graph(matrix)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise ValueError(f"graph: a matrix of shape {matrix.shape} is not square")
    incoming = scipy.sparse.csr_array(matrix.T.astype(np.float64))
    incoming.sum_duplicates()
    if not np.all(np.isfinite(incoming.data)) or np.any(incoming.data < 0):
        raise ValueError("graph: a weight is negative or not finite")
    if np.any(incoming.data == 0):
        incoming = incoming.copy()
        incoming.eliminate_zeros()
    return incoming


def _is_symmetric(matrix: scipy.sparse.csr_array) -> bool:
    transposed = matrix.T.tocsr()
    transposed.sort_indices()
    matrix = matrix.sorted_indices()
    return (
        np.array_equal(transposed.indptr, matrix.indptr)
        and np.array_equal(transposed.indices, matrix.indices)
        and np.array_equal(transposed.data, matrix.data)
    )
