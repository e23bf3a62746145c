"""Causal decoders: Qwen3, Qwen2, Llama and Mistral, with one Config and one Block.

The caller passes the attention function, and so decides which keys and values are cached.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from ark_jax import layout
from ark_jax.layout import einsum, lookup, over_tokens, param
from ark_jax.models import attention, kernels, packing
from ark_jax.models.config_json import check_positive, check_sizes

# What to do about numbers that are not finite; ends a message.
NOT_FINITE_CAUSE = (
    "a weight of the model is damaged, or its activations exceed the largest number of their type: "
    "fetch the model again, or compute in float32"
)
FAMILIES = ("qwen3", "qwen2", "llama", "mistral")
_SIZES = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "max_position_embeddings",
)
ones, zeros = jax.nn.initializers.ones, jax.nn.initializers.zeros


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """Sizes and switches of a decoder. Nothing mathematical has a default that could be wrong."""

    vocab: int
    width: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    rope_theta: float
    rope_llama3: tuple[float, float, float, float] | None  # factor, low, high, original length
    norm_eps: float
    qk_norm: bool
    qkv_bias: bool
    tied: bool
    dtype: str
    compute: str
    # What the backward pass computes again: "products" saves products with weights, "all" nothing.
    remat: str = "products"
    attention: str = "auto"  # one of kernels.KERNELS

    @property
    def dims(self) -> dict[str, int]:
        """The size of each letter; see layout.py for the alphabet."""
        return {
            "v": self.vocab,
            "d": self.width,
            "e": self.width,
            "n": self.heads,
            "k": self.kv_heads,
            "h": self.head_dim,
            "f": self.ffn,
        }

    @classmethod
    def from_hf(
        cls, hf: dict, *, dtype: str = "float32", compute: str = "float32", attention: str = "auto"
    ) -> "Config":
        """Reads a Hugging Face `config.json`.

        Raises:
            ValueError: a setting that would change the mathematics and is not implemented.
        """
        family = hf["model_type"]
        if family not in FAMILIES:
            raise ValueError(
                f"model_type {family!r} is not a decoder we know; known: {', '.join(FAMILIES)}"
            )
        check_sizes(hf, _SIZES, optional=("num_key_value_heads", "head_dim"))
        rope = _rope_settings(hf)
        check_positive({**hf, **rope}, ("rms_norm_eps", "rope_theta"))
        _refuse_variants(hf, family)
        llama3_fields = (
            "factor",
            "low_freq_factor",
            "high_freq_factor",
            "original_max_position_embeddings",
        )
        llama3 = _rope_type(rope) == "llama3"
        check_positive(rope, llama3_fields if llama3 else ())
        return cls(
            vocab=hf["vocab_size"],
            width=hf["hidden_size"],
            layers=hf["num_hidden_layers"],
            heads=hf["num_attention_heads"],
            kv_heads=hf.get("num_key_value_heads") or hf["num_attention_heads"],
            head_dim=hf.get("head_dim") or hf["hidden_size"] // hf["num_attention_heads"],
            ffn=hf["intermediate_size"],
            rope_theta=float(rope.get("rope_theta", hf.get("rope_theta", 10000.0))),
            rope_llama3=tuple(rope[field] for field in llama3_fields) if llama3 else None,
            norm_eps=hf["rms_norm_eps"],
            qk_norm=family == "qwen3",
            qkv_bias=family == "qwen2",
            tied=hf.get("tie_word_embeddings", False),
            dtype=dtype,
            compute=compute,
            attention=attention,
        )


def _rope_settings(hf: dict) -> dict:
    """The fields of rope_parameters and rope_scaling in one table; empty if both are absent."""
    settings: dict[str, Any] = {}
    for field in ("rope_parameters", "rope_scaling"):
        value = hf.get(field) or {}
        refuse_unless(isinstance(value, dict), field, value)
        settings |= value
    return settings


def _rope_type(rope: dict) -> str:
    return rope.get("rope_type", rope.get("type", "default"))


def _refuse_variants(hf: dict, family: str) -> None:
    """Raises ValueError for the first setting that is not implemented."""
    rope = _rope_settings(hf)
    kind, activation = _rope_type(rope), hf.get("hidden_act", "silu")
    refuse_unless(kind in ("default", "llama3"), "rope_scaling", kind)
    refuse_unless(activation == "silu", "hidden_act", activation)
    # Qwen's checkpoints name a window that they do not use. Mistral's use the one that they name.
    optional = family == "qwen2" or (family == "qwen3" and "use_sliding_window" in hf)
    window = hf.get("sliding_window")
    unused = (optional or not window) and not hf.get("use_sliding_window")
    refuse_unless(unused, "sliding_window", window)
    rotated_share = rope.get("partial_rotary_factor", hf.get("partial_rotary_factor", 1))
    refuse_unless(rotated_share == 1, "partial_rotary_factor", rotated_share)
    refuse_unless(hf.get("is_causal", True), "is_causal", hf.get("is_causal"))
    for field in ("mlp_bias", "attention_bias"):
        refuse_unless(not hf.get(field), field, hf.get(field))


def refuse_unless(supported: bool, field: str, value: Any) -> None:
    """Raises ValueError if a setting that changes the results is not supported."""
    if not supported:
        raise ValueError(
            f"config.json: {field}={value!r} changes the mathematics and is not implemented"
        )


def rematerialised(layer: Callable, policy: str) -> Callable:
    """`layer`, which saves only its input and what the policy names for its backward pass.

    Args:
        policy: a value of `Config.remat`.
    """
    policies = jax.checkpoint_policies
    saved = {
        "products": policies.save_from_both_policies(
            policies.save_only_these_names(layout.SAVED), kernels.is_cudnn_forward
        ),
        "all": policies.nothing_saveable,
    }
    if policy not in saved:
        raise ValueError(f"train.remat={policy!r}: must be 'products' or 'all'")
    return jax.checkpoint(layer, policy=saved[policy])


def rms_norm(
    x: Float[Array, "*b d"], scale: Float[Array, " d"], eps: float
) -> Float[Array, "*b d"]:
    """Root-mean-square norm over the last axis, in float32."""

    def norm(x: Float[Array, "*b d"]) -> Float[Array, "*b d"]:
        y = x.astype(jnp.float32)
        y = y * jax.lax.rsqrt(jnp.mean(y * y, -1, keepdims=True) + eps)
        return (y * scale).astype(x.dtype)

    return over_tokens(norm, x)


def rope(x: Float[Array, "b t n h"], angles: Float[Array, "b t half_h"]) -> Float[Array, "b t n h"]:
    """Rotary position embedding: rotates the two halves of each head by `angles`."""
    sin, cos = jnp.sin(angles)[:, :, None], jnp.cos(angles)[:, :, None]
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    rotated = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], -1)
    return rotated.astype(x.dtype)


def rope_angles(positions: Int[Array, "b t"], cfg: Config) -> Float[Array, "b t half_h"]:
    """Angles in radians, float32."""
    exponent = jnp.arange(0, cfg.head_dim, 2, dtype=jnp.float32) / cfg.head_dim
    frequency = cfg.rope_theta**-exponent
    if cfg.rope_llama3:
        # Llama 3.1 divides low frequencies by `factor`, keeps high ones, and interpolates between.
        factor, low, high, length = cfg.rope_llama3
        turns = length * frequency / (2 * math.pi)
        blend = jnp.clip((turns - low) / (high - low), 0, 1)
        frequency = frequency * (blend + (1 - blend) / factor)
    return positions[..., None].astype(jnp.float32) * frequency


class Block(nnx.Module):
    """One layer: attention and a gated feed-forward network, each after an RMS norm."""

    def __init__(self, cfg: Config, *, rngs: nnx.Rngs):
        new = functools.partial(param, dims=cfg.dims, dtype=cfg.dtype, rngs=rngs)
        self.attn_norm, self.ffn_norm = new("d", init=ones), new("d", init=ones)
        self.q, self.k, self.v, self.o = new("d n h"), new("d k h"), new("d k h"), new("n h d")
        if cfg.qkv_bias:
            self.q_bias, self.k_bias = new("n h", init=zeros), new("k h", init=zeros)
            self.v_bias = new("k h", init=zeros)
        if cfg.qk_norm:
            self.q_norm, self.k_norm = new("h", init=ones), new("h", init=ones)
        self.gate, self.up, self.down = new("d f"), new("d f"), new("f d")

    def qkv(
        self, x: Float[Array, "b t d"], angles: Float[Array, "b t half_h"], cfg: Config
    ) -> tuple[Float[Array, "b t n h"], Float[Array, "b t k h"], Float[Array, "b t k h"]]:
        """Queries, keys and values, with positions applied to the first two."""
        y = rms_norm(x, self.attn_norm[...], cfg.norm_eps)
        q_bias = k_bias = v_bias = None
        if cfg.qkv_bias:
            q_bias, k_bias, v_bias = self.q_bias[...], self.k_bias[...], self.v_bias[...]
        q = einsum("btd,dnh->btnh", y, self.q[...], q_bias)
        k = einsum("bsd,dkh->bskh", y, self.k[...], k_bias)
        v = einsum("bsd,dkh->bskh", y, self.v[...], v_bias)
        if cfg.qk_norm:
            q = rms_norm(q, self.q_norm[...], cfg.norm_eps)
            k = rms_norm(k, self.k_norm[...], cfg.norm_eps)
        return rope(q, angles), rope(k, angles), v

    def finish(
        self, x: Float[Array, "b t d"], attended: Float[Array, "b t n h"], cfg: Config
    ) -> Float[Array, "b t d"]:
        """The layer's output, from its input and the output of its attention heads."""
        x = x + einsum("btnh,nhd->btd", attended, self.o[...])
        y = rms_norm(x, self.ffn_norm[...], cfg.norm_eps)
        gate, up = einsum("btd,df->btf", y, self.gate[...]), einsum("btd,df->btf", y, self.up[...])
        y = (jax.nn.silu(gate.astype(jnp.float32)) * up).astype(x.dtype)
        return x + einsum("btf,fd->btd", y, self.down[...])


