"""Bidirectional encoders, with one Config and one Block.

BERT (MiniLM, BGE, E5), DistilBERT, RoBERTa and XLM-R (multilingual E5, BGE-M3), MPNet, DeBERTa-v2
and v3, nomic_bert, GTE (`new`, `gte`) and ModernBERT.
"""

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from ark_jax.layout import activation_spec, einsum, lookup, over_tokens, param
from ark_jax.models import attention, packing, rotary
from ark_jax.models.decoder import ACTIVATIONS, Biased, local_layers, ones, rematerialised, zeros
from ark_jax.models.encoder_families import FAMILIES
from ark_jax.models.rotary import Rotary
from ark_jax.runtime.accelerator import device_in_use


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """Sizes and switches of an encoder; the sizes have no default."""

    vocab: int
    width: int
    layers: int
    heads: int
    ffn: int
    positions: int  # rows of the position table; without a table, tokens of the longest text
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
    # What other families have where BERT has the defaults.
    # The weights that have a bias; gate may have one, too.
    biases: tuple[str, ...] = ("q", "k", "v", "o", "up", "down", "norm")
    activation: str = "gelu"  # a key of `ACTIVATIONS`
    gated: bool = False  # whether the feed-forward network multiplies two products
    # Norms come behind attention and the feed-forward network. Otherwise they come before both,
    # but for the attention of layer 0, and after the last layer.
    norms_behind: bool = True
    has_position_table: bool = True
    rotaries: tuple[Rotary, ...] = ()  # of layers that see whole texts, and of local ones
    window: int = 0  # a token of a local layer sees tokens that are less than so many places away
    local: tuple[bool, ...] = ()  # of each layer; () if none is
    # How scores depend on the distance of two tokens: "" not at all, "bias" by a number for each
    # head (MPNet), "states" by products with a state for each distance (DeBERTa).
    distances: str = ""
    buckets: int = 0  # of distances
    farthest: int = 0  # from which all distances are one
    causal = False

    @property
    def dims(self) -> dict[str, int]:
        """The size of each letter; see layout.py for the alphabet."""
        return {
            "v": self.vocab,
            "d": self.width,
            "e": self.width,
            "n": self.heads,
            "k": self.heads,
            "h": self.width // self.heads,
            "f": self.ffn,
            "p": self.positions,
            "y": self.segments,
            "x": self.buckets,
        }

    @property
    def between(self) -> str:
        """The type of what is no factor of a product with weights.

        On a CPU it is float32, which takes about as long there and is nearer to the truth.
        """
        return "float32" if device_in_use().platform == "cpu" else self.compute

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
        fields = FAMILIES[hf["model_type"]](hf)
        return cls(**fields, dtype=dtype, compute=compute, attention=attention)


def layer_norm(
    x: Float[Array, "*b d"], scale: Float[Array, " d"], bias: Float[Array, " d"] | None, eps: float
) -> Float[Array, "*b d"]:
    """Layer norm over the last axis, in float32."""

    def norm(x: Float[Array, "*b d"]) -> Float[Array, "*b d"]:
        y = x.astype(jnp.float32)
        y = y - y.mean(-1, keepdims=True)
        y = y * jax.lax.rsqrt(jnp.mean(y * y, -1, keepdims=True) + eps)
        y = y * scale
        return (y if bias is None else y + bias).astype(x.dtype)

    return over_tokens(norm, x)


def positions(
    tokens: Int[Array, "b t"], mask: Bool[Array, "b t"], cfg: Config
) -> Int[Array, "b t"]:
    """Each token's row of the position table; padding must be on the right."""
    if cfg.pad is None:
        return jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
    # Like transformers, counts by id and not by the mask: a pad token in a text counts as padding.
    counted = mask & (tokens != cfg.pad)
    return jnp.where(counted, jnp.cumsum(counted, axis=-1), 0) + cfg.pad


