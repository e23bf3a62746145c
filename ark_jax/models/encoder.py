"""Bidirectional encoders: BERT (MiniLM, BGE, E5), DistilBERT, RoBERTa, XLM-R (multilingual E5, BGE-M3). One Config, one Block."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from ark_jax.layout import activation_spec, einsum, lookup, param
from ark_jax.models import attention, unpad
from ark_jax.models.decoder import ones, refuse_unless, rematerialised, zeros

FAMILIES = ("bert", "roberta", "xlm-roberta", "distilbert")
# Names that DistilBERT's config.json has for BERT's.
_DISTILBERT = {"hidden_size": "dim", "num_hidden_layers": "n_layers", "num_attention_heads": "n_heads",
               "intermediate_size": "hidden_dim", "hidden_act": "activation"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """Sizes and switches of an encoder; as in the decoder, nothing mathematical has a default."""

    vocab: int
    width: int
    layers: int
    heads: int
    ffn: int
    positions: int  # rows of their table
    pad: int | None  # RoBERTa's positions count the tokens that differ from this id, from the id after it; None: all, from 0
    segments: int  # 0: the family has none
    norm_eps: float
    dtype: str
    compute: str
    remat: str = "products"  # what a backward pass computes again: all but the products with weights, or "all"
    attention: str = "xla"  # kernel: xla | cudnn | tokamax

    @property
    def dims(self) -> dict[str, int]:
        return {"v": self.vocab, "d": self.width, "e": self.width, "n": self.heads,
                "h": self.width // self.heads, "f": self.ffn, "p": self.positions, "y": self.segments}

    @property
    def max_length(self) -> int:
        """The most tokens that a text may have."""
        return self.positions if self.pad is None else self.positions - self.pad - 1

    @classmethod
    def from_hf(cls, hf: dict, *, dtype: str = "float32", compute: str = "float32",
                attention: str = "xla") -> "Config":
        """Reads a Hugging Face `config.json`; what we cannot compute is refused by name."""
        family = hf["model_type"]
        if family not in FAMILIES:
            raise ValueError(f"model_type {family!r} is no encoder we know; known: {', '.join(FAMILIES)}")
        distilled, counted = family == "distilbert", family in ("roberta", "xlm-roberta")
        name = lambda field: _DISTILBERT.get(field, field) if distilled else field
        act, pad = name("hidden_act"), hf["pad_token_id"] if counted else None
        refuse_unless(hf.get(act, "gelu") == "gelu", act, hf.get(act))
        kind = hf.get("position_embedding_type", "absolute")
        refuse_unless(kind == "absolute", "position_embedding_type", kind)
        for field in ("is_decoder", "add_cross_attention"):
            refuse_unless(not hf.get(field), field, hf.get(field))
        refuse_unless(not counted or (pad is not None and pad >= 0), "pad_token_id", pad)
        # DistilBERT has no segments, and its eps stands in its source, not in its config.
        return cls(vocab=hf["vocab_size"], width=hf[name("hidden_size")], layers=hf[name("num_hidden_layers")],
                   heads=hf[name("num_attention_heads")], ffn=hf[name("intermediate_size")],
                   positions=hf["max_position_embeddings"], pad=pad, segments=0 if distilled else hf["type_vocab_size"],
                   norm_eps=1e-12 if distilled else hf["layer_norm_eps"], dtype=dtype, compute=compute,
                   attention=attention)


def layer_norm(x, scale, bias, eps: float):
    y = x.astype(jnp.float32)
    y = y - y.mean(-1, keepdims=True)
    y = y * jax.lax.rsqrt(jnp.mean(y * y, -1, keepdims=True) + eps)
    return (y * scale + bias).astype(x.dtype)


def positions(tokens: Int[Array, "b t"], mask: Bool[Array, "b t"], cfg: Config) -> Int[Array, "b t"]:
    """Each token's row of the position table; padding must stand on the right."""
    if cfg.pad is None:
        return jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
    # By the id, not by the mask alone: a text that spells the pad token out has it counted as padding.
    counted = mask & (tokens != cfg.pad)
    return jnp.where(counted, jnp.cumsum(counted, axis=-1), 0) + cfg.pad


