"""Training of a language model on given answers, or on answers that it draws itself."""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from ark_jax import layout
from ark_jax.models import lora
from ark_jax.models.batching import batch_tokens_of_device
from ark_jax.models.language import LanguageModel
from ark_jax.text.token_rows import TokenIds
from ark_jax.train import fit, memory, optim, parts
from ark_jax.train.groups import BatchShape, Group, check_groups
from ark_jax.train.likelihood import LikelihoodObjective, step_arrays, step_flops
from ark_jax.train.policy import PolicyLoss


@dataclasses.dataclass(frozen=True, kw_only=True)
class UpdateConfig:
    """How weights are updated; the fields have the names of `config.train`."""

    learning_rate: float  # at its peak
    warmup: float  # share of the steps
    decay: str  # "linear" or "cosine"
    floor: float  # share of the peak that the rate falls to
    weight_decay: float
    clip: float  # largest global norm of a gradient
    save_every: int  # steps
    remat: str  # what is computed again: of `memory.REMATS`, or "auto" for what fits
    seed: int
    lora_rank: int  # 0 trains all weights
    lora_alpha: float
    lora_targets: tuple[str, ...]  # () adapts every matrix of the blocks


@dataclasses.dataclass(frozen=True, kw_only=True)
class SuperviseConfig(UpdateConfig):
    """How a model learns given answers."""

    epochs: int
    batch: int  # answers a step


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReinforceConfig(UpdateConfig):
    """How a model learns from its own answers."""

    steps: int  # that answers are drawn for
    updates: int  # of the weights after each of them; above 1, `PolicyLoss` clips
    loss: PolicyLoss
    keep_dead: bool  # groups without an advantage stay in the denominator, and in a KL
    keep_cut_off: bool  # trains on completions that were cut off before they ended
    entropy: bool  # adds the mean entropy of the next token to the curve
    # The sizes of a full step; a larger one compiles the step again.
    prompts: int
    samples: int  # completions of a prompt
    prompt_tokens: int
    completion_tokens: int


class Demonstration(NamedTuple):
    """An answer to learn."""

    prompt_ids: TokenIds
    completion_ids: TokenIds  # with the token that ends a text
    weight: float = 1.0
    name: str = ""  # for errors and non_finite.json


Trained = tuple[LanguageModel, lora.Adapter | None, list[dict]]


