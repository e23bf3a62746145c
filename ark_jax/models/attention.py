"""The one place that computes attention, local to each (batch, head) shard.

Kernels run inside `jax.shard_map`, so they need no sharding rules of their own: `xla` is ours and runs anywhere,
`cudnn` is NVIDIA's flash attention, `tokamax` the library's choice for the device (Pallas on TPU and GPU).
"""

import functools

import jax
import jax.numpy as jnp
from absl import flags
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Bool, Float, Int

from ark_jax.layout import SAVED, activation_spec
from ark_jax.models import unpad

# Finite, so that a row without a single key gives a mean instead of NaN.
MASKED = -1e30


def attend(
    q: Float[Array, "b t n h"],
    k: Float[Array, "b s k h"],
    v: Float[Array, "b s k h"],
    mask: Bool[Array, "b t s"],
    *,
    causal: bool,
    kernel: str = "xla",
) -> Float[Array, "b t n h"]:
    """Softmax attention; query heads share key/value heads in groups of n/k. Softmax in float32.

    `causal` promises a mask that hides every later token, whose scores are then not computed.

    Raises:
        ValueError: a kernel that is unknown, not installed or not for this type.
    """
    specs = [activation_spec(side) for side in ("b t n h", "b s k h", "b s k h", "b t s")]
    local = functools.partial(_local, causal=causal, kernel=kernel)
    # Pallas kernels do not say how their results vary over the mesh.
    return jax.shard_map(local, in_specs=tuple(specs), out_specs=specs[0], check_vma=kernel == "xla")(q, k, v, mask)


def attend_unpadded(
    q: Float[Array, "b a n h"],
    k: Float[Array, "b a k h"],
    v: Float[Array, "b a k h"],
    where: unpad.Plan,
    *,
    causal: bool,
    kernel: str = "xla",
) -> Float[Array, "b a n h"]:
    """`attend` for the texts of a stream, each by itself."""
    row, cache, index = activation_spec("b t n h"), activation_spec("b s k h"), activation_spec("b t")

    def local(q, k, v, at, back):
        q, k, v = (unpad.to_rows(x, at, back) for x in (q, k, v))
        t = at.shape[1]
        mask = jnp.broadcast_to((at < where.room)[:, None, :], (len(at), t, t))
        mask = mask & jnp.tril(jnp.ones((t, t), bool)) if causal else mask
        return unpad.to_stream(_local(q, k, v, mask, causal=causal, kernel=kernel), at, back)

    run = jax.shard_map(local, in_specs=(row, cache, cache, index, index), out_specs=row, check_vma=kernel == "xla")
    return run(q, k, v, where.at, where.back)


def _local(q, k, v, mask, *, causal: bool, kernel: str):
    """Attention of one shard by the chosen kernel."""
    if kernel == "xla":
        return _causal(q, k, v, mask) if causal else _attend(q, k, v, mask)
    if kernel == "cudnn":
        if q.dtype == jnp.float32:
            raise ValueError("attention='cudnn' knows no float32: set compute to 'bfloat16', or attention to 'xla'")
        library = functools.partial(jax.nn.dot_product_attention, implementation="cudnn")
    elif kernel == "tokamax":
        try:
            from tokamax import dot_product_attention as library
        except ImportError:
            raise ValueError("attention='tokamax' needs the package: pip install tokamax") from None
        if not flags.FLAGS.is_parsed():
            flags.FLAGS.mark_as_parsed()  # else it takes the command line of whatever program this is for its own
    else:
        raise ValueError(f"attention={kernel!r}: must be one of xla, cudnn, tokamax")
    return checkpoint_name(library(q, k, v, mask=mask[:, None], is_causal=causal), SAVED)