class Block(nnx.Module):
    def __init__(self, cfg: Config, *, rngs: nnx.Rngs):
        p = functools.partial(param, dims=cfg.dims, dtype=cfg.dtype, rngs=rngs)
        self.q, self.k, self.v, self.o = p("d n h"), p("d n h"), p("d n h"), p("n h d")
        self.q_bias, self.k_bias, self.v_bias = (p("n h", init=zeros) for _ in range(3))
        self.o_bias, self.up_bias, self.down_bias = (p(s, init=zeros) for s in ("d", "f", "d"))
        self.up, self.down = p("d f"), p("f d")
        self.attn_norm, self.ffn_norm = p("d", init=ones), p("d", init=ones)
        self.attn_norm_bias, self.ffn_norm_bias = p("d", init=zeros), p("d", init=zeros)

    def __call__(self, x, attend, cfg: Config):
        q, k, v = (einsum(f"b{s}d,dnh->b{s}nh", x, w[...], bias[...]) for s, w, bias in
                   (("t", self.q, self.q_bias), ("s", self.k, self.k_bias), ("s", self.v, self.v_bias)))
        y = einsum("btnh,nhd->btd", attend(q, k, v), self.o[...], self.o_bias[...])
        x = layer_norm(x + y, self.attn_norm[...], self.attn_norm_bias[...], cfg.norm_eps)
        y = einsum("btd,df->btf", x, self.up[...], self.up_bias[...]).astype(jnp.float32)
        y = einsum("btf,fd->btd", jax.nn.gelu(y, approximate=False).astype(x.dtype), self.down[...], self.down_bias[...])
        return layer_norm(x + y, self.ffn_norm[...], self.ffn_norm_bias[...], cfg.norm_eps)


class Encoder(nnx.Module):
    """Token ids to hidden states, every token seeing every other."""

    def __init__(self, cfg: Config, *, rngs: nnx.Rngs):
        self.embed = param("v e", cfg.dims, cfg.dtype, rngs)
        self.position = param("p e", cfg.dims, cfg.dtype, rngs)
        if cfg.segments:
            self.segment = param("y e", cfg.dims, cfg.dtype, rngs)
        self.embed_norm = param("d", cfg.dims, cfg.dtype, rngs, init=ones)
        self.embed_norm_bias = param("d", cfg.dims, cfg.dtype, rngs, init=zeros)
        keys = jax.random.split(rngs.params(), cfg.layers)
        self.blocks = jax.vmap(lambda key: Block(cfg, rngs=nnx.Rngs(key)))(keys)

    def __call__(self, tokens: Int[Array, "b t"], mask: Bool[Array, "b t"], cfg: Config,
                 room: int | None = None) -> Float[Array, "b t d"]:
        """Hidden states of the last layer. Padding must stand on the right: positions count from the left.

        With `room`, of which no device has more visible tokens, padding takes no part and comes out as zeros.
        """
        t = tokens.shape[1]
        x, table = lookup(self.embed[...], tokens), self.position[...]
        if cfg.segments:
            table = table + self.segment[...][0]  # every text is of type 0
        if cfg.pad is None:
            # And begins at position 0. Padding may reach beyond the last one.
            table = jnp.pad(table, ((0, max(0, t - cfg.positions)), (0, 0)))[:t]
            x = x + jax.sharding.reshard(table, activation_spec("t d"))
        else:
            x = x + lookup(table, positions(tokens, mask, cfg))
        x = layer_norm(x, self.embed_norm[...], self.embed_norm_bias[...], cfg.norm_eps).astype(cfg.compute)
        if room is None:
            seen = jnp.broadcast_to(mask[:, None, :], (len(tokens), t, t))
            attend = functools.partial(attention.attend, mask=seen, causal=False, kernel=cfg.attention)
        else:
            where = unpad.plan(mask, room)
            attend = functools.partial(attention.attend_unpadded, where=where, causal=False, kernel=cfg.attention)
            x = unpad.join(x, where)
        layer = rematerialised(lambda x, block: (block(x, attend, cfg), None), cfg.remat)
        x = jax.lax.scan(layer, x, self.blocks)[0]
        return x if room is None else unpad.spread(x, where)
