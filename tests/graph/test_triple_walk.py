"""Search along the graph, against its definition written as loops."""

import numpy as np
import pytest
from support.fact_graphs import random_graph

from ark_jax.graph.linked_questions import look_up
from ark_jax.graph.triple_retriever import WalkRules, walk
from ark_jax.graph.triples import Triples


def walk_by_loops(graph, cosines, rows, rules: WalkRules, named) -> dict[int, float]:
    """The best score of each triple that was retrieved or reached."""
    facts, best = list(graph), {int(row): float(cosines[row]) for row in rows}
    count = lambda node: sum((h == node) + (t == node) for h, _, t in facts)
    named = {graph.nodes.ids[node].as_py() for node in named}
    mix = lambda score, cosine: max(cosine, rules.share * score + (1 - rules.share) * cosine)
    highest = max(best.values())
    for row, (head, _, tail) in enumerate(facts):
        if any(node in (head, tail) and count(node) <= (rules.hub or 99) for node in named):
            best[row] = max(best.get(row, -9), mix(highest, float(cosines[row])))
    for _ in range(rules.hops - 1):
        starts = sorted(best, key=lambda row: (-best[row], row))[: rules.starts]
        scores = dict(best)
        for start in starts:
            ends = {facts[start][0], facts[start][2]} - named
            ends = {node for node in ends if not rules.hub or count(node) <= rules.hub}
            for row, (head, _, tail) in enumerate(facts):
                if ends & {head, tail}:
                    cosine = float(cosines[row])
                    scores[row] = max(scores.get(row, -9), mix(best[start], cosine))
        best = scores
    return best


@pytest.mark.parametrize(
    "rules", [WalkRules(), WalkRules(3, 0.4, 2, 0), WalkRules(2, 0.9, 5, 6), WalkRules(hops=1)]
)
def test_the_walk_equals_plain_loops(rules):
    for seed in range(10):
        graph = random_graph(seed, nodes=20, triples=40)
        cosines = np.random.default_rng(seed).uniform(-1, 1, len(graph)).astype(np.float32)
        rows = np.argsort(-cosines)[:6]
        named = frozenset(range(seed % 3))
        hits, scores = walk(graph, lambda r, c=cosines: c[r], rows, cosines[rows], rules, named)
        wanted = walk_by_loops(graph, cosines, rows, rules, named)
        assert set(hits.tolist()) == set(wanted)
        np.testing.assert_allclose(scores, [wanted[row] for row in hits.tolist()], atol=1e-6)
        assert (np.diff(scores) <= 0).all()


def test_the_walk_reaches_a_linked_triple_with_a_low_cosine():
    """Who directed the films of X? The answer's triple does not hold X.

    Nor are the films of X among the nearest, so the walk finds them by X's name alone.
    """
    facts = [("film", "starred", "x"), ("film", "directed", "y")]
    graph = Triples.from_triples([*facts, *((f"o{i}", "starred", f"p{i}") for i in range(50))])
    found = list(graph)
    cosines = np.linspace(0.3, 0.2, len(graph))
    x = frozenset(look_up(["x"], graph.nodes).nodes["x"])
    reached = []
    for first, named in ((0.9, frozenset()), (0.19, frozenset()), (0.19, x)):
        cosines[[found.index(fact) for fact in facts]] = first, 0.1
        rows = np.argsort(-cosines)[:20]
        hits, _ = walk(graph, lambda r: cosines[r], rows, cosines[rows], WalkRules(), named)
        reached.append([fact for row in hits if (fact := found[row]) in facts])
    assert reached == [facts, [], facts]
