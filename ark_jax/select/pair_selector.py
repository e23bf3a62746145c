"""A selector by a scorer of (question, passage): ordered draws by its logits, and its training."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Bool, Float, Int

from ark_jax import layout
from ark_jax.models.pairs import Capacities, PairConfig, PairScorer, pair_logits
from ark_jax.select import plackett_luce as pl
from ark_jax.select.pools import TextPool
from ark_jax.select.scorer import DrawnSets, drawn_sets, round_up, with_log_probs
from ark_jax.select.training import PolicyGradient, SelectorGroup, SelectorTraining, place_draws
from ark_jax.train import fit, memory
from ark_jax.train.list_batches import ListTexts, ListwiseBatches
from ark_jax.train.lists import ListEpochs, PairList


@dataclasses.dataclass(frozen=True)
class PairSelector:
    """Draws candidates one after the other by the softmax of a pair scorer's logits."""

    scorer: PairScorer
    batch_tokens: int = 0  # as of `PairScorer.score`

    def draw(
        self, pools: Sequence[TextPool], *, k: int, draws: int, seed: int, step: int = 0
    ) -> list[DrawnSets]:
        """Draws ordered sets for many questions; as `Selector.draw`."""
        compute = functools.partial(_drawn, seed=seed, step=step, k=k, draws=draws)
        return self._sets(pools, compute)

    def best(self, pools: Sequence[TextPool], *, k: int) -> list[DrawnSets]:
        """The one set of each question that takes the highest logit at each place."""
        return self._sets(pools, functools.partial(_best, k=k))

    def _sets(self, pools: Sequence[TextPool], compute: Callable) -> list[DrawnSets]:
        if not pools:
            return []
        pairs = [(pool.question, passage) for pool in pools for passage in pool.passages]
        logits = iter(self.scorer.score(pairs, batch_tokens=self.batch_tokens).tolist())
        shape = (round_up(len(pools)), round_up(max(len(pool.passages) for pool in pools)))
        scores, present = np.zeros(shape, np.float32), np.zeros(shape, bool)
        numbers = np.zeros(len(scores), np.int32)
        for row, pool in enumerate(pools):
            count = len(pool.passages)
            numbers[row] = pool.number
            scores[row, :count] = [next(logits) for _ in pool.passages]
            present[row, :count] = True
        arrays = (layout.put(array, P()) for array in (scores, present, numbers))
        return drawn_sets(compute(*arrays), len(pools))


def independent(scores: Float[Array, "q n"], present: Bool[Array, "q n"]) -> pl.Candidates:
    """Candidates whose scores do not depend on what is drawn already."""
    q, n = scores.shape
    return pl.Candidates(scores, present, jnp.zeros((q, n, n)))


@functools.partial(jax.jit, static_argnames=("k", "draws"))
def _drawn(
    scores: Float[Array, "q n"],
    present: Bool[Array, "q n"],
    numbers: Int[Array, " q"],
    *,
    seed: Int[Array, ""],
    step: Int[Array, ""],
    k: int,
    draws: int,
) -> tuple[Int[Array, "q m k"], Float[Array, "q m"]]:
    n = scores.shape[1]
    noise = lambda number: pl.gumbel(seed, step, number, draws=draws, k=k, candidates=n)
    return with_log_probs(independent(scores, present), jax.vmap(noise)(numbers))


@functools.partial(jax.jit, static_argnames="k")
def _best(
    scores: Float[Array, "q n"], present: Bool[Array, "q n"], numbers: Int[Array, " q"], *, k: int
) -> tuple[Int[Array, "q 1 k"], Float[Array, "q 1"]]:
    q, n = scores.shape
    return with_log_probs(independent(scores, present), jnp.zeros((q, 1, k, n)))


@dataclasses.dataclass(frozen=True)
class PairCandidates:
    """The candidates of a step's questions, scored by the model that is trained."""

    cfg: PairConfig
    capacities: Capacities

    def __call__(self, trainable: Any, frozen: Any, batch: Mapping) -> pl.Candidates:
        logits = pair_logits(trainable, self.cfg, batch, self.capacities)
        # A question's pairs lie on several devices; there are few questions.
        scores = jax.sharding.reshard(logits, P()).at[batch["rows"]].get(out_sharding=P())
        return independent(scores, batch["present"])


class _GivenSteps(ListEpochs):
    """Whole lists, in steps that are given."""

    def __init__(self, lists: Sequence[PairList], chosen: Sequence[Sequence[int]], batch: int):
        """`chosen` has the lists of each step."""
        super().__init__(lists, batch=batch, negatives=0, seed=0, folder=Path())
        self._steps = chosen

    def numbers(self, step: int) -> np.ndarray:
        return np.array(self._steps[step])

    def step(self, step: int, trainable: Any) -> list[tuple[int, np.ndarray]]:
        return [(i, np.arange(len(self.lists[i].rights))) for i in self._steps[step]]


def train(
    selector: PairSelector,
    steps: Sequence[Sequence[TextPool]],
    make_groups: Callable[[int, PairSelector], Sequence[SelectorGroup]],
    config: SelectorTraining,
    run: fit.Run,
) -> fit.Trained:
    """Trains a copy of the selector by the policy gradient of the sets that it drew.

    Args:
        steps: the questions of each step.
        make_groups: as in `training.train`; the groups are in the order of the step's questions.

    Returns:
        As `training.train`.

    Raises:
        ValueError, FloatingPointError, preemption.Preempted, OSError: see `training.train`.
    """
    scorer = selector.scorer
    pools = list(dict.fromkeys(pool for step in steps for pool in step))
    numbers = {pool: number for number, pool in enumerate(pools)}
    lists = [PairList(pool.question, pool.passages, (1.0,) * len(pool.passages)) for pool in pools]
    chosen = [[numbers[pool] for pool in step] for step in steps]
    epochs = _GivenSteps(lists, chosen, config.questions)
    batches = ListwiseBatches.create(epochs, ListTexts.create(lists), scorer, len(steps))
    body = memory.choose_remat(
        scorer.cfg.body, config.remat, batches.texts_of_device(), scorer.model, None, run.label
    )
    candidates = PairCandidates(dataclasses.replace(scorer.cfg, body=body), batches.capacities)

    def make_batch(step: int, trainable: Any) -> fit.TrainingBatch:
        current = dataclasses.replace(selector, scorer=dataclasses.replace(scorer, model=trainable))
        draws = place_draws(make_groups(step, current), config)
        batch = batches(step)
        return dataclasses.replace(batch, arrays=batch.arrays | draws)

    trained = fit.train(
        PolicyGradient(candidates),
        make_batch,
        config,
        run,
        scorer.model,
        steps=config.steps,
        learning_rate=config.learning_rate,
        reads_weights=True,
    )
    tuned = dataclasses.replace(scorer, model=trained.model)
    return trained._replace(model=dataclasses.replace(selector, scorer=tuned))
