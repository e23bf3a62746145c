"""Pairs above a threshold: all of them and no other, whatever the mesh, the block and the screen."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ark_jax import search
from ark_jax.graph.store import KnowledgeGraph
from ark_jax.search import near_pairs

SCREENS = [None, "float32", "bfloat16", "subspace"]


@pytest.fixture
def devices_only(monkeypatch):
    """Even the smallest search is screened by the devices."""
    monkeypatch.setattr(search, "FEW", 0)


def unit(x: np.ndarray) -> np.ndarray:
    return (x / np.linalg.norm(x, axis=-1, keepdims=True)).astype(np.float32)


def clusters(n: int, width: int) -> np.ndarray:
    """Unit vectors about a tenth as many centres."""
    rng = np.random.default_rng(n)
    draw = lambda n: unit(rng.normal(size=(n, width)))
    return unit(draw(n // 10)[rng.integers(0, n // 10, n)] + 0.5 * draw(n))


def by_hand(vectors: np.ndarray, threshold: float) -> dict[tuple[int, int], float]:
    cosines = vectors.astype(np.float64) @ vectors.astype(np.float64).T
    return {(i, j): cosines[i, j] for i, j in np.argwhere(np.triu(cosines >= threshold, 1)).tolist()}


@pytest.mark.parametrize("screen", SCREENS)
@pytest.mark.parametrize("block", [1, 64, 1024])
def test_near_pairs_are_all_above_the_threshold(block, screen, any_mesh, devices_only):
    # Unit vectors whose products are exact: cosines are multiples of a half, so the threshold itself is met.
    vectors = np.random.default_rng(0).choice([-0.5, 0.5], (70, 4)).astype(np.float32)
    expected = {}
    for i in range(70):
        for j in range(i + 1, 70):
            cosine = sum(float(a) * float(b) for a, b in zip(vectors[i], vectors[j], strict=True))
            if cosine >= 0.5:
                expected[i, j] = cosine
    pairs, cosines = near_pairs(vectors, 0.5, block=block, screen=screen)
    assert 0.5 in expected.values() and 1.0 in expected.values()
    assert (pairs.dtype, cosines.dtype) == (np.int32, np.float32)
    assert list(map(tuple, pairs.tolist())) == sorted(expected)
    assert cosines.tolist() == [expected[pair] for pair in sorted(expected)]


@pytest.mark.parametrize("threshold", [0.8, 0.3, -0.2])
@pytest.mark.parametrize("screen", SCREENS)
def test_near_pairs_of_real_numbers(screen, threshold, any_mesh, devices_only):
    vectors = clusters(600, 32)
    expected = by_hand(vectors, threshold)
    pairs, cosines = near_pairs(vectors, threshold, screen=screen, block=256)
    assert list(map(tuple, pairs.tolist())) == sorted(expected)
    np.testing.assert_allclose(cosines, [expected[pair] for pair in sorted(expected)], atol=1e-7)


def test_what_lies_within_rounding_of_the_threshold_is_decided_in_float64(any_mesh, devices_only):
    # Cosines a float32 product cannot tell from the threshold, on both sides of it.
    rng = np.random.default_rng(5)
    centre, across = np.linalg.qr(rng.normal(size=(256, 101)))[0].T[0], np.linalg.qr(rng.normal(size=(256, 101)))[0].T
    cosines = 0.8 + np.linspace(-3e-7, 3e-7, 101)
    across = unit(across - (across @ centre)[:, None] * centre).astype(np.float64)
    vectors = unit(np.concatenate([centre[None], cosines[:, None] * centre + np.sqrt(1 - cosines**2)[:, None] * across]))
    expected = by_hand(vectors, 0.8)
    with_centre = [j for i, j in expected if i == 0]
    assert 20 < len(with_centre) < 80
    for screen in SCREENS:
        for block in (32, 1024):
            pairs, _ = near_pairs(vectors, 0.8, block=block, screen=screen)
            assert list(map(tuple, pairs.tolist())) == sorted(expected), (screen, block)


def test_answers_are_the_same_to_the_bit_in_all_blocks_and_screens(any_mesh):
    vectors = clusters(900, 64)
    first = near_pairs(vectors, 0.75)
    assert 500 < len(first[0]) < 50_000
    for screen in SCREENS:
        for block in (96, 512):
            for a, b in zip(first, near_pairs(vectors, 0.75, block=block, screen=screen), strict=True):
                assert a.tobytes() == b.tobytes(), (block, screen)


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 2**32), st.integers(1, 40), st.floats(0, 2), st.floats(0, 3))
def test_products_of_shadows_are_no_smaller(seed, width, decay, common):
    rng = np.random.default_rng(seed)
    vectors = unit(rng.normal(size=(200, width)) * np.arange(1, width + 1) ** -decay + common * np.eye(width)[0])
    shadows = search._shadows(vectors, 0.9)
    wide = lambda x: x.astype(np.float64) @ x.astype(np.float64).T
    assert (wide(shadows) >= wide(vectors) - 1e-6).all()
    np.testing.assert_allclose(np.linalg.norm(shadows, axis=1), 1, atol=2e-6)


@pytest.mark.parametrize("decay, common, threshold, width",
                         [(0.4, 0, 0.8, 64), (0, 0, 0.8, 128), (0, 0, 0.2, 256), (0.4, 0.05, 0.8, 128), (0, 0.1, 0.8, 256)])
def test_vectors_that_lie_in_few_directions_are_screened_narrowly(decay, common, threshold, width):
    rng = np.random.default_rng(6)
    vectors = unit(unit(rng.normal(size=(4000, 256)) * np.arange(1, 257) ** -decay) + common)
    assert search._shadows(vectors, threshold).shape == (4000, width)


def test_there_is_never_a_matrix_of_all_pairs(mesh):
    vectors = clusters(6000, 32)
    near_pairs(vectors, 0.8)
    tracemalloc.start()
    pairs, _ = near_pairs(vectors, 0.8)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(pairs) > 1000 and peak < 6000 * 6000 / 2


@pytest.mark.parametrize("n", [0, 1])
def test_nothing_to_pair(n, mesh):
    pairs, cosines = near_pairs(np.ones((n, 1), np.float32), 0.8)
    assert pairs.shape == (0, 2) and cosines.shape == (0,)


@pytest.mark.parametrize("n", [20, 3000], ids=["host", "devices"])
@pytest.mark.parametrize("value, message", [(np.nan, r"vectors\[7\] holds a number that is not finite"),
                                            (np.inf, r"vectors\[7\] holds a number"), (1.01, r"vectors\[7\] has norm 1\.01"),
                                            (0, r"vectors\[7\] has norm 0: divide each by its norm")])
def test_a_vector_that_is_not_of_unit_length_is_named(value, message, n, mesh):
    vectors = np.tile(np.eye(4, dtype=np.float32)[0], (n, 1))
    vectors[7, 0] = value
    with pytest.raises(ValueError, match=message):
        near_pairs(vectors, 0.8)


@pytest.mark.parametrize("options, message", [({"threshold": 1.5}, "threshold=1.5"), ({"threshold": np.nan}, "threshold=nan"),
                                              ({"threshold": 0.8, "screen": "int8"}, "screen='int8'")])
def test_a_question_without_meaning_is_refused(options, message, mesh):
    with pytest.raises(ValueError, match=message):
        near_pairs(np.eye(4, dtype=np.float32), **options)


def test_similarity_edges_stand_beside_relations(any_mesh):
    vectors = np.random.default_rng(0).choice([-0.5, 0.5], (50, 4)).astype(np.float32)
    graph = KnowledgeGraph.from_triples([(f"n{i}", "beside", f"n{i + 1}") for i in range(49)])
    expected = by_hand(vectors, 0.5)
    similar = graph.with_similar(vectors, 0.5)
    assert list(map(tuple, similar.similar.tolist())) == sorted(expected)
    assert similar.cosines.tolist() == [expected[pair] for pair in sorted(expected)]
    assert similar.edges.tolist() == graph.edges.tolist() and similar.weights.tolist() == [1.0] * 49
    edges = {frozenset(p) for p in [*expected, *map(tuple, graph.edges.tolist())]}
    source, target = similar.neighbours()
    both_ways = {(a, b) for edge in edges for a in edge for b in edge if a != b}
    assert set(zip(source.tolist(), target.tolist(), strict=True)) == both_ways
    assert len(source) == 2 * len(edges) and (np.diff(target) >= 0).all()
    with pytest.raises(ValueError, match="49 vectors for 50 nodes"):
        graph.with_similar(vectors[:49], 0.5)
