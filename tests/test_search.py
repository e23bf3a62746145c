"""Exact search: the same answer as a sort, on every mesh."""

import numpy as np
import pytest

from ark_jax.search import top_k


def by_sorting(queries: np.ndarray, keys: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    scores = queries.astype(np.float64) @ keys.astype(np.float64).T
    order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    return order, np.take_along_axis(scores, order, 1)


@pytest.mark.parametrize("n, k, block", [(1, 1, 1024), (7, 3, 1024), (50, 50, 1024), (50, 80, 2), (333, 20, 4), (9, 9, 1024)])
def test_top_k_is_a_stable_sort(n, k, block, any_mesh):
    # Small integers: products are exact and ties abound, some of them because keys are the same.
    rng = np.random.default_rng(n)
    keys = rng.integers(-2, 3, (n, 6)).astype(np.float32)
    keys[n // 2 :] = keys[: n - n // 2]
    queries = rng.integers(-2, 3, (5, 6)).astype(np.float32)
    found, scores = top_k(queries, keys, k, block=(block, 32))
    expected, values = by_sorting(queries, keys, k)
    assert found.shape == (5, min(n, k))
    assert found.tolist() == expected.tolist()
    assert scores.tolist() == values.tolist()


def test_top_k_of_real_numbers(any_mesh):
    rng = np.random.default_rng(0)
    keys, queries = (rng.normal(size=shape).astype(np.float32) for shape in ((1000, 48), (17, 48)))
    keys, queries = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (keys, queries))
    found, scores = top_k(queries, keys, 25)
    expected, values = by_sorting(queries, keys, 25)
    assert found.tolist() == expected.tolist()
    np.testing.assert_allclose(scores, values, atol=1e-6)


def test_keys_that_are_worse_than_padding_are_found(any_mesh):
    keys = np.array([[-3.0], [-1.0], [-2.0]], np.float32)
    found, scores = top_k(np.ones((1, 1), np.float32), keys, 3)
    assert found.tolist() == [[1, 2, 0]] and scores.tolist() == [[-1.0, -2.0, -3.0]]


@pytest.mark.parametrize("queries, keys, shape", [(0, 5, (0, 3)), (4, 0, (4, 0)), (0, 0, (0, 0))])
def test_nothing_to_search(queries, keys, shape, mesh):
    found, scores = top_k(np.zeros((queries, 2), np.float32), np.zeros((keys, 2), np.float32), 3)
    assert found.shape == scores.shape == shape
