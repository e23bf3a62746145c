"""Pairs of float32 against exact fractions; PageRank in them against float64, communities equal."""

from fractions import Fraction

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.graphs import numbered
from support.matrices import random_matrix

from ark_jax.graph import float_pairs, pagerank
from ark_jax.graph.community import community
from ark_jax.graph.float_pairs import Pair
from ark_jax.graph.walk import Walk

numbers = st.one_of(
    st.just(0.0),
    st.builds(
        lambda x, e, sign: sign * x * 2.0**e,
        st.floats(1, 2),
        st.integers(-20, 20),
        st.sampled_from([-1, 1]),
    ),
)


def exact(pair: Pair, i: int) -> Fraction:
    return Fraction(float(pair.high[i])) + Fraction(float(pair.low[i]))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(numbers, numbers), min_size=8, max_size=8))
def test_sums_and_products_of_float_pairs_keep_44_bits(values):
    """Compiled, as in use: nothing is reassociated or left out. One shape, one compilation."""
    a, b = (float_pairs.split(np.array(side, np.float64)) for side in zip(*values, strict=True))
    total, product = jax.jit(float_pairs.add)(a, b), jax.jit(float_pairs.multiply)(a, b)
    for i in range(8):
        x, y = exact(a, i), exact(b, i)
        # Where two numbers cancel each other, what is left is exact to the bits that they had.
        assert abs(exact(total, i) - (x + y)) <= (abs(x) + abs(y)) / 2**46
        assert abs(exact(product, i) - x * y) <= abs(x * y) / 2**44


def both_ways(graph, seeds, monkeypatch, shard: str, **options) -> tuple[np.ndarray, np.ndarray]:
    walk = Walk(graph, shard=shard)
    run = lambda: pagerank.personalized_pagerank(walk, seeds, dtype="float64", **options)
    double = run()
    monkeypatch.setattr(pagerank, "emulates_float64", lambda: True)
    monkeypatch.setattr(jax, "enable_x64", lambda on: pytest.fail("float64 on a device"))
    return double, run()


@pytest.mark.parametrize(
    ("kind", "shard"), [("symmetric", "seeds"), ("directed", "nodes"), ("unweighted", "nodes")]
)
def test_float_pairs_give_the_ranks_and_communities_of_float64(kind, shard, mesh, monkeypatch):
    """Hubs of hundreds of edges, dangling nodes, weights that are no float32."""
    rng = np.random.default_rng(1)
    if kind == "unweighted":
        ends = np.sort(np.stack([(rng.zipf(1.5, 3000) - 1) % 400, rng.integers(0, 400, 3000)], 1))
        graph = numbered(400, sorted({(a, b) for a, b in ends.tolist() if a < b}))
    else:
        graph = random_matrix(400, 3000, kind == "symmetric")
        graph.data /= 3
    seeds = [sorted(rng.choice(400, 3, replace=False).tolist()) for _ in range(20)]
    wanted, ours = both_ways(graph, seeds, monkeypatch, shard, teleport=0.15, tolerance=1e-13)
    assert ours.dtype == np.float64
    np.testing.assert_allclose(ours, wanted, rtol=0, atol=4e-13)
    limits = {"at_least": 3, "at_most": 50, "floor": 0.0}
    for x, y in zip(ours, wanted, strict=True):
        assert community(x, **limits) == community(y, **limits)
