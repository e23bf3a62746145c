"""Training of a small selector by the policy gradient of the sets that it drew, eq. 12.

Each step draws with the weights that it updates. So the ratio of eq. 12 is 1, clipping never
acts, and the gradient is that of advantage x log-probability.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

from ark_jax import layout
from ark_jax.select import plackett_luce as pl
from ark_jax.select.pools import Pool, place_pools
from ark_jax.select.scorer import Selector, SmallSelector, candidates_of
from ark_jax.train import fit
from ark_jax.train.config import UpdateConfig


@dataclasses.dataclass(frozen=True)
class SelectorGroup:
    """The sets drawn for one question, with their rewards and advantages."""

    id: str  # of the question
    pool: Pool
    sets: Sequence[np.ndarray]  # positions in the pool, in the order of drawing
    rewards: Sequence[float] | np.ndarray  # of each set; for the curve
    advantages: Sequence[float] | np.ndarray  # of each set; 0 throughout for a dead group


@dataclasses.dataclass(frozen=True, kw_only=True)
class SelectorTraining(UpdateConfig):
    """How a selector is trained. The sizes give all steps one shape."""

    steps: int
    learning_rate: float  # peak
    questions: int  # most questions in a step
    candidates: int  # most candidates of a question
    draws: int  # most sets of a question
    k: int  # most documents in a set


# (steps made so far, selector) -> the groups of the next step. Draws and rewards must depend on
# these two alone, or come from a file written earlier, so that a resumed run has the same groups.
MakeGroups = Callable[[int, Selector], Sequence[SelectorGroup]]


def train(
    selector: Selector, make_groups: MakeGroups, config: SelectorTraining, run: fit.Run
) -> fit.Trained:
    """Trains a copy of the selector.

    Returns:
        The curve has loss, mean reward, live share of the groups and entropy (nats) of each step.

    Raises:
        ValueError: a step has no group; see `place_groups`.
        FloatingPointError, preemption.Preempted, OSError: see `fit.train`.
    """

    def make_batch(step: int, trainable: Any) -> fit.TrainingBatch:
        groups = make_groups(step, dataclasses.replace(selector, model=trainable))
        arrays = place_groups(groups, selector.cfg.width, config)
        ids = {"questions": [group.id for group in groups]}
        return fit.TrainingBatch(arrays, ids, tokens=0, flops=0.0)

    trained = fit.train(
        PolicyGradient(vector_candidates),
        make_batch,
        config,
        run,
        selector.model,
        steps=config.steps,
        learning_rate=config.learning_rate,
        reads_weights=True,
    )
    return trained._replace(model=dataclasses.replace(selector, model=trained.model))


def vector_candidates(trainable: SmallSelector, frozen: Any, batch: Mapping) -> pl.Candidates:
    """The candidates of a step's questions, from `place_groups`."""
    return candidates_of(trainable, batch)


@dataclasses.dataclass(frozen=True)
class PolicyGradient:
    """Minus the mean over all drawn sets of advantage x log-probability of the ordered draw."""

    # (trainable, frozen, batch) -> the candidates of a step's questions.
    candidates: Callable[[Any, Any, Mapping], pl.Candidates] = vector_candidates

    def __call__(self, trainable: Any, frozen: Any, batch: Mapping) -> tuple:
        """The loss and metrics; see `fit.Objective`.

        Args:
            batch: holds the arrays of `place_draws`. Groups whose advantages are 0 have no gradient
                but count in the mean.
        """
        candidates = self.candidates(trainable, frozen, batch)
        log_probs = jax.vmap(pl.place_log_probs)(candidates, batch["sets"]).sum(-1)
        drawn = batch["drawn"]
        mean = lambda values, mask: jnp.where(mask, values, 0).sum() / mask.sum()
        is_group = drawn.any(1)
        entropies = jax.vmap(pl.entropy)(candidates, batch["sets"])
        metrics = {
            "reward": mean(batch["rewards"], drawn),
            "live_groups": mean((batch["advantages"] != 0).any(1), is_group),
            "entropy": mean(entropies, is_group),
        }
        return -mean(batch["advantages"] * jnp.where(drawn, log_probs, 0), drawn), metrics


def place_groups(
    groups: Sequence[SelectorGroup], width: int, config: SelectorTraining
) -> dict[str, jax.Array]:
    """The groups of a step as arrays of one shape on every device: their draws and pools.

    Raises:
        ValueError: see `place_draws` and `place_pools`.
    """
    draws = place_draws(groups, config)
    pools = [group.pool for group in groups]
    return draws | place_pools(pools, width, config.questions, config.candidates)


def place_draws(groups: Sequence[SelectorGroup], config: SelectorTraining) -> dict[str, jax.Array]:
    """The sets, rewards and advantages of a step as arrays of one shape on every device.

    Raises:
        ValueError: there is no group or there are too many, a set is not a draw from its pool, or a
            reward or advantage is missing or not finite.
    """
    if not 0 < len(groups) <= config.questions:
        raise ValueError(f"{len(groups)} groups in a step; it must have 1 to {config.questions}")
    shape = (config.questions, config.draws)
    sets = np.full((*shape, config.k), pl.NOT_DRAWN, np.int32)
    drawn = np.zeros(shape, bool)
    rewards, advantages = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
    for row, group in enumerate(groups):
        _check_group(group, config)
        count = len(group.sets)
        for place, chosen in enumerate(group.sets):
            sets[row, place, : len(chosen)] = chosen
        drawn[row, :count] = True
        rewards[row, :count], advantages[row, :count] = group.rewards, group.advantages
    # A set that was not drawn repeats the first, whose probability is finite.
    sets = np.where(drawn[..., None], sets, sets[:, :1])
    arrays = {"sets": sets, "drawn": drawn, "rewards": rewards, "advantages": advantages}
    return {name: layout.put(array, P()) for name, array in arrays.items()}


def _check_group(group: SelectorGroup, config: SelectorTraining) -> None:
    """Raises ValueError if the number of sets, a reward, an advantage or a draw is bad."""
    count = len(group.sets)
    if not 0 < count <= config.draws:
        raise ValueError(f"question {group.id}: {count} sets; it must have 1 to {config.draws}")
    for name in ("rewards", "advantages"):
        values = np.array(getattr(group, name), float)
        if values.shape != (count,) or not np.isfinite(values).all():
            raise ValueError(
                f"question {group.id}: {name} {values.tolist()} of {count} sets; each needs a "
                "finite one"
            )
    candidates = len(group.pool.passages)
    size = min(config.k, candidates)
    for chosen in group.sets:
        numbers = np.array(chosen).tolist()
        distinct = {number for number in numbers if 0 <= number < candidates}
        if not len(distinct) == len(numbers) == size:
            raise ValueError(
                f"question {group.id}: {numbers} is not a draw of {size} of its {candidates} "
                "candidates"
            )
