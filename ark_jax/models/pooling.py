"""From hidden states to the vector of a text, as the modules of sentence-transformers define it."""

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Bool, Float, Int

from ark_jax import layout

TOKENS = "none"  # instead of a pooling: each token keeps its vector
SIMILARITIES = ("cosine", "dot")
ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "torch.nn.modules.linear.Identity": lambda x: x,
    "torch.nn.modules.activation.Tanh": jnp.tanh,
    "torch.nn.modules.activation.ReLU": jax.nn.relu,
    "torch.nn.modules.activation.GELU": functools.partial(jax.nn.gelu, approximate=False),
    "torch.nn.modules.activation.SiLU": jax.nn.silu,
    "torch.nn.modules.activation.Sigmoid": jax.nn.sigmoid,
}


@dataclasses.dataclass(frozen=True)
class VectorForm:
    """What turns the hidden states of a text into its vector, beside weights."""

    poolings: tuple[str, ...]  # names of `pool`, laid end to end; or TOKENS alone
    width: int  # leading components that are kept
    activations: tuple[str, ...] = ()  # after each of the model's `dense` layers
    residuals: tuple[bool, ...] = ()  # whether each of them adds its input; (): none does
    normalised: bool = True  # whether the model's modules scale vectors to unit length
    similarity: str = "cosine"  # one of SIMILARITIES
    include_prompt: bool = True  # whether the tokens of a prompt are pooled
    skipped: int = 0  # leading tokens that are not pooled; see `Retriever.form_of`
    # Of tokens, see `MultiVectorRetriever.form_of`.
    filler: int | None = None  # id of the last tokens of a text, which no token sees
    dropped: tuple[int, ...] = ()  # ids of tokens whose vectors are zero

    @property
    def pooling(self) -> str:
        """The poolings as one word, such as "cls+mean"."""
        return "+".join(self.poolings)

    @property
    def raw(self) -> "VectorForm":
        """The same without any scaling to unit length."""
        return dataclasses.replace(self, normalised=False, similarity="dot")


class Dense(nnx.Module):
    """A linear layer over vectors, in float32, as sentence-transformers' module Dense.

    Args:
        weight: `[out in]`.
        bias: `[out]`, or None.
        residual: `[out in]`, what a residual's input is multiplied by; None adds it as it is.
    """

    def __init__(
        self, weight: np.ndarray, bias: np.ndarray | None, residual: np.ndarray | None = None
    ):
        new = lambda x: nnx.Param(layout.put(x, P(*[None] * x.ndim)))
        self.dense_weight = new(weight)  # [out in]
        self.dense_bias = None if bias is None else new(bias)
        self.dense_residual = None if residual is None else new(residual)

    def __call__(
        self, x: Float[Array, "b *t e"], activation: str, *, has_residual: bool
    ) -> Float[Array, "b *t o"]:
        y = _product(x, self.dense_weight)
        y = y if self.dense_bias is None else y + self.dense_bias[...].astype(jnp.float32)
        y = ACTIVATIONS[activation](y)
        if not has_residual:
            return y
        return y + (x if self.dense_residual is None else _product(x, self.dense_residual))


def _product(x: Float[Array, "b *t e"], weight: nnx.Param) -> Float[Array, "b *t o"]:
    spec = P(layout.BATCH, *[None] * (x.ndim - 1))
    return jnp.einsum("...e,oe->...o", x, weight[...].astype(jnp.float32), out_sharding=spec)


def pool(
    hidden: Float[Array, "b t d"], mask: Bool[Array, "b t"], pooling: str, skipped: int = 0
) -> Float[Array, "b *t d"]:
    """One float32 vector for each text, or with `TOKENS` one for each token and zeros for padding.

    Only the mask marks padding, since a pad token may occur in a text.

    Args:
        skipped: visible tokens at the start of each text that are left out.
    """
    if pooling == TOKENS:
        return jnp.where(mask[:, :, None], hidden, 0).astype(jnp.float32)
    count = jnp.cumsum(mask, axis=1)  # number of each visible token, from 1
    seen = mask & (count > skipped) if skipped else mask
    if pooling == "cls" and not skipped:
        return hidden[:, 0].astype(jnp.float32)
    if pooling == "cls":
        return layout.pick(hidden, jnp.argmax(seen, axis=-1)).astype(jnp.float32)
    if pooling == "lasttoken":
        # The last visible position, whichever side the padding is on.
        last = mask.shape[1] - 1 - jnp.argmax(seen[:, ::-1], axis=-1)
        return layout.pick(hidden, last).astype(jnp.float32)
    x = hidden.astype(jnp.float32)
    if pooling == "max":
        return jnp.max(jnp.where(seen[:, :, None], x, -jnp.inf), axis=1)
    weights = seen.astype(jnp.float32)
    if pooling == "weightedmean":
        weights = weights * count
    total = jnp.einsum("btd,bt->bd", x, weights)
    size = jnp.maximum(weights.sum(-1, keepdims=True), 1e-9)
    return total / (jnp.sqrt(size) if pooling == "mean_sqrt_len_tokens" else size)


def unit(x: Float[Array, "b *t e"]) -> Float[Array, "b *t e"]:
    """Vectors scaled to unit length; zero vectors stay zero."""
    # The bound makes the gradient of an empty row zero; that of its norm would be NaN.
    return x * jax.lax.rsqrt(jnp.maximum(jnp.sum(x * x, axis=-1, keepdims=True), 1e-24))


def embed(
    model,
    cfg,
    form: VectorForm,
    capacity: int | None,
    tokens: Int[Array, "b t"],
    mask: Bool[Array, "b t"],
) -> Float[Array, "b *t e"]:
    """Vectors of tokenised texts, float32, whose inner products are the model's similarities.

    Those of cosines have unit length.

    Args:
        capacity: an upper bound on the visible tokens of a device. With it, the layers skip
            padding; None computes padding too.
    """
    if form.filler is None:
        hidden = model(tokens, mask, cfg, capacity)
    else:  # kernels that know lengths alone would leave out what is not seen
        cfg = dataclasses.replace(cfg, attention="xla")
        hidden = model(tokens, mask, cfg, seen=_seen(tokens, mask, form.filler))
    x = jnp.concatenate([pool(hidden, mask, name, form.skipped) for name in form.poolings], -1)
    residuals = form.residuals or [False] * len(form.activations)
    layers = zip(getattr(model, "dense", ()), form.activations, residuals, strict=False)
    for layer, activation, has_residual in layers:
        x = layer(x, activation, has_residual=has_residual)
    is_cosine = form.similarity == "cosine"
    # Truncation follows; a cosine is scaled after it.
    x = unit(x) if form.normalised and not is_cosine else x
    x = unit(x[..., : form.width]) if is_cosine else x[..., : form.width]
    if form.poolings != (TOKENS,):
        return x
    kept = mask & ~jnp.isin(tokens, jnp.array(form.dropped, tokens.dtype))
    return jnp.where(kept[:, :, None], x, 0)  # a layer's bias would fill padding


def _seen(tokens: Int[Array, "b t"], mask: Bool[Array, "b t"], filler: int) -> Bool[Array, "b t"]:
    """The visible tokens without the fillers at the end of a text."""
    place = jnp.arange(tokens.shape[1])
    last = jnp.max(jnp.where(mask & (tokens != filler), place, 0), axis=1, keepdims=True)
    return mask & (place <= last)
