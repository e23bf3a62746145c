"""AdamW with clipped gradients; a learning rate with linear warm-up and linear or cosine decay."""

import functools
import re
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

DECAYS = ("linear", "cosine")
# The root of a share that is its code: twice the first moment's for the second, which has squares.
POWERS = {jnp.dtype("int8"): 4, jnp.dtype("uint8"): 8}
NEAREST = 1 << 15  # noise that rounds to the nearest; noise is below 1 << 16


def schedule(
    peak: float, steps: int, warmup: float, *, decay: str = "linear", floor: float = 0.0
) -> optax.Schedule:
    """Rises linearly over the first `warmup` share of the steps, then falls to `floor` · peak.

    Args:
        decay: "linear", or "cosine" for half a period of it.
    """
    if decay not in DECAYS or not 0 <= floor <= 1:
        raise ValueError(
            f"decay={decay!r}, floor={floor}: must be one of {', '.join(DECAYS)}, and in [0, 1]"
        )
    rising_steps = min(round(warmup * steps), steps - 1)
    falling_steps = steps - rising_steps
    rise = optax.linear_schedule(peak / max(rising_steps, 1), peak, max(rising_steps, 1))
    if decay == "linear":
        fall = optax.linear_schedule(peak, floor * peak, falling_steps)
    else:
        fall = optax.cosine_decay_schedule(peak, falling_steps, floor)
    return optax.join_schedules([rise, fall], [rising_steps])


@functools.cache
def adamw(
    *, weight_decay: float, clip: float, moments: str = "float32"
) -> optax.GradientTransformation:
    """AdamW for a learning rate of 1, after clipping the global norm.

    The caller multiplies its updates by the rate, so that runs with different schedules share one
    compiled step. Matrices decay; norms and biases do not. Cached, because jit compares optimizers
    by identity.

    Args:
        moments: how both moments are stored between steps, a key of `config.MOMENTS`.
    """
    return optax.chain(
        optax.clip_by_global_norm(clip),
        _adam(moments),
        optax.add_decayed_weights(weight_decay, mask=_decay_mask),
    )


def _decay_mask(params: Any) -> Any:
    """True for each leaf that decays.

    Names decide, because a bias that is stacked over layers has two axes as well.
    """
    return jax.tree_util.tree_map_with_path(
        lambda path, _: not re.search("norm|bias", jax.tree_util.keystr(path)), params
    )


class _Stored(NamedTuple):
    """A moment between steps."""

    numbers: Any  # a tree of bfloat16, int8 or uint8
    scales: Any  # a tree of float32, one for each row of 8 bits; None for bfloat16


def _adam(moments: str) -> optax.GradientTransformation:
    """Adam, which computes in float32 and stores its moments in fewer bits."""
    adam = optax.scale_by_adam()
    if moments == "float32":
        return adam

    def init(params: Any) -> optax.ScaleByAdamState:
        # Behind the barrier XLA does not compute the codes of all zeros when it compiles.
        return _store(jax.lax.optimization_barrier(adam.init(params)), moments)

    def update(gradient: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        state = state._replace(mu=_read(state.mu), nu=_read(state.nu))
        updates, state = adam.update(gradient, state, params)
        return updates, _store(state, moments)

    return optax.GradientTransformation(init, update)


def _store(state: optax.ScaleByAdamState, moments: str) -> optax.ScaleByAdamState:
    """The state with its moments in fewer bits.

    A step changes the second moment by a thousandth, which rounding to the nearest would lose. So
    it is rounded at random, up as often as it lies near the upper number; the mean is then right.
    """
    first, structure = jax.tree.flatten(state.mu)
    second = jax.tree.leaves(state.nu)
    # All rows take the same noise: it is another one at each step, and costs next to nothing.
    key = jax.random.fold_in(jax.random.key(0), state.count)
    longest = max((x.shape[-1] for x in second if x.ndim), default=1)
    noise = jax.random.bits(key, (longest,), jnp.uint16).astype(jnp.uint32)
    noises = [noise[: x.shape[-1]] if x.ndim else noise[0] for x in second]
    kinds = ("int8", first, [NEAREST] * len(first)), ("uint8", second, noises)
    stored = []
    for dtype, leaves, noises in kinds:
        if moments == "bfloat16":
            stored.append(_Stored(structure.unflatten(map(_to_bfloat16, leaves, noises)), None))
            continue
        pairs = map(functools.partial(_to_8_bits, dtype=jnp.dtype(dtype)), leaves, noises)
        stored.append(_Stored(*map(structure.unflatten, zip(*pairs, strict=True))))
    return state._replace(mu=stored[0], nu=stored[1])


def _read(moment: _Stored) -> Any:
    """The moment in float32."""
    if moment.scales is None:
        return jax.tree.map(lambda x: x.astype(jnp.float32), moment.numbers)

    def decode(codes: Array, scale: Array) -> Array:
        share = _share(jnp.abs(codes.astype(jnp.float32)), codes.dtype)
        return jnp.sign(codes).astype(jnp.float32) * share * scale

    return jax.tree.map(decode, *moment)


def _to_bfloat16(x: Float[Array, "*b"], noise: Array | int) -> Float[Array, "*b"]:
    """`x` rounded up if the bits that are cut off and the noise sum to one more bit."""
    bits = jax.lax.bitcast_convert_type(x.astype(jnp.float32), jnp.uint32) + jnp.uint32(noise)
    return jax.lax.bitcast_convert_type((bits >> 16).astype(jnp.uint16), jnp.bfloat16)


def _to_8_bits(x: Float[Array, "*b"], noise: Array | int, dtype: Any) -> tuple[Array, ...]:
    """Codes and the scale of each row, its largest size (Dettmers et al. 2022, section 2).

    A code is a root of a number's share of the scale, so that small numbers have codes, too. No
    second moment becomes 0, which a first one would be divided by.

    Args:
        x: its last axis is a row.
        dtype: int8; or uint8 for what is never below 0.
    """
    scale = jnp.max(jnp.abs(x), axis=-1, keepdims=True) if x.ndim else jnp.abs(x)
    share = jnp.abs(x) / jnp.where(scale > 0, scale, 1)
    largest_code = jnp.iinfo(dtype).max
    code = jnp.floor(largest_code * share ** (1 / POWERS[dtype]))
    lower, upper = _share(code, dtype), _share(code + 1, dtype)
    code = jnp.minimum(code + ((share - lower) * 2**16 > noise * (upper - lower)), largest_code)
    if dtype == jnp.uint8:
        code = jnp.where(x > 0, jnp.maximum(code, 1), 0)
    return (jnp.sign(x) * code).astype(dtype), scale


def _share(code: Float[Array, "*b"], dtype: Any) -> Float[Array, "*b"]:
    """A code's share of its scale."""
    return (code / jnp.iinfo(dtype).max) ** POWERS[dtype]
