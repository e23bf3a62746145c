"""Log-probabilities of tokens, from the logits of a few positions at a time.

A position has as many logits as the vocabulary has tokens, so no device ever holds those of all.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Bool, Float, Int

from ark_jax import layout
from ark_jax.layout import activation_spec
from ark_jax.models import decoder, prefix
from ark_jax.models.prefix_plan import Span, SuffixBatch
from ark_jax.runtime.accelerator import device_in_use
from ark_jax.text import tokens as tk

# Positions whose logits a device holds at a time: on a CPU so few that its caches hold them, on
# accelerators so many that computing takes longer than reading the table.
LOGIT_BLOCK, ACCELERATOR_BLOCK = 64, 512


def block_length(on_cpu: int = LOGIT_BLOCK) -> int:
    """Positions whose logits are computed at once on the device in use."""
    return on_cpu if device_in_use().platform == "cpu" else ACCELERATOR_BLOCK


def target_positions(
    batch: SuffixBatch, rows: Sequence[tuple[np.ndarray, int]]
) -> tuple[np.ndarray, np.ndarray, dict[int, Span]]:
    """Where the targets of a batch are predicted.

    Args:
        rows: token ids, and how many of the last are the target.

    Returns:
        (positions, labels, spans). The positions in each device's stream of tokens and the target
        tokens that they predict, both `[devices targets]`, and the part of both that belongs to
        each row.
    """
    devices = layout.batch_multiple()
    positions = np.zeros((devices, tk.round_up(batch.capacity, block_length())), np.int32)
    labels, spans = np.zeros_like(positions), {}
    ends = [0] * devices  # target tokens of each device so far
    for i, suffix in batch.spans.items():
        (ids, count), start = rows[i], ends[suffix.device]
        span = Span(suffix.device, start, start + count)
        positions[span.device, start : span.end] = np.arange(suffix.end - count, suffix.end) - 1
        labels[span.device, start : span.end] = ids[len(ids) - count :]
        spans[i], ends[span.device] = span, span.end
    return positions, labels, spans


@functools.partial(jax.jit, static_argnums=(1, 5))
def suffix_log_probs(
    model: decoder.Decoder,
    cfg: decoder.Config,
    cache: prefix.PrefixCache,
    prefix_mask: Bool[Array, "prefixes s"],
    batch: prefix.SlotArrays,
    capacity: int,
    positions: Int[Array, "streams targets"],
    labels: Int[Array, "streams targets"],
    blocks: int | Int[Array, ""],
) -> Float[Array, "streams targets"]:
    """Log-probabilities of the tokens `labels`, each predicted at its position.

    Only the first `blocks` blocks of `block_length()` positions are computed, one at a time.
    """
    x = prefix.run_slots(model, cfg, cache, prefix_mask, batch, capacity)
    table = layout.copy_table(model.output_table(cfg).astype(x.dtype))
    length = block_length()

    def block(i, out):
        """Writes the log-probabilities of block i into `out`."""
        cut = lambda x: jax.lax.dynamic_slice_in_dim(x, i * length, length, axis=1)
        picked = layout.pick(x, cut(positions))
        log_probs = over_logits(label_log_probs, table, picked, cut(labels))
        return jax.lax.dynamic_update_slice_in_dim(out, log_probs, i * length, axis=1)

    zeros = jnp.zeros(positions.shape, jnp.float32, out_sharding=activation_spec("b t"))
    return jax.lax.fori_loop(0, blocks, block, zeros)


def token_log_probs(
    model: decoder.Decoder,
    cfg: decoder.Config,
    tokens: Int[Array, "b t"],
    mask: Bool[Array, "b t"],
    capacity: int | None = None,
) -> Float[Array, "b t"]:
    """log p(token | tokens before it) of every visible token, in nats; differentiable in `model`.

    Padding gets zero, and so does a row's first visible token, which has none before it. The sum
    over a pair's target tokens equals `LanguageModel.log_likelihood`.

    A device holds the logits of `block_length()` positions at a time, or of one position of each of
    its rows if these are more. The backward pass computes each block's logits again.

    Args:
        tokens: `[b t]`, sharded over the batch axes (`layout.rows`).
        mask: `[b t]`, true for visible tokens; padding may be on either side.
        capacity: an upper bound on the visible tokens of a device. With it, the layers skip
            padding.
    """
    hidden = model(tokens, mask, cfg, capacity)
    length = max(block_length() // max(len(tokens) // layout.batch_multiple(), 1), 1)
    table = layout.copy_table(model.output_table(cfg))
    predict = functools.partial(over_logits, label_log_probs, table)
    log_probs = map_positions(predict, length, hidden[:, :-1], tokens[:, 1:])
    is_predicted = mask[:, 1:] & mask[:, :-1]
    return jnp.pad(jnp.where(is_predicted, log_probs, 0), ((0, 0), (1, 0)))


def map_positions(function: Callable, length: int, *arrays: Array) -> Any:
    """Applies `function` to blocks of `length` positions, one block after another.

    The backward pass computes each block again, so that no more than one is in memory.

    Args:
        function: blocks `[b length ...]` of the arrays -> a tree of arrays `[b length]`.
        arrays: `[b t ...]`, sharded over the batch axes.

    Returns:
        A tree of arrays `[b t]`.
    """
    blocks = tuple(_split_time(x, length) for x in arrays)
    results = jax.lax.map(jax.checkpoint(lambda block: function(*block)), blocks)
    return jax.tree.map(lambda x: _join_time(x)[:, : arrays[0].shape[1]], results)


def _split_time(x: Array, length: int) -> Array:
    """`[b t ...]` -> `[blocks b length ...]`; zeros fill the last block."""
    padding = -x.shape[1] % length
    x = jnp.pad(x, ((0, 0), (0, padding), *[(0, 0)] * (x.ndim - 2)))
    rows, _, *features = jax.typeof(x).sharding.spec
    shape = (len(x), -1, length, *x.shape[2:])
    return jnp.moveaxis(x.reshape(shape, out_sharding=P(rows, None, None, *features)), 1, 0)


def _join_time(x: Float[Array, "blocks b length"]) -> Float[Array, "b t"]:
    """The inverse of `_split_time`; the zeros of the last block stay."""
    rows = x.shape[1]
    return jnp.moveaxis(x, 0, 1).reshape(rows, -1, out_sharding=activation_spec("b t"))


def over_logits(
    function: Callable,
    table: Float[Array, "u w v d"],
    hidden: Float[Array, "b t d"],
    labels: Int[Array, "b t"],
) -> Any:
    """Applies `function` to the logits of positions, each on one device.

    Args:
        function: logits `[t v]` and labels `[t]` of some positions -> a tree of arrays `[t]`.
        table: the weights of the logits, from `layout.copy_table`.

    Returns:
        A tree of arrays `[b t]`.
    """
    logits = layout.logits_of_parts(layout.cut_rows(hidden), table)
    results = jax.vmap(jax.vmap(function))(logits, layout.cut_rows(labels))
    return jax.tree.map(lambda x: layout.join_rows(x, labels.shape), results)


def label_log_probs(logits: Float[Array, "t v"], labels: Int[Array, " t"]) -> Float[Array, " t"]:
    """Log-probabilities of the labels, each by the logits of its position."""
    return layout.pick(logits, labels) - jax.nn.logsumexp(logits, axis=-1)
