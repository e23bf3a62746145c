"""The random walk on a graph, laid out for many columns at once.

A step of the walk sums, for every node, the rows of the nodes that lead to it. XLA does that well in fixed shapes
only, so edges lie in two tables: nodes of at most `FEW` incoming edges own one row of the first, the others as many
rows of `CHUNK` as they need of the second, whose sums are added up. Free places point to a node whose row is zero.
"""

import dataclasses
import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse
from jax.sharding import PartitionSpec as P
from jaxtyping import Float

from ark_jax import layout
from ark_jax.graph.store import KnowledgeGraph

FEW, CHUNK = 4, 8  # finer ladders gain nothing on a CPU and compile eight times as long
STATISTICS = 2  # rows that travel with a shard: what `pagerank` must know of all columns


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Edges:
    """Incoming edges of the nodes of every shard. A table is (sources, weights); weights are None where all are 1."""

    few: tuple[jax.Array, jax.Array | None]  # [r 4]
    many: tuple[jax.Array, jax.Array | None]  # [c 8]
    owner: jax.Array  # int32 [c], ascending: the row of a shard to which a row of `many` belongs
    strength: jax.Array  # [n], sums of outgoing weights; 1 where there is none

    def into(self, v: Float[jax.Array, "p c"]) -> Float[jax.Array, "n c"]:
        """Of every node the weighted sum of `v` over the nodes that lead to it. `v` is what the sources index."""
        rows = len(self.strength) - len(self.few[0])
        many = jax.ops.segment_sum(_sums(v, *self.many), self.owner, rows, indices_are_sorted=True)
        return jnp.concatenate([many, _sums(v, *self.few)])


def _sums(v, sources, weights):
    """One expression per column of the table: XLA:CPU vectorises this, and not a reduction over gathered rows."""
    parts = (v.at[sources[:, k]].get(mode="promise_in_bounds") for k in range(sources.shape[1]))
    if weights is None:
        return functools.reduce(jnp.add, parts)
    return functools.reduce(jnp.add, (weights[:, k, None] * part for k, part in enumerate(parts)))


