"""Exact nearest neighbours by inner product, keys sharded over the mesh's batch axes."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P
from jaxtyping import Float, Int

from ark_jax import layout
from ark_jax.text.tokens import round_rows


def top_k(
    queries: Float[np.ndarray, "q e"], keys: Float[np.ndarray, "n e"], k: int, *, block: int = 1024
) -> tuple[Int[np.ndarray, "q k"], Float[np.ndarray, "q k"]]:
    """Indices and scores of the k best keys of each query, best first; the lower index among equals.

    With fewer than k keys all of them are returned. Every device searches its own keys; the candidates of
    all are merged.
    """
    n, k = len(keys), min(k, len(keys))
    if not len(queries) or not n:
        return np.zeros((len(queries), k), np.int32), np.zeros((len(queries), k), np.float32)
    multiple = layout.batch_multiple()
    # Padded to a power of two: few compilations whatever the sizes.
    size = round_rows(max(n, k * multiple), multiple)
    padded = layout.rows(np.concatenate([keys, np.zeros((size - n, keys.shape[1]), np.float32)]))
    indices, scores = [], []
    for at in range(0, len(queries), block):
        some = queries[at : at + block]
        rows = np.zeros((round_rows(len(some), 1), keys.shape[1]), np.float32)
        rows[: len(some)] = some
        found, values = _top_k(rows, padded, n, k)
        indices.append(np.asarray(found)[: len(some)])
        scores.append(np.asarray(values)[: len(some)])
    return np.concatenate(indices), np.concatenate(scores)


@functools.partial(jax.jit, static_argnums=3)
def _top_k(queries, keys, n, k: int):
    batch = P(layout.BATCH)

    def local(queries, keys, n):
        first = jax.lax.axis_index(layout.BATCH) * len(keys)
        scores = jnp.einsum("qe,ne->qn", queries, keys, preferred_element_type=jnp.float32)
        scores = jnp.where(first + jnp.arange(len(keys)) < n, scores, -jnp.inf)
        values, found = jax.lax.top_k(scores, k)
        # Shards come in order of their keys, so a stable sort keeps the lower index among equals.
        gather = functools.partial(jax.lax.all_gather, axis_name=layout.BATCH, axis=1, tiled=True)
        values, found = gather(values), gather(found + first)
        best, at = jax.lax.top_k(values, k)
        return jnp.take_along_axis(found, at, axis=1), best

    return jax.shard_map(local, in_specs=(P(), batch, P()), out_specs=(P(), P()), check_vma=False)(queries, keys, n)
