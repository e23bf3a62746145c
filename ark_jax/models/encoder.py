"""Bidirectional encoders, with one Config and one Block.

BERT (MiniLM, BGE, E5), DistilBERT, RoBERTa and XLM-R (multilingual E5, BGE-M3).
"""

import dataclasses
import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from ark_jax.layout import activation_spec, einsum, lookup, over_tokens, param
from ark_jax.models import attention, packing
from ark_jax.models.config_json import check_positive, check_sizes
from ark_jax.models.decoder import ones, refuse_unless, rematerialised, zeros

FAMILIES = ("bert", "roberta", "xlm-roberta", "distilbert")
_SIZES = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "max_position_embeddings",
)
# DistilBERT's names of BERT's fields in config.json.
_DISTILBERT = {
    "hidden_size": "dim",
    "num_hidden_layers": "n_layers",
    "num_attention_heads": "n_heads",
    "intermediate_size": "hidden_dim",
    "hidden_act": "activation",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """Sizes and switches of an encoder; as in the decoder, nothing mathematical has a default."""

    vocab: int
    width: int
    layers: int
    heads: int
    ffn: int
    positions: int  # rows of the position table
    # RoBERTa counts only tokens other than this id, and starts at the id after it. None counts all
    # tokens from 0.
    pad: int | None
    segments: int  # rows of the segment table; 0: the family has none
    norm_eps: float
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
            "h": self.width // self.heads,
            "f": self.ffn,
            "p": self.positions,
            "y": self.segments,
        }

    @property
    def max_length(self) -> int:
        """The most tokens that a text may have."""
        return self.positions if self.pad is None else self.positions - self.pad - 1

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
                f"model_type {family!r} is not an encoder we know; known: {', '.join(FAMILIES)}"
            )
        distilled, counted = family == "distilbert", family in ("roberta", "xlm-roberta")
        names: dict[str, str] = _DISTILBERT if distilled else {}
        name: Callable[[str], str] = lambda field: names.get(field, field)
        check_sizes(hf, [*map(name, _SIZES), *(() if distilled else ("type_vocab_size",))])
        check_positive(hf, () if distilled else ("layer_norm_eps",))
        act, pad = name("hidden_act"), hf["pad_token_id"] if counted else None
        refuse_unless(hf.get(act, "gelu") == "gelu", act, hf.get(act))
        kind = hf.get("position_embedding_type", "absolute")
        refuse_unless(kind == "absolute", "position_embedding_type", kind)
        for field in ("is_decoder", "add_cross_attention"):
            refuse_unless(not hf.get(field), field, hf.get(field))
        refuse_unless(not counted or (isinstance(pad, int) and pad >= 0), "pad_token_id", pad)
        # DistilBERT has no segments, and its eps is in its source, not in its config.
        return cls(
            vocab=hf["vocab_size"],
            width=hf[name("hidden_size")],
            layers=hf[name("num_hidden_layers")],
            heads=hf[name("num_attention_heads")],
            ffn=hf[name("intermediate_size")],
            positions=hf["max_position_embeddings"],
            pad=pad,
            segments=0 if distilled else hf["type_vocab_size"],
            norm_eps=1e-12 if distilled else hf["layer_norm_eps"],
            dtype=dtype,
            compute=compute,
            attention=attention,
        )


def layer_norm(
    x: Float[Array, "*b d"], scale: Float[Array, " d"], bias: Float[Array, " d"], eps: float
) -> Float[Array, "*b d"]:
    """Layer norm over the last axis, in float32."""

    def norm(x: Float[Array, "*b d"]) -> Float[Array, "*b d"]:
        y = x.astype(jnp.float32)
        y = y - y.mean(-1, keepdims=True)
        y = y * jax.lax.rsqrt(jnp.mean(y * y, -1, keepdims=True) + eps)
        return (y * scale + bias).astype(x.dtype)

    return over_tokens(norm, x)


def gelu(x: Float[Array, "*b f"]) -> Float[Array, "*b f"]:
    """The exact GELU by erf, as torch has it. JAX's is by erfc, twice as slow on a CPU."""
    return 0.5 * x * (1 + jax.lax.erf(x * math.sqrt(0.5)))


def positions(
    tokens: Int[Array, "b t"], mask: Bool[Array, "b t"], cfg: Config
) -> Int[Array, "b t"]:
    """Each token's row of the position table; padding must be on the right."""
    if cfg.pad is None:
        return jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
    # Like transformers, counts by id and not by the mask: a pad token in a text counts as padding.
    counted = mask & (tokens != cfg.pad)
    return jnp.where(counted, jnp.cumsum(counted, axis=-1), 0) + cfg.pad