def supervise(
    model: LanguageModel,
    demonstrations: Sequence[Demonstration],
    config: SuperviseConfig,
    folder: Path,
    *,
    label: str = "supervise",
    on_step: Callable[[dict], None] = lambda row: None,
    on_pace: Callable[..., None] = lambda **pace: None,
) -> Trained:
    """Trains a copy of `model` on given answers, by the mean negative log-likelihood of a token.

    Args:
        folder: gets checkpoints/ and curve.jsonl, from which a stopped run continues.
        label: for progress lines and errors.
        on_step, on_pace: see `fit.fit`.

    Returns:
        The trained model, the adapter that is merged into it (None if all weights are trained), and
        the curve.

    Raises:
        ValueError: there is nothing to train on, or an answer cannot be trained on.
        FloatingPointError, preemption.Preempted, OSError: see `fit.fit`.
    """
    if not demonstrations:
        raise ValueError(f"{label}: no answer to train on")
    groups = [
        Group(x.prompt_ids, [x.completion_ids], [x.weight], name=x.name or str(i))
        for i, x in enumerate(demonstrations)
    ]
    check_groups(groups, model.max_length, model.cfg.vocab)
    steps_per_epoch = -(-len(groups) // config.batch)
    orders = [
        np.random.default_rng([config.seed, epoch]).permutation(len(groups))
        for epoch in range(config.epochs)
    ]

    def chosen(step: int) -> list[Group]:
        epoch, place = divmod(step, steps_per_epoch)
        part = orders[epoch][place * config.batch : (place + 1) * config.batch]
        return [groups[i] for i in part]

    steps = steps_per_epoch * config.epochs
    step_shape = BatchShape.holding(map(chosen, range(steps)))
    prompts = parts.prompts_of_part(step_shape, batch_tokens_of_device())
    in_parts = [parts.split(chosen(step), prompts) for step in range(steps)]
    shape = BatchShape.holding(itertools.chain(*in_parts))
    return _train(
        model,
        lambda step, trainable: (in_parts[step], shape),
        shape,
        steps,
        LikelihoodObjective(model.cfg, PolicyLoss(ratio="none")),
        config,
        folder,
        label,
        on_step,
        on_pace,
        reads_weights=False,
    )


# (steps that answers were drawn for so far, the model as it is) -> the groups of the next one.
MakeGroups = Callable[[int, LanguageModel], Sequence[Group]]


def reinforce(
    model: LanguageModel,
    make_groups: MakeGroups,
    config: ReinforceConfig,
    folder: Path,
    *,
    label: str = "reinforce",
    on_step: Callable[[dict], None] = lambda row: None,
    on_pace: Callable[..., None] = lambda **pace: None,
) -> Trained:
    """Trains a copy of `model` on answers that it draws itself.

    Args:
        make_groups: draws and judges the answers of a step. A resumed run calls it again for a step
            whose update was lost, and inside a step of several updates with a model that has moved
            on. So it writes what it draws to a file before it returns, reads the file if it is
            there, and its draws depend on the step alone.
        folder, label, on_step, on_pace: as in `supervise`.

    Returns:
        As `supervise`. The curve has the `policy.token_loss` metrics and `completions`, the number
        that a step trained on.

    Raises:
        ValueError: a group cannot be trained on.
        FloatingPointError, preemption.Preempted, OSError: see `fit.fit`.
    """
    full = functools.partial(
        BatchShape.full,
        samples=config.samples,
        prompt_tokens=config.prompt_tokens,
        completion_tokens=config.completion_tokens,
    )
    prompts = parts.prompts_of_part(full(prompts=config.prompts), batch_tokens_of_device())
    shape_of_part = full(prompts=prompts * layout.batch_multiple())
    drawn: tuple[int, list[Group]] = (-1, [])
    frozen_model = model.model

    def choose(step: int, trainable: Any) -> tuple[list[list[Group]], BatchShape]:
        nonlocal drawn
        number = step // config.updates
        if drawn[0] != number:
            current = _merged(trainable, frozen_model)
            groups = make_groups(number, dataclasses.replace(model, model=current))
            drawn = number, _selected(groups, config, model, f"{label}, step {number}")
        in_parts = parts.split(drawn[1], prompts)
        return in_parts, shape_of_part.shrunk(*in_parts)

    objective = LikelihoodObjective(model.cfg, config.loss, config.entropy)
    steps = config.steps * config.updates
    return _train(
        model,
        choose,
        shape_of_part,
        steps,
        objective,
        config,
        folder,
        label,
        on_step,
        on_pace,
        reads_weights=True,
    )


def _selected(
    groups: Sequence[Group], config: ReinforceConfig, model: LanguageModel, label: str
) -> list[Group]:
    """The groups and completions that are trained on."""
    if not config.keep_cut_off:
        groups = [group.without_cut_off() for group in groups]
    try:
        if not groups:
            raise ValueError("no group was drawn; end the run where no question is left")
        check_groups(groups, model.max_length, model.cfg.vocab)
        for field, needed, reason in (
            ("old", config.updates > 1, f"{config.updates} updates a step need"),
            ("reference", config.loss.kl != "none", f"kl={config.loss.kl!r} needs"),
        ):
            if needed and getattr(groups[0], field) is None:
                raise ValueError(f"{reason} the numbers `{field}` of each group")
    except ValueError as error:
        raise ValueError(f"{label}: {error}") from None
    trained = [
        group
        for group in groups
        if len(group.completions) and (config.keep_dead or not group.is_dead)
    ]
    # Where nothing is left, a group without completions says which numbers the step has.
    return trained or [groups[0].select([])]


_merge = jax.jit(lora.merge)


def _merged(trainable: Any, frozen: Any) -> Any:
    """`fit.merged_model`, compiled."""
    return _merge(frozen, trainable) if isinstance(trainable, lora.Adapter) else trainable


def _train(
    model: LanguageModel,
    choose: Callable[[int, Any], tuple[Sequence[Sequence[Group]], BatchShape]],
    largest: BatchShape,
    steps: int,
    objective: LikelihoodObjective,
    config: UpdateConfig,
    folder: Path,
    label: str,
    on_step: Callable[[dict], None],
    on_pace: Callable[..., None],
    *,
    reads_weights: bool,
) -> Trained:
    """Runs `fit.fit` on the parts that `choose` returns for a step, in arrays of its shape.

    Args:
        largest: the shape of a part that takes most memory.
    """
    trainable, frozen = lora.split_weights(model.model, model.cfg, model.folder, config)
    texts = largest.texts_of_device()
    cfg = memory.choose_remat(model.cfg, config.remat, texts, trainable, frozen, label)
    objective = dataclasses.replace(objective, cfg=cfg)
    adapter = sum(x.size for x in jax.tree.leaves(trainable)) if frozen is not None else 0

    def make_batch(step: int, trainable: Any) -> fit.TrainingBatch:
        in_parts, shape = choose(step, trainable)
        groups = list(itertools.chain(*in_parts))
        tokens, work = step_flops(model.cfg, groups, adapter)
        names = {"prompts": [group.name for group in groups]}
        return fit.TrainingBatch(step_arrays(in_parts, shape), names, tokens, work)

    run = fit.TrainingRun(
        label=label,
        folder=folder,
        steps=steps,
        schedule=optim.schedule(
            config.learning_rate, steps, config.warmup, decay=config.decay, floor=config.floor
        ),
        optimizer=optim.adamw(weight_decay=config.weight_decay, clip=config.clip),
        save_every=config.save_every,
        reads_weights=reads_weights,
    )
    trained, curve = fit.fit(
        run, objective, make_batch, trainable, frozen, on_step=on_step, on_pace=on_pace
    )
    tuned = dataclasses.replace(model, model=_merged(trained, frozen))
    return tuned, None if frozen is None else trained, curve
