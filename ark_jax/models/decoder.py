"""Causal decoders: Qwen3, Qwen2, Llama, Mistral. One Config, one Block, keys and values at the caller's will."""

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
from ark_jax.layout import einsum, lookup, param
from ark_jax.models import attention, unpad

FAMILIES = ("qwen3", "qwen2", "llama", "mistral")
ones, zeros = jax.nn.initializers.ones, jax.nn.initializers.zeros


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """Sizes and switches of a decoder. Nothing mathematical has a default: a forgotten one must not pass."""

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
    remat: str = "products"  # what a backward pass computes again: all but the products with weights, or "all"
    attention: str = "xla"  # kernel: xla | cudnn | tokamax

    @property
    def dims(self) -> dict[str, int]:
        return {"v": self.vocab, "d": self.width, "e": self.width, "n": self.heads, "k": self.kv_heads,
                "h": self.head_dim, "f": self.ffn}

    @classmethod
    def from_hf(cls, hf: dict, *, dtype: str = "float32", compute: str = "float32",
                attention: str = "xla") -> "Config":
        """Reads a Hugging Face `config.json`; what we cannot compute is refused by name."""
        family = hf["model_type"]
        if family not in FAMILIES:
            raise ValueError(f"model_type {family!r} is no decoder we know; known: {', '.join(FAMILIES)}")
        rope = {**(hf.get("rope_parameters") or {}), **(hf.get("rope_scaling") or {})}
        kind = rope.get("rope_type", rope.get("type", "default"))
        refuse_unless(kind in ("default", "llama3"), "rope_scaling", kind)
        refuse_unless(hf.get("hidden_act", "silu") == "silu", "hidden_act", hf.get("hidden_act"))
        # Qwen's checkpoints carry a window that they do not use; of Mistral's, that it is named is what counts.
        idle = family == "qwen2" or (family == "qwen3" and "use_sliding_window" in hf) or not hf.get("sliding_window")
        refuse_unless(idle and not hf.get("use_sliding_window"), "sliding_window", hf.get("sliding_window"))
        turned = rope.get("partial_rotary_factor", hf.get("partial_rotary_factor", 1))
        refuse_unless(turned == 1, "partial_rotary_factor", turned)
        refuse_unless(hf.get("is_causal", True), "is_causal", hf.get("is_causal"))
        refuse_unless(not hf.get("mlp_bias"), "mlp_bias", hf.get("mlp_bias"))
        refuse_unless(not hf.get("attention_bias"), "attention_bias", hf.get("attention_bias"))
        llama3 = (rope["factor"], rope["low_freq_factor"], rope["high_freq_factor"],
                  rope["original_max_position_embeddings"]) if kind == "llama3" else None
        return cls(
            vocab=hf["vocab_size"], width=hf["hidden_size"], layers=hf["num_hidden_layers"],
            heads=hf["num_attention_heads"],
            kv_heads=hf.get("num_key_value_heads") or hf["num_attention_heads"],
            head_dim=hf.get("head_dim") or hf["hidden_size"] // hf["num_attention_heads"],
            ffn=hf["intermediate_size"], rope_theta=float(rope.get("rope_theta", hf.get("rope_theta", 10000.0))),
            rope_llama3=llama3, norm_eps=hf["rms_norm_eps"], qk_norm=family == "qwen3",
            qkv_bias=family == "qwen2", tied=hf.get("tie_word_embeddings", False), dtype=dtype, compute=compute,
            attention=attention)


def refuse_unless(known: bool, field: str, value: Any) -> None:
    """A setting that changes the mathematics is computed or refused, never ignored."""
    if not known:
        raise ValueError(f"config.json: {field}={value!r} changes the mathematics and is not implemented")


def rematerialised(layer: Callable, how: str) -> Callable:
    """`layer`, of which the backward pass finds only what Config.remat says, beside its input."""
    if how not in ("products", "all"):
        raise ValueError(f"train.remat={how!r}: must be 'products' or 'all'")
    kept = {"products": [layout.SAVED], "all": []}[how]
    return jax.checkpoint(layer, policy=jax.checkpoint_policies.save_only_these_names(*kept))


def rms_norm(x: Float[Array, "*b d"], scale: Float[Array, " d"], eps: float) -> Float[Array, "*b d"]:
    y = x.astype(jnp.float32)
    y = y * jax.lax.rsqrt(jnp.mean(y * y, -1, keepdims=True) + eps)
    return (y * scale).astype(x.dtype)


def rope(x: Float[Array, "b t n h"], angles: Float[Array, "b t h2"]) -> Float[Array, "b t n h"]:
    """Rotates the two halves of each head by `angles`."""
    sin, cos = jnp.sin(angles)[:, :, None], jnp.cos(angles)[:, :, None]
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    turned = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], -1)
    return turned.astype(x.dtype)


def rope_angles(positions: Int[Array, "b t"], cfg: Config) -> Float[Array, "b t h2"]:
    frequency = cfg.rope_theta ** -(jnp.arange(0, cfg.head_dim, 2, dtype=jnp.float32) / cfg.head_dim)
    if cfg.rope_llama3:
        # Llama 3.1: long waves are slowed by `factor`, short ones kept, those between interpolated.
        factor, low, high, length = cfg.rope_llama3
        turns = length * frequency / (2 * math.pi)
        blend = jnp.clip((turns - low) / (high - low), 0, 1)
        frequency = frequency * (blend + (1 - blend) / factor)
    return positions[..., None].astype(jnp.float32) * frequency


