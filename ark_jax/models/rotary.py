"""Rotary position embeddings: their settings in a config.json, and the rotation of heads."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from ark_jax.models.config_json import check_positive, refuse_unless

# The numbers that each type needs in a config.json.
_NUMBERS = {
    "default": (),
    "linear": ("factor",),
    "ntk": ("factor",),
    "yarn": ("factor", "original_max_position_embeddings"),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
}


@dataclasses.dataclass(frozen=True)
class Rotary:
    """How far each pair of a head's components turns with each position.

    Attributes:
        kind: as Hugging Face's rope_type.
        span: turns within `length` positions at which frequencies are wholly slowed, and not at
            all; between, they are interpolated ("llama3", "yarn").
        rounded: whether the ends of that interpolation are whole components ("yarn").
        scale: of the rotated components ("yarn").
    """

    theta: float
    kind: str = "default"
    factor: float = 1.0
    span: tuple[float, float] = (0.0, 0.0)
    length: float = 0.0
    rounded: bool = True
    scale: float = 1.0

    def frequencies(self, size: int) -> Float[np.ndarray, " half_h"]:
        """Radians a position, float32, of a head of this size."""
        exponent = np.arange(0, size, 2, dtype=np.float32) / np.float32(size)
        theta = self.theta * self.factor if self.kind == "ntk" else self.theta
        frequency = np.float32(1) / np.float32(theta) ** exponent
        if self.kind == "ntk":  # as in GTE's own code: of all texts, also short ones
            return frequency / np.float32(self.factor ** (2 / size))
        if self.kind == "linear":
            return frequency / np.float32(self.factor)
        if self.kind == "llama3":
            # Llama 3.1 divides low frequencies by `factor`, keeps high ones, interpolates between.
            low, high = self.span
            turns = self.length * frequency / (2 * math.pi)
            kept = np.clip((turns - low) / (high - low), 0, 1)
        elif self.kind == "yarn":
            kept = 1 - self._slowed(size)
        else:
            return frequency
        return (frequency * (kept + (1 - kept) / self.factor)).astype(np.float32)

    def _slowed(self, size: int) -> Float[np.ndarray, " half_h"]:
        """YaRN's share of slowing (arXiv 2309.00071, eq. 17), a ramp over the components."""
        place = lambda turns: (
            size * math.log(self.length / (turns * 2 * math.pi)) / (2 * math.log(self.theta))
        )
        slow, fast = map(place, self.span)
        if self.rounded:
            slow, fast = math.ceil(slow), math.floor(fast)
        first, last = max(fast, 0), min(slow, size - 1)
        ramp = (np.arange(size // 2, dtype=np.float32) - first) / max(last - first, 1e-3)
        return np.clip(ramp, 0, 1)


def read_rotary(hf: Mapping, theta: float, part: str = "", own_theta: str = "rope_theta") -> Rotary:
    """The rotary settings of a config.json, in its older or newer spelling.

    Args:
        theta: where it names none.
        part: the kind of layers that they are for, where a model has two kinds.
        own_theta: the name of that kind's theta in the older spelling.

    Raises:
        ValueError: a setting is no positive number, or is not implemented.
    """
    rope: dict[str, Any] = {}
    for field in ("rope_parameters", "rope_scaling"):
        value = hf.get(field) or {}
        refuse_unless(isinstance(value, dict), field, value)
        if part and field == "rope_parameters":
            value = value.get(part) or {}
        rope |= value if part != "sliding_attention" or field == "rope_parameters" else {}
    kind = rope.get("rope_type", rope.get("type", "default"))
    known = kind in _NUMBERS and (kind != "ntk" or hf["model_type"] == "new")  # only GTE has it
    refuse_unless(known, "rope_scaling", kind)
    rotated_share = rope.get("partial_rotary_factor", hf.get("partial_rotary_factor", 1))
    refuse_unless(rotated_share == 1, "partial_rotary_factor", rotated_share)
    theta = rope.get("rope_theta", hf.get(own_theta, theta))
    check_positive({"rope_theta": theta} | rope, ("rope_theta", *_NUMBERS[kind]))
    numbers = [float(rope[name]) for name in _NUMBERS[kind]]
    if kind == "llama3":
        factor, low, high, length = numbers
        return Rotary(float(theta), kind, factor, (low, high), length)
    if kind == "yarn":
        factor, length = numbers
        span = float(rope.get("beta_slow") or 1), float(rope.get("beta_fast") or 32)
        rounded, scale = rope.get("truncate", True), _yarn_scale(rope, factor)
        return Rotary(float(theta), kind, factor, span, length, rounded, scale)
    refuse_unless(not rope.get("mixed_b"), "mixed_b", rope.get("mixed_b"))
    return Rotary(float(theta), kind, numbers[0] if numbers else 1.0)


def _yarn_scale(rope: Mapping, factor: float) -> float:
    """YaRN's factor of sines and cosines, which sharpens attention over longer texts."""
    if rope.get("attention_factor") is not None:
        return float(rope["attention_factor"])
    scale = lambda weight: 0.1 * weight * math.log(factor) + 1 if factor > 1 else 1.0
    weight, below = rope.get("mscale"), rope.get("mscale_all_dim")
    return scale(weight) / scale(below) if weight and below else scale(1)


def angles(
    positions: Int[Array, "b t"], rotaries: tuple[Rotary, ...], size: int
) -> Float[Array, "kinds b t half_h"]:
    """Angles in radians, float32, of the heads of each kind of layer."""
    places = positions[..., None].astype(jnp.float32)
    return jnp.stack([places * rotary.frequencies(size) for rotary in rotaries])


def of_layer(
    angles: Float[Array, "kinds b t half_h"] | None, is_local: Bool[Array, ""] | None
) -> Float[Array, "b t half_h"] | None:
    """The angles of a layer, of those that `angles` returns."""
    if angles is None or is_local is None or len(angles) == 1:
        return None if angles is None else angles[0]
    return jnp.where(is_local, angles[1], angles[0])


def rotate(
    x: Float[Array, "b t n h"], angles: Float[Array, "b t half_h"], scale: float = 1.0
) -> Float[Array, "b t n h"]:
    """Rotates the two halves of each head by `angles`."""
    sin, cos = scale * jnp.sin(angles)[:, :, None], scale * jnp.cos(angles)[:, :, None]
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    rotated = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], -1)
    return rotated.astype(x.dtype)
