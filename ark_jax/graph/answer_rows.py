"""Which triples of a graph bear an answer to a question: what a retriever should find."""

import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from ark_jax.graph.triples import Triples

SEARCHES = 64  # from so many topics at once: one bit of a number for each
MOST_ROWS = 1 << 20  # of the answers of questions that are looked at together, about


def answer_rows(
    graph: Triples, topics: Sequence[Sequence[int]], answers: Sequence[Sequence[int]], limit: int
) -> list[np.ndarray]:
    """For each question, the triples that bear an answer: int64, ascending.

    These are the last ones of all shortest paths from a topic to an answer, in either direction. A
    question without a topic takes all triples of its answers. An answer that is a topic has none.

    Args:
        topics, answers: nodes of each question.
        limit: longest path, in triples; an answer farther away has no triple.
    """
    bearing = [np.zeros(0, np.int64)] * len(topics)
    by_topics: dict[tuple[int, ...], list[int]] = {}
    for question, nodes in enumerate(topics):
        by_topics.setdefault(tuple(nodes), []).append(question)
    for question in by_topics.pop((), ()):
        rows = [graph.rows(answer) for answer in answers[question]]
        bearing[question] = np.unique(np.concatenate([bearing[question], *rows]))
    searches = iter(by_topics.items())
    while block := list(itertools.islice(searches, SEARCHES)):
        levels = _levels(graph, [nodes for nodes, _ in block], limit)
        pairs = [
            (question, bit, answer)
            for bit, (_, questions) in enumerate(block)
            for question in questions
            for answer in answers[question]
        ]
        for question, rows in _bearing(graph, levels, np.array(pairs, np.int64).reshape(-1, 3)):
            bearing[question] = rows
    return bearing


def _levels(graph: Triples, topics: Sequence[Sequence[int]], limit: int) -> np.ndarray:
    """Where breadth-first searches are after each step: uint64 `[limit + 1, n]`.

    Bit i of `[d, node]` is 1 if `d` triples are the shortest way from any of `topics[i]` to a node.
    """
    levels = np.zeros((limit + 1, len(graph.nodes)), np.uint64)
    for bit, nodes in enumerate(topics):
        levels[0, list(nodes)] |= np.uint64(1 << bit)
    bounds, order = graph.incoming
    heads_in_order = graph.head[order]
    reached = levels[0].copy()
    for before, level in itertools.pairwise(levels):
        _unite(level, before[graph.tail], graph.outgoing)
        _unite(level, before[heads_in_order], bounds)
        level &= ~reached
        if not level.any():
            break
        reached |= level
    return levels


def _unite(level: np.ndarray, bits: np.ndarray, bounds: np.ndarray) -> None:
    """Adds to each node's number in `level` the bits from `bounds[node]` to `bounds[node + 1]`."""
    filled = np.flatnonzero(np.diff(bounds))
    if len(filled):
        level[filled] |= np.bitwise_or.reduceat(bits, bounds[filled])


def _bearing(
    graph: Triples, levels: np.ndarray, pairs: np.ndarray
) -> Iterator[tuple[int, np.ndarray]]:
    """Questions with a triple that bears an answer, and these triples, ascending.

    Args:
        pairs: question, bit of its topics, and answer: `[any 3]`, those of a question together.
    """
    questions, bits, answers = pairs.T
    distances = np.zeros(len(pairs), np.int64)  # 0 of a topic, and where no path leads
    for distance, level in enumerate(levels):
        distances[_has_bit(level[answers], bits)] = distance
    reached = distances > 0
    questions, bits, answers, distances = (
        x[reached] for x in (questions, bits, answers, distances)
    )
    number = np.cumsum(np.diff(questions, prepend=questions[:1]) != 0)  # of each question, from 0
    for part in _parts(number, graph.degrees()[answers]):
        rows, pair, far_ends = _incident(graph, answers[part])
        before = levels[distances[part][pair] - 1, far_ends]
        bears = _has_bit(before, bits[part][pair])
        # A triple between two answers comes twice.
        keys = np.unique(questions[part][pair[bears]] * len(graph) + rows[bears])
        owners, rows = np.divmod(keys, len(graph))
        starts = np.flatnonzero(np.diff(owners, prepend=-1))
        yield from zip(owners[starts].tolist(), np.split(rows, starts[1:]), strict=True)


def _has_bit(numbers: np.ndarray, bits: np.ndarray) -> np.ndarray:
    return (numbers >> bits.astype(np.uint64) & np.uint64(1)).astype(bool)


def _parts(number: np.ndarray, sizes: np.ndarray) -> Iterator[slice]:
    """Slices that keep the pairs of a question together, of about MOST_ROWS rows each."""
    first = np.flatnonzero(np.diff(number, prepend=-1))  # pair of each question
    before = (np.cumsum(sizes) - sizes)[first] // MOST_ROWS
    starts = first[np.flatnonzero(np.diff(before, prepend=-1))]
    for start, end in itertools.pairwise([*starts.tolist(), len(number)]):
        yield slice(start, end)


def _incident(graph: Triples, nodes: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The triples of each of `nodes`: rows, positions in `nodes`, and the nodes at the other end.

    A self-loop comes twice.
    """
    bounds, order = graph.incoming
    out_rows, leaving = _ranges(graph.outgoing, nodes)
    places, entering = _ranges(bounds, nodes)
    in_rows = order[places]
    return (
        np.concatenate([out_rows, in_rows]),
        np.concatenate([leaving, entering]),
        np.concatenate([graph.tail[out_rows], graph.head[in_rows]]),
    )


def _ranges(bounds: np.ndarray, nodes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The numbers from `bounds[node]` to `bounds[node + 1]` of each node, and whose they are."""
    starts, counts = bounds[nodes], bounds[nodes + 1] - bounds[nodes]
    skipped = np.repeat(starts - (np.cumsum(counts) - counts), counts)
    return skipped + np.arange(counts.sum()), np.repeat(np.arange(len(nodes)), counts)
