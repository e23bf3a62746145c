"""What a pair scorer computes: its body, the heads, and the logits of a batch."""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Bool, Float, Int

from ark_jax import layout
from ark_jax.models import attention, decoder, encoder
from ark_jax.models.decoder import ACTIVATIONS, ones, zeros
from ark_jax.models.pooling import VectorForm, embed, pool

# linear  a sequence classifier with one label
# star    the paper's: two markers attend to their texts, a feed-forward network decides
# cosine  the cosine of the two texts, each embedded by itself
HEADS = ("linear", "star", "cosine")
ANSWER = "answer"  # of a decoder, which says yes or no: the only one it may have
SCALE = 20.0  # of cosines; the losses of sentence-transformers have the same
MARKERS = 2  # of the star head: one in front of each text


class FirstLayer(NamedTuple):
    """The first layer of a family's sequence classifiers.

    Attributes:
        activation: a key of `_ACTIVATIONS`.
        pooling: what it reads, the state of the first token ("cls") or the mean.
        biased: whether it has a bias.
        normed: whether a layer norm follows the activation.
    """

    activation: str = "tanh"
    pooling: str = "cls"
    biased: bool = True
    normed: bool = False


_ACTIVATIONS = {"tanh": jnp.tanh, "relu": jax.nn.relu, **ACTIVATIONS}


@dataclasses.dataclass(frozen=True)
class PairConfig:
    """What decides the logit of a pair, beside the weights."""

    body: Any  # configuration of an encoder, or of a decoder for ANSWER
    head: str  # one of HEADS, or ANSWER
    form: VectorForm  # of the cosine's vectors
    first: FirstLayer  # of the linear head
    scale: float = SCALE  # of the cosine
    typed: bool = False  # whether the body reads segment types
    answers: tuple[int, ...] = ()  # ids of yes and no, of ANSWER

    @property
    def has_cosine(self) -> bool:
        return self.head == "cosine"

    @property
    def reads_pairs(self) -> bool:
        """Whether a forward pass sees both texts."""
        return self.head != "cosine"

    @property
    def dims(self) -> dict[str, int]:
        """The size of each letter; see layout.py for the alphabet."""
        return self.body.dims | {"j": self.body.width, "c": 1, "g": 1 + MARKERS, "m": MARKERS}

    @property
    def layers(self) -> int:
        return self.body.layers

    @property
    def dtype(self) -> str:
        return self.body.dtype


class LinearHead(nnx.Module):
    """A sequence classifier's head: two layers over a state."""

    def __init__(self, cfg: PairConfig, *, rngs: nnx.Rngs):
        self.dense = layout.param("d j", cfg.dims, cfg.dtype, rngs)
        new = lambda side, init: layout.param(side, cfg.dims, cfg.dtype, rngs, init=init)
        if cfg.first.biased:
            self.dense_bias = new("j", zeros)
        if cfg.first.normed:
            self.dense_norm = new("j", ones)
            if "norm" in cfg.body.biases:
                self.dense_norm_bias = new("j", zeros)
        self.out, self.out_bias = new("j c", None), new("c", zeros)

    def __call__(
        self, hidden: Float[Array, "b t d"], mask: Bool[Array, "b t"], cfg: PairConfig
    ) -> Float[Array, " b"]:
        """Logits, float32."""
        bias = self.dense_bias[...] if cfg.first.biased else None
        state = pool(hidden, mask, cfg.first.pooling)
        x = layout.einsum("bd,dj->bj", state, self.dense[...], bias)
        x = _ACTIVATIONS[cfg.first.activation](x)
        if cfg.first.normed:
            bias = self.dense_norm_bias[...] if "norm" in cfg.body.biases else None
            x = encoder.layer_norm(x, self.dense_norm[...], bias, cfg.body.norm_eps)
        return layout.einsum("bj,jc->bc", x, self.out[...], self.out_bias[...])[:, 0]


class StarHead(nnx.Module):
    """The head of STAR (arXiv 2605.18765, section 4.1), without its last sigmoid.

    A marker in front of each text attends to the states of its own text: keys and values are linear
    in them, the query is the marker's state. The paper gives no hidden layer for the network: here
    it has the body's width and activation.
    """

    def __init__(self, cfg: PairConfig, *, rngs: nnx.Rngs):
        new = lambda side, **init: layout.param(side, cfg.dims, cfg.dtype, rngs, **init)
        self.markers = new("m e")
        self.key, self.value, self.dense = new("d j"), new("d j"), new("g d j")
        self.key_bias, self.value_bias = new("j", init=zeros), new("j", init=zeros)
        self.dense_bias, self.out_bias = new("j", init=zeros), new("c", init=zeros)
        self.out = new("j c")

    def __call__(
        self,
        hidden: Float[Array, "b t d"],
        marked: Bool[Array, "b m t"],
        visible: Bool[Array, "b m t"],
    ) -> Float[Array, " b"]:
        """Logits, float32.

        Args:
            marked: true at the token that is the marker.
            visible: true at the tokens that the marker attends to.
        """
        keys = layout.einsum("btd,dj->btj", hidden, self.key[...], self.key_bias[...])
        values = layout.einsum("btd,dj->btj", hidden, self.value[...], self.value_bias[...])
        hidden, keys, values = (x.astype(jnp.float32) for x in (hidden, keys, values))
        queries = jnp.einsum("bmt,btd->bmd", marked.astype(jnp.float32), hidden)
        scores = jnp.einsum("bmd,btd->bmt", queries, keys) * hidden.shape[-1] ** -0.5
        weights = jax.nn.softmax(jnp.where(visible, scores, attention.MASKED), axis=-1)
        read = queries + jnp.einsum("bmt,btd->bmd", weights, values)
        states = jnp.concatenate([hidden[:, :1], read], axis=1)
        x = layout.einsum("bgd,gdj->bj", states, self.dense[...], self.dense_bias[...])
        x = jax.nn.gelu(x, approximate=False)
        return layout.einsum("bj,jc->bc", x, self.out[...], self.out_bias[...])[:, 0]


