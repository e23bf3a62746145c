"""MaxSim against a loop over all pairs of tokens."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ark_jax.retrieval import codes, late, screen
from ark_jax.retrieval.array_files import write_array
from ark_jax.retrieval.dense import top_k
from ark_jax.text.token_vectors import TokenVectors

WIDTH = 8
LENGTHS = st.lists(st.integers(0, 5), max_size=9)


def vectors(seed: int, lengths: list[int], dtype: type = np.float32) -> TokenVectors:
    """Unit vectors, of which many occur twice so that texts tie."""
    rng = np.random.default_rng(seed)
    few = rng.standard_normal((6, WIDTH))
    few /= np.linalg.norm(few, axis=1, keepdims=True)
    rows = few[rng.integers(0, 6, sum(lengths))].astype(dtype)
    return TokenVectors(rows, np.cumsum([0, *lengths], dtype=np.int64))


def by_loops(queries: TokenVectors, texts: TokenVectors) -> np.ndarray:
    scores = np.zeros((len(queries), len(texts)))
    for i, query in enumerate(queries):
        for j, text in enumerate(texts):
            if len(query) and len(text):
                best = [max(float(a @ b) for b in text.astype("f8")) for a in query.astype("f8")]
                scores[i, j] = sum(best) / len(best)
    return scores


@pytest.fixture(params=[1, 7, 8192])
def tokens(request, monkeypatch):
    """The tokens of a product, whose number must not change results."""
    monkeypatch.setattr(late, "TOKENS", request.param)
    monkeypatch.setattr(late, "ASKED", max(request.param // 2, 1))
    monkeypatch.setattr(late, "TEXTS", max(request.param % 1024, 1))


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_maxsim_equals_loops_over_tokens(tokens, dtype):
    @settings(max_examples=40)
    @given(LENGTHS, LENGTHS, st.integers(0, 3), st.integers(1, 12))
    def check(asked, written, seed, k):
        queries, texts = vectors(seed, asked), vectors(seed, written, dtype)
        expected = by_loops(queries, texts)
        scores = late.maxsim(queries, texts)
        assert scores.shape == expected.shape and scores.dtype == np.float32
        np.testing.assert_allclose(scores, expected, atol=1e-5)
        indices, best = late.nearest(queries, texts, k)
        # The sizes of products decide the last bits of scores, and so how these are rounded.
        near = {"rtol": 0, "atol": 1.01 * 10**-late.DECIMALS}
        np.testing.assert_allclose(best, -np.sort(-scores, axis=1)[:, :k], **near)
        np.testing.assert_allclose(best, np.take_along_axis(scores, indices, 1), **near)
        falls, ties = best[:, :-1] > best[:, 1:], best[:, :-1] == best[:, 1:]
        assert (falls | (ties & (indices[:, :-1] < indices[:, 1:]))).all()
        for i, query in enumerate(queries):
            np.testing.assert_allclose(late.similarities(query, texts), scores[i], atol=2e-5)

    check()


def test_searching_a_memory_map_equals_searching_in_memory(tmp_path, tokens):
    queries, texts = vectors(0, [3, 1, 4]), vectors(1, [2, 0, 5, 3], np.float16)
    np.save(tmp_path / "values.npy", texts.values)
    mapped = TokenVectors(np.load(tmp_path / "values.npy", mmap_mode="r"), texts.offsets)
    np.testing.assert_array_equal(late.nearest(queries, mapped, 3), late.nearest(queries, texts, 3))


def test_one_vector_per_text_is_searched_by_inner_product():
    keys = vectors(0, [1] * 20).values
    np.testing.assert_array_equal(late.nearest(keys[:3], keys, 4), top_k(keys[:3], keys, 4))
    expected = [float(key @ keys[0]) for key in keys]
    assert late.similarities(keys[0], keys).tolist() == expected


def random(seed: int, lengths: list[int], width: int) -> TokenVectors:
    """Unit vectors that differ from each other."""
    x = np.random.default_rng(seed).standard_normal((sum(lengths), width), np.float32)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    return TokenVectors(x, np.cumsum([0, *lengths], dtype=np.int64))


def packed(texts: TokenVectors, bits: int) -> TokenVectors:
    return TokenVectors(codes.pack(texts.values, bits), texts.offsets)


@pytest.mark.parametrize(("bits", "cosine"), [(1, 0.78), (2, 0.9), (4, 0.98), (8, 0.995)])
def test_maxsim_of_codes_equals_that_of_the_vectors_they_stand_for(bits, cosine, tokens):
    @settings(max_examples=25)
    @given(LENGTHS, LENGTHS, st.integers(0, 99), st.sampled_from([8, 40, 64]))
    def check(asked, written, seed, width):
        queries, texts = random(seed, asked, width), random(seed + 1, written, width)
        stored = packed(texts, bits)
        assert stored.values.shape == (sum(written), bits * -(-width // 32))
        assert codes.is_packed(stored) and not codes.is_packed(texts)
        meant = codes.restore(stored.values, width)
        np.testing.assert_allclose(np.linalg.norm(meant, axis=1), 1, atol=1e-5)
        meant = TokenVectors(meant, texts.offsets)
        near = {"rtol": 0, "atol": 2 * 10**-late.DECIMALS}
        np.testing.assert_allclose(
            late.maxsim(queries, stored), late.maxsim(queries, meant), **near
        )
        best = late.nearest(queries, stored, 3)[1]
        np.testing.assert_allclose(best, late.nearest(queries, meant, 3)[1], **near)

    check()
    texts = random(0, [3000], 64).values
    assert np.vecdot(codes.restore(codes.pack(texts, bits), 64), texts).mean() > cosine


@pytest.mark.parametrize("first", [None, 32])
@pytest.mark.parametrize("bits", codes.BITS)
def test_signs_screen_as_a_loop_over_all_pairs(bits, first, tokens, mesh, monkeypatch):
    monkeypatch.setattr(screen, "SIGNS", late.TOKENS)
    queries = random(0, [3, 0, 1, 17, 20], 40)
    texts = random(1, [2, 0, 5, 1, *[9] * 30, 40], 40)
    signs = [[np.sign(codes.rotate(x)) for x in side] for side in (queries, texts)]

    def apart(width):
        """How many of the first signs differ; an empty text has half of the others'."""
        numbers = np.full((5, 35), 0.0)
        for i, query in enumerate(signs[0]):
            for j, text in enumerate(signs[1]):
                products = query[:, :width] @ text[:, :width].T
                fewest = (
                    (width - products.max(1)) / 2 if products.size else [width // 2] * len(query)
                )
                numbers[i, j] = np.sum(fewest)
        return numbers

    whole = apart(40)
    if first:  # these signs choose 11 texts
        monkeypatch.setattr(screen, "FIRST", first)
        monkeypatch.setattr(screen, "WHOLE", 11)
        beyond = np.argsort(apart(first), axis=1, kind="stable")[:, 11:]
        np.put_along_axis(whole, beyond, np.inf, axis=1)
    expected = np.sort(np.argsort(whole, axis=1, kind="stable")[:, :2], axis=1)
    found = screen.screen(queries, packed(texts, bits), 2)
    np.testing.assert_array_equal(found, expected)
    scope = np.arange(0, 35, 2)  # few enough to compare all signs
    found = screen.screen(queries, packed(texts, bits), 2, scope)
    expected = np.argsort(apart(40)[:, scope], axis=1, kind="stable")[:, :2]
    np.testing.assert_array_equal(found, np.sort(expected, axis=1))


@pytest.mark.parametrize("by_columns", [True, False])
def test_a_screened_search_ranks_by_all_bits(by_columns, tmp_path, mesh):
    texts = packed(random(3, [12] * (3 * late.SCREENED), 64), 2)
    write_array(
        tmp_path / "x.npy",
        texts.values.shape,
        codes.DTYPE,
        [texts.values[:999], texts.values[999:]],
        by_columns=by_columns,
    )
    mapped = TokenVectors(np.load(tmp_path / "x.npy", mmap_mode="r"), texts.offsets)
    assert mapped.values.flags.f_contiguous == by_columns
    noise = random(4, [40], 64).values / 2
    near = codes.restore(texts.values[::90], 64) + noise
    queries = TokenVectors(near / np.linalg.norm(near, axis=1, keepdims=True), np.arange(0, 41, 4))
    all_scores = late.maxsim(queries, texts)
    indices, scores = late.nearest(queries, mapped, 3)
    np.testing.assert_array_equal(indices, np.argsort(-all_scores, kind="stable")[:, :3])
    np.testing.assert_allclose(scores, np.take_along_axis(all_scores, indices, 1), atol=2e-5)


@pytest.mark.parametrize("seed", range(3))
def test_a_similarity_does_not_depend_on_the_other_texts(seed):
    query, texts = vectors(seed, [4])[0], vectors(seed + 1, [3, 0, 7, 2], np.float16)
    alone = [late.similarities(query, texts[i : i + 1])[0] for i in range(4)]
    np.testing.assert_array_equal(late.similarities(query, texts), alone)


def test_every_finite_float16_is_widened_exactly():
    numbers = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    numbers = numbers[np.isfinite(numbers)]
    wide = late._half_to_float32(numbers)
    np.testing.assert_array_equal(wide, numbers.astype(np.float32))
    np.testing.assert_array_equal(np.signbit(wide), np.signbit(numbers))


def test_similar_tokens_of_a_text_are_pooled():
    texts = random(5, [1, 2, 3, 7, 0], WIDTH)
    assert late.pool(texts, 1) is texts
    assert late.pool(texts, 2).lengths.tolist() == [1, 2, 2, 4, 0]
    twice = np.concatenate([texts[3][:1], texts[3][1:], texts[3][:0:-1]])
    pooled = late.pool(TokenVectors(twice, np.array([0, 13])), 2)[0]
    np.testing.assert_array_equal(pooled[0], texts[3][0])
    order = [np.argsort(x[:, 0]) for x in (pooled[1:], texts[3][1:])]
    np.testing.assert_allclose(pooled[1:][order[0]], texts[3][1:][order[1]], atol=1e-6)
