"""Exact PageRank of graphs in which most nodes have few neighbours, as graphs of texts do.

The ranks x of seeds s solve x = a s + (1 - a) A D⁻¹ x, with the teleport probability a, the
symmetric weights A and the strengths D of the nodes. With x = D v this is M v = a s for the
symmetric matrix M = D - (1 - a) A. Gaussian elimination removes nodes, those with the fewest
neighbours first and many at a time, until the few that are left fit a dense matrix.

The value v of a removed node is at most the highest value of the neighbours that it had then. Most
nodes are removed first. Of these, only the neighbours of nodes with a high value are computed.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import scipy.linalg
import scipy.sparse
from jaxtyping import Bool, Float, Int

from ark_jax.graph.store import KnowledgeGraph
from ark_jax.graph.walk import incoming_of_graph

CORE = 1024  # most nodes of a matrix that is solved as a dense one
LARGE_CORE = 4096  # the same, if more than an eighth of its entries are not 0
LOWEST = 4  # most neighbours of the nodes that are removed first
GROWTH = 2  # if the matrix grows by a larger factor, elimination does not pay
LEVELS = 64  # only graphs in which nearly all nodes are neighbours need more
BLOCK = 1 << 24  # values that are held at once


class _Level(NamedTuple):
    """Nodes that are removed together; none is a neighbour of another."""

    nodes: Int[np.ndarray, " l"]  # numbers among the nodes that are left before this level
    others: Int[np.ndarray, " r"]  # likewise, the nodes that stay
    weights: scipy.sparse.csr_array  # [l r]; each row sums to at most 1
    diagonal: Float[np.ndarray, " l"]  # of the matrix


@dataclasses.dataclass(frozen=True)
class Elimination:
    """The factors of a graph, from which the ranks of many seed sets follow.

    Attributes:
        teleport: probability of a jump back to the seeds.
        strength: of each node, `[n]`; 1 for a node without neighbours.
        is_isolated: whether a node has no neighbours, `[n]`.
        levels: in the order in which they were removed.
        dependents: `[r l]`; row i holds the nodes of the first level whose values depend on node i.
        core: the Cholesky factor of the matrix that is left, as `scipy.linalg.cho_factor` gives it.
    """

    teleport: float
    strength: Float[np.ndarray, " n"]
    is_isolated: Bool[np.ndarray, " n"]
    levels: list[_Level]
    dependents: scipy.sparse.csr_array
    core: tuple[np.ndarray, bool]

    @classmethod
    def from_graph(cls, graph: KnowledgeGraph, teleport: float) -> "Elimination | None":
        """Factorises a graph; None if so many nodes have many neighbours that the matrix fills."""
        adjacency = incoming_of_graph(graph)
        degree = adjacency.sum(axis=0)
        strength = np.where(degree == 0, 1, degree)
        matrix = (scipy.sparse.diags_array(strength) - (1 - teleport) * adjacency).tocsr()
        largest, limit, levels = GROWTH * matrix.nnz, LOWEST, []
        while not levels or not _fits_core(matrix):
            nodes = _independent_nodes(matrix, limit)
            if len(nodes) < matrix.shape[0] / 10:
                limit *= 2
            level, matrix = _eliminate(matrix, nodes)
            levels.append(level)
            if matrix.nnz > largest or len(levels) > LEVELS:
                return None
        core = scipy.linalg.cho_factor(matrix.toarray(), lower=True, overwrite_a=True)
        return cls(teleport, strength, degree == 0, levels, levels[0].weights.T.tocsr(), core)

    def ranks(
        self, seeds: Sequence[Sequence[int]], *, floor: float = 0.0
    ) -> Iterator[Float[np.ndarray, " n"]]:
        """Yields the ranks of each seed set, which sum to 1; those below `floor` may be 0."""
        first, *later = self.levels
        strongest = self.strength[first.nodes].max(initial=0)
        columns = max(BLOCK // max(len(first.others), 1), 1)
        for start in range(0, len(seeds), columns):
            block = [np.unique(nodes) for nodes in seeds[start : start + columns]]
            sources = self._right_sides(block)
            values = _solve(later, self.core, _reduced_right_sides(first, sources)).T.copy()
            sources = sources[first.nodes].T.tocsr()
            for i, nodes in enumerate(block):
                total = 1 - (1 - self.teleport) * self.is_isolated[nodes].mean()
                ranks = self._complete_ranks(values[i], sources[[i]], strongest, floor * total)
                yield ranks / total

    def _right_sides(self, block: list[np.ndarray]) -> scipy.sparse.csr_array:
        """The right sides of the equations, one column for each seed set: `[n c]`."""
        sizes = np.array([len(nodes) for nodes in block])
        places = np.concatenate(block), np.repeat(np.arange(len(block)), sizes)
        shape = (len(self.strength), len(block))
        return scipy.sparse.csr_array((np.repeat(self.teleport / sizes, sizes), places), shape)

    def _complete_ranks(
        self,
        values: Float[np.ndarray, " r"],
        sources: scipy.sparse.csr_array,
        strongest: float,
        floor: float,
    ) -> Float[np.ndarray, " n"]:
        """Ranks of all nodes, unscaled, from the values of those after the first level."""
        level = self.levels[0]
        if floor > 0:
            near = np.flatnonzero(values * strongest >= floor)
            chosen = np.unique(np.append(self.dependents[near].indices, sources.indices))
        else:
            chosen = np.arange(len(level.nodes))
        ranks = np.zeros(len(self.strength))
        ranks[level.others] = values
        ranks[level.nodes[chosen]] = level.weights[chosen] @ values
        ranks[level.nodes[sources.indices]] += sources.data / level.diagonal[sources.indices]
        return ranks * self.strength


def _fits_core(matrix: scipy.sparse.csr_array) -> bool:
    """Whether a matrix is small, or dense, enough to be solved as a dense one."""
    count = matrix.shape[0]
    return count <= CORE or (count <= LARGE_CORE and 8 * matrix.nnz > count**2)


def _independent_nodes(matrix: scipy.sparse.csr_array, limit: int) -> Int[np.ndarray, " l"]:
    """Nodes with up to `limit` neighbours, and with fewer than any of these; a hash breaks ties."""
    count = np.diff(matrix.indptr) - 1
    nodes = np.arange(len(count))
    order = (count.astype(np.int64) << 32) + nodes * 2654435761 % 2**32
    neighbours = order[matrix.indices]
    neighbours[matrix.indices == np.repeat(nodes, count + 1)] = np.iinfo(np.int64).max
    return np.flatnonzero(
        (count <= limit) & (order < np.minimum.reduceat(neighbours, matrix.indptr[:-1]))
    )


def _eliminate(
    matrix: scipy.sparse.csr_array, nodes: Int[np.ndarray, " l"]
) -> tuple[_Level, scipy.sparse.csr_array]:
    """Removes nodes from a matrix: their level, and the matrix of the others."""
    stays = np.ones(matrix.shape[0], bool)
    stays[nodes] = False
    others, diagonal = np.flatnonzero(stays), matrix.diagonal()[nodes]
    weights = (scipy.sparse.diags_array(-1 / diagonal) @ matrix[nodes][:, others]).tocsr()
    rows = matrix[others]
    rest = (rows[:, others] + rows[:, nodes] @ weights).tocsr()
    return _Level(nodes, others, weights, diagonal), rest


def _reduced_right_sides(level: _Level, right: scipy.sparse.csr_array) -> scipy.sparse.csr_array:
    """The right sides for the nodes that stay after a level, `[r c]`."""
    return (right[level.others] + level.weights.T @ right[level.nodes]).tocsr()


def _solve(
    levels: list[_Level], core: tuple[np.ndarray, bool], right: scipy.sparse.csr_array
) -> Float[np.ndarray, "r c"]:
    """The values of the nodes that are left before these levels, for each right side."""
    if not right.shape[0]:
        return right.toarray()
    if not levels:
        return scipy.linalg.cho_solve(core, right.toarray())
    level, *later = levels
    rest = _solve(later, core, _reduced_right_sides(level, right))
    values = np.empty(right.shape)
    values[level.others] = rest
    values[level.nodes] = level.weights @ rest
    values[level.nodes] += right[level.nodes].toarray() / level.diagonal[:, None]
    return values
