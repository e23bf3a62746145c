"""Exact search by inner product: the best keys of each query, and all pairs above a threshold.

Inner products of float32 vectors are computed in float64 on the host, one pair at a time in a fixed
order, so results do not depend on blocks, mesh or device. Because this is slow, the devices screen
first: their float32 or bfloat16 products have a bounded error and leave few pairs undecided.
Queries that the screen cannot prove are searched again.

Only a few queries for many `Keys` on a CPU may miss a key: signs choose those that are compared.
"""

import functools
from collections.abc import Iterable, Iterator

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P
from jaxtyping import Float, Int, Num, UInt32
from numpy.typing import ArrayLike

from ark_jax import layout
from ark_jax.retrieval.nearest import (
    Norms,
    as_float64,
    best_of,
    check_finite,
    error_bound,
    limit_pairs,
    longest_of,
    norms_of,
    top_k_on_host,
)
from ark_jax.retrieval.screen import Signs
from ark_jax.runtime.accelerator import device_in_use
from ark_jax.runtime.log import say
from ark_jax.text.tokens import round_rows, round_up

HOST_WORK = 1 << 22  # multiplications below which the host is faster than a call to a device
UNDECIDED = 1e-3  # share of pairs that costs the host a tenth of what all products cost the devices
GROUP = 32  # keys that are represented by their maximum until the best groups are known
WORD = 32  # columns of a mask that share an integer
SIGNED_KEYS = 200_000  # keys from which on their signs choose those that are compared with
HOST_QUERIES = 128  # queries, at most, that the host serves faster: it copies no keys
KEYS_PER_QUERY = 50_000  # from which on signs choose: one product serves all queries
PROBES = 64  # keys whose nearest ones the signs must find
PROBE_RECALL = 0.999  # of their ten nearest
CACHE_SHARE = 1 / 8  # of a device's memory, at most, holds keys for the next search
MeasuredBlock = tuple[int, int, jax.Array, Norms]  # first row, rows, the rounded rows, norms


class Keys:
    """Vectors `[n e]` for several searches. Accelerators keep them, rounded, where they fit.

    The vectors must not change.
    """

    def __init__(self, vectors: np.ndarray):
        self.vectors = vectors
        self._kept: dict[tuple, list[MeasuredBlock]] = {}

    def __len__(self) -> int:
        return len(self.vectors)

    def __getitem__(self, rows) -> "np.ndarray | Keys":
        is_all = isinstance(rows, slice) and rows.indices(len(self)) == (0, len(self), 1)
        return self if is_all else self.vectors[rows]

    def blocks(self, size: int, dtype: jnp.dtype) -> Iterable[MeasuredBlock]:
        """Blocks of at most about `size` rows on the devices, rounded to `dtype`."""
        if self._fits(dtype):
            if (size, dtype) not in self._kept:
                self._kept[size, dtype] = list(_measured_blocks(self.vectors, size, dtype))
            return self._kept[size, dtype]
        return _measured_blocks(self.vectors, size, dtype)

    @functools.cached_property
    def signs(self) -> Signs | None:
        """What chooses keys for few queries; None if they are few or their signs say too little."""
        if len(self) < SIGNED_KEYS or device_in_use().platform != "cpu":
            return None
        signs, step = Signs(self.vectors), len(self) // PROBES
        probes = np.asarray(self.vectors[::step], np.float32)
        _, wanted = top_k(probes, self.vectors, 10)
        _, found = _top_k_of_chosen(probes, self, 10, signs)
        # Scores, since equal keys may take each other's places.
        return signs if np.mean(found >= wanted[:, -1:]) >= PROBE_RECALL else None

    @functools.cached_property
    def longest(self) -> float:
        """The largest norm."""
        return longest_of(self.vectors)

    def _fits(self, dtype: jnp.dtype) -> bool:
        """Whether a device has memory to keep its share of the rounded keys."""
        memory = (jax.local_devices()[0].memory_stats() or {}).get("bytes_limit", 0)
        share = self.vectors.size * dtype.itemsize / layout.batch_multiple()
        return share <= CACHE_SHARE * memory


