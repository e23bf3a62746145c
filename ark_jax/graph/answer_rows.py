"""Which triples of a graph bear an answer to a question: what a retriever should find."""

from collections.abc import Sequence

import numpy as np

from ark_jax.graph.triples import Triples

UNREACHED = -1


def distances(graph: Triples, nodes: Sequence[int], limit: int) -> np.ndarray:
    """Triples on the shortest way from any of `nodes` to each node, in either direction: int32
    `[n]`; UNREACHED beyond `limit`."""
    out = np.full(len(graph.nodes), UNREACHED, np.int32)
    frontier = np.unique(np.asarray(nodes, np.int64))
    out[frontier] = 0
    bounds, order = graph.incoming
    for distance in range(1, limit + 1):
        leaving = _concatenate_ranges(graph.outgoing[frontier], graph.outgoing[frontier + 1])
        entering = order[_concatenate_ranges(bounds[frontier], bounds[frontier + 1])]
        reached = np.concatenate([graph.tail[leaving], graph.head[entering]])
        frontier = np.unique(reached[out[reached] == UNREACHED]).astype(np.int64)
        if not len(frontier):
            break
        out[frontier] = distance
    return out


def answer_rows(
    graph: Triples, topics: Sequence[int], answers: Sequence[int], limit: int
) -> np.ndarray:
    """The triples that bear an answer, ascending.

    These are the last ones of all shortest paths from a topic to an answer. A question without a
    topic takes all triples of its answers.

    Args:
        topics, answers: nodes.
        limit: longest path, in triples; an answer farther away has no triple.
    """
    answers = [answer for answer in dict.fromkeys(answers) if answer not in set(topics)]
    rows = [graph.rows(answer) for answer in answers]
    if not topics or not rows:
        return np.unique(np.concatenate([np.zeros(0, np.int64), *rows]))
    away = distances(graph, topics, limit)
    bearing = []
    for answer, incident in zip(answers, rows, strict=True):
        if away[answer] == UNREACHED:
            continue
        far_ends = np.where(
            graph.head[incident] == answer, graph.tail[incident], graph.head[incident]
        )
        bearing.append(incident[away[far_ends] == away[answer] - 1])
    return np.unique(np.concatenate([np.zeros(0, np.int64), *bearing]))


def _concatenate_ranges(starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """start, start + 1, ..., end - 1 of each pair, one after another."""
    counts = ends - starts
    skipped = np.repeat(starts - np.concatenate([[0], np.cumsum(counts)[:-1]]), counts)
    return skipped + np.arange(counts.sum())
