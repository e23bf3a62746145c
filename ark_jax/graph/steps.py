"""Relations as steps between sets of nodes, and the shortest paths of them to answers."""

import dataclasses
import functools
import time
from collections.abc import Iterator, Sequence

import numpy as np

from ark_jax.graph.triple_rows import ranges, row_bounds, sort_rows
from ark_jax.graph.triples import By, Triples, relation_texts

END = -1  # takes the place of a step at the end of a path
END_TEXT = "end"
INVERSE = "inverse of "
HUB = 10_000  # default of `Steps.hub`


class Steps:
    """The relations of a graph as steps between sets of nodes.

    Step r < R goes along relation r, from head to tail. With `inverse`, step R + r goes back along
    it. Parallel relations are steps of their own, and a self-loop leads to its own node. A set of
    nodes is an ascending int64 array of different indices.

    Args:
        inverse: whether steps also go from tail to head.
        by: how a relation is written: "last" or "whole", see `relation_texts`.
        hub: `options` looks at so many nodes of a set only; 0: at all.
    """

    def __init__(
        self, graph: Triples, *, inverse: bool = True, by: By = "last", hub: int = HUB
    ) -> None:
        self.graph, self.inverse, self.by, self.hub = graph, inverse, by, hub
        texts = relation_texts(graph, by)
        self.names = texts + ([INVERSE + text for text in texts] if inverse else [])
        self._edges = _Edges.both_ways(graph) if inverse else _Edges.forward(graph)

    def __len__(self) -> int:
        return len(self.names)

    def relation_name(self, step: int) -> str:
        """The name of a step's relation, or its id if it has none; `names` has texts to score."""
        size = len(self.graph.relations)
        name = self.graph.relations.name(step % size)
        return name if step < size else INVERSE + name

    def text(self, topic: int, path: Sequence[int]) -> str:
        """The text of a path, as scorers read it; it may end with END."""
        ended = bool(path) and path[-1] == END
        names = [self.names[step] for step in (path[:-1] if ended else path)]
        return path_text(self.graph.nodes.name(topic), names, ended)

    def options(self, nodes: np.ndarray) -> np.ndarray:
        """The steps that leave any of the first `hub` of these nodes: int64, ascending."""
        return self._edges.steps_from(nodes[: self.hub or None])

    def is_cut(self, nodes: np.ndarray) -> bool:
        """Whether `options` leaves out some of these nodes."""
        return bool(self.hub) and len(nodes) > self.hub

    def follow(self, nodes: np.ndarray, step: int) -> np.ndarray:
        """The nodes that a step leads to from any of these nodes, however many they are."""
        return self._edges.follow(nodes, step)

    def walk(self, topic: int, path: Sequence[int]) -> np.ndarray:
        """The nodes that a path leads to; the topic may be one of them.

        Raises:
            IndexError: there is no such node or step.
        """
        self.check(topic, path)
        nodes = np.array([topic])
        for step in path:
            nodes = self.follow(nodes, step)
        return nodes

    def reach(self, topic: int, path: Sequence[int]) -> np.ndarray:
        """The nodes that a path leads to, without the topic; errors as `walk`."""
        return remove_node(self.walk(topic, path), topic)

    def edges(self, nodes: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Every edge that leaves these nodes: its node, step and end, int64 [e]."""
        return self._edges.leaving(nodes)

    def edges_back(self, nodes: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Every edge that arrives at these nodes: its node among them, step and start, int64 [e].

        With `inverse` the step is the one that leads back.
        """
        return self._backward.leaving(nodes)

    @functools.cached_property
    def _backward(self) -> "_Edges":
        """The edges by the node at which they arrive."""
        # With steps in both directions, an edge that arrives at a node also leaves it.
        return self._edges if self.inverse else _Edges.backward(self.graph)

    def check(self, topic: int, path: Sequence[int] = ()) -> None:
        """Raises IndexError if there is no such node or step."""
        for index, size, kind in (
            (topic, len(self.graph.nodes), "node"),
            *((step, len(self), "step") for step in path),
        ):
            if not 0 <= index < size:
                raise IndexError(f"{kind} {index}: this graph has {size:,}, from 0")


class _Edges:
    """Edges in order of node, step and end. The edges of one node and step form a group."""

    def __init__(self, node: np.ndarray, step: np.ndarray, end: np.ndarray, size: int) -> None:
        node, step, self._ends = sort_rows(node, step, end)
        first = np.ones(len(node), bool)
        first[1:] = (np.diff(node) != 0) | (np.diff(step) != 0)
        rows = np.flatnonzero(first)
        self._group_steps = step[rows].astype(np.int64)
        self._group_bounds = np.append(rows, len(node))  # of the edges of each group
        self._node_bounds = row_bounds(node[rows], size)  # of the groups of each node

    @classmethod
    def forward(cls, graph: Triples) -> "_Edges":
        return cls(graph.head, graph.relation, graph.tail, len(graph.nodes))

    @classmethod
    def backward(cls, graph: Triples) -> "_Edges":
        return cls(graph.tail, graph.relation, graph.head, len(graph.nodes))

    @classmethod
    def both_ways(cls, graph: Triples) -> "_Edges":
        node = np.concatenate([graph.head, graph.tail])
        end = np.concatenate([graph.tail, graph.head])
        step = np.concatenate([graph.relation, graph.relation + len(graph.relations)])
        return cls(node, step, end, len(graph.nodes))

    def _groups(self, nodes: np.ndarray) -> np.ndarray:
        """The numbers of the groups of these nodes, node by node."""
        return ranges(self._node_bounds[nodes], self._node_bounds[nodes + 1])

    def steps_from(self, nodes: np.ndarray) -> np.ndarray:
        """The steps that leave any of these nodes, ascending."""
        return np.unique(self._group_steps[self._groups(nodes)])

    def follow(self, nodes: np.ndarray, step: int) -> np.ndarray:
        """The nodes that a step leads to from any of these nodes, ascending."""
        groups = self._groups(nodes)
        groups = groups[self._group_steps[groups] == step]
        rows = ranges(self._group_bounds[groups], self._group_bounds[groups + 1])
        ends = self._ends[rows].astype(np.int64)
        return ends if len(groups) < 2 else np.unique(ends)  # a group's ends are in order

    def leaving(self, nodes: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Every edge that leaves these nodes: its node, step and end, int64 `[e]`."""
        groups = self._groups(nodes)
        starts, ends = self._group_bounds[groups], self._group_bounds[groups + 1]
        sizes = self._node_bounds[nodes + 1] - self._node_bounds[nodes]
        group_nodes = np.repeat(nodes, sizes)
        return (
            np.repeat(group_nodes, ends - starts),
            np.repeat(self._group_steps[groups], ends - starts),
            self._ends[ranges(starts, ends)].astype(np.int64),
        )


def remove_node(nodes: np.ndarray, node: int) -> np.ndarray:
    """A set of nodes without one of them."""
    place = int(np.searchsorted(nodes, node))
    return np.delete(nodes, place) if place < len(nodes) and nodes[place] == node else nodes


def path_text(topic: str, relations: Sequence[str], ended: bool) -> str:
    """A path as the text that is scored: "Kismet, directed by, end"."""
    return ", ".join([topic, *relations, *([END_TEXT] if ended else [])])


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


def f1(correct: int, reached: int, answers: int) -> float:
    """F1 of what a path reaches against the answers, by their numbers; 0 if both are none."""
    return 2 * correct / max(reached + answers, 1)


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