def top_k(
    queries: np.ndarray,
    keys: np.ndarray | Keys,
    k: int,
    *,
    block: tuple[int, int] | None = None,
    screen: str | None = None,
) -> tuple[Int[np.ndarray, "q k"], Float[np.ndarray, "q k"]]:
    """Indices and scores of the k best keys `[n e]` of each query `[q e]`, best first.

    Of equal keys the lower index is first. With fewer than k keys all are returned. Keys may be a
    memory map: they are sent to the devices in blocks, each device searches its share, and the
    candidates are merged.

    Args:
        queries: the vectors to search for.
        keys: the vectors to search; `Keys` if they will be searched again.
        k: number of keys per query.
        block: numbers of queries and keys of one matrix product; None suits the device.
            Without it and `screen` the host of a CPU searches alone for HOST_QUERIES queries.
        screen: "float32" or "bfloat16", with equal results at different speed; None is bfloat16 on
            accelerators.

    Raises:
        ValueError: k is below 1, widths differ, or a vector is not finite.
    """
    sent = keys if isinstance(keys, Keys) else None
    keys = keys.vectors if isinstance(keys, Keys) else keys
    queries = np.asarray(queries, np.float32)
    if queries.ndim != 2 or keys.ndim != 2 or queries.shape[1] != keys.shape[1]:
        raise ValueError(
            f"queries {queries.shape} and keys {keys.shape}: both must be matrices of one width"
        )
    if k < 1:
        raise ValueError(f"k={k}: must be at least 1")
    dtype, is_cpu = _screen_dtype(screen), device_in_use().platform == "cpu"
    on_host = is_cpu and screen is None and block is None
    # On a CPU the products of a block stay in memory that is used again and again.
    block = block or (128 if is_cpu else 1024, 32768)
    n, k = len(keys), min(k, len(keys))
    if not len(queries) or not n:
        return np.zeros((len(queries), k), np.int32), np.zeros((len(queries), k), np.float32)
    # Enough candidates that the last one is rarely within the screen's error of the k-th.
    count = k + 12 if dtype == jnp.float32 else 2 * k + 24
    if n <= count or len(queries) * keys.size <= HOST_WORK:
        return top_k_on_host(queries, keys, k)
    if on_host and len(queries) <= HOST_QUERIES:
        if sent and len(queries) * KEYS_PER_QUERY <= n and sent.signs:
            return _top_k_of_chosen(queries, sent, k, sent.signs)
        return top_k_on_host(queries, keys, k, sent.longest if sent else 0)
    layout.enter_mesh()
    blocks = sent.blocks(block[1], dtype) if sent else _measured_blocks(keys, block[1], dtype)
    candidates = _candidates(queries, blocks, count, block[0], dtype)
    return _proved_top_k(queries, keys, k, block[1], candidates)


def _proved_top_k(
    queries: np.ndarray, keys: np.ndarray, k: int, block: int, candidates: tuple
) -> tuple[Int[np.ndarray, "q k"], Float[np.ndarray, "q k"]]:
    """As `top_k`, from what `_candidates` returns; searches again where these may lack a key."""
    positions, ceiling, query_norms, key_norms = candidates
    positions, values = best_of(positions, _candidate_products(queries, keys, positions), k)
    width = queries.shape[1]
    # No excluded key exceeds `highest`; one may equal the k-th best.
    highest = ceiling + error_bound(query_norms, key_norms, width)
    unproved = np.flatnonzero(highest >= values[:, -1])
    least = values[:, -1] - error_bound((query_norms[0], 0), (key_norms[0], 0), width)
    for start in range(0, len(unproved), 256):
        rows = unproved[start : start + 256]
        positions[rows], values[rows] = _search_again(queries[rows], keys, k, block, least[rows])
    return positions.astype(np.int32), values.astype(np.float32)


def _top_k_of_chosen(
    queries: np.ndarray, keys: Keys, k: int, signs: Signs
) -> tuple[Int[np.ndarray, "q k"], Float[np.ndarray, "q k"]]:
    """As `top_k`, among the keys that signs choose."""
    positions, values = [], []
    for query, chosen in zip(queries, signs.choose(queries, k), strict=True):
        found, best = top_k_on_host(query[None], keys.vectors[chosen], k, keys.longest)
        positions.append(chosen[found])
        values.append(best)
    return np.concatenate(positions).astype(np.int32), np.concatenate(values)