class Block(nnx.Module):
    """One layer: attention and a feed-forward network, each before a layer norm."""

    def __init__(self, cfg: Config, *, rngs: nnx.Rngs):
        new = functools.partial(param, dims=cfg.dims, dtype=cfg.dtype, rngs=rngs)
        self.q, self.k, self.v, self.o = new("d n h"), new("d n h"), new("d n h"), new("n h d")
        self.q_bias, self.k_bias, self.v_bias = (new("n h", init=zeros) for _ in range(3))
        self.o_bias, self.up_bias, self.down_bias = (new(s, init=zeros) for s in ("d", "f", "d"))
        self.up, self.down = new("d f"), new("f d")
        self.attn_norm, self.ffn_norm = new("d", init=ones), new("d", init=ones)
        self.attn_norm_bias, self.ffn_norm_bias = new("d", init=zeros), new("d", init=zeros)

    def __call__(
        self, x: Float[Array, "b t d"], attend: Callable, cfg: Config
    ) -> Float[Array, "b t d"]:
        """The layer's output; `attend(q, k, v)` computes its attention."""
        q = einsum("btd,dnh->btnh", x, self.q[...], self.q_bias[...])
        k = einsum("bsd,dnh->bsnh", x, self.k[...], self.k_bias[...])
        v = einsum("bsd,dnh->bsnh", x, self.v[...], self.v_bias[...])
        y = einsum("btnh,nhd->btd", attend(q, k, v), self.o[...], self.o_bias[...])
        x = layer_norm(x + y, self.attn_norm[...], self.attn_norm_bias[...], cfg.norm_eps)
        y = einsum("btd,df->btf", x, self.up[...], self.up_bias[...]).astype(jnp.float32)
        y = gelu(y).astype(x.dtype)
        y = einsum("btf,fd->btd", y, self.down[...], self.down_bias[...])
        return layer_norm(x + y, self.ffn_norm[...], self.ffn_norm_bias[...], cfg.norm_eps)


class Encoder(nnx.Module):
    """Token ids to hidden states. Every token sees every other."""

    def __init__(self, cfg: Config, *, rngs: nnx.Rngs):
        self.embed = param("v e", cfg.dims, cfg.dtype, rngs)
        self.position = param("p e", cfg.dims, cfg.dtype, rngs)
        if cfg.segments:
            self.segment = param("y e", cfg.dims, cfg.dtype, rngs)
        self.embed_norm = param("d", cfg.dims, cfg.dtype, rngs, init=ones)
        self.embed_norm_bias = param("d", cfg.dims, cfg.dtype, rngs, init=zeros)
        keys = jax.random.split(rngs.params(), cfg.layers)
        self.blocks = jax.vmap(lambda key: Block(cfg, rngs=nnx.Rngs(key)))(keys)

    def __call__(
        self,
        tokens: Int[Array, "b t"],
        mask: Bool[Array, "b t"],
        cfg: Config,
        capacity: int | None = None,
        *,
        segments: Int[Array, "b t"] | None = None,
        markers: Float[Array, "m e"] | None = None,
    ) -> Float[Array, "b t d"]:
        """Hidden states of the last layer. Padding must be on the right.

        Args:
            capacity: at least the number of visible tokens of any device. Layers then skip padding,
                whose hidden states are zeros. Without it, layers compute padding too.
            segments: the segment type of each token; without them, all are of type 0.
            markers: embeddings of the token ids that follow the vocabulary.
        """
        x = self.embeddings(tokens, mask, cfg, segments=segments, markers=markers)
        if capacity is None:
            attend = functools.partial(attention.attend, visible=mask)
        else:
            plan = packing.plan_packing(mask, capacity)
            attend = functools.partial(attention.attend_packed, plan=plan)
            x = packing.pack(x, plan)
        attend = functools.partial(attend, causal=False, kernel=cfg.attention)
        layer = rematerialised(lambda x, block: (block(x, attend, cfg), None), cfg.remat)
        x, _ = jax.lax.scan(layer, x, self.blocks)
        return x if capacity is None else packing.unpack(x, plan)

    def embeddings(
        self,
        tokens: Int[Array, "b t"],
        mask: Bool[Array, "b t"],
        cfg: Config,
        *,
        segments: Int[Array, "b t"] | None = None,
        markers: Float[Array, "m e"] | None = None,
    ) -> Float[Array, "b t d"]:
        """Normed sums of token, segment and position embeddings, in the layers' type."""
        x, table = self._token_embeddings(tokens, cfg, markers), self.position[...]
        if segments is not None:
            x = x + lookup(self.segment[...], segments)
        elif cfg.segments:
            table = table + self.segment[...][0]
        if cfg.pad is None:
            # All rows start at position 0. Padding may reach beyond the last position.
            t = tokens.shape[1]
            table = jnp.pad(table, ((0, max(0, t - cfg.positions)), (0, 0)))[:t]
            x = x + jax.sharding.reshard(table, activation_spec("t d"))
        else:
            x = x + lookup(table, positions(tokens, mask, cfg))
        x = layer_norm(x, self.embed_norm[...], self.embed_norm_bias[...], cfg.norm_eps)
        return x.astype(cfg.compute)

    def _token_embeddings(
        self, tokens: Int[Array, "b t"], cfg: Config, markers: Float[Array, "m e"] | None
    ) -> Float[Array, "b t d"]:
        """Embeddings of token ids; those that follow the vocabulary are rows of `markers`."""
        if markers is None:
            return lookup(self.embed[...], tokens)
        words = lookup(self.embed[...], jnp.minimum(tokens, cfg.vocab - 1))
        number = tokens - cfg.vocab
        marked = lookup(markers, jnp.clip(number, 0, len(markers) - 1))
        return jnp.where((number >= 0)[..., None], marked.astype(words.dtype), words)