class Walk:
    """One graph, or several side by side, ready for `personalized_pagerank`: laid out once, used many times.

    Of several graphs none sees another, so one column serves a seed set of each.
    """

    def __init__(self, graph: KnowledgeGraph | scipy.sparse.sparray | Sequence, *, weight: np.ndarray | None = None,
                 shard: str = "seeds"):
        """
        Args:
            graph: a KnowledgeGraph, whose edges count alike and in both directions; or a square matrix whose entry
                (i, j) is the weight of an edge from i to j, equal entries summed; or a sequence of either.
            weight: of a KnowledgeGraph: one finite number ≥ 0 per edge of `graph.neighbours()`.
            shard: "seeds": every device holds the graph and walks from its own seed sets, without a word to the
                others. "nodes": every device holds a share of the nodes and the edges that lead there, for graphs
                larger than a device; the ranks are gathered once a step.

        Raises:
            ValueError: a weight that is negative or not finite, or of a wrong shape.
        """
        if shard not in ("seeds", "nodes"):
            raise ValueError(f"shard={shard!r}: must be seeds or nodes")
        self.several, self.shard = isinstance(graph, list | tuple), shard
        graphs = graph if self.several else [graph]
        parts = [_scaled(_incoming(g, weight)) for g in graphs]
        self.sizes = [part.shape[0] for part in parts]
        self.first = np.cumsum([0, *self.sizes])[:-1]
        self.into = parts[0] if len(parts) == 1 else scipy.sparse.block_diag([*parts, scipy.sparse.csr_array((0, 0))], "csr")
        # As built, a KnowledgeGraph's edges lead both ways alike.
        self.reversible = (weight is None and all(isinstance(g, KnowledgeGraph) for g in graphs)) or all(map(_symmetric, parts))
        layout.enter_mesh()
        self.devices = jax.sharding.get_mesh().size
        self._lay_out()

    def _lay_out(self) -> None:
        """Deals the nodes to the shards, most edges first, and fills the tables of each."""
        shards, into = self.devices if self.shard == "nodes" else 1, self.into
        degree = np.diff(into.indptr)
        order = np.argsort(-degree, kind="stable")  # hubs side by side: the rows that are read most share cache lines
        wide = int((degree > FEW).sum())
        many, few = rounded(-(-wide // shards)), rounded(-(-(len(degree) - wide) // shards) + 1)  # + 1: the node that is zero
        place = np.empty(len(degree), np.int64)  # of each node among all rows
        place[order[:wide]] = _deal(wide, shards, many + few, 0)
        place[order[wide:]] = _deal(len(degree) - wide, shards, many + few, many)
        self.rows, self.place = many + few, place
        leaving = np.zeros(shards * self.rows)
        leaving[place] = into.sum(axis=0)
        self.dangling = leaving == 0
        self.strength = np.where(self.dangling, 1, leaving)  # by row, as all that follows
        # A shard's rows are followed by its statistics when all are gathered.
        stride = self.rows + (STATISTICS if shards > 1 else 0)
        address = place // self.rows * stride + place % self.rows
        most = rounded(max(int((-(-degree[order[:wide][d::shards]] // CHUNK)).sum()) for d in range(shards)))
        values = None if np.all(into.data == 1) else into.data
        table = functools.partial(_table, into, values, degree, address, self.rows - 1)  # the last row of a shard is nobody's
        put = lambda parts: layout.put(np.concatenate(parts), self._cut())
        self._tables = []  # (sources on the devices, weights or None) of few, of many
        for nodes, width, count in ((order[wide:], FEW, few), (order[:wide], CHUNK, most)):
            sources, weights, owners = zip(*(table(nodes[d::shards], width, count) for d in range(shards)), strict=True)
            self._tables.append((put(sources), None if values is None else np.concatenate(weights)))
        self._owner = put([np.pad(some, (0, most - len(some)), constant_values=many - 1) for some in owners])
        self._placed: dict[str, Edges] = {}

    def _cut(self) -> P:
        return P(layout.AXES) if self.shard == "nodes" else P()

    def edges(self, dtype: str) -> Edges:
        """The tables on the devices, weights in `dtype`."""
        if dtype not in self._placed:
            put = lambda x: None if x is None else layout.put(x.astype(dtype), self._cut())
            few, many = ((sources, put(weights)) for sources, weights in self._tables)
            self._placed[dtype] = Edges(few, many, self._owner, put(self.strength))
        return self._placed[dtype]


def _table(into, values, degree, address, nobody: int, nodes, width: int, count: int):
    """Sources and weights `[count width]` of the edges that lead to `nodes`, and to which of these the filled rows belong."""
    length = degree[nodes]
    rows = np.maximum(-(-length // width), 1)
    k = np.arange(length.sum()) - np.repeat(np.cumsum(length) - length, length)
    at = np.repeat(np.cumsum(rows) - rows, length) + k // width, k % width
    edge = np.repeat(into.indptr[nodes], length) + k
    sources, weights = np.full((count, width), nobody, np.int32), None
    sources[at] = address[into.indices[edge]]
    if values is not None:
        weights = np.zeros((count, width))
        weights[at] = values[edge]
    return sources, weights, np.repeat(np.arange(len(nodes), dtype=np.int32), rows)


def rounded(n: int) -> int:
    """Up to one of eight steps an octave, and to 32 at least, so that graphs of about one size share a program."""
    step = 1 << max(n.bit_length() - 4, 5)
    return max(-(-n // step) * step, step)


def _deal(count: int, shards: int, rows: int, first: int) -> np.ndarray:
    """Rows of `count` nodes dealt in turn to the shards, from each shard's row `first` on."""
    i = np.arange(count)
    return i % shards * rows + first + i // shards


def _scaled(into: scipy.sparse.csr_array) -> scipy.sparse.csr_array:
    """Weights whose largest is about one: ranks hang on their ratios, and float32 holds none below 1e-38."""
    most = into.data.max(initial=0)
    if most in (0, 1):
        return into
    scaled = np.ldexp(into.data, -int(np.frexp(most)[1]))  # by a power of two, which rounds nothing
    return scipy.sparse.csr_array((scaled, into.indices, into.indptr), into.shape)


def _incoming(graph, weight: np.ndarray | None) -> scipy.sparse.csr_array:
    """Row i holds the weights of the edges that lead to node i."""
    if isinstance(graph, KnowledgeGraph):
        source, target = graph.neighbours()
        if weight is None:
            weight = np.ones(len(source))
        weight = np.asarray(weight, np.float64)
        if weight.shape != source.shape or not np.all(np.isfinite(weight)) or np.any(weight < 0):
            raise ValueError(f"weight: needs {len(source)} finite non-negative numbers, one per edge of neighbours()")
        first = np.searchsorted(target, np.arange(len(graph) + 1))
        into = scipy.sparse.csr_array((weight, source, first), (len(graph), len(graph)))
    else:
        if weight is not None:
            raise ValueError("weight: a matrix holds its weights itself")
        if graph.ndim != 2 or graph.shape[0] != graph.shape[1]:
            raise ValueError(f"graph: a matrix of shape {graph.shape} is not square")
        into = scipy.sparse.csr_array(graph.T.astype(np.float64))
        into.sum_duplicates()
        if not np.all(np.isfinite(into.data)) or np.any(into.data < 0):
            raise ValueError("graph: a weight is negative or not finite")
    if np.any(into.data == 0):
        into = into.copy()
        into.eliminate_zeros()  # an edge that is never taken
    return into


def _symmetric(into: scipy.sparse.csr_array) -> bool:
    back = into.T.tocsr()
    back.sort_indices()
    into = into.sorted_indices()
    return np.array_equal(back.indptr, into.indptr) and np.array_equal(back.indices, into.indices) and \
        np.array_equal(back.data, into.data)