class _Normed(nnx.Module):
    """A module with layer norms."""

    def _new_norm(self, name: str, cfg: Config, rngs: nnx.Rngs) -> None:
        """Adds a norm, with its bias if norms have one."""
        new = functools.partial(param, "d", cfg.dims, cfg.dtype, rngs)
        setattr(self, name, new(init=ones))
        if "norm" in cfg.biases:
            setattr(self, f"{name}_bias", new(init=zeros))

    def _norm(self, name: str, x: Float[Array, "*b d"], cfg: Config) -> Float[Array, "*b d"]:
        """`x` through the norm of this name."""
        bias = getattr(self, f"{name}_bias")[...] if "norm" in cfg.biases else None
        return layer_norm(x, getattr(self, name)[...], bias, cfg.norm_eps)


class Block(_Normed, Biased):
    """One layer: attention and a feed-forward network."""

    def __init__(self, cfg: Config, *, rngs: nnx.Rngs):
        new = functools.partial(param, dims=cfg.dims, dtype=cfg.dtype, rngs=rngs)
        self.q, self.k, self.v, self.o = new("d n h"), new("d k h"), new("d k h"), new("n h d")
        self.up, self.down = new("d f"), new("f d")
        if cfg.gated:
            self.gate = new("d f")
        self.add_biases(cfg, rngs)
        self._new_norm("attn_norm", cfg, rngs)
        self._new_norm("ffn_norm", cfg, rngs)

    def __call__(
        self,
        x: Float[Array, "b t d"],
        attend: Callable,
        cfg: Config,
        angles: Float[Array, "b t half_h"] | None,
        is_first: Bool[Array, ""],
    ) -> Float[Array, "b t d"]:
        """The layer's output; `attend(q, k, v, weights)` computes its attention."""
        bias, y = functools.partial(self.bias, cfg=cfg), x
        multiply = functools.partial(einsum, kind=cfg.compute)
        if not cfg.norms_behind:
            y = jnp.where(is_first, x, self._norm("attn_norm", x, cfg))
        q = multiply("btd,dnh->btnh", y, self.q[...], bias("q"))
        k = multiply("bsd,dkh->bskh", y, self.k[...], bias("k"))
        v = multiply("bsd,dkh->bskh", y, self.v[...], bias("v"))
        if angles is not None:
            scale = cfg.rotaries[0].scale
            q, k = rotary.rotate(q, angles, scale), rotary.rotate(k, angles, scale)
        y = multiply("btnh,nhd->btd", attend(q, k, v, self), self.o[...], bias("o"))
        x = self._norm("attn_norm", x + y, cfg) if cfg.norms_behind else x + y
        y = x if cfg.norms_behind else self._norm("ffn_norm", x, cfg)
        up = multiply("btd,df->btf", y, self.up[...], bias("up"))
        gate = multiply("btd,df->btf", y, self.gate[...], bias("gate")) if cfg.gated else up
        y = ACTIVATIONS[cfg.activation](gate.astype(jnp.float32))
        y = (y * up if cfg.gated else y).astype(x.dtype)
        x = x + multiply("btf,fd->btd", y, self.down[...], bias("down"))
        return self._norm("ffn_norm", x, cfg) if cfg.norms_behind else x


