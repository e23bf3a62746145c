"""Exact search and near pairs equal a sort of all products.

They do so on every mesh, in every block, and after every screen.
"""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ark_jax.layout import batch_multiple
from ark_jax.retrieval import dense
from ark_jax.retrieval.dense import near_pairs, top_k

SCREENS = ["float32", "bfloat16"]


@pytest.fixture
def devices_only(monkeypatch):
    """Even the smallest search is screened by the devices."""
    monkeypatch.setattr(dense, "HOST_WORK", 0)


@pytest.fixture
def again(monkeypatch):
    """How many queries the screen could not prove."""
    counts, real = [], dense._search_again
    monkeypatch.setattr(
        dense,
        "_search_again",
        lambda queries, *rest: (counts.append(len(queries)), real(queries, *rest))[1],
    )
    return counts


def by_sorting(queries: np.ndarray, keys: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    scores = queries.astype(np.float64) @ keys.astype(np.float64).T
    order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    return order, np.take_along_axis(scores, order, 1)


def unit(rng: np.random.Generator, *shape: int) -> np.ndarray:
    x = rng.normal(size=shape)
    return (x / np.linalg.norm(x, axis=-1, keepdims=True)).astype(np.float32)


@pytest.mark.parametrize("screen", SCREENS)
@pytest.mark.parametrize(
    "n, k, block",
    [
        (1, 1, (1024, 32)),
        (7, 3, (1024, 32)),
        (50, 80, (2, 32)),
        (333, 20, (2, 32)),
        (333, 20, (1024, 1024)),
        (9000, 3, (1024, 32768)),
    ],
)
def test_top_k_equals_a_stable_sort(n, k, block, screen, two_meshes, devices_only):
    # Small integers: products are exact and ties abound, some of them because keys are the same.
    rng = np.random.default_rng(n)
    keys = rng.integers(-2, 3, (n, 6)).astype(np.float32)
    keys[n // 2 :] = keys[: n - n // 2]
    queries = rng.integers(-2, 3, (5, 6)).astype(np.float32)
    queries[3] = 0
    nearest, scores = top_k(queries, keys, k, block=block, screen=screen)
    expected, values = by_sorting(queries, keys, k)
    assert nearest.shape == (5, min(n, k)) and (nearest.dtype, scores.dtype) == (
        np.int32,
        np.float32,
    )
    assert nearest.tolist() == expected.tolist()
    assert scores.tolist() == values.tolist()


@pytest.fixture
def few_are_many(monkeypatch):
    """Signs choose a tenth of 5,000 keys, of which they read 1,024 at once."""
    settings = {"SIGNS": 1024, "LEAST": 500, "SAMPLED": 1}
    for name, value in settings.items():
        monkeypatch.setattr(f"ark_jax.retrieval.screen.{name}", value)
    monkeypatch.setattr(dense, "SIGNED_KEYS", 5000)
    monkeypatch.setattr(dense, "KEYS_PER_QUERY", 1000)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("common", [0.0, 3.0])  # a mean far from 0, as that of e5's vectors
def test_keys_that_signs_choose_are_ranked_exactly(common, dtype, few_are_many, devices_only, mesh):
    rng = np.random.default_rng(5)
    topics = unit(rng, 200, 90)[rng.integers(0, 200, 5000)]
    x = topics + 0.6 * unit(rng, 5000, 90) + common * unit(rng, 1, 90)
    x = (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(dtype)
    x[4000:] = x[:1000]  # of equal keys the lower number comes first
    keys, queries = dense.Keys(x), x[::1250].astype(np.float32)
    assert keys.signs and all(300 <= len(rows) < 1500 for rows in keys.signs.choose(queries, 10))
    assert keys.longest == pytest.approx(1, abs=1e-3)
    for k, asked in ((1, 1), (10, 4), (4999, 2)):
        expected, values = by_sorting(queries[:asked], x, k)
        positions, scores = top_k(queries[:asked], keys, k)
        assert positions.tolist() == expected.tolist()
        assert scores.tolist() == values.astype(np.float32).tolist()


@pytest.mark.usefixtures("few_are_many", "devices_only", "mesh")
def test_signs_that_say_too_little_choose_nothing():
    x = unit(np.random.default_rng(6), 5000, 90)  # alike in all directions
    keys = dense.Keys(x)
    assert keys.signs is None
    assert top_k(x[:3] + 1, keys, 10)[0].tolist() == by_sorting(x[:3] + 1, x, 10)[0].tolist()
    assert dense.Keys(x[:4999]).signs is None  # too few
    x[4321, 5] = np.nan
    with pytest.raises(ValueError, match=r"keys\[4321\] holds a number that is not finite"):
        top_k(x[:1], dense.Keys(x), 3)


@pytest.mark.parametrize("screen", SCREENS)
def test_top_k_of_random_vectors_equals_a_sort(screen, any_mesh, devices_only, again):
    rng = np.random.default_rng(0)
    keys, queries = unit(rng, 9000, 48), unit(rng, 17, 48)
    nearest, scores = top_k(queries, keys, 25, screen=screen)
    expected, values = by_sorting(queries, keys, 25)
    assert nearest.tolist() == expected.tolist()
    np.testing.assert_allclose(scores, values, atol=1e-7)
    # The screen proves nearly all of its results.
    assert sum(again) <= (0 if screen == "float32" else 4)


@pytest.mark.parametrize("screen", SCREENS)
def test_keys_closer_than_the_screen_precision_are_ranked_exactly(
    screen, two_meshes, devices_only, again
):
    # In bfloat16 all keys are one; in float32 their products are within its rounding.
    rng = np.random.default_rng(1)
    base, queries = unit(rng, 64), unit(rng, 3, 64)
    keys = (base + rng.normal(size=(2000, 64)) * (1e-4 if screen == "bfloat16" else 1e-8)).astype(
        np.float32
    )
    nearest, _ = top_k(queries, keys, 20, screen=screen)
    # Distances below float64's resolution of a sum are not asked for.
    scores = np.take_along_axis(queries.astype(np.float64) @ keys.astype(np.float64).T, nearest, 1)
    np.testing.assert_allclose(scores, by_sorting(queries, keys, 20)[1], rtol=0, atol=1e-15)
    assert sum(again) == 3


def test_top_k_gives_the_same_bytes_for_all_blocks_and_screens(any_mesh, monkeypatch):
    rng = np.random.default_rng(2)
    keys, queries = unit(rng, 5000, 64), unit(rng, 40, 64)
    with monkeypatch.context() as patch:
        patch.setattr(dense, "HOST_WORK", queries.size * len(keys))
        first = top_k(queries, keys, 10)  # by the host alone
    for block, screen in [
        ((1024, 32768), None),
        ((7, 640), "float32"),
        ((1024, 32768), "bfloat16"),
        ((40, 1000), "bfloat16"),
    ]:
        for a, b in zip(first, top_k(queries, keys, 10, block=block, screen=screen), strict=True):
            assert a.tobytes() == b.tobytes(), (block, screen)


def test_keys_with_lower_scores_than_padding_are_found(any_mesh, devices_only):
    keys = np.full((40, 1), -4.0, np.float32)
    keys[[30, 31, 33], 0] = [-3.0, -1.0, -2.0]
    nearest, scores = top_k(np.ones((1, 1), np.float32), keys, 3, screen="float32")
    assert nearest.tolist() == [[31, 33, 30]] and scores.tolist() == [[-1.0, -2.0, -3.0]]


@pytest.mark.parametrize("queries, keys, shape", [(0, 5, (0, 3)), (4, 0, (4, 0)), (0, 0, (0, 0))])
def test_an_empty_search_gives_empty_arrays(queries, keys, shape, mesh):
    nearest, scores = top_k(np.zeros((queries, 2), np.float32), np.zeros((keys, 2), np.float32), 3)
    assert nearest.shape == scores.shape == shape


def test_keys_may_be_a_memory_map_in_half_precision(tmp_path, mesh, devices_only):
    rng = np.random.default_rng(3)
    keys = np.memmap(tmp_path / "keys", np.float16, "w+", shape=(3000, 16))
    keys[:] = unit(rng, 3000, 16)
    queries = unit(rng, 4, 16)
    assert (
        top_k(queries, keys, 5, block=(1024, 512))[0].tolist()
        == by_sorting(queries, np.array(keys), 5)[0].tolist()
    )


@pytest.mark.slow
def test_top_k_compiles_few_programs_for_all_sizes(mesh, devices_only):
    rng = np.random.default_rng(4)
    queries = unit(rng, 16, 8)
    before = dense._update_candidates._cache_size()
    for n in range(1000, 9000, 125):
        top_k(queries, unit(rng, n, 8), 4, block=(1024, 1024))
    assert dense._update_candidates._cache_size() - before <= 16


@pytest.mark.parametrize("scale", [1, 1e18])
def test_few_queries_are_searched_on_the_host_with_equal_results(scale, monkeypatch):
    """Of equal keys the first ones, also where products in float32 overflow or are one number."""
    rng = np.random.default_rng(0)
    vectors = np.concatenate([unit(rng, 5000, 40), np.tile(unit(rng, 1, 40), (3000, 1))]) * scale
    queries, vectors = vectors[[3, 7000, 4999]].astype(np.float32), vectors.astype(np.float32)
    monkeypatch.setattr(dense, "HOST_WORK", 0)
    monkeypatch.setattr(dense, "_candidates", None)  # no device is asked
    wanted, values = by_sorting(queries, vectors, 9)
    for keys in (dense.Keys(vectors), vectors):
        positions, scores = top_k(queries, keys, 9)
        assert positions.tolist() == wanted.tolist()
        np.testing.assert_allclose(scores, values, rtol=1e-6)


def test_keys_that_fit_the_device_are_sent_once(two_meshes, devices_only, monkeypatch):
    rng = np.random.default_rng(0)
    vectors, queries = unit(rng, 700, 8), unit(rng, 5, 8)
    monkeypatch.setattr(dense, "HOST_QUERIES", 0)  # otherwise the host would search
    sent, send = [], dense._device_blocks
    monkeypatch.setattr(dense, "_device_blocks", lambda *given: sent.append(given) or send(*given))
    wanted = [x.tolist() for x in top_k(queries, vectors, 9)]
    for fits, times in ((False, 2), (True, 1)):
        sent.clear()
        monkeypatch.setattr(dense.Keys, "_fits", lambda self, dtype, fits=fits: fits)
        keys = dense.Keys(vectors)
        assert keys[:] is keys and keys[3:5].tolist() == vectors[3:5].tolist()
        for _ in range(2):
            assert [x.tolist() for x in top_k(queries, keys, 9)] == wanted
        assert len(sent) == times


def test_a_device_holds_its_share_of_a_block(any_mesh):
    blocks = [keys for _, _, keys in dense._device_blocks(np.ones((5000, 4), np.float32), 2048)]
    assert sum(map(len, blocks)) >= 5000
    for keys in blocks:
        assert {shard.data.shape for shard in keys.addressable_shards} == {
            (len(keys) // batch_multiple(), 4)
        }


@pytest.mark.parametrize("few", [0, 1 << 22], ids=["devices", "host"])
@pytest.mark.parametrize(
    "where, value", [("queries", np.nan), ("keys", np.inf), ("keys", -np.inf), ("keys", np.nan)]
)
def test_a_non_finite_vector_is_named(where, value, few, two_meshes, monkeypatch):
    monkeypatch.setattr(dense, "HOST_WORK", few)
    arrays = {"queries": np.ones((3, 4), np.float32), "keys": np.ones((700, 4), np.float32)}
    arrays[where][2, 1] = value
    with pytest.raises(ValueError, match=rf"{where}\[2\] holds a number that is not finite"):
        top_k(**arrays, k=2, block=(2, 256))


@pytest.mark.parametrize(
    "queries, keys, k, options, message",
    [
        (
            (2, 3),
            (5, 4),
            1,
            {},
            r"queries \(2, 3\) and keys \(5, 4\): both must be matrices of one width",
        ),
        ((3,), (5, 3), 1, {}, "both must be matrices"),
        ((2, 3), (5, 3), 0, {}, "k=0: must be at least 1"),
        ((2, 3), (5, 3), 1, {"screen": "int8"}, "screen='int8'"),
    ],
)
def test_invalid_arguments_of_a_search_are_refused(queries, keys, k, options, message, mesh):
    with pytest.raises(ValueError, match=message):
        top_k(np.ones(queries, np.float32), np.ones(keys, np.float32), k, **options)


@settings(deadline=None, max_examples=30)
@given(
    st.integers(0, 2**32),
    st.integers(1, 300),
    st.integers(-30, 15),
    st.integers(-30, 15),
    st.booleans(),
)
def test_rounded_products_stay_within_the_error_bound(seed, width, left, right, cancels):
    rng = np.random.default_rng(seed)
    x, y = (rng.standard_normal((8, width)) * 10.0**scale for scale in (left, right))
    if cancels:
        # Many large terms that add up to little.
        x, y = np.concatenate([x, x], 1), np.concatenate([y, -y * (1 + 1e-4)], 1)
    x, y = x.astype(np.float32), y.astype(np.float32)
    exact = x.astype(np.float64) @ y.astype(np.float64).T
    for dtype in map(np.dtype, (np.float32, dense.jnp.bfloat16)):
        (a, *x_measured), (b, *y_measured) = dense._measure(x, dtype), dense._measure(y, dtype)
        error = dense.error_bound(
            [np.asarray(m)[:, None] for m in x_measured],
            [np.asarray(m) for m in y_measured],
            x.shape[1],
        )
        assert (np.abs(np.asarray(dense._product(a, b), np.float64) - exact) <= error).all()


def test_the_error_bound_is_tight():
    x, y = (unit(np.random.default_rng(i), 4, 1024) for i in range(2))
    measured = lambda x: [float(np.max(m)) for m in dense._measure(x, dense.jnp.bfloat16)[1:]]
    # Each of two factors is rounded by at most 2^-8 of itself; as measured, by half of that.
    assert dense.error_bound(measured(x), measured(y), 1024) < 0.6 * 2 * 2**-8


PAIR_SCREENS = [None, "float32", "bfloat16", "subspace"]


def normalised(x: np.ndarray) -> np.ndarray:
    return (x / np.linalg.norm(x, axis=-1, keepdims=True)).astype(np.float32)


def clusters(n: int, width: int) -> np.ndarray:
    """Unit vectors about a tenth as many centres."""
    rng = np.random.default_rng(n)
    draw = lambda n: normalised(rng.normal(size=(n, width)))
    return normalised(draw(n // 10)[rng.integers(0, n // 10, n)] + 0.5 * draw(n))


def pairs_by_hand(vectors: np.ndarray, threshold: float) -> dict[tuple[int, int], float]:
    cosines = vectors.astype(np.float64) @ vectors.astype(np.float64).T
    return {
        (i, j): cosines[i, j] for i, j in np.argwhere(np.triu(cosines >= threshold, 1)).tolist()
    }


@pytest.mark.parametrize("screen", PAIR_SCREENS)
@pytest.mark.parametrize("block", [1, 64, 1024])
def test_near_pairs_equal_a_loop_over_all_pairs(block, screen, two_meshes, devices_only):
    # The unit vectors have exact products: cosines are multiples of a half, so some equal the
    # threshold.
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
@pytest.mark.parametrize("screen", PAIR_SCREENS)
def test_near_pairs_of_random_vectors_equal_a_plain_computation(
    screen, threshold, two_meshes, devices_only
):
    vectors = clusters(600, 32)
    expected = pairs_by_hand(vectors, threshold)
    pairs, cosines = near_pairs(vectors, threshold, screen=screen, block=256)
    assert list(map(tuple, pairs.tolist())) == sorted(expected)
    np.testing.assert_allclose(cosines, [expected[pair] for pair in sorted(expected)], atol=1e-7)


def test_pairs_near_the_threshold_are_decided_in_float64(two_meshes, devices_only):
    # Cosines a float32 product cannot tell from the threshold, on both sides of it.
    rng = np.random.default_rng(5)
    centre, across = (
        np.linalg.qr(rng.normal(size=(256, 101)))[0].T[0],
        np.linalg.qr(rng.normal(size=(256, 101)))[0].T,
    )
    cosines = 0.8 + np.linspace(-3e-7, 3e-7, 101)
    across = normalised(across - (across @ centre)[:, None] * centre).astype(np.float64)
    vectors = normalised(
        np.concatenate(
            [centre[None], cosines[:, None] * centre + np.sqrt(1 - cosines**2)[:, None] * across]
        )
    )
    expected = pairs_by_hand(vectors, 0.8)
    with_centre = [j for i, j in expected if i == 0]
    assert 20 < len(with_centre) < 80
    for screen in PAIR_SCREENS:
        for block in (32, 1024):
            pairs, _ = near_pairs(vectors, 0.8, block=block, screen=screen)
            assert list(map(tuple, pairs.tolist())) == sorted(expected), (screen, block)


def test_near_pairs_give_the_same_bytes_for_all_blocks_and_screens(any_mesh):
    vectors = clusters(900, 64)
    first = near_pairs(vectors, 0.75)
    assert 500 < len(first[0]) < 50_000
    for screen in PAIR_SCREENS:
        for block in (96, 512):
            for a, b in zip(
                first, near_pairs(vectors, 0.75, block=block, screen=screen), strict=True
            ):
                assert a.tobytes() == b.tobytes(), (block, screen)


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 2**32), st.integers(1, 40), st.floats(0, 2), st.floats(0, 3))
def test_products_of_projected_vectors_are_not_smaller(seed, width, decay, common):
    rng = np.random.default_rng(seed)
    vectors = normalised(
        rng.normal(size=(200, width)) * np.arange(1, width + 1) ** -decay
        + common * np.eye(width)[0]
    )
    projected = dense._projected(vectors, 0.9)
    wide = lambda x: x.astype(np.float64) @ x.astype(np.float64).T
    assert (wide(projected) >= wide(vectors) - 1e-6).all()
    np.testing.assert_allclose(np.linalg.norm(projected, axis=1), 1, atol=2e-6)


@pytest.mark.parametrize(
    "decay, common, threshold, width",
    [
        (0.4, 0, 0.8, 64),
        (0, 0, 0.8, 128),
        (0, 0, 0.2, 256),
        (0.4, 0.05, 0.8, 128),
        (0, 0.1, 0.8, 256),
    ],
)
def test_the_projection_width_follows_the_spread_of_the_vectors(decay, common, threshold, width):
    rng = np.random.default_rng(6)
    vectors = normalised(
        normalised(rng.normal(size=(4000, 256)) * np.arange(1, 257) ** -decay) + common
    )
    assert dense._projected(vectors, threshold).shape == (4000, width)


def test_near_pairs_never_allocates_a_matrix_of_all_pairs(mesh):
    vectors = clusters(6000, 32)
    near_pairs(vectors, 0.8)
    tracemalloc.start()
    pairs, _ = near_pairs(vectors, 0.8)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(pairs) > 1000 and peak < 6000 * 6000 / 2


@pytest.mark.parametrize("n", [0, 1])
def test_fewer_than_two_vectors_have_no_pairs(n, mesh):
    pairs, cosines = near_pairs(np.ones((n, 1), np.float32), 0.8)
    assert pairs.shape == (0, 2) and cosines.shape == (0,)


@pytest.mark.parametrize("n", [20, 3000], ids=["host", "devices"])
@pytest.mark.parametrize(
    "value, message",
    [
        (np.nan, r"vectors\[7\] holds a number that is not finite"),
        (np.inf, r"vectors\[7\] holds a number"),
        (1.01, r"vectors\[7\] has norm 1\.01"),
        (0, r"vectors\[7\] has norm 0: divide each by its norm"),
    ],
)
def test_a_vector_without_unit_length_is_named(value, message, n, mesh):
    vectors = np.tile(np.eye(4, dtype=np.float32)[0], (n, 1))
    vectors[7, 0] = value
    with pytest.raises(ValueError, match=message):
        near_pairs(vectors, 0.8)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"threshold": 1.5}, "threshold=1.5"),
        ({"threshold": np.nan}, "threshold=nan"),
        ({"threshold": 0.8, "screen": "int8"}, "screen='int8'"),
    ],
)
def test_invalid_arguments_of_near_pairs_are_refused(options, message, mesh):
    with pytest.raises(ValueError, match=message):
        near_pairs(np.eye(4, dtype=np.float32), **options)
