"""The shortest relation paths that lead from a question's topics to its answers."""

import dataclasses
import time
from collections.abc import Iterator, Sequence

import numpy as np

from ark_jax.graph.steps import Steps, remove_node

_NO_NODES = np.zeros(0, np.int64)


@dataclasses.dataclass(frozen=True)
class PathLimits:
    """Limits of the search for paths.

    Attributes:
        hops: most steps of a path.
        seconds: time limit for one question; 0 for none.
        paths: most paths of a question, those of the best precision; 0 for all.
    """

    hops: int = 3
    seconds: float = 150.0
    paths: int = 25

    def __post_init__(self) -> None:
        for name, minimum in (("hops", 1), ("seconds", 0), ("paths", 0)):
            if getattr(self, name) < minimum:
                raise ValueError(f"{name}={getattr(self, name)}: must be at least {minimum}")


@dataclasses.dataclass(frozen=True)
class GoldPath:
    """A relation path from a topic to an answer.

    Attributes:
        topic: the node where it begins.
        steps: of `Steps`.
        reached: how many nodes it leads to, without the topic.
        correct: how many of these are answers.
    """

    topic: int
    steps: tuple[int, ...]
    reached: int
    correct: int

    @property
    def precision(self) -> float:
        """The share of answers among the nodes that it leads to."""
        return self.correct / self.reached


def shortest_paths(
    steps: Steps, topics: Sequence[int], answers: Sequence[int] | np.ndarray, limits: PathLimits
) -> tuple[list[GoldPath], str]:
    """All shortest relation paths from topics to answers, within limits.

    For each pair of a topic and another node that is an answer, these are the relations along every
    shortest path of edges between the two, if it has at most `limits.hops`. Paths of several pairs
    are one if topic and steps are equal. They are in order of topics, length and steps.

    Only nodes on shortest paths are expanded, so that hubs off these paths cost nothing.

    Args:
        topics: nodes; a repeated one counts once.
        answers: nodes. A topic is not an answer to itself.

    Returns:
        The paths, and a sentence if the time or the number of paths ran out, else "".

    Raises:
        IndexError: there is no such node.
    """
    for node in (*topics, *np.asarray(answers).tolist()):
        steps.check(node)
    deadline = time.monotonic() + limits.seconds if limits.seconds else np.inf
    answers = np.unique(np.asarray(answers, np.int64))
    paths: list[GoldPath] = []
    late = False
    for topic in dict.fromkeys(topics):
        for path in _paths_from_topic(steps, topic, remove_node(answers, topic), limits.hops):
            late = time.monotonic() > deadline
            if late:
                break
            if path:
                paths.append(path)
        if late:
            break
    cut = f"the search ended after {limits.seconds:g} s with {len(paths):,} paths" if late else ""
    if limits.paths and len(paths) > limits.paths:
        counted = f"{limits.paths:,} of {len(paths):,} paths are kept, those of the best precision"
        cut = f"{cut}; {counted}" if cut else counted
        best = sorted(range(len(paths)), key=lambda i: -paths[i].precision)[: limits.paths]
        paths = [paths[i] for i in sorted(best)]
    return paths, cut


def _paths_from_topic(
    steps: Steps, topic: int, answers: np.ndarray, hops: int
) -> Iterator[GoldPath | None]:
    """Yields the paths from a topic by length, then steps; None for a prefix that is not a path."""
    levels = _nodes_by_distance(steps, topic, answers, hops)
    # Each item: a prefix, the nodes on shortest paths that it leads to, and all that it leads to.
    front = [((), np.array([topic]), np.array([topic]))]
    for level in levels:
        following = []
        for prefix, on_paths, reached in front:
            for step, ends in _ends_by_step(steps, on_paths, level):
                nodes = steps.follow(reached, step)
                path = (*prefix, step)
                following.append((path, ends, nodes))
                if np.isin(ends, answers, assume_unique=True).any():
                    nodes = remove_node(nodes, topic)
                    correct = np.isin(nodes, answers, assume_unique=True)
                    yield GoldPath(topic, path, len(nodes), int(np.count_nonzero(correct)))
                else:
                    yield None
        front = following


def _nodes_by_distance(
    steps: Steps, topic: int, answers: np.ndarray, hops: int
) -> list[np.ndarray]:
    """The nodes on shortest paths to answers, by their distance from the topic, from 1.

    The search goes forward from the topic. Only the last step goes backward from the answers, since
    forward it would reach most of the graph.
    """
    # One more than the distance; 0 if it is unknown. np.zeros takes no time for untouched pages.
    distance = np.zeros(len(steps.graph.nodes), np.int8 if hops < 127 else np.int64)
    distance[topic] = 1
    front, depth = np.array([topic]), 1
    while depth < hops and len(front) and not distance[answers].all():
        _, _, ends = steps.edges(front)
        front = np.unique(ends[distance[ends] == 0])
        depth += 1
        distance[front] = depth
    unreached = answers[distance[answers] == 0]
    if len(unreached):
        nodes, _, starts = steps.edges_back(unreached)
        distance[np.unique(nodes[distance[starts] == depth])] = depth + 1
    levels: list[np.ndarray] = []
    nodes = _NO_NODES
    for level in range(int(distance[answers].max(initial=0)), 1, -1):
        nodes = np.union1d(nodes, answers[distance[answers] == level])
        levels.append(nodes)
        _, _, starts = steps.edges_back(nodes)
        nodes = np.unique(starts[distance[starts] == level - 1])
    return levels[::-1]


def _ends_by_step(
    steps: Steps, nodes: np.ndarray, level: np.ndarray
) -> Iterator[tuple[int, np.ndarray]]:
    """Yields each step from nodes to a level, and the nodes of the level that it leads to."""
    _, edge_steps, ends = steps.edges(nodes)
    places = np.searchsorted(level, ends)
    places[places == len(level)] = 0
    inside = level[places] == ends
    keys = np.unique(edge_steps[inside] * len(level) + places[inside])
    if not len(keys):  # the nodes are answers that lead to no other
        return
    key_steps, places = np.divmod(keys, len(level))
    distinct_steps, starts = np.unique(key_steps, return_index=True)
    for step, part in zip(distinct_steps.tolist(), np.split(places, starts[1:]), strict=True):
        yield step, level[part]
