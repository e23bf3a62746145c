"""Search along the graph, against its definition written as loops."""

import numpy as np
import pytest
from support.fact_graphs import random_graph

from ark_jax.graph.triple_retriever import WalkRules, walk
from ark_jax.graph.triples import Triples


def walk_by_loops(graph, cosines, rows, rules: WalkRules) -> dict[int, float]:
    """The best score of each triple that was retrieved or reached."""
    facts, best = list(graph), {int(row): float(cosines[row]) for row in rows}
    count = lambda node: sum((h == node) + (t == node) for h, _, t in facts)
    for _ in range(rules.hops - 1):
        starts = sorted(best, key=lambda row: (-best[row], row))[: rules.starts]
        scores = dict(best)
        for start in starts:
            ends = {facts[start][0], facts[start][2]}
            ends = {node for node in ends if not rules.hub or count(node) <= rules.hub}
            for row, (head, _, tail) in enumerate(facts):
                if ends & {head, tail}:
                    cosine = float(cosines[row])
                    score = max(cosine, rules.share * best[start] + (1 - rules.share) * cosine)
                    scores[row] = max(scores.get(row, -9), score)
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
        hits, scores = walk(graph, lambda r, c=cosines: c[r], rows, cosines[rows], rules)
        wanted = walk_by_loops(graph, cosines, rows, rules)
        assert set(hits.tolist()) == set(wanted)
        np.testing.assert_allclose(scores, [wanted[row] for row in hits.tolist()], atol=1e-6)
        assert (np.diff(scores) <= 0).all()


def test_the_walk_reaches_a_linked_triple_with_a_low_cosine():
    """Who directed the films of X? The answer's triple does not hold X."""
    facts = [("film", "starred", "x"), ("film", "directed", "y")]
    graph = Triples.from_triples([*facts, *((f"o{i}", "starred", f"p{i}") for i in range(50))])
    cosines = np.linspace(0.3, 0.2, len(graph))
    cosines[[list(graph).index(fact) for fact in facts]] = 0.9, 0.1
    rows = np.argsort(-cosines)[:20]
    hits, _ = walk(graph, lambda r: cosines[r], rows, cosines[rows], WalkRules())
    assert [list(graph)[row] for row in hits[:2]] == facts
