"""The weighted likelihood of completions: an objective, and its arrays.

Supervised training weighs the tokens of given answers by 1, rejection sampling those of right
samples, REINFORCE by rewards, GRPO by advantages, with a ratio to the policy that drew them. One
objective serves them all; `policy.PolicyLoss` selects the method. It computes each distinct prompt
once and its completions behind it, so a prompt with eight answers is computed once instead of eight
times.
"""

import dataclasses
import functools
import typing
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from ark_jax import layout
from ark_jax.models import decoder, packing, prefix
from ark_jax.models.token_probabilities import (
    block_length,
    label_log_probs,
    map_positions,
    over_logits,
)
from ark_jax.text import tokens as tk
from ark_jax.train import fit, flops, parts
from ark_jax.train.groups import BatchShape, Group, place_prompts
from ark_jax.train.policy import Counts, PolicyLoss, token_loss

STATIC = {"static": True}  # of a field: it is part of the tree's structure
LOGIT_BLOCK = 256  # on a CPU, positions whose logits are computed at once


@typing.no_type_check  # tree operations put other leaves into it
@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class GroupArrays:
    """A step on the devices; each device has some prompts and all of their completions.

    The forward pass reads a prompt without its last token, and then for each completion that token
    and the completion's own without the last. So every position that it reads there predicts the
    completion's token at the same position of `labels`.
    """

    prompt_tokens: Int[Array, "p s"]
    prompt_mask: Bool[Array, "p s"]
    completions: prefix.Suffixes  # `[b t]`
    labels: Int[Array, "b t"]
    advantages: Float[Array, " b"]
    old: Float[Array, "b t"] | None
    policy_reference: Float[Array, "b t"] | None
    prompt_room: int = dataclasses.field(metadata=STATIC)  # tokens of all prompts, on each device
    room: int = dataclasses.field(metadata=STATIC)  # tokens of all completions, on each device

    @property
    def mask(self) -> Bool[Array, "b t"]:
        """True for each token that is predicted."""
        return self.completions.mask


def group_arrays(groups: Sequence[Group], shape: BatchShape) -> GroupArrays:
    """The groups of a step on the current mesh.

    Args:
        groups: `check_groups` has accepted them.
        shape: holds them.
    """
    devices = place_prompts(groups)
    prompt_places, prefixes, row_places, members, starts = [], [], [], [], []
    per_prompt = np.zeros(len(devices) * shape.prompts, np.int32)
    for device, prompts in enumerate(devices):
        row = device * shape.rows
        for place, prompt in enumerate(prompts, device * shape.prompts):
            prompt_places.append(place)
            prefixes.append(prompt.prefix)
            per_prompt[place] = prompt.tokens
            for group, i in prompt.members:
                row_places.append(row)
                members.append((group, i, prompt.last))
                starts.append(len(prompt.prefix))
                row += 1
    height = len(devices) * shape.rows
    pad = lambda rows: tk.pad_rows(rows, row_places, height, shape.tokens)
    inputs, mask = pad([[last, *group.completions[i][:-1]] for group, i, last in members])
    labels, _ = pad([group.completions[i] for group, i, _ in members])
    prefix_lengths, advantages = np.zeros(height, np.int32), np.zeros(height, np.float32)
    prefix_lengths[row_places] = starts
    advantages[row_places] = [group.advantages[i] for group, i, _ in members]

    def values(field: str) -> jax.Array | None:
        """A field's number for each token, `[b t]`; None if the groups have no such field."""
        if not groups or getattr(groups[0], field) is None:
            return None
        padded = np.zeros((height, shape.tokens), np.float32)
        for row, (group, i, _) in zip(row_places, members, strict=True):
            numbers = getattr(group, field)[i]
            padded[row, : len(numbers)] = numbers
        return layout.rows(padded)

    prompt_rows = len(devices) * shape.prompts
    prompts = tk.pad_rows(prefixes, prompt_places, prompt_rows, shape.prompt_tokens)
    completions = prefix.Suffixes(
        tokens=inputs,
        mask=mask,
        prefix_lengths=prefix_lengths,
        prefix_indices=np.tile(np.arange(shape.prompts, dtype=np.int32), len(devices)),
        tokens_per_prefix=np.arange(shape.tokens_per_prompt) < per_prompt[:, None],
    )
    return GroupArrays(
        *map(layout.rows, prompts),
        prefix.Suffixes(*map(layout.rows, completions)),
        layout.rows(labels),
        layout.rows(advantages),
        values("old"),
        values("policy_reference"),
        shape.prompt_room,
        shape.room,
    )


