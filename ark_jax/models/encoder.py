"""Bidirectional encoders of the BERT family (MiniLM, BGE, E5)."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from ark_jax.layout import activation_spec, einsum, lookup, param
from ark_jax.models import attention
from ark_jax.models.decoder import ones, refuse_unless, zeros

FAMILIES = ("bert",)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """Sizes and switches of an encoder; as in the decoder, nothing mathematical has a default."""

    vocab: int
    width: int
    layers: int
    heads: int
    ffn: int
    positions: int
    segments: int
    norm_eps: float
    dtype: str
    compute: str

    @property
    def dims(self) -> dict[str, int]:
        return {"v": self.vocab, "d": self.width, "e": self.width, "n": self.heads,
                "h": self.width // self.heads, "f": self.ffn, "p": self.positions, "y": self.segments}

    @classmethod
    def from_hf(cls, hf: dict, *, dtype: str = "float32", compute: str = "float32") -> "Config":
        """Reads a Hugging Face `config.json`; what we cannot compute is refused by name."""
        if hf["model_type"] not in FAMILIES:
            raise ValueError(f"model_type {hf['model_type']!r} is no encoder we know; known: {', '.join(FAMILIES)}")
        refuse_unless(hf.get("hidden_act", "gelu") == "gelu", "hidden_act", hf.get("hidden_act"))
        kind = hf.get("position_embedding_type", "absolute")
        refuse_unless(kind == "absolute", "position_embedding_type", kind)
        refuse_unless(not hf.get("is_decoder"), "is_decoder", hf.get("is_decoder"))
        return cls(vocab=hf["vocab_size"], width=hf["hidden_size"], layers=hf["num_hidden_layers"],
                   heads=hf["num_attention_heads"], ffn=hf["intermediate_size"],
                   positions=hf["max_position_embeddings"], segments=hf["type_vocab_size"],
                   norm_eps=hf["layer_norm_eps"], dtype=dtype, compute=compute)


def layer_norm(x, scale, bias, eps: float):
    y = x.astype(jnp.float32)
    y = y - y.mean(-1, keepdims=True)
    y = y * jax.lax.rsqrt(jnp.mean(y * y, -1, keepdims=True) + eps)
    return (y * scale + bias).astype(x.dtype)


class Block(nnx.Module):
    def __init__(self, cfg: Config, *, rngs: nnx.Rngs):
        p = functools.partial(param, dims=cfg.dims, dtype=cfg.dtype, rngs=rngs)
        self.q, self.k, self.v, self.o = p("d n h"), p("d n h"), p("d n h"), p("n h d")
        self.q_bias, self.k_bias, self.v_bias = (p("n h", init=zeros) for _ in range(3))
        self.o_bias, self.up_bias, self.down_bias = (p(s, init=zeros) for s in ("d", "f", "d"))
        self.up, self.down = p("d f"), p("f d")
        self.attn_norm, self.ffn_norm = p("d", init=ones), p("d", init=ones)
        self.attn_norm_bias, self.ffn_norm_bias = p("d", init=zeros), p("d", init=zeros)

    def __call__(self, x, mask, cfg: Config):
        q, k, v = (einsum(f"b{s}d,dnh->b{s}nh", x, w[...]) + bias[...].astype(x.dtype) for s, w, bias in
                   (("t", self.q, self.q_bias), ("s", self.k, self.k_bias), ("s", self.v, self.v_bias)))
        y = einsum("btnh,nhd->btd", attention.attend(q, k, v, mask, causal=False), self.o[...])
        x = layer_norm(x + y + self.o_bias[...].astype(x.dtype), self.attn_norm[...], self.attn_norm_bias[...],
                       cfg.norm_eps)
        y = einsum("btd,df->btf", x, self.up[...]) + self.up_bias[...].astype(x.dtype)
        y = einsum("btf,fd->btd", jax.nn.gelu(y, approximate=False), self.down[...])
        return layer_norm(x + y + self.down_bias[...].astype(x.dtype), self.ffn_norm[...],
                          self.ffn_norm_bias[...], cfg.norm_eps)


class Encoder(nnx.Module):
    """Token ids to hidden states, every token seeing every other."""

    def __init__(self, cfg: Config, *, rngs: nnx.Rngs):
        self.embed = param("v e", cfg.dims, cfg.dtype, rngs)
        self.position = param("p e", cfg.dims, cfg.dtype, rngs)
        self.segment = param("y e", cfg.dims, cfg.dtype, rngs)
        self.embed_norm = param("d", cfg.dims, cfg.dtype, rngs, init=ones)
        self.embed_norm_bias = param("d", cfg.dims, cfg.dtype, rngs, init=zeros)
        keys = jax.random.split(rngs.params(), cfg.layers)
        self.blocks = jax.vmap(lambda key: Block(cfg, rngs=nnx.Rngs(key)))(keys)

    def __call__(self, tokens: Int[Array, "b t"], mask: Bool[Array, "b t"], cfg: Config) -> Float[Array, "b t d"]:
        """Hidden states of the last layer. Padding must stand on the right: positions count from the left."""
        t = tokens.shape[1]
        # Every text begins at position 0 and is of type 0: no need to look these up.
        rest = self.position[...][:t] + self.segment[...][0]
        x = lookup(self.embed[...], tokens) + jax.sharding.reshard(rest, activation_spec("t d"))
        x = layer_norm(x, self.embed_norm[...], self.embed_norm_bias[...], cfg.norm_eps).astype(cfg.compute)
        seen = jnp.broadcast_to(mask[:, None, :], (len(tokens), t, t))
        # No rematerialisation: these models are small, and GradCache bounds what is held.
        return jax.lax.scan(lambda x, block: (block(x, seen, cfg), None), x, self.blocks)[0]
