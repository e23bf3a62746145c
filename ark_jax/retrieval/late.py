"""Late interaction: texts are compared by the vectors of their tokens, not by one vector each.

ColBERT (Khattab and Zaharia 2020): each token of a question takes its most similar token of the
passage. Where ColBERT sums these cosines, here they are averaged, which ranks alike and stays
between -1 and 1.

Texts may be stored as `codes` of few bits. Then the signs alone screen a large corpus, and the
texts that they put first are compared exactly, by all bits.
"""

import sys

import numpy as np
from jaxtyping import Float, Int

from ark_jax.retrieval import codes
from ark_jax.retrieval.nearest import top_k_on_host
from ark_jax.text.token_vectors import TokenVectors, Vectors, stack

TOKENS = 8192  # of the texts of one matrix product
ASKED = 512  # tokens of its questions, so that 16 MiB of products stay in a cache
TEXTS = 1024  # texts whose scores are held at once
STARTING = 1 << 27  # multiplications by the host that take less time than jax takes to start
SCREENED = 100  # texts of codes, at least, that are compared exactly; 4 k if that is more
DECIMALS = 5  # of a score, whose last bits depend on the blocks of a product


def nearest(
    queries: Vectors, texts: Vectors, k: int, scope: Int[np.ndarray, " n"] | None = None
) -> tuple[Int[np.ndarray, "q k"], Float[np.ndarray, "q k"]]:
    """Indices and scores of the k best texts of each query, best first; see `dense.top_k`.

    Scores are cosines, of token vectors `maxsim`. Of equal scores the lower index is first. With
    fewer than k texts all are returned. Texts of codes are screened by their signs.

    Args:
        scope: positions of the texts that may be found, to which the indices refer; None: all.
    """
    if not isinstance(texts, TokenVectors):
        texts = texts if scope is None else texts[scope]
        size = texts.size if isinstance(texts, np.ndarray) else 0
        if "jax" not in sys.modules and 0 < len(queries) * size <= STARTING:
            return top_k_on_host(queries, texts, k)
        from ark_jax.retrieval.dense import top_k  # starts jax

        return top_k(queries, texts, k)
    count = len(texts) if scope is None else len(scope)
    k = min(k, count)
    indices, scores = np.zeros((len(queries), k), np.int64), np.zeros((len(queries), k), np.float32)
    is_screened = codes.is_packed(texts) and count > max(SCREENED, 4 * k)
    search = _nearest_by_codes if is_screened else _nearest_by_tokens
    for rows in queries.slices(ASKED if is_screened else TOKENS):
        indices[rows], scores[rows] = search(queries[rows], texts, k, scope)
    return indices, scores


def _nearest_by_codes(
    queries: TokenVectors, texts: TokenVectors, k: int, scope: Int[np.ndarray, " n"] | None
) -> tuple[Int[np.ndarray, "q k"], Float[np.ndarray, "q k"]]:
    """As `nearest`, for texts of codes: signs choose those that all bits rank."""
    from ark_jax.retrieval.screen import screen  # starts jax

    screened = screen(queries, texts, max(SCREENED, 4 * k), scope)
    ranked = [
        _nearest_by_tokens(queries[i : i + 1], texts, k, rows if scope is None else scope[rows])
        for i, rows in enumerate(screened)
    ]
    found, scores = map(np.concatenate, zip(*ranked, strict=True))
    return np.take_along_axis(screened, found, 1), scores


def _nearest_by_tokens(
    queries: TokenVectors, texts: TokenVectors, k: int, scope: Int[np.ndarray, " n"] | None
) -> tuple[Int[np.ndarray, "q k"], Float[np.ndarray, "q k"]]:
    """As `nearest`, for texts of tokens."""
    indices = np.zeros((len(queries), 0), np.int64)
    scores = np.zeros((len(queries), 0), np.float32)
    for start in range(0, len(texts) if scope is None else len(scope), TEXTS):
        rows = slice(start, start + TEXTS)
        new = maxsim(queries, texts[rows if scope is None else scope[rows]])
        new_indices = np.broadcast_to(np.arange(start, start + new.shape[1]), new.shape)
        # The best so far come first, so that a stable sort keeps the lower index first.
        values = np.concatenate([scores, new], axis=1)
        order = np.argsort(-values, axis=1, kind="stable")[:, :k]
        scores = np.take_along_axis(values, order, 1)
        indices = np.take_along_axis(np.concatenate([indices, new_indices], axis=1), order, 1)
    return indices, scores


