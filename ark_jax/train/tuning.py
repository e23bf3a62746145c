"""Training of a language model on given answers, or on answers that it draws itself."""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ark_jax import layout
from ark_jax.models import lora
from ark_jax.models.batching import batch_tokens_of_device
from ark_jax.models.language import LanguageModel
from ark_jax.models.token_probabilities import block_length
from ark_jax.text.token_rows import TokenIds
from ark_jax.train import fit, memory, parts
from ark_jax.train.config import GrpoConfig, LanguageModelConfig
from ark_jax.train.groups import BatchShape, Group, check_groups
from ark_jax.train.likelihood import LOGIT_BLOCK, LikelihoodObjective, step_arrays, step_flops
from ark_jax.train.policy import PolicyLoss, TokenLoss


class Demonstration(NamedTuple):
    """An answer to learn."""

    prompt_ids: TokenIds
    completion_ids: TokenIds  # with the token that ends a text
    weight: float = 1.0
    name: str = ""  # for errors and non_finite.json


def sft(
    model: LanguageModel,
    demonstrations: Sequence[Demonstration],
    config: LanguageModelConfig,
    run: fit.Run,
    *,
    batch: int,
    epochs: int = 1,
    learning_rate: float,
    seed: int,
) -> fit.Trained:
    """Trains a copy of `model` on given answers, by the mean negative log-likelihood of a token.

    Args:
        batch: answers a step.

    Raises:
        ValueError: there is nothing to train on, or an answer cannot be trained on.
        FloatingPointError, preemption.Preempted, OSError: see `fit.train`.
    """
    if not demonstrations:
        raise ValueError(f"{run.label}: no answer to train on")
    groups = [
        Group(x.prompt_ids, [x.completion_ids], [x.weight], name=x.name or str(i))
        for i, x in enumerate(demonstrations)
    ]
    check_groups(groups, model.max_length, model.cfg.vocab)
    steps_per_epoch = -(-len(groups) // batch)
    orders = [
        np.random.default_rng([seed, epoch]).permutation(len(groups)) for epoch in range(epochs)
    ]

    def step_groups(step: int) -> list[Group]:
        """The shuffled answers of a step; the last step of an epoch may have fewer."""
        epoch, place = divmod(step, steps_per_epoch)
        part = orders[epoch][place * batch : (place + 1) * batch]
        return [groups[i] for i in part]

    steps = steps_per_epoch * epochs
    step_shape = BatchShape.holding(map(step_groups, range(steps)))
    prompts = parts.prompts_of_part(step_shape, batch_tokens_of_device())
    in_parts = [parts.split(step_groups(step), prompts) for step in range(steps)]
    shape = BatchShape.holding(itertools.chain(*in_parts))
    return _train_in_parts(
        model,
        lambda step, trainable: (in_parts[step], shape),
        shape,
        LikelihoodObjective(model.cfg, PolicyLoss(ratio="none")),
        config,
        run,
        steps=steps,
        learning_rate=learning_rate,
        seed=seed,
    )


# (steps that answers were drawn for so far, the current model) -> the groups of the next step.
MakeGroups = Callable[[int, LanguageModel], Sequence[Group]]


def grpo(
    model: LanguageModel,
    make_groups: MakeGroups,
    config: LanguageModelConfig,
    run: fit.Run,
    *,
    policy: GrpoConfig,
    steps: int,
    prompts: int,
    prompt_tokens: int,
    completion_tokens: int,
    learning_rate: float,
    seed: int,
    by_token: TokenLoss | None = None,
) -> fit.Trained:
    """Trains a copy of `model` on answers that it draws itself.

    Args:
        make_groups: draws and judges the answers of a step. A resumed run calls it again for a step
            whose update was lost, and inside a step of several updates with a model that has moved
            on. So it writes what it draws to a file before it returns, reads the file if it is
            there, and its draws depend on the step alone.
        steps: number of steps that answers are drawn for; each has `policy.updates` updates.
        prompts, prompt_tokens, completion_tokens: sizes of a full step, with `policy.samples`
            answers to each prompt; a larger step is compiled again.
        seed: decides the weights of a new adapter.
        by_token: see `PolicyLoss`.

    Returns:
        The curve has the `policy.token_loss` metrics, the mean entropy of the next token and
        `completions`, the number that a step trained on.

    Raises:
        ValueError: a group cannot be trained on.
        FloatingPointError, preemption.Preempted, OSError: see `fit.train`.
    """
    full = functools.partial(
        BatchShape.full,
        samples=policy.samples,
        prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens,
    )
    prompts_of_part = parts.prompts_of_part(full(prompts=prompts), batch_tokens_of_device())
    shape_of_part = full(prompts=prompts_of_part * layout.batch_multiple())
    drawn: tuple[int, list[Group]] = (-1, [])
    frozen = model.model if config.lora_rank else None

    def choose(step: int, trainable: Any) -> tuple[list[list[Group]], BatchShape]:
        """The groups of a step's parts, drawn when it is the first update, and the parts' shape."""
        nonlocal drawn
        number = step // policy.updates
        if drawn[0] != number:
            current = dataclasses.replace(model, model=fit.current_model(trainable, frozen))
            groups = make_groups(number, current)
            drawn = number, _select_groups(groups, policy, model, f"{run.label}, step {number}")
        in_parts = parts.split(drawn[1], prompts_of_part)
        return in_parts, shape_of_part.shrunk(*in_parts)

    return _train_in_parts(
        model,
        choose,
        shape_of_part,
        LikelihoodObjective(model.cfg, PolicyLoss.from_config(policy, by_token), entropy=True),
        config,
        run,
        steps=steps * policy.updates,
        learning_rate=learning_rate,
        seed=seed,
        reads_weights=True,
    )


def _select_groups(
    groups: Sequence[Group], policy: GrpoConfig, model: LanguageModel, label: str
) -> list[Group]:
    """The groups, with those of their completions, that are trained on; at least one group.

    Raises:
        ValueError: a group cannot be trained on.
    """
    if not policy.keep_cut_off:
        groups = [group.without_cut_off() for group in groups]
    try:
        if not groups:
            raise ValueError("no group was drawn; end the run where no question is left")
        check_groups(groups, model.max_length, model.cfg.vocab)
        for field, needed, reason in (
            ("old", policy.updates > 1, f"{policy.updates} updates a step need"),
            ("policy_reference", policy.kl != "none", f"kl={policy.kl!r} needs"),
        ):
            if needed and getattr(groups[0], field) is None:
                raise ValueError(f"{reason} the numbers `{field}` of each group")
    except ValueError as error:
        raise ValueError(f"{label}: {error}") from None
    trained = [
        group
        for group in groups
        if len(group.completions) and (policy.keep_dead or not group.is_dead)
    ]
    # If nothing is left, a group without completions shows which optional fields the step has.
    return trained or [groups[0].select([])]


def _train_in_parts(
    model: LanguageModel,
    choose: Callable[[int, Any], tuple[Sequence[Sequence[Group]], BatchShape]],
    largest: BatchShape,
    objective: LikelihoodObjective,
    config: LanguageModelConfig,
    run: fit.Run,
    *,
    steps: int,
    learning_rate: float,
    seed: int,
    reads_weights: bool = False,
) -> fit.Trained:
    """Trains on the parts that `choose` returns for a step, in arrays of its shape.

    Args:
        choose: (step, trainable weights) -> the groups of each part, and the shape of a part.
        largest: the shape of the part that takes the most memory.
    """
    trainable, frozen = lora.split_weights(model.model, model.cfg, model.folder, config, seed)
    texts = largest.texts_of_device()
    positions = block_length(LOGIT_BLOCK)
    logits = memory.logits_bytes(model.cfg, positions, trained=frozen is None)
    cfg = memory.choose_remat(model.cfg, config, texts, trainable, frozen, run.label, logits=logits)
    adapter = 0 if frozen is None else trainable.entries

    def make_batch(step: int, trainable: Any) -> fit.TrainingBatch:
        in_parts, shape = choose(step, trainable)
        groups = list(itertools.chain(*in_parts))
        tokens, work = step_flops(model.cfg, groups, adapter)
        names = {"prompts": [group.name for group in groups]}
        return fit.TrainingBatch(step_arrays(in_parts, shape), names, tokens, work)

    trained = fit.train(
        dataclasses.replace(objective, cfg=cfg),
        make_batch,
        config,
        run,
        trainable,
        frozen,
        steps=steps,
        learning_rate=learning_rate,
        decay=config.decay,
        floor=config.floor,
        reads_weights=reads_weights,
    )
    return trained._replace(model=dataclasses.replace(model, model=trained.model))