def _causal(q, k, v, mask):
    """In blocks of queries, each with the keys up to its end: half the scores, and tiles that fit a cache."""
    size = max(64, -(-q.shape[1] // 4))
    blocks = [_attend(q[:, at : at + size], k[:, : at + size], v[:, : at + size], mask[:, at : at + size, : at + size])
              for at in range(0, q.shape[1], size)]
    return jnp.concatenate(blocks, axis=1)


def attend_shared(
    q: Float[Array, "b a n h"],
    k: Float[Array, "b u k h"],
    v: Float[Array, "b u k h"],
    mask: Bool[Array, "b t u"],
    prefix_k: Float[Array, "p k s h"],
    prefix_v: Float[Array, "p k s h"],
    prefix_mask: Bool[Array, "p s"],
    seats: Int[Array, " g"] | None,
    by_seat: unpad.Plan,
    by_row: unpad.Plan,
) -> Float[Array, "b a n h"]:
    """Texts in a stream that go on from shared prefixes: a token sees all of its prefix, and own keys as `mask` says.

    Queries meet the keys of a prefix side by side, so that no prefix is copied for each of its texts; what they see there and
    among their own is then weighed together. `seats` counts within the prefixes of a device (None: each in its turn),
    `by_seat` says which tokens go on from each, `by_row` where each text stands.
    """
    row, own, plan, prefix = (activation_spec(side) for side in ("b t n h", "b s k h", "b t", "b k s h"))
    specs = (row, own, own, activation_spec("b t s"), prefix, prefix, plan, activation_spec("b"), plan, plan, plan, plan)

    def local(q, k, v, mask, prefix_k, prefix_v, prefix_mask, seats, seat_at, seat_back, row_at, row_back):
        here = (prefix_k, prefix_v, prefix_mask) if seats is None else (x[seats] for x in (prefix_k, prefix_v, prefix_mask))
        prefix_k, prefix_v, prefix_mask = here
        seen = jnp.broadcast_to(prefix_mask[:, None], (*seat_at.shape, prefix_mask.shape[1]))
        k, v = k.transpose(0, 2, 1, 3), v.transpose(0, 2, 1, 3)
        parts = []
        for at, back, keys, values, visible in ((seat_at, seat_back, prefix_k, prefix_v, seen), (row_at, row_back, k, v, mask)):
            parts.append(unpad.to_stream(_partial(unpad.to_rows(q, at, back), keys, values, visible), at, back))
        out, highest, total = zip(*((x[..., :-2], x[..., -2:-1], x[..., -1:]) for x in parts), strict=True)
        scale = [jnp.exp(x - jnp.maximum(*highest)) for x in highest]
        weigh = lambda x: x[0] * scale[0] + x[1] * scale[1]
        # A place of the stream that no text has sees nothing.
        return (weigh(out) / jnp.maximum(weigh(total), 1e-30)).astype(q.dtype)

    return jax.shard_map(local, in_specs=specs, out_specs=row)(
        q, k, v, mask, prefix_k, prefix_v, prefix_mask, seats, by_seat.at, by_seat.back, by_row.at, by_row.back)


def attend_one(
    q: Float[Array, "b 1 n h"],
    k: Float[Array, "b k s h"],
    v: Float[Array, "b k s h"],
    mask: Bool[Array, "b s"],
    prefix_k: Float[Array, "p k u h"],
    prefix_v: Float[Array, "p k u h"],
    prefix_mask: Bool[Array, "p u"],
) -> Float[Array, "b 1 n h"]:
    """The newest token of each text: it sees its own keys as `mask` says, and the prefix that all share, once on each device."""

    def local(q, k, v, mask, prefix_k, prefix_v, prefix_mask):
        b, _, n, h = q.shape
        q = (q * h**-0.5).reshape(b, k.shape[1], -1, h)
        # Keys on the left, and it must stay so: with so few queries XLA:CPU is four times faster than the other way round.
        own = jnp.where(mask[:, None, :, None], _dot("bksh,bkrh->bksr", k, q), MASKED)
        shared = jnp.where(prefix_mask[0], _dot("bkrh,kuh->bkru", q, prefix_k[0]), MASKED)
        highest = jnp.maximum(own.max(2), shared.max(3))
        own, shared = jnp.exp(own - highest[:, :, None]), jnp.exp(shared - highest[..., None])
        total = (own.sum(2) + shared.sum(3))[..., None]
        out = _dot("bksr,bksh->bkrh", own.astype(v.dtype), v) + _dot("bkru,kuh->bkrh", shared.astype(v.dtype), prefix_v[0])
        return (out / total).astype(q.dtype).reshape(b, 1, n, h)

    row, cache, pair = (activation_spec(side) for side in ("b t n h", "b k s h", "b t"))
    run = jax.shard_map(local, in_specs=(row, cache, cache, pair, cache, cache, pair), out_specs=row)
    return run(q, k, v, mask, prefix_k, prefix_v, prefix_mask)


def _partial(q, k, v, mask):
    """Among some keys [b k s h], float32 [b t n h+2]: the weighted sum of their values, the highest score, the weights' sum."""
    size = max(64, -(-q.shape[1] // 4))
    if q.shape[1] > size:  # in tiles that fit a cache
        cut = lambda x, at: x[:, at : at + size]
        return jnp.concatenate([_partial(cut(q, at), k, v, cut(mask, at)) for at in range(0, q.shape[1], size)], axis=1)
    scores = _scores(_heads_first(q * q.shape[-1] ** -0.5, k.shape[1]), k, mask)
    highest = scores.max(-1, keepdims=True)
    weights = jnp.exp(scores - highest)
    out = _dot("bkrs,bksh->bkrh", weights.astype(v.dtype), v)
    out = jnp.concatenate([out, highest, weights.sum(-1, keepdims=True)], axis=-1)
    return _heads_last(out, (*q.shape[:3], out.shape[-1]))


@jax.custom_vjp
def _attend(q, k, v, mask):
    """Heads first, the query heads of one key head folded into its rows; divided after the product with v."""
    return _forward(q, k, v, mask)[0]


def _forward(q, k, v, mask):
    k_rows, v_rows = k.transpose(0, 2, 1, 3), v.transpose(0, 2, 1, 3)
    scores = _scores(_heads_first(q * q.shape[-1] ** -0.5, k.shape[2]), k_rows, mask)
    weights = jnp.exp(scores - scores.max(-1, keepdims=True))
    out = _dot("bkrs,bksh->bkrh", weights.astype(v.dtype), v_rows) / weights.sum(-1, keepdims=True)
    # Kept by rematerialised layers: without it the backward pass would attend once more than it does anyway.
    out = checkpoint_name(_heads_last(out.astype(q.dtype), q.shape), SAVED)
    return out, (q, k, v, mask, out)


def _backward(kept, gradient):
    """Weights are computed again: to read them from memory costs more, and they are larger than all else."""
    q, k, v, mask, out = kept
    first = functools.partial(_heads_first, heads=k.shape[2])
    scale = q.shape[-1] ** -0.5
    q_rows, out_rows, g = first(q * scale), first(out), first(gradient)
    k_rows, v_rows = k.transpose(0, 2, 1, 3), v.transpose(0, 2, 1, 3)
    weights = jax.nn.softmax(_scores(q_rows, k_rows, mask), axis=-1)
    mean = jnp.sum(out_rows.astype(jnp.float32) * g, axis=-1, keepdims=True)
    slope = (weights * (_dot("bkrh,bksh->bkrs", g, v_rows) - mean)).astype(q.dtype)
    dq = _heads_last(scale * _dot("bkrs,bksh->bkrh", slope, k_rows), q.shape)
    dk = _dot("bkrs,bkrh->bksh", slope, q_rows).transpose(0, 2, 1, 3)
    dv = _dot("bkrs,bkrh->bksh", weights.astype(g.dtype), g).transpose(0, 2, 1, 3)
    return dq.astype(q.dtype), dk.astype(k.dtype), dv.astype(v.dtype), None


_attend.defvjp(_forward, _backward)
_dot = functools.partial(jnp.einsum, preferred_element_type=jnp.float32)


def _scores(q, k, mask):
    """`[b k r h]`, `[b k s h]`, `[b t s]` -> `[b k r s]`; r counts the tokens of one head after the other."""
    b, t, s = mask.shape
    mask = jnp.broadcast_to(mask[:, None, None], (b, 1, q.shape[2] // t, t, s)).reshape(b, 1, -1, s)
    return jnp.where(mask, _dot("bkrh,bksh->bkrs", q, k), MASKED)


def _heads_first(x, heads: int):
    """`[b t n h]` -> `[b k r h]`, the n/k query heads of a key head one after the other."""
    b, t, n, h = x.shape
    return x.reshape(b, t, heads, n // heads, h).transpose(0, 2, 3, 1, 4).reshape(b, heads, -1, h)


def _heads_last(x, shape: tuple[int, ...]):
    b, t, n, h = shape
    return x.reshape(b, x.shape[1], -1, t, h).transpose(0, 3, 1, 2, 4).reshape(b, t, n, h)
