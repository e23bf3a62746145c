"""The limit on pairs against a sort of each vector's cosines."""

import re

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ark_jax.retrieval.dense import near_pairs
from ark_jax.retrieval.nearest import limit_pairs


def limit_naively(pairs: dict[tuple[int, int], float], nearest: int) -> set[tuple[int, int]]:
    """The pairs that are among the `nearest` best of one of their vectors."""
    stays = set()
    for vector in {end for pair in pairs for end in pair}:
        of_vector = [pair for pair in pairs if vector in pair]
        of_vector.sort(key=lambda pair: (-pairs[pair], sum(pair) - vector))
        stays |= set(of_vector[:nearest])
    return stays


@st.composite
def pairs_with_cosines(draw) -> dict[tuple[int, int], float]:
    ends = st.tuples(st.integers(0, 8), st.integers(0, 8)).filter(lambda ij: ij[0] < ij[1])
    return draw(st.dictionaries(ends, st.sampled_from([0.8, 0.9, 0.95, 1.0]), min_size=1))


@given(pairs_with_cosines(), st.integers(1, 4), st.integers(1, 50))
def test_the_nearest_pairs_do_not_depend_on_the_parts(pairs, nearest, size):
    rows = np.array([(*pair, cosine) for pair, cosine in pairs.items()])
    parts = [
        (part[:, 0].astype(int), part[:, 1].astype(int), part[:, 2])
        for part in (rows[start : start + size] for start in range(0, len(rows), size))
    ]
    # A count of 3 is too small on purpose: pairs are then dropped many times.
    (i, j, cosines), total = limit_pairs(iter(parts), 3, nearest)
    cosine_of = dict(zip(zip(i.tolist(), j.tolist(), strict=True), cosines.tolist(), strict=True))
    assert cosine_of == {pair: pairs[pair] for pair in limit_naively(pairs, nearest)}
    assert total == len(pairs)


def test_the_number_of_near_pairs_per_vector_is_limited(any_mesh, capsys):
    rng = np.random.default_rng(0)
    vectors = (1 + 0.1 * rng.standard_normal((300, 12))).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    everything = near_pairs(vectors, 0.8, block=64)
    assert len(everything[0]) == 300 * 299 / 2 and not capsys.readouterr().out
    pairs, cosines = near_pairs(vectors, 0.8, nearest=5, block=64)
    values = dict(zip(map(tuple, everything[0].tolist()), everything[1].tolist(), strict=True))
    assert set(map(tuple, pairs.tolist())) == limit_naively(values, 5)
    assert cosines.tolist() == [values[pair] for pair in map(tuple, pairs.tolist())]
    assert np.bincount(pairs.ravel(), minlength=300).min() >= 5 and len(pairs) <= 5 * 300
    warning = f"warning: 44,850 pairs of 300 vectors .* nearest of each stay, {len(pairs):,} pairs"
    assert re.search(warning, capsys.readouterr().out)
    idle = near_pairs(vectors, 0.8, nearest=299, block=64)
    assert not capsys.readouterr().out
    for x, y in zip(idle, everything, strict=True):
        np.testing.assert_array_equal(x, y)