class Decoder(nnx.Module):
    """Token ids to hidden states. `logits` is separate: scoring needs them at few positions."""

    def __init__(self, cfg: Config, *, rngs: nnx.Rngs):
        self.embed = param("v e", cfg.dims, cfg.dtype, rngs)
        keys = jax.random.split(rngs.params(), cfg.layers)
        self.blocks = jax.vmap(lambda key: Block(cfg, rngs=nnx.Rngs(key)))(keys)
        self.norm = param("d", cfg.dims, cfg.dtype, rngs, init=ones)
        if not cfg.tied:
            self.head = param("v e", cfg.dims, cfg.dtype, rngs)

    def embeddings(self, tokens: Int[Array, "b t"], cfg: Config) -> Float[Array, "b t d"]:
        """Embeddings of token ids, in the type that the layers compute in."""
        return lookup(self.embed[...], tokens).astype(cfg.compute)

    def layers(
        self,
        x: Float[Array, "b t d"],
        positions: Int[Array, "b t"],
        attend: Callable,
        cfg: Config,
        memory: Any = None,
    ) -> tuple[Float[Array, "b t d"], Any]:
        """Runs all layers and the last norm. A row of `x` holds a text or a packed stream of texts.

        Args:
            attend: `attend(q, k, v, memory_of_layer) -> (output, state_of_layer)` computes the
                attention of one layer.
            memory: a tree of arrays `[l ...]`, of which `attend` gets one slice per layer.

        Returns:
            Hidden states, and the states of all layers, stacked `[l ...]`.
        """
        angles = rope_angles(positions, cfg)

        @functools.partial(rematerialised, policy=cfg.remat)
        def layer(x, block_and_memory):
            """One step of the scan: the layer's output, and the state that `attend` returns."""
            block, memory = block_and_memory
            attended, state = attend(*block.qkv(x, angles, cfg), memory)
            return block.finish(x, attended, cfg), state

        x, states = jax.lax.scan(layer, x, (self.blocks, memory))
        return rms_norm(x, self.norm[...], cfg.norm_eps), states

    def __call__(
        self,
        tokens: Int[Array, "b t"],
        mask: Bool[Array, "b t"],
        cfg: Config,
        capacity: int | None = None,
    ) -> Float[Array, "b t d"]:
        """Hidden states after the last norm. Padding may be on either side.

        Args:
            capacity: at least the number of visible tokens of any device. Layers then skip padding,
                whose hidden states are zeros. Without it, layers compute padding too.
        """
        x, positions = self.embeddings(tokens, cfg), jnp.maximum(jnp.cumsum(mask, -1) - 1, 0)
        if capacity is None:
            attend = functools.partial(attention.attend, visible=mask)
        else:
            plan = packing.plan_packing(mask, capacity)
            x, positions = packing.pack(x, plan), packing.pack(positions, plan)
            attend = functools.partial(attention.attend_packed, plan=plan)

        def attend_layer(
            q: Float[Array, "rows t n h"],
            k: Float[Array, "rows t k h"],
            v: Float[Array, "rows t k h"],
            _: None,
        ) -> tuple[Float[Array, "rows t n h"], None]:
            return attend(q, k, v, causal=True, kernel=cfg.attention), None

        x, _ = self.layers(x, positions, attend_layer, cfg)
        return x if capacity is None else packing.unpack(x, plan)

    def logits(self, x: Float[Array, "a d"], cfg: Config) -> Float[Array, "a v"]:
        """Float32 logits of single positions."""
        return layout.logits(x, self.output_table(cfg))

    def output_table(self, cfg: Config) -> Float[Array, "v e"]:
        """The weights of the logits."""
        return (self.embed if cfg.tied else self.head)[...]