def step_arrays(groups_of_parts: Sequence[Sequence[Group]], shape: BatchShape) -> Any:
    """The parts of a step on the current mesh, as `LikelihoodObjective` takes them.

    Args:
        shape: holds each part.
    """
    return parts.join([group_arrays(part, shape) for part in groups_of_parts])


def step_flops(cfg: decoder.Config, groups: Sequence[Group], adapter: int) -> tuple[int, float]:
    """Tokens that a step computes, each distinct prompt once, and its model FLOPs."""
    prompts = {tuple(group.prompt_ids): len(group.prompt_ids) - 1 for group in groups}
    rows = [(len(g.prompt_ids) - 1, len(c)) for g in groups for c in g.completions]
    predicted = sum(length for _, length in rows)
    tokens = sum(prompts.values()) + predicted
    lengths = [*prompts.values(), *(length for _, length in rows)]
    pairs = flops.attention_pairs(cfg, lengths) + sum(start * length for start, length in rows)
    forward = flops.forward(cfg, tokens, pairs, predicted)
    return tokens, flops.with_backward(forward, tokens, adapter)


@dataclasses.dataclass(frozen=True)
class LikelihoodObjective:
    """`policy.token_loss` of the completions of a step."""

    cfg: decoder.Config
    loss: PolicyLoss
    entropy: bool = False  # adds the mean entropy of the next token to the metrics

    def __call__(
        self, trainable: Any, frozen: Any, batch: GroupArrays | parts.Parts
    ) -> tuple[jax.Array, dict]:
        """The loss; see `fit.Objective`."""
        if isinstance(batch, GroupArrays):
            return self._part_loss(trainable, frozen, batch, Counts.from_mask(batch.mask))
        counts = Counts.from_mask(batch.arrays.mask)
        loss = lambda trainable, part: self._part_loss(trainable, frozen, part, counts)
        return parts.summed(loss, trainable, batch)

    def _part_loss(
        self, trainable: Any, frozen: Any, batch: GroupArrays, counts: Counts
    ) -> tuple[jax.Array, dict]:
        """The part of the loss, and its metrics, that these completions add to the step's.

        Args:
            counts: of the whole step.
        """
        model = fit.adapted_model(trainable, frozen)
        log_probs, entropy = completion_log_probs(model, self.cfg, batch, entropy=self.entropy)
        loss, metrics = token_loss(
            log_probs,
            batch.old,
            batch.policy_reference,
            batch.advantages,
            batch.mask,
            self.loss,
            counts,
        )
        if entropy is not None:
            metrics["entropy"] = entropy.sum() / counts.tokens
        return loss, metrics | {"completions": batch.mask.any(1).sum()}


def completion_log_probs(
    model: decoder.Decoder, cfg: decoder.Config, batch: GroupArrays, *, entropy: bool = False
) -> tuple[Float[Array, "b t"], Float[Array, "b t"] | None]:
    """Log-probabilities of the completions' tokens, and entropies at them or None, in nats.

    The log-probabilities are differentiable in `model`, the entropies are not. Every prompt is
    computed once. A device holds the logits of one block of positions at a time; the backward pass
    computes them again. Padding gets zeros.
    """
    cache = prefix.compute(model, cfg, batch.prompt_tokens, batch.prompt_mask, batch.prompt_room)
    hidden, _ = prefix.run_suffixes(
        model, cfg, cache, batch.prompt_mask, batch.completions, batch.room, keep=False
    )
    plan = packing.plan_packing(batch.mask, batch.room)

    table = layout.copy_table(model.output_table(cfg))

    def predict(logits: Float[Array, "t v"], labels: Int[Array, " t"]) -> tuple[Array, ...]:
        """Log-probabilities of the labels and, if asked for, entropies."""
        out = [label_log_probs(logits, labels)]
        if entropy:
            logits = jax.lax.stop_gradient(logits)
            total = jax.nn.logsumexp(logits, axis=-1)
            out.append(total - (jnp.exp(logits - total[:, None]) * logits).sum(-1))
        return tuple(out)

    over_blocks = functools.partial(over_logits, predict, table)
    labels = packing.pack(batch.labels, plan)
    results = map_positions(over_blocks, min(block_length(LOGIT_BLOCK), batch.room), hidden, labels)
    log_probs, *entropies = (packing.unpack(x, plan) for x in results)
    return log_probs, entropies[0] if entropies else None