Head = LinearHead | StarHead
_HEAD_CLASSES: dict[str, type[Head]] = {"linear": LinearHead, "star": StarHead}


class PairModel(nnx.Module):
    """One body, and the head that the configuration names."""

    def __init__(self, body: Any, head: Head | None):
        self.body = body
        if head is not None:
            self.head = head

    @property
    def blocks(self) -> encoder.Block | decoder.Block:
        """The layers; adapters change them."""
        return self.body.blocks


def new_head(cfg: PairConfig, *, rngs: nnx.Rngs) -> Head | None:
    """A head with random weights; None for the cosine, which has no head."""
    return _HEAD_CLASSES[cfg.head](cfg, rngs=rngs) if cfg.head in _HEAD_CLASSES else None


class Capacities(NamedTuple):
    """Packing room of each part of a batch, see `Encoder.__call__`; None computes padding too."""

    pairs: int | None = None
    left: int | None = None
    right: int | None = None


def pair_logits(
    model: PairModel, cfg: PairConfig, batch: Mapping, capacities: Capacities
) -> Float[Array, " b"]:
    """The logit of each pair, float32. A higher one is a better match.

    Args:
        batch: `pairs`, tokens, mask and segments `[b t]`. For the cosine instead `left` and
            `right`, tokens and mask of distinct texts, and `left_index` and `right_index`, int
            `[b]`: the row of each pair's text in them.
    """
    if cfg.reads_pairs:
        return head_logits(model, cfg, capacities.pairs, *batch["pairs"])
    return cfg.scale * _cosines(model, cfg, batch, capacities)


def _cosines(
    model: PairModel, cfg: PairConfig, batch: Mapping, capacities: Capacities
) -> Float[Array, " b"]:
    """The cosine of each pair's texts. A text of several pairs is embedded once."""

    def vectors(side: str, capacity: int | None) -> Float[Array, "b e"]:
        """The unit vector of each pair's text on a side, "left" or "right"."""
        x = embed(model.body, cfg.body, cfg.form, capacity, *batch[side])
        # Any device may need any text.
        x = jax.sharding.reshard(x, P())
        return x.at[batch[f"{side}_index"]].get(out_sharding=layout.activation_spec("b e"))

    left, right = vectors("left", capacities.left), vectors("right", capacities.right)
    return jnp.sum(left * right, axis=-1)


def head_logits(
    model: PairModel,
    cfg: PairConfig,
    capacity: int | None,
    tokens: Int[Array, "b t"],
    mask: Bool[Array, "b t"],
    segments: Int[Array, "b t"],
) -> Float[Array, " b"]:
    """The head's logits of tokenised pairs, float32."""
    if cfg.head == ANSWER:
        hidden = model.body(tokens, mask, cfg.body, capacity)
        return _answer_logits(pool(hidden, mask, "lasttoken"), model.body, cfg)
    head = model.head
    markers = head.markers[...] if isinstance(head, StarHead) else None
    types = segments if cfg.typed else None
    hidden = model.body(tokens, mask, cfg.body, capacity, segments=types, markers=markers)
    if isinstance(head, LinearHead):
        return head(hidden, mask, cfg)
    numbers = jnp.arange(MARKERS)[:, None]
    marked = tokens[:, None] == cfg.body.vocab + numbers
    is_after_marker = jnp.cumsum(marked, axis=-1) > 0
    visible = is_after_marker & ~marked & mask[:, None] & (segments[:, None] == numbers)
    return head(hidden, marked, visible)


def _answer_logits(
    state: Float[Array, "b d"], body: decoder.Decoder, cfg: PairConfig
) -> Float[Array, " b"]:
    """log P(yes) - log P(no) as the next token. The published score is its sigmoid."""
    table, ids = body.output_table(cfg.body), jnp.array(cfg.answers)
    rows = table.at[ids].get(out_sharding=layout.weight_spec("v e"))  # of each device's columns
    yes, no = jax.sharding.reshard(rows, P()).astype(jnp.float32)
    return jnp.sum(state * (yes - no), axis=-1)
