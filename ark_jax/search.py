"""Exact neighbours by inner product: the best keys of every query, and all pairs above a threshold.

The inner product of two float32 vectors is taken here in float64, one pair at a time in one order, so an answer depends
on no block, mesh or device. That is dear, so devices screen first: matrix products in float32 or bfloat16, whose
distance from the inner product is bounded, leave few pairs open, and what the screen cannot prove is searched again.
"""

import functools
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P
from jaxtyping import Float, Int

from ark_jax import layout
from ark_jax.text.tokens import round_rows, round_up

FEW = 1 << 22  # multiplications that the host is done with sooner than a device is asked
OPEN = 1e-3  # of all pairs: so many cost the host a tenth of what their full products would cost the devices
GROUP = 32  # keys that stand for one until the best groups are known
WORD = 32  # columns of a threshold's mask in one integer: a mask has a fixed shape and is 32 times smaller than scores
Measured = tuple[np.ndarray, np.ndarray]  # norms of vectors, and of what rounding took from them


def top_k(
    queries: Float[np.ndarray, "q e"], keys: Float[np.ndarray, "n e"], k: int, *, block: tuple[int, int] = (1024, 32768),
    screen: str | None = None,
) -> tuple[Int[np.ndarray, "q k"], Float[np.ndarray, "q k"]]:
    """Indices and scores of the k best keys of each query, best first; the lower index among equals.

    With fewer than k keys all of them are returned. Keys may be a memory map: they pass the devices in blocks, each
    device searches its share of a block, and the candidates of all are merged.

    Args:
        block: queries and keys of one product.
        screen: "float32" or "bfloat16", with one answer at different speed; None is bfloat16 on accelerators.

    Raises:
        ValueError: k below 1, widths that differ, or a vector that is not finite, with its row.
    """
    queries = np.asarray(queries, np.float32)
    if queries.ndim != 2 or keys.ndim != 2 or queries.shape[1] != keys.shape[1]:
        raise ValueError(f"queries {queries.shape} and keys {keys.shape}: both must be matrices of one width")
    if k < 1:
        raise ValueError(f"k={k}: must be at least 1")
    dtype = _screen(screen)
    n, k = len(keys), min(k, len(keys))
    if not len(queries) or not n:
        return np.zeros((len(queries), k), np.int32), np.zeros((len(queries), k), np.float32)
    # Beyond k, as many that the last of them rarely comes within the screen's error of the k-th.
    many = k + 12 if dtype == jnp.float32 else 2 * k + 24
    everything = n <= many or len(queries) * keys.size <= FEW
    if everything:
        _check_finite("queries", _norms(queries))
        _check_finite("keys", _norms(keys))
        found, values = np.tile(np.arange(n), (len(queries), 1)), np.vecdot(_wide(queries)[:, None], _wide(keys))
    else:
        layout.enter_mesh()
        found, left, x, y = _candidates(queries, keys, many, block, dtype)
        step = max(1, 2**17 // (many * queries.shape[1]))  # as in `inner`, where both sides are gathered
        values = np.concatenate([np.vecdot(_wide(queries[at : at + step])[:, None], _wide(keys[found[at : at + step]]))
                                 for at in range(0, len(queries), step)])
    order = np.lexsort((found, -values))[:, :k]
    found, values = np.take_along_axis(found, order, 1), np.take_along_axis(values, order, 1)
    if not everything:
        width = queries.shape[1]
        # A key that was left may be as good as the k-th where the screen cannot tell them apart.
        unproved = np.flatnonzero(left + _error(x, y, width) >= values[:, -1])
        least = values[:, -1] - _error((x[0], 0), (y[0], 0), width)
        for at in range(0, len(unproved), 256):
            some = unproved[at : at + 256]
            found[some], values[some] = _search_again(queries[some], keys, k, block[1], least[some])
    return found.astype(np.int32), values.astype(np.float32)


def near_pairs(
    vectors: Float[np.ndarray, "n e"], threshold: float, *, block: int = 1024, screen: str | None = None
) -> tuple[Int[np.ndarray, "s 2"], Float[np.ndarray, "s"]]:
    """All pairs i < j of unit vectors whose cosine is at least `threshold`, sorted, and their cosines.

    Tiles of `block` rows and columns, the upper triangle only; of every tile each device has its share of columns.

    Args:
        screen: "float32" or "bfloat16" as in `top_k`, or "subspace": products of a quarter of the width that are never below
            the cosines, unless a sample says that too many would reach the threshold. None is that on a CPU, if the
            vectors are many, and bfloat16 on accelerators.

    Raises:
        ValueError: a vector that is not of unit length, with its row, or a threshold outside -1..1.
    """
    if not -1 <= threshold <= 1:
        raise ValueError(f"threshold={threshold}: a cosine lies in -1..1")
    if vectors.ndim != 2:
        raise ValueError(f"vectors {vectors.shape}: must be a matrix, one vector a row")
    n, width = vectors.shape
    if screen is None and jax.default_backend() == "cpu" and n >= 16 * width:
        screen = "subspace"
    dtype = _screen("float32" if screen == "subspace" else screen)
    _check_unit(_norms(vectors))
    if n * (n - 1) // 2 * width <= FEW:
        parts = [_decide(vectors, *np.triu_indices(n, 1), threshold)]
    else:
        layout.enter_mesh()
        parts = _tiles(vectors, _shadows(vectors, threshold) if screen == "subspace" else vectors, threshold, block, dtype)
    rows, columns, cosines = map(np.concatenate, zip(*parts, strict=True))
    order = np.lexsort((columns, rows))
    return np.stack([rows, columns], 1)[order].astype(np.int32), cosines[order].astype(np.float32)


def inner(left: np.ndarray, i: np.ndarray, right: np.ndarray, j: np.ndarray) -> Float[np.ndarray, "s"]:
    """Inner products of `left[i]` and `right[j]`, float64: `[n e]`, `[s]`, `[m e]`, `[s]`."""
    out = np.empty(len(i))
    step = max(1, 2**17 // left.shape[1])  # what stays in a core's cache
    for at in range(0, len(i), step):
        cut = slice(at, at + step)
        out[cut] = np.vecdot(_wide(left[i[cut]]), _wide(right[j[cut]]))
    return out


def _wide(x: np.ndarray) -> np.ndarray:
    return np.asarray(x, np.float32).astype(np.float64)


def _screen(name: str | None) -> jnp.dtype:
    name = name or ("float32" if jax.default_backend() == "cpu" else "bfloat16")
    if name not in ("float32", "bfloat16"):
        raise ValueError(f'screen={name!r}: must be "float32", "bfloat16" or None')
    return jnp.dtype(name)


def _norms(x: np.ndarray) -> np.ndarray:
    x = np.asarray(x, np.float32)
    return np.sqrt(np.einsum("ne,ne->n", x, x))


def _check_finite(name: str, norms: np.ndarray) -> None:
    if (bad := np.flatnonzero(~np.isfinite(norms))).size:
        raise ValueError(f"{name}[{bad[0]}] holds a number that is not finite, or too large to be squared in float32")


def _check_unit(norms: np.ndarray) -> None:
    _check_finite("vectors", norms)
    if (bad := np.flatnonzero(np.abs(norms - 1) > 1e-3)).size:
        raise ValueError(f"vectors[{bad[0]}] has norm {norms[bad[0]]:.6g}: divide each by its norm")


def _error(x: Measured, y: Measured, width: int) -> np.ndarray:
    """How far the screen's product of two rounded vectors may lie from their inner product.

    x·y − x̂·ŷ = (x − x̂)·y + x̂·(y − ŷ), at most |x − x̂| |y| + |x̂| |y − ŷ| by Cauchy-Schwarz, with the norms that were
    measured. Adding up e terms in float32 errs by e · 2^-24 |x̂| |ŷ|; four times that, as accelerators truncate.
    """
    # Norms were added up in float32 too; and below 2^-63 a square vanishes.
    (x, dx), (y, dy) = ([1.001 * np.asarray(norm, np.float64) + width**0.5 * 2.0**-62 for norm in side] for side in (x, y))
    return dx * y + (x + dx) * dy + width * 2.0**-22 * (x + dx) * (y + dy)


@functools.partial(jax.jit, static_argnums=1)
def _measure(x, dtype):
    """x rounded, its norms, and the norms of what rounding took."""
    rounded = x.astype(dtype)
    norm = lambda x: jnp.sqrt(jnp.sum(x * x, axis=-1))
    return rounded, norm(x), norm(x - rounded.astype(jnp.float32))


def _product(left, right):
    return jnp.einsum("ae,be->ab", left, right, precision="highest", preferred_element_type=jnp.float32)


@jax.jit
def _above(left, right, least):
    """Which products are at least `least` `[a]` or `[1]`, packed: `[a e]`, `[b e]` by rows -> uint32 `[a b/32]`."""
    mask = (_product(left, right) >= least[:, None]).reshape(len(left), -1, WORD).astype(jnp.uint32)
    return jax.sharding.reshard((mask << jnp.arange(WORD, dtype=jnp.uint32)).sum(2, dtype=jnp.uint32), P())


def _unpack(words: jax.Array) -> tuple[np.ndarray, np.ndarray]:
    """Rows and columns of the ones of such a mask."""
    words = np.asarray(words)
    some = np.flatnonzero(words)
    which, bit = np.nonzero(words.ravel()[some, None] >> np.arange(WORD, dtype=np.uint32) & 1)
    row, at = np.divmod(some[which], words.shape[1])
    return row, at * WORD + bit


def _below(x: np.ndarray) -> np.ndarray:
    """float64 -> float32, rounded down."""
    return np.nextafter(np.asarray(x, np.float32), np.float32(-np.inf))


def _blocks(vectors: np.ndarray, size: int) -> Iterator[tuple[int, int, jax.Array]]:
    """First row, how many rows, and the rows on the devices, padded: their shapes are few whatever the number of rows."""
    multiple = WORD * layout.batch_multiple()
    size = round_up(size, multiple)
    for first in range(0, len(vectors), size):
        some = np.asarray(vectors[first : first + size], np.float32)
        yield first, len(some), layout.rows(_padded(some, min(size, round_rows(len(some), multiple))))


def _padded(rows: np.ndarray, size: int) -> np.ndarray:
    return np.pad(rows, ((0, size - len(rows)), (0, 0))) if len(rows) < size else rows


# --- The best keys ---------------------------------------------------------------------------------------------------

def _candidates(queries, keys, many, block, dtype):
    """Of each query `many` keys `[q c]`, the screened score that no other key exceeds `[q]`, and its measures; of the keys
    the largest measures."""
    size = round_rows(-(-len(queries) // -(-len(queries) // block[0])), 1)
    sides = [_measure(_padded(queries[at : at + size], size), dtype) for at in range(0, len(queries), size)]
    best = [_none(size, many) for _ in sides]
    measured = []
    for first, count, some in _blocks(keys, block[1]):
        # While the devices multiply one block, the next is on its way to them, and no more.
        jax.block_until_ready(best)
        some, *sizes = _measure(some, dtype)
        measured.append(sizes)
        best = [_better(side[0], some, first, count, *old) for side, old in zip(sides, best, strict=True)]
    together = lambda parts: [np.concatenate([layout.fetch(x) for x in some]) for some in zip(*parts, strict=True)]
    found, left, *x = (some[: len(queries)] for some in together((*_merge(*b), *s[1:]) for b, s in zip(best, sides, strict=True)))
    y = together(measured)
    _check_finite("queries", x[0])
    _check_finite("keys", y[0])
    return found, left, x, [some.max() for some in y]


def _none(rows: int, many: int) -> tuple[jax.Array, jax.Array]:
    """Scores and keys of a search that has seen none: on every device its own `many` best `[q c]`."""
    columns = lambda value: layout.put(np.full((rows, many * layout.batch_multiple()), value), P(None, layout.BATCH))
    return columns(np.float32(-np.inf)), columns(np.int32(0))


@jax.jit
def _better(queries, keys, first, count, scores, found):
    """The best so far and of these keys, of which `count` are not padding."""
    def local(queries, keys, first, count, scores, found):
        start, many = jax.lax.axis_index(layout.BATCH) * len(keys), scores.shape[1]
        at, new = jnp.arange(len(keys))[None], _product(queries, keys)
        if len(keys) > 2 * GROUP * many:
            # The best keys lie in the groups with the best maxima. lax.top_k is slow on wide rows, a maximum is not;
            # the members of a group lie far apart, so that maxima are taken of whole vectors.
            groups = jnp.where(start + at < count, new, -jnp.inf).reshape(len(queries), GROUP, -1)
            _, which = jax.lax.top_k(groups.max(1), many)
            at = (which[:, :, None] + jnp.arange(GROUP) * groups.shape[2]).reshape(len(queries), -1)
            new = jnp.take_along_axis(new, at, 1)
        new = jnp.where(start + at < count, new, -jnp.inf)
        at = jnp.broadcast_to(first + start + at, new.shape)
        scores, best = jax.lax.top_k(jnp.concatenate([scores, new], 1), many)
        return scores, jnp.take_along_axis(jnp.concatenate([found, at], 1), best, 1)

    columns = P(None, layout.BATCH)
    return jax.shard_map(local, in_specs=(P(), P(layout.BATCH), P(), P(), columns, columns), out_specs=(columns, columns),
                         check_vma=False)(queries, keys, first, count, scores, found)


@jax.jit
def _merge(scores, found):
    """The best keys of all devices `[q c]`, and the last one's score `[q]`."""
    many = scores.shape[1] // layout.batch_multiple()
    scores, best = jax.lax.top_k(jax.sharding.reshard(scores, P()), many)
    return jnp.take_along_axis(jax.sharding.reshard(found, P()), best, 1), scores[:, -1]


def _search_again(queries, keys, k: int, block: int, least) -> tuple[np.ndarray, np.ndarray]:
    """The k best among all keys whose float32 product is at least `least` `[q]`, and their inner products."""
    size = round_rows(len(queries), 1)
    left, least = _padded(queries, size), np.pad(_below(least), (0, size - len(queries)), constant_values=np.inf)
    rows, columns = [], []
    for first, count, right in _blocks(keys, block):
        row, column = _unpack(_above(left, right, least))
        rows.append(row[column < count])
        columns.append(column[column < count] + first)
    rows, columns = np.concatenate(rows), np.concatenate(columns)
    values = inner(queries, rows, keys, columns)
    order = np.lexsort((columns, -values, rows))
    best = order[np.searchsorted(rows[order], np.arange(len(queries)))[:, None] + np.arange(k)]
    return columns[best], values[best]


# --- Pairs above a threshold -----------------------------------------------------------------------------------------

def _shadows(vectors: Float[np.ndarray, "n e"], threshold: float) -> Float[np.ndarray, "n f"]:
    """Narrower vectors whose products are no smaller; the vectors themselves where too many such products are near.

    Coordinates in a subspace, and the length of what lies outside of it: of that the inner product is at most the product
    of the lengths.
    """
    n, width = vectors.shape
    rng = np.random.default_rng(0)
    order = rng.permutation(n)
    sample, probe = _wide(vectors[order[: 2 * width]]), _wide(vectors[order[-1024:]])
    # One round of subspace iteration comes near the leading singular vectors of the sample.
    leading, _ = np.linalg.qr(sample.T @ (sample @ rng.standard_normal((width, max(width // 4 - 1, 1)))))

    def shadow(x, inside):
        part = inside(x)
        # In float64 the rounding of all this is 1e-14: the length outside is not underestimated.
        outside = np.sqrt(np.maximum(np.vecdot(x, x) - np.vecdot(part, part), 0) + 1e-12)
        return np.concatenate([part, outside[:, None]], 1).astype(np.float32)

    near = lambda x: np.mean(x[::2] @ x[1::2].T >= threshold)
    # Embeddings lie near few directions; of vectors that lie in all alike, half of the coordinates tell enough.
    for inside in (lambda x: x @ leading, lambda x: x[:, : width // 2 - 1]):
        if near(shadow(probe, inside)) - near(probe) <= OPEN:
            return np.concatenate([shadow(_wide(vectors[at : at + 1024]), inside) for at in range(0, n, 1024)])
    return vectors


def _tiles(vectors, shadows, threshold: float, block: int, dtype) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """`_decide` of every tile of the upper triangle, after a screen by the products of the shadows."""
    parts = [(first, *_measure(some, dtype)) for first, _, some in _blocks(shadows, block)]
    longest = [max(float(part[at].max()) for part in parts) for at in (2, 3)]
    least = _below(threshold - _error(longest, longest, vectors.shape[1]))[None]
    for n, (top, left, *_) in enumerate(parts):
        left = jax.sharding.reshard(left, P())
        # All of a strip is asked for at once: the host decides on one tile while the devices are at the next.
        for start, words in [(start, _above(left, right, least)) for start, right, *_ in parts[n:]]:
            i, j = _unpack(words)
            i, j = i + top, j + start
            wanted = (i < j) & (j < len(vectors))
            yield _decide(vectors, i[wanted], j[wanted], threshold)


def _decide(vectors, i, j, threshold: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Those of the pairs that reach the threshold, and their cosines."""
    cosines = inner(vectors, i, vectors, j)
    near = cosines >= threshold
    return i[near], j[near], cosines[near]
