"""The triples that support the answers of a question: what a retriever should find."""

import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from ark_jax.graph.triple_rows import ranges
from ark_jax.graph.triples import Triples

SEARCHES = 64  # breadth-first searches at once: each has one bit of a uint64
MOST_ROWS = 1 << 20  # about how many triples of answers are examined at once


def answer_rows(
    graph: Triples, topics: Sequence[Sequence[int]], answers: Sequence[Sequence[int]], limit: int
) -> list[np.ndarray]:
    """The rows of the triples that support each question: int64, ascending.

    A triple supports a question if a shortest path from a topic to an answer ends with it. Paths
    follow triples in either direction. If a question has no topic, all triples of its answers
    support it. An answer that is also a topic has no supporting triple.

    Args:
        topics, answers: nodes of each question.
        limit: longest path, in triples; an answer farther away has no supporting triple.
    """
    supporting = [np.zeros(0, np.int64)] * len(topics)
    by_topics: dict[tuple[int, ...], list[int]] = {}
    for question, nodes in enumerate(topics):
        by_topics.setdefault(tuple(nodes), []).append(question)
    for question in by_topics.pop((), ()):
        rows = [graph.rows(answer) for answer in answers[question]]
        supporting[question] = np.unique(np.concatenate([supporting[question], *rows]))
    searches = iter(by_topics.items())
    while block := list(itertools.islice(searches, SEARCHES)):
        masks = _distance_masks(graph, [nodes for nodes, _ in block], limit)
        pairs = [
            (question, bit, answer)
            for bit, (_, questions) in enumerate(block)
            for question in questions
            for answer in answers[question]
        ]
        for question, rows in _supporting_rows(
            graph, masks, np.array(pairs, np.int64).reshape(-1, 3)
        ):
            supporting[question] = rows
    return supporting


def _distance_masks(graph: Triples, topics: Sequence[Sequence[int]], limit: int) -> np.ndarray:
    """Runs a breadth-first search for each set of topics; returns uint64 `[limit + 1, n]`.

    Bit i of `[d, node]` is 1 if the shortest path from any of `topics[i]` to the node has d
    triples.
    """
    masks = np.zeros((limit + 1, len(graph.nodes)), np.uint64)
    for bit, nodes in enumerate(topics):
        masks[0, list(nodes)] |= np.uint64(1 << bit)
    bounds, order = graph.incoming
    heads_in_order = graph.head[order]
    reached = masks[0].copy()
    for nearer, mask in itertools.pairwise(masks):
        _merge_masks(mask, nearer[graph.tail], graph.outgoing)
        _merge_masks(mask, nearer[heads_in_order], bounds)
        mask &= ~reached
        if not mask.any():
            break
        reached |= mask
    return masks


def _merge_masks(masks: np.ndarray, neighbours: np.ndarray, bounds: np.ndarray) -> None:
    """Sets in each node's mask the bits of its neighbours, which end at `bounds[node + 1]`."""
    with_neighbours = np.flatnonzero(np.diff(bounds))
    if len(with_neighbours):
        masks[with_neighbours] |= np.bitwise_or.reduceat(neighbours, bounds[with_neighbours])


def _supporting_rows(
    graph: Triples, masks: np.ndarray, pairs: np.ndarray
) -> Iterator[tuple[int, np.ndarray]]:
    """Yields each question that has supporting triples, and the rows of these, ascending.

    A row of `pairs` `[any 3]` is a question, the bit of its topics, and the node of an answer.
    """
    questions, bits, answers = pairs.T
    distances = np.zeros(len(pairs), np.int64)  # 0: a topic, or a node that no path reaches
    for distance, mask in enumerate(masks):
        distances[_has_bit(mask[answers], bits)] = distance
    reached = distances > 0
    questions, bits, answers, distances = (
        x[reached] for x in (questions, bits, answers, distances)
    )
    question_number = np.cumsum(np.diff(questions, prepend=questions[:1]) != 0)  # from 0
    for part in _question_slices(question_number, graph.degrees()[answers]):
        rows, pair, far_ends = _incident_triples(graph, answers[part])
        reaching = masks[distances[part][pair] - 1, far_ends]
        supports = _has_bit(reaching, bits[part][pair])
        # A triple between two answers occurs twice.
        keys = np.unique(questions[part][pair[supports]] * len(graph) + rows[supports])
        owners, rows = np.divmod(keys, len(graph))
        starts = np.flatnonzero(np.diff(owners, prepend=-1))
        yield from zip(owners[starts].tolist(), np.split(rows, starts[1:]), strict=True)


def _has_bit(numbers: np.ndarray, bits: np.ndarray) -> np.ndarray:
    """Whether each number has its bit set: bool `[n]`; `bits` counts from 0."""
    return (numbers >> bits.astype(np.uint64) & np.uint64(1)).astype(bool)


def _question_slices(question_number: np.ndarray, sizes: np.ndarray) -> Iterator[slice]:
    """Slices of about MOST_ROWS triples each that keep the pairs of a question together."""
    first = np.flatnonzero(np.diff(question_number, prepend=-1))  # pair of each question
    block = (np.cumsum(sizes) - sizes)[first] // MOST_ROWS
    starts = first[np.flatnonzero(np.diff(block, prepend=-1))]
    for start, end in itertools.pairwise([*starts.tolist(), len(question_number)]):
        yield slice(start, end)


def _incident_triples(
    graph: Triples, nodes: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The triples of each of `nodes`: rows, positions in `nodes`, and the nodes at the other end.

    A self-loop occurs twice.
    """
    bounds, order = graph.incoming
    numbers = np.arange(len(nodes))
    out_rows, in_rows = (
        ranges(starts[nodes], starts[nodes + 1]) for starts in (graph.outgoing, bounds)
    )
    in_rows = order[in_rows]
    positions = [np.repeat(numbers, x[nodes + 1] - x[nodes]) for x in (graph.outgoing, bounds)]
    return (
        np.concatenate([out_rows, in_rows]),
        np.concatenate(positions),
        np.concatenate([graph.tail[out_rows], graph.head[in_rows]]),
    )