class Block(nnx.Module):
    def __init__(self, cfg: Config, *, rngs: nnx.Rngs):
        p = functools.partial(param, dims=cfg.dims, dtype=cfg.dtype, rngs=rngs)
        self.attn_norm, self.ffn_norm = p("d", init=ones), p("d", init=ones)
        self.q, self.k, self.v, self.o = p("d n h"), p("d k h"), p("d k h"), p("n h d")
        if cfg.qkv_bias:
            self.q_bias, self.k_bias, self.v_bias = (p(s, init=zeros) for s in ("n h", "k h", "k h"))
        if cfg.qk_norm:
            self.q_norm, self.k_norm = p("h", init=ones), p("h", init=ones)
        self.gate, self.up, self.down = p("d f"), p("d f"), p("f d")

    def qkv(self, x, angles, cfg: Config):
        y = rms_norm(x, self.attn_norm[...], cfg.norm_eps)
        biases = (self.q_bias[...], self.k_bias[...], self.v_bias[...]) if cfg.qkv_bias else (None,) * 3
        q, k, v = (einsum("btd,dnh->btnh", y, self.q[...], biases[0]), einsum("bsd,dkh->bskh", y, self.k[...], biases[1]),
                   einsum("bsd,dkh->bskh", y, self.v[...], biases[2]))
        if cfg.qk_norm:
            q = rms_norm(q, self.q_norm[...], cfg.norm_eps)
            k = rms_norm(k, self.k_norm[...], cfg.norm_eps)
        return rope(q, angles), rope(k, angles), v

    def finish(self, x, attended, cfg: Config):
        x = x + einsum("btnh,nhd->btd", attended, self.o[...])
        y = rms_norm(x, self.ffn_norm[...], cfg.norm_eps)
        gate, up = einsum("btd,df->btf", y, self.gate[...]), einsum("btd,df->btf", y, self.up[...])
        y = (jax.nn.silu(gate.astype(jnp.float32)) * up).astype(x.dtype)
        return x + einsum("btf,fd->btd", y, self.down[...])


class Decoder(nnx.Module):
    """Token ids to hidden states; `logits` apart, since scoring wants them at a few positions only."""

    def __init__(self, cfg: Config, *, rngs: nnx.Rngs):
        self.embed = param("v e", cfg.dims, cfg.dtype, rngs)
        keys = jax.random.split(rngs.params(), cfg.layers)
        self.blocks = jax.vmap(lambda key: Block(cfg, rngs=nnx.Rngs(key)))(keys)
        self.norm = param("d", cfg.dims, cfg.dtype, rngs, init=ones)
        if not cfg.tied:
            self.head = param("v e", cfg.dims, cfg.dtype, rngs)

    def layers(
        self,
        tokens: Int[Array, "b t"],
        positions: Int[Array, "b t"],
        attend: Callable,
        cfg: Config,
        memory: Any = None,
        where: unpad.Plan | None = None,
    ) -> tuple[Float[Array, "b t d"], Any]:
        """Runs all layers. `attend(q, k, v, memory_l) -> (output, kept_l)` decides what each layer sees and
        keeps: `memory` holds one slice per layer, and what the layers kept comes back stacked the same way. By
        the plan `where`, layers see a stream of tokens and return one."""
        x = lookup(self.embed[...], tokens).astype(cfg.compute)
        if where is not None:
            x, positions = unpad.join(x, where), unpad.join(positions, where)
        angles = rope_angles(positions, cfg)

        @functools.partial(rematerialised, how=cfg.remat)
        def layer(x, block_and_memory):
            block, memory = block_and_memory
            attended, kept = attend(*block.qkv(x, angles, cfg), memory)
            return block.finish(x, attended, cfg), kept

        x, kept = jax.lax.scan(layer, x, (self.blocks, memory))
        return rms_norm(x, self.norm[...], cfg.norm_eps), kept

    def __call__(self, tokens: Int[Array, "b t"], mask: Bool[Array, "b t"], cfg: Config,
                 room: int | None = None) -> Float[Array, "b t d"]:
        """Hidden states after the last norm; padding may stand on either side.

        With `room`, of which no device has more visible tokens, padding takes no part and comes out as zeros.
        """
        t = tokens.shape[1]
        positions = jnp.maximum(jnp.cumsum(mask, -1) - 1, 0)
        if room is not None:
            where = unpad.plan(mask, room)
            attend = lambda q, k, v, _: (attention.attend_unpadded(q, k, v, where, causal=True, kernel=cfg.attention), None)
            return unpad.spread(self.layers(tokens, positions, attend, cfg, where=where)[0], where)
        allowed = jnp.tril(jnp.ones((t, t), bool)) & mask[:, None, :]
        attend = lambda q, k, v, _: (attention.attend(q, k, v, allowed, causal=True, kernel=cfg.attention), None)
        return self.layers(tokens, positions, attend, cfg)[0]

    def logits(self, x: Float[Array, "a d"], cfg: Config) -> Float[Array, "a v"]:
        """Float32 logits of single positions."""
        return layout.logits(x, (self.embed if cfg.tied else self.head)[...])
