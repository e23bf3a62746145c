"""Training of a pair scorer on weighted lists (STAR): weights and objective."""

import dataclasses
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import PartitionSpec as P

from ark_jax.models import lora
from ark_jax.models.pairs import Capacities, CrossEncoder, PairConfig, PairModel, pair_logits
from ark_jax.train import fit, losses, memory
from ark_jax.train.config import AdapterConfig
from ark_jax.train.list_batches import ListTexts, ListwiseBatches
from ark_jax.train.lists import ListEpochs, PairList


@typing.no_type_check  # tree operations put other leaves into it
@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class AdaptedScorer:
    """What is trained beside a frozen body: its adapter, and all weights of the head."""

    adapter: lora.Adapter
    head: Any

    def applied_to(self, frozen: PairModel) -> PairModel:
        """The model that is trained."""
        return PairModel(lora.adapt(frozen, self.adapter).body, self.head)


def train(
    scorer: CrossEncoder,
    lists: Sequence[PairList],
    config: AdapterConfig,
    run: fit.Run,
    *,
    batch: int,
    epochs: int,
    learning_rate: float,
    seed: int,
    negatives: int = 0,
    choose_again: bool = False,
    temperature: float = 1.0,
    loss: Callable = losses.weighted_lists,
    after_epoch: Callable[[int, CrossEncoder], None] | None = None,
) -> fit.Trained:
    """Trains a copy of the scorer, whichever head it has.

    Args:
        batch: lists a step.
        run: its folder gets the choices of `ListEpochs`, too.
        negatives: most negatives of a list; 0 for all.
        choose_again: whether the scorer chooses the negatives before each epoch after the first.
        temperature: divides logits.
        loss: takes logits, presence and the lists' weights, as `losses.weighted_lists` does.
        after_epoch: gets the number of each finished epoch, from 1, and the scorer then; again if
            a resumed run repeats the end of an epoch.

    Raises:
        ValueError: there are no lists, or a weight is not above 0.
        FloatingPointError, preemption.Preempted, OSError: see `fit.train`.
    """
    _check_lists(lists)
    texts = ListTexts.create(lists)
    trainable, frozen = _split_weights(scorer, config, seed)

    def current(trainable: Any) -> CrossEncoder:
        """The scorer with these weights."""
        return dataclasses.replace(scorer, model=fit.current_model(trainable, frozen))

    def score(trainable: Any) -> list[np.ndarray]:
        """The current logit of each list's candidates."""
        scores = current(trainable).score(texts.pairs, label="negatives")
        return [scores[members] for members in texts.members]

    drawn = ListEpochs(
        lists,
        batch=batch,
        negatives=negatives,
        seed=seed,
        folder=run.folder,
        score=score if choose_again else None,
    )
    steps = drawn.steps * epochs
    adapter = 0 if frozen is None else trainable.adapter.entries
    maker = ListwiseBatches.create(drawn, texts, scorer, steps, adapter, run.label)
    body = memory.choose_remat(
        scorer.cfg.body, config, maker.texts_of_device(), trainable, frozen, run.label
    )
    model_config = dataclasses.replace(scorer.cfg, body=body)

    def make_batch(step: int, trainable: Any) -> fit.TrainingBatch:
        """The batch of a step; before it, what comes after the last epoch."""
        if after_epoch and step and step % drawn.steps == 0:
            after_epoch(step // drawn.steps, current(trainable))
        return maker(step, trainable)

    trained = fit.train(
        ListwiseObjective(model_config, maker.capacities, temperature, loss),
        make_batch,
        config,
        run,
        trainable,
        frozen,
        steps=steps,
        learning_rate=learning_rate,
        reads_weights=drawn.may_change or after_epoch is not None,
    )
    tuned = dataclasses.replace(scorer, model=trained.model)
    if after_epoch:
        after_epoch(epochs, tuned)
    return trained._replace(model=tuned)


def _split_weights(
    scorer: CrossEncoder, config: AdapterConfig, seed: int
) -> tuple[PairModel | AdaptedScorer, PairModel | None]:
    """(trainable, frozen): the model and None if the rank is 0, else the adapted parts and body."""
    if not config.lora_rank:
        return scorer.model, None
    adapter = lora.new_adapter(scorer.base, scorer.cfg.body, config, seed)
    head = getattr(scorer.model, "head", None)
    return AdaptedScorer(adapter, head), PairModel(scorer.model.body, None)


def _check_lists(lists: Sequence[PairList]) -> None:
    """Raises ValueError if there are no lists, or a text has no weight above 0."""
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
            pair_logits(fit.adapted_model(trainable, frozen), self.cfg, batch, self.capacities)
            / self.temperature
        )
        # Each device gets all logits, since a list's pairs are on several. They are few.
        scores = jax.sharding.reshard(logits, P()).at[batch["rows"]].get(out_sharding=P())
        return self.loss(scores, batch["present"], batch["weights"]), {}