def similarities(query: np.ndarray, texts: Vectors) -> Float[np.ndarray, " n"]:
    """Cosines of a query with each text.

    No score depends on the other texts: texts of tokens are compared one by one.

    Args:
        query: unit vector `[e]`, or the unit vectors of its tokens `[t e]`.
    """
    if not isinstance(texts, TokenVectors):
        return np.vecdot(texts, query)
    queries = stack([query])
    scores = [maxsim(queries, texts[i : i + 1])[0, 0] for i in range(len(texts))]
    return np.array(scores, np.float32)


def maxsim(queries: TokenVectors, texts: TokenVectors) -> Float[np.ndarray, "q n"]:
    """Mean over the tokens of each query of the largest cosine with a token of each text.

    A text or query without tokens has the score 0.
    """
    scores = np.zeros((len(queries), len(texts)), np.float32)
    if codes.is_packed(texts):  # whose vectors are rotated
        width = queries.values.shape[1]
        queries = TokenVectors(codes.rotate(queries.values), queries.offsets)
        widen = lambda block: TokenVectors(codes.unpack(block.values, width), block.offsets)
    else:
        widen = _as_float32
    for columns in texts.slices(TOKENS):
        block = widen(texts[columns])
        for rows in queries.slices(ASKED):
            scores[rows, columns] = _maxsim_of_block(_as_float32(queries[rows]), block)
    return scores.round(DECIMALS)


def _maxsim_of_block(queries: TokenVectors, texts: TokenVectors) -> Float[np.ndarray, "q n"]:
    """As `maxsim`, by one matrix product."""
    scores = np.zeros((len(queries), len(texts)), np.float32)
    # reduceat takes the number at the start of an empty range, so empty texts are left out.
    asking, filled = (np.flatnonzero(vectors.lengths) for vectors in (queries, texts))
    if len(asking) and len(filled):
        products = queries.values @ texts.values.T
        # The maximum is fast along the rows, where the cosines of a text are contiguous.
        best = np.maximum.reduceat(products, texts.offsets[filled], axis=1)
        sums = np.add.reduceat(best, queries.offsets[asking], axis=0)
        scores[np.ix_(asking, filled)] = sums / queries.lengths[asking][:, None]
    return scores


def pool(texts: TokenVectors, factor: int) -> TokenVectors:
    """Leaves one vector for every `factor` of a text: unit means of Ward's clusters.

    The first vector stays as it is, as in ColBERT's pooling (Clavié et al. 2024).
    """
    if factor == 1:
        return texts
    pooled = (_pool_text(text, factor) for text in texts)
    return TokenVectors.from_texts(pooled, texts.values.shape[1])


def _pool_text(vectors: Float[np.ndarray, "t e"], factor: int) -> Float[np.ndarray, "c e"]:
    """As `pool`, of one text."""
    from scipy.cluster.hierarchy import fcluster, linkage

    first, rest = vectors[:1], vectors[1:]
    if len(rest) < 2:
        return vectors
    tree = linkage(rest.astype(np.float64), "ward")
    numbers = fcluster(tree, -(-len(rest) // factor), "maxclust") - 1
    means = np.zeros((numbers.max() + 1, vectors.shape[1]), np.float32)
    np.add.at(means, numbers, rest)
    return np.concatenate([first, means / np.linalg.norm(means, axis=1, keepdims=True)])


def _as_float32(vectors: TokenVectors) -> TokenVectors:
    """The same finite numbers in 32 bits."""
    values = np.asarray(vectors.values)
    wide = (
        _half_to_float32(values)
        if values.dtype == np.float16
        else values.astype(np.float32, copy=False)
    )
    return TokenVectors(wide, vectors.offsets)


def _half_to_float32(halves: np.ndarray) -> np.ndarray:
    """float16 -> float32, for finite numbers; numpy itself takes eight times as long."""
    bits = halves.view(np.int16).astype(np.int32)
    bits <<= 13
    bits &= ~0x70000000  # the sign, which the conversion has put into all higher bits, stays in one
    wide = bits.view(np.float32)
    wide *= np.float32(2.0**112)  # the exponents of both types begin at other numbers
    return wide