def _candidate_products(queries: np.ndarray, keys: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Inner products of each query with its candidates, float64 `[q c]`."""
    step = max(1, 2**17 // (positions.shape[1] * queries.shape[1]))  # fits into a core's cache
    parts = []
    for start in range(0, len(queries), step):
        rows = slice(start, start + step)
        parts.append(
            np.vecdot(as_float64(queries[rows])[:, None], as_float64(keys[positions[rows]]))
        )
    return np.concatenate(parts)


def near_pairs(
    vectors: Float[np.ndarray, "n e"],
    threshold: float,
    *,
    block: int = 1024,
    screen: str | None = None,
    nearest: int = 0,
) -> tuple[Int[np.ndarray, "s 2"], Float[np.ndarray, " s"]]:
    """All pairs i < j of unit vectors `[n e]` whose cosine is at least `threshold`, sorted, and
    their cosines.

    The upper triangle is computed in tiles; each device has its share of a tile's columns.

    Args:
        vectors: unit vectors.
        threshold: smallest cosine.
        block: rows and columns of a tile.
        screen: "float32" or "bfloat16" as in `top_k`, or "subspace": products in a quarter of the
            width that are never below the cosines, unless in a sample too many reach the threshold.
            None is "subspace" on a CPU with many vectors, and "bfloat16" on accelerators.
        nearest: a pair is left out, with a warning, unless it is one of this many nearest of either
            vector; 0 keeps all. There are then at most n · `nearest` pairs.

    Raises:
        ValueError: a vector does not have unit length, or the threshold is outside -1..1.
    """
    if not -1 <= threshold <= 1:
        raise ValueError(f"threshold={threshold}: a cosine is in -1..1")
    if vectors.ndim != 2:
        raise ValueError(f"vectors {vectors.shape}: must be a matrix, one vector a row")
    n, width = vectors.shape
    if screen is None and device_in_use().platform == "cpu" and n >= 16 * width:
        screen = "subspace"
    dtype = _screen_dtype("float32" if screen == "subspace" else screen)
    _check_unit(norms_of(vectors))
    if n * (n - 1) // 2 * width <= HOST_WORK:
        parts = [_near_among(vectors, *np.triu_indices(n, 1), threshold)]
    else:
        layout.enter_mesh()
        parts = _screened_pairs(
            vectors,
            _projected(vectors, threshold) if screen == "subspace" else vectors,
            threshold,
            block,
            dtype,
        )
    (rows, columns, cosines), total = limit_pairs(parts, n, nearest)
    if len(rows) < total:
        say(
            f"  warning: {total:,} pairs of {n:,} vectors have a cosine of at least {threshold}; "
            f"only the {nearest:,} nearest of each stay, {len(rows):,} pairs: raise the threshold, "
            "which is config.graph.similarity"
        )
    order = np.lexsort((columns, rows))
    return np.stack([rows, columns], 1)[order].astype(np.int32), cosines[order].astype(np.float32)


def inner(
    left: np.ndarray, i: np.ndarray, right: np.ndarray, j: np.ndarray
) -> Float[np.ndarray, " s"]:
    """Inner products of `left[i]` and `right[j]`, float64: `[n e]`, `[s]`, `[m e]`, `[s]`."""
    out = np.empty(len(i))
    step = max(1, 2**17 // left.shape[1])  # fits into a core's cache
    for start in range(0, len(i), step):
        cut = slice(start, start + step)
        out[cut] = np.vecdot(as_float64(left[i[cut]]), as_float64(right[j[cut]]))
    return out


def _screen_dtype(name: str | None) -> jnp.dtype:
    """The dtype in which the devices screen; None suits the device."""
    name = name or ("float32" if device_in_use().platform == "cpu" else "bfloat16")
    if name not in ("float32", "bfloat16"):
        raise ValueError(f'screen={name!r}: must be "float32", "bfloat16" or None')
    return jnp.dtype(name)


def _check_unit(norms: np.ndarray) -> None:
    """Raises ValueError if a norm is not 1."""
    check_finite("vectors", norms)
    if (bad := np.flatnonzero(np.abs(norms - 1) > 1e-3)).size:
        raise ValueError(f"vectors[{bad[0]}] has norm {norms[bad[0]]:.6g}: divide each by its norm")


@functools.partial(jax.jit, static_argnums=1)
def _measure(x, dtype):
    """x rounded, its norms, and the norms of the rounding errors."""
    rounded = x.astype(dtype)
    norm = lambda x: jnp.sqrt(jnp.sum(x * x, axis=-1))
    return rounded, norm(x), norm(x - rounded.astype(jnp.float32))


def _product(
    left: Float[jax.Array, "q e"], right: Float[jax.Array, "n e"]
) -> Float[jax.Array, "q n"]:
    """Inner products, summed in float32."""
    return jnp.einsum(
        "qe,ne->qn", left, right, precision="highest", preferred_element_type=jnp.float32
    )


@jax.jit
def _reach_mask(
    left: Float[jax.Array, "q e"],
    right: Float[jax.Array, "n e"],
    least: Float[jax.Array, " bounds"],
) -> UInt32[jax.Array, "q words"]:
    """Mask of the products that are at least `least`, which is one bound or one for each row.

    An integer holds WORD columns, the first in its lowest bit.
    """
    mask = (_product(left, right) >= least[:, None]).reshape(len(left), -1, WORD).astype(jnp.uint32)
    return jax.sharding.reshard(
        (mask << jnp.arange(WORD, dtype=jnp.uint32)).sum(2, dtype=jnp.uint32), P()
    )


def _unpack_mask(words: jax.Array) -> tuple[np.ndarray, np.ndarray]:
    """Rows and columns of the ones in a mask of `_reach_mask`, row by row."""
    words = np.asarray(words)
    nonzero = np.flatnonzero(words)
    index, bit = np.nonzero(words.ravel()[nonzero, None] >> np.arange(WORD, dtype=np.uint32) & 1)
    row, word = np.divmod(nonzero[index], words.shape[1])
    return row, word * WORD + bit


def _rounded_down(x: ArrayLike) -> np.ndarray | np.floating:
    """float64 -> float32, rounded down."""
    return np.nextafter(np.asarray(x, np.float32), np.float32(-np.inf))


def _device_blocks(vectors: np.ndarray, size: int) -> Iterator[tuple[int, int, jax.Array]]:
    """Blocks: first row, number of rows, and the rows on the devices, padded to few shapes."""
    multiple = WORD * layout.batch_multiple()
    size = round_up(size, multiple)
    for first in range(0, len(vectors), size):
        rows = np.asarray(vectors[first : first + size], np.float32)
        padded = _padded(rows, min(size, round_rows(len(rows), multiple)))
        yield first, len(rows), layout.rows(padded)


def _measured_blocks(vectors: np.ndarray, size: int, dtype: jnp.dtype) -> Iterator[MeasuredBlock]:
    """`_device_blocks`, rounded to `dtype`, with their norms; see `_measure`."""
    for first, length, rows in _device_blocks(vectors, size):
        rounded, *norms = _measure(rows, dtype)
        yield first, length, rounded, norms


def _padded(rows: np.ndarray, size: int) -> np.ndarray:
    """Rows `[n e]`, and zeros after them: `[size e]`."""
    return np.pad(rows, ((0, size - len(rows)), (0, 0))) if len(rows) < size else rows


# --- The best keys --------------------------------------------------------------------------------


def _candidates(
    queries: Float[np.ndarray, "q e"],
    keys: Iterable[MeasuredBlock],
    count: int,
    limit: int,
    dtype: jnp.dtype,
):
    """Screens all keys, with at most about `limit` queries at once.

    Returns:
        `count` candidates of each query `[q c]`, the screened score that no other key exceeds
        `[q]`, the norms of the queries, and the largest norms of the keys.
    """
    size = round_rows(-(-len(queries) // -(-len(queries) // limit)), 1)
    query_blocks = [
        _measure(_padded(queries[start : start + size], size), dtype)
        for start in range(0, len(queries), size)
    ]
    best = [_no_candidates(size, count) for _ in query_blocks]
    key_norms = []
    for first, length, rows, norms in keys:
        # While the devices multiply one block, only the next one is on its way to them.
        jax.block_until_ready(best)
        key_norms.append(norms)
        best = [
            _update_candidates(rounded, rows, first, length, *candidates)
            for (rounded, *_), candidates in zip(query_blocks, best, strict=True)
        ]
    results = [
        (*_merge_shards(*candidates), *norms)
        for candidates, (_, *norms) in zip(best, query_blocks, strict=True)
    ]
    positions, ceiling, *query_norms = (part[: len(queries)] for part in _concatenated(results))
    key_norms = _concatenated(key_norms)
    check_finite("queries", query_norms[0])
    check_finite("keys", key_norms[0])
    return positions, ceiling, query_norms, [norms.max() for norms in key_norms]


def _concatenated(blocks: list) -> list[np.ndarray]:
    """Fetches the arrays of several blocks, and concatenates each array over the blocks."""
    return [
        np.concatenate([layout.fetch(x) for x in arrays]) for arrays in zip(*blocks, strict=True)
    ]


def _no_candidates(rows: int, count: int) -> tuple[jax.Array, jax.Array]:
    """Scores and positions before the search, `count` for each device: `[rows c]`."""
    columns = lambda value: layout.put(
        np.full((rows, count * layout.batch_multiple()), value), P(None, layout.BATCH)
    )
    return columns(np.float32(-np.inf)), columns(np.int32(0))


@jax.jit
def _update_candidates(
    queries: Float[jax.Array, "q e"],
    keys: Float[jax.Array, "n e"],
    first: ArrayLike,
    length: ArrayLike,
    scores: Float[jax.Array, "q c"],
    positions: Int[jax.Array, "q c"],
) -> tuple[Float[jax.Array, "q c"], Int[jax.Array, "q c"]]:
    """The best candidates among those so far and a block of keys.

    Args:
        first: position of the first key of the block.
        length: number of keys that are not padding.
        scores, positions: the candidates so far.
    """

    def update_shard(
        queries: Float[jax.Array, "q e"],
        keys: Float[jax.Array, "n e"],
        first: ArrayLike,
        length: ArrayLike,
        scores: Float[jax.Array, "q c"],
        positions: Int[jax.Array, "q c"],
    ) -> tuple[Float[jax.Array, "q c"], Int[jax.Array, "q c"]]:
        start, count = jax.lax.axis_index(layout.BATCH) * len(keys), scores.shape[1]
        columns, new = jnp.arange(len(keys))[None], _product(queries, keys)
        if len(keys) > 2 * GROUP * count:
            # The best keys are in the groups with the best maxima. lax.top_k is slow on wide rows,
            # a maximum is not. The members of a group are far apart, so that maxima are taken of
            # whole vectors.
            groups = lambda products: products.reshape(len(queries), GROUP, -1)
            # Only a last block has padding. To mask all products takes far longer than a maximum.
            maxima = jax.lax.cond(
                start + len(keys) <= length,
                lambda: groups(new).max(1),
                lambda: groups(jnp.where(start + columns < length, new, -jnp.inf)).max(1),
            )
            _, best_groups = jax.lax.top_k(maxima, count)
            columns = best_groups[:, :, None] + jnp.arange(GROUP) * maxima.shape[1]
            columns = columns.reshape(len(queries), -1)
            new = jnp.take_along_axis(new, columns, 1)
        new = jnp.where(start + columns < length, new, -jnp.inf)
        new_positions = jnp.broadcast_to(first + start + columns, new.shape)
        scores, best = jax.lax.top_k(jnp.concatenate([scores, new], 1), count)
        positions = jnp.concatenate([positions, new_positions], 1)
        return scores, jnp.take_along_axis(positions, best, 1)

    columns = P(None, layout.BATCH)
    return jax.shard_map(
        update_shard,
        in_specs=(P(), P(layout.BATCH), P(), P(), columns, columns),
        out_specs=(columns, columns),
        check_vma=False,
    )(queries, keys, first, length, scores, positions)


@jax.jit
def _merge_shards(scores, positions):
    """The best keys of all devices `[q c]`, and the score of the last one `[q]`."""
    count = scores.shape[1] // layout.batch_multiple()
    scores, best = jax.lax.top_k(jax.sharding.reshard(scores, P()), count)
    return jnp.take_along_axis(jax.sharding.reshard(positions, P()), best, 1), scores[:, -1]


def _search_again(
    queries: Float[np.ndarray, "q e"],
    keys: Num[np.ndarray, "n e"],
    k: int,
    block: int,
    least: Float[np.ndarray, " q"],
) -> tuple[Int[np.ndarray, "q k"], Float[np.ndarray, "q k"]]:
    """The k best of the keys whose float32 product reaches `least`, and their products."""
    size = round_rows(len(queries), 1)
    left, least = (
        _padded(queries, size),
        np.pad(_rounded_down(least), (0, size - len(queries)), constant_values=np.inf),
    )
    rows, columns = [], []
    for first, count, right in _device_blocks(keys, block):
        row, column = _unpack_mask(_reach_mask(left, right, least))
        rows.append(row[column < count])
        columns.append(column[column < count] + first)
    rows, columns = np.concatenate(rows), np.concatenate(columns)
    values = inner(queries, rows, keys, columns)
    order = np.lexsort((columns, -values, rows))
    best = order[np.searchsorted(rows[order], np.arange(len(queries)))[:, None] + np.arange(k)]
    return columns[best], values[best]


# --- Pairs above a threshold ----------------------------------------------------------------------


def _projected(vectors: Float[np.ndarray, "n e"], threshold: float) -> Float[np.ndarray, "n f"]:
    """Narrower vectors whose products bound those of the vectors from above.

    A vector is projected onto a subspace, and the length of the part outside is one more
    coordinate: the inner product of two such parts is at most the product of their lengths. Where
    the bound would leave too many pairs undecided, the vectors themselves are returned.
    """
    n, width = vectors.shape
    rng = np.random.default_rng(0)
    order = rng.permutation(n)
    sample, probe = as_float64(vectors[order[: 2 * width]]), as_float64(vectors[order[-1024:]])
    # One round of subspace iteration approximates the leading singular vectors of the sample.
    leading, _ = np.linalg.qr(
        sample.T @ (sample @ rng.standard_normal((width, max(width // 4 - 1, 1))))
    )

    def project(x, inside):
        """The part of x in a subspace, by `inside`, and the length of the rest: `[n f]`."""
        part = inside(x)
        # The float64 rounding error is 1e-14, so the length outside is not underestimated.
        outside = np.sqrt(np.maximum(np.vecdot(x, x) - np.vecdot(part, part), 0) + 1e-12)
        return np.concatenate([part, outside[:, None]], 1).astype(np.float32)

    near_share = lambda x: np.mean(x[::2] @ x[1::2].T >= threshold)
    # Embeddings are near few directions; for isotropic vectors half of the coordinates are enough.
    for inside in (lambda x: x @ leading, lambda x: x[:, : width // 2 - 1]):
        if near_share(project(probe, inside)) - near_share(probe) <= UNDECIDED:
            return np.concatenate(
                [
                    project(as_float64(vectors[start : start + 1024]), inside)
                    for start in range(0, n, 1024)
                ]
            )
    return vectors


def _screened_pairs(
    vectors: Float[np.ndarray, "n e"],
    projected: Float[np.ndarray, "n f"],
    threshold: float,
    block: int,
    dtype: jnp.dtype,
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yields the pairs of each tile of the upper triangle, and their cosines.

    Products of the projected vectors screen the pairs, and cosines in float64 decide.
    """
    parts = [(first, *_measure(rows, dtype)) for first, _, rows in _device_blocks(projected, block)]
    longest = [max(float(part[column].max()) for part in parts) for column in (2, 3)]
    least = _rounded_down(threshold - error_bound(longest, longest, vectors.shape[1]))[None]
    for n, (top, left, *_) in enumerate(parts):
        left = jax.sharding.reshard(left, P())
        # A strip is requested at once: the host decides one tile while the devices compute the
        # next.
        for start, words in [
            (start, _reach_mask(left, right, least)) for start, right, *_ in parts[n:]
        ]:
            i, j = _unpack_mask(words)
            i, j = i + top, j + start
            upper = (i < j) & (j < len(vectors))
            yield _near_among(vectors, i[upper], j[upper], threshold)


def _near_among(
    vectors: Float[np.ndarray, "n e"],
    i: Int[np.ndarray, " pairs"],
    j: Int[np.ndarray, " pairs"],
    threshold: float,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The pairs (i, j) whose cosine is at least the threshold, and their cosines."""
    cosines = inner(vectors, i, vectors, j)
    near = cosines >= threshold
    return i[near], j[near], cosines[near]
