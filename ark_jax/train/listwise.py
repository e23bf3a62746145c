"""Training of a pair scorer on weighted lists (STAR): settings, weights and objective."""

import dataclasses
import functools
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import PartitionSpec as P

from ark_jax.models import lora
from ark_jax.models.pairs import Capacities, PairConfig, PairModel, PairScorer, pair_logits
from ark_jax.train import fit, losses, memory, optim
from ark_jax.train.list_batches import ListTexts, ListwiseBatches
from ark_jax.train.lists import ListEpochs, PairList


@dataclasses.dataclass(frozen=True)
class ListwiseConfig:
    """How a pair scorer is trained; most fields have the names of `config.train`."""

    epochs: int
    learning_rate: float  # at its peak
    warmup: float  # share of the steps
    weight_decay: float
    clip: float  # largest global norm of a gradient
    batch: int  # lists a step
    negatives: int  # most of a list; 0 for all
    choose_again: bool  # by the scorer itself, before each epoch after the first
    temperature: float  # divides logits
    save_every: int  # steps
    remat: str  # what is computed again: of `memory.REMATS`, or "auto" for what fits
    seed: int
    lora_rank: int = 0  # 0 trains all weights; otherwise an adapter of the body, and the head
    lora_alpha: float = 32.0
    lora_targets: tuple[str, ...] = ()  # () adapts every matrix of the blocks


@typing.no_type_check  # tree operations put other leaves into it
@functools.partial(
    jax.tree_util.register_dataclass, data_fields=["adapter", "head"], meta_fields=[]
)
@dataclasses.dataclass(frozen=True)
class AdaptedScorer:
    """What is trained beside a frozen body: its adapter, and the head whole, which may be new."""

    adapter: lora.Adapter
    head: Any


def train(
    scorer: PairScorer,
    lists: Sequence[PairList],
    config: ListwiseConfig,
    folder: Path,
    *,
    loss: Callable = losses.weighted_lists,
    label: str = "train",
    on_step: Callable[[dict], None] = lambda row: None,
    on_pace: Callable[..., None] = lambda **pace: None,
) -> tuple[PairScorer, list[dict]]:
    """Trains a copy of the scorer, whichever head it has.

    Args:
        folder: gets checkpoints/, curve.jsonl and the choices of `ListEpochs`, from which a stopped
            run continues.
        loss: takes logits, presence and the lists' weights, as `losses.weighted_lists` does.
        label: for progress lines and errors.
        on_step, on_pace: see `fit.fit`.

    Returns:
        The trained scorer, and the curve.

    Raises:
        ValueError: there are no lists, or a weight is not above 0.
        FloatingPointError, preemption.Preempted, OSError: see `fit.fit`.
    """
    _check(lists)
    texts = ListTexts.create(lists)
    trainable, frozen = _split_weights(scorer, config)
    adapter = trainable.adapter if frozen is not None else ()

    def score(trainable: Any) -> list[np.ndarray]:
        model = _merge(trainable, frozen)
        scores = dataclasses.replace(scorer, model=model).score(texts.pairs, label="negatives")
        return [scores[members] for members in texts.members]

    epochs = ListEpochs(
        lists,
        batch=config.batch,
        negatives=config.negatives,
        seed=config.seed,
        folder=folder,
        score=score if config.choose_again else None,
    )
    steps = epochs.steps * config.epochs
    entries = sum(x.size for x in jax.tree.leaves(adapter))
    maker = ListwiseBatches.create(epochs, texts, scorer, steps, entries, label)
    run = fit.TrainingRun(
        label=label,
        folder=folder,
        steps=steps,
        schedule=optim.schedule(config.learning_rate, steps, config.warmup),
        optimizer=optim.adamw(weight_decay=config.weight_decay, clip=config.clip),
        save_every=config.save_every,
        reads_weights=epochs.may_change,
    )
    body = memory.choose_remat(
        scorer.cfg.body, config.remat, maker.texts_of_device(), trainable, frozen, label
    )
    model_config = dataclasses.replace(scorer.cfg, body=body)
    objective = ListwiseObjective(model_config, maker.capacities, config.temperature, loss)
    trained, curve = fit.fit(
        run, objective, maker, trainable, frozen, on_step=on_step, on_pace=on_pace
    )
    model = trained if frozen is None else jax.jit(_merge)(trained, frozen)
    return dataclasses.replace(scorer, model=model), curve


def _split_weights(
    scorer: PairScorer, config: ListwiseConfig
) -> tuple[PairModel | AdaptedScorer, PairModel | None]:
    """(trainable, frozen): the model and None, or what is trained beside a frozen body, and it."""
    if not config.lora_rank:
        return scorer.model, None
    adapter = lora.new_adapter(scorer.base, scorer.cfg.body, config)
    head = scorer.model.head if scorer.cfg.reads_pairs else None
    return AdaptedScorer(adapter, head), PairModel(scorer.model.body, None)


def _merge(trainable: PairModel | AdaptedScorer, frozen: PairModel | None) -> PairModel:
    """The model that is trained."""
    if frozen is None:
        return trainable
    return PairModel(lora.merge(frozen, trainable.adapter).body, trainable.head)


def _check(lists: Sequence[PairList]) -> None:
    if not lists:
        raise ValueError(
            "no list to train on; see the counts of the stages before this one, which say why none "
            "was made"
        )
    for number, pair_list in enumerate(lists):
        weights = np.array(pair_list.weights)
        is_positive = np.isfinite(weights) & (weights > 0)
        if len(weights) != len(pair_list.rights) or not is_positive.all():
            raise ValueError(
                f"list {number} ({pair_list.left[:40]!r}) has {len(pair_list.rights)} "
                f"texts and the weights {pair_list.weights}; give each text a weight above 0"
            )


@dataclasses.dataclass(frozen=True)
class ListwiseObjective:
    """A loss of lists over the logits of a batch's pairs."""

    cfg: PairConfig
    capacities: Capacities
    temperature: float
    loss: Callable

    def __call__(self, trainable: Any, frozen: Any, batch: Mapping) -> tuple[jax.Array, dict]:
        """The loss; see `fit.Objective`.

        Args:
            trainable, frozen: as of `_split_weights`.
            batch: what `pair_logits` takes; `rows`, the pair of each candidate, int `[lists
                candidates]`, with `present` and `weights` as the loss takes them.
        """
        logits = (
            pair_logits(_merge(trainable, frozen), self.cfg, batch, self.capacities)
            / self.temperature
        )
        # A list's pairs lie on several devices; there are few lists.
        scores = jax.sharding.reshard(logits, P()).at[batch["rows"]].get(out_sharding=P())
        return self.loss(scores, batch["present"], batch["weights"]), {}