class Encoder(_Normed):
    """Token ids to hidden states. Every token sees every other, but for those of local layers."""

    def __init__(self, cfg: Config, *, rngs: nnx.Rngs):
        new = functools.partial(param, dims=cfg.dims, dtype=cfg.dtype, rngs=rngs)
        self.embed = new("v e")
        if cfg.has_position_table:
            self.position = new("p e")
        if cfg.segments:
            self.segment = new("y e")
        self._new_norm("embed_norm", cfg, rngs)
        if cfg.distances == "bias":
            self.distance = new("x n")
        elif cfg.distances:
            self.relative = new("x d")
            self._new_norm("relative_norm", cfg, rngs)
        if not cfg.norms_behind:
            self._new_norm("norm", cfg, rngs)
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
        seen: Bool[Array, "b t"] | None = None,
    ) -> Float[Array, "b t d"]:
        """Hidden states of the last layer. Padding must be on the right.

        Args:
            capacity: at least the number of visible tokens of any device. Layers then skip padding,
                whose hidden states are zeros. Without it, layers compute padding too.
            segments: the segment type of each token; without them, all are of type 0.
            markers: embeddings of the token ids that follow the vocabulary.
            seen: the tokens that all tokens attend to, without `capacity`; else those of `mask`.
        """
        x = self.embeddings(tokens, mask, cfg, segments=segments, markers=markers)
        places, angles = 0 * tokens + jnp.arange(tokens.shape[1]), None
        if capacity is None:
            attend = functools.partial(attention.attend, visible=mask if seen is None else seen)
        else:
            plan = packing.plan_packing(mask, capacity)
            attend = functools.partial(attention.attend_packed, plan=plan)
            x = packing.pack(x, plan)
            places = packing.pack(places, plan) if cfg.rotaries else places
        if cfg.rotaries:
            angles = rotary.angles(places, cfg.rotaries, cfg.dims["h"])

        def layer(x: Array, inputs: tuple) -> tuple[Array, None]:
            """One step of the scan."""
            block, is_local, is_first = inputs
            attend_layer = lambda q, k, v, block: attend(
                q,
                k,
                v,
                causal=False,
                kernel=cfg.attention,
                reach=attention.reach(cfg, is_local, tokens.shape[1]),
                window=cfg.window,
                distances=self._distances(block, cfg),
            )
            return block(x, attend_layer, cfg, rotary.of_layer(angles, is_local), is_first), None

        is_first = jnp.arange(cfg.layers) == 0
        inputs = self.blocks, local_layers(cfg), is_first
        x, _ = jax.lax.scan(rematerialised(layer, cfg.remat), x, inputs)
        x = x if cfg.norms_behind else self._norm("norm", x, cfg)
        return x if capacity is None else packing.unpack(x, plan)

    def _distances(self, block: Block, cfg: Config) -> attention.Distances | None:
        """What a layer's scores gain by the distances of tokens."""
        if not cfg.distances:
            return None
        sizes = {"buckets": cfg.buckets, "farthest": cfg.farthest}
        if cfg.distances == "bias":
            rows = functools.partial(attention.rows_of_bias, **sizes)
            return attention.Distances((self.distance[...],), rows)
        rows = functools.partial(attention.rows_of_states, **sizes)
        states = self._norm("relative_norm", self.relative[...], cfg).astype(cfg.between)
        keys = einsum("xd,dkh->xkh", states, block.k[...], block.bias("k", cfg), cfg.compute)
        queries = einsum("xd,dnh->xnh", states, block.q[...], block.bias("q", cfg), cfg.compute)
        return attention.Distances((keys, queries), rows)

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
        x, first = self._token_embeddings(tokens, cfg, markers), None
        if segments is not None and cfg.segments:
            x = x + lookup(self.segment[...], segments)
        elif cfg.segments:
            first = self.segment[...][0]
        if not cfg.has_position_table:
            x = x if first is None else x + jax.sharding.reshard(first, activation_spec("d"))
            return self._norm("embed_norm", x, cfg).astype(cfg.between)
        table = self.position[...] if first is None else self.position[...] + first
        if cfg.pad is None:
            # All rows start at position 0. Padding may reach beyond the last position.
            t = tokens.shape[1]
            table = jnp.pad(table, ((0, max(0, t - cfg.positions)), (0, 0)))[:t]
            x = x + jax.sharding.reshard(table, activation_spec("t d"))
        else:
            x = x + lookup(table, positions(tokens, mask, cfg))
        return self._norm("embed_norm", x, cfg).astype(cfg.between)

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
