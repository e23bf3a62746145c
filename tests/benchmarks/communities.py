"""Communities of graphs of texts by elimination, walks and igraph.

    python tests/benchmarks/communities.py [TEXTS ...]

Each text names two of half as many things as there are texts, by Zipf's law, and one thing of its
own; the three are tied to each other. Elimination and walks are what a run uses. All contenders cut
the same communities of single seeds; times are per seed set, cuts included.
"""

import sys
import time

import igraph
import numpy as np
from timing import machine, race, report

import ark_jax as ark
from ark_jax.graph.community import community
from ark_jax.graph.elimination import Elimination
from ark_jax.graph.store import KnowledgeGraph
from ark_jax.graph.walk import Walk

TELEPORT, FLOOR, SIZES = 0.15, 1e-4, ((20, 50), (3, 10))
SETS, SETS_OF_WALKS, SETS_OF_IGRAPH = 128, 16, 2


def graph_of_texts(count: int) -> KnowledgeGraph:
    rng = np.random.default_rng(count)
    first, second = rng.zipf(1.3, (2, count)) % max(count // 2, 2)
    own = np.arange(count) + count
    ends = np.concatenate([np.stack(x) for x in ((first, second), (first, own), (second, own))], 1)
    names, numbers = np.unique(ends, return_inverse=True)
    empty = [()] * len(names)
    pairs = numbers.reshape(2, -1).T.tolist()
    nothing = [()] * len(pairs)
    return KnowledgeGraph.from_columns(
        list(map(str, names)),
        [""] * len(names),
        empty,
        empty,
        pairs,
        [1.0] * len(pairs),
        nothing,
        nothing,
    )


def cut(ranks: np.ndarray) -> list[list[int]]:
    return [community(ranks, at_least=a, at_most=b, floor=FLOOR) for a, b in SIZES]


def compare(count: int) -> None:
    graph = graph_of_texts(count)
    start = time.process_time()
    eliminated = Elimination.from_graph(graph, TELEPORT)
    taken_out, walk = time.process_time() - start, Walk(graph)
    edges = np.asarray(graph.edges).tolist()
    peer = igraph.Graph(n=len(graph), edges=edges)
    seeds = [[int(i)] for i in np.random.default_rng(0).integers(0, len(graph), SETS)]

    def by_elimination() -> list:
        return list(map(cut, eliminated.ranks(seeds, floor=FLOOR)))

    def by_walks() -> list:
        ranks = ark.personalized_pagerank(
            walk, seeds[:SETS_OF_WALKS], teleport=TELEPORT, tolerance=1e-13, dtype="float64"
        )
        return list(map(cut, ranks))

    def by_igraph() -> list:
        ranks = (
            peer.personalized_pagerank(reset_vertices=nodes, damping=1 - TELEPORT)
            for nodes in seeds[:SETS_OF_IGRAPH]
        )
        return [cut(np.array(row)) for row in ranks]

    runs = {
        "ark_jax": (by_elimination, SETS),
        "ark_jax by walks": (by_walks, SETS_OF_WALKS),
        "igraph prpack": (by_igraph, SETS_OF_IGRAPH),
    }
    expected = by_elimination()
    equal = {label: run() == expected[:sets] for label, (run, sets) in runs.items()}
    timings = race({label: run for label, (run, _) in runs.items()}, rounds=3)
    for label, (_, sets) in runs.items():
        timings[label].seconds[:] = [seconds / sets for seconds in timings[label].seconds]
    print(f"taken out in {taken_out:.1f} CPU s; equal communities: {equal}")
    work = f"communities of {count:,} texts: {len(graph):,} nodes, {len(edges):,} edges"
    report(work, "sets", 1, timings)


if __name__ == "__main__":
    print(machine())
    for count in sys.argv[1:] or ["40000", "400000"]:
        compare(int(count))
