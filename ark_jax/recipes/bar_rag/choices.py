"""What every kind of selector does: it draws sets of a question's pool, and learns from rewards."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from ark_jax.recipes.bar_rag.rollouts import DrawnSet, RewardedSet
from ark_jax.recipes.common.reader_training import PooledQuestion

if TYPE_CHECKING:  # its module starts jax
    from ark_jax.train.fit import Run, Trained


@dataclasses.dataclass(frozen=True)
class ChosenSet:
    """A set of passages that a selector chose for a question."""

    chunk_ids: list[str]  # in the order in which they are read
    problem: str = ""  # why what a selector wrote names no set


# (step, selector as it is) -> the sets that are drawn in the step, with their rewards.
MakeSets = Callable[[int, "EvidenceSelector"], list[RewardedSet]]


class EvidenceSelector(Protocol):
    """Chooses sets of `select.passages` passages."""

    def draw(
        self, questions: Sequence[PooledQuestion], *, draws: int, seed: int, step: int = 0
    ) -> list[list[DrawnSet]]:
        """Sets of each question, whose p is not known yet.

        They follow from seed, step, question and number of the set.
        """
        ...

    def best(self, questions: Sequence[PooledQuestion]) -> list[ChosenSet]:
        """The most probable set of each question; of one with a problem, the nearest passages."""
        ...

    def train(
        self, steps: Sequence[Sequence[PooledQuestion]], make_sets: MakeSets, run: "Run"
    ) -> "Trained":
        """Trains a copy.

        Args:
            steps: the questions of each step.
        """
        ...

    def save(self, folder: Path) -> None:
        """Stores it, to be opened again. Every process must call this."""
        ...


def by_question(
    questions: Sequence[PooledQuestion], sets: Sequence[RewardedSet]
) -> list[list[RewardedSet]]:
    """The sets of each question."""
    groups: dict[str, list[RewardedSet]] = {pooled.id: [] for pooled in questions}
    for one in sets:
        groups[one.question_id].append(one)
    return list(groups.values())
