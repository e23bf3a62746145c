"""What every kind of selector does: it draws sets of a question's pool, and learns from rewards."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from ark_jax.recipes.common.reader_training import PooledQuestion

if TYPE_CHECKING:  # its module starts jax
    from ark_jax.train.fit import Run, Trained


@dataclasses.dataclass(frozen=True)
class ChosenSet:
    """A set of passages that a selector chose for a question."""

    chunk_ids: list[str]  # in the order in which they are read
    problem: str = ""  # why what a selector wrote names no set
    columns: dict = dataclasses.field(default_factory=dict)  # further ones of its row


# (step, selector as it is) -> the rows of the sets that are drawn in the step, with their rewards.
MakeRows = Callable[[int, "EvidenceSelector"], list[dict]]


class EvidenceSelector(Protocol):
    """Chooses sets of `select.passages` passages."""

    def draw(
        self, questions: Sequence[PooledQuestion], *, draws: int, seed: int, step: int = 0
    ) -> list[list[ChosenSet]]:
        """Sets of each question. They follow from seed, step, question and number of the set."""
        ...

    def best(self, questions: Sequence[PooledQuestion]) -> list[ChosenSet]:
        """The most probable set of each question; of one with a problem, the nearest passages."""
        ...

    def train(
        self, steps: Sequence[Sequence[PooledQuestion]], make_rows: MakeRows, run: "Run"
    ) -> "Trained":
        """Trains a copy.

        Args:
            steps: the questions of each step.
        """
        ...

    def save(self, folder: Path) -> None:
        """Stores it, to be opened again. Every process must call this."""
        ...


def rows_by_question(questions: Sequence[PooledQuestion], rows: Sequence[dict]) -> list[list[dict]]:
    """The rows of each question."""
    groups: dict[str, list[dict]] = {pooled.id: [] for pooled in questions}
    for row in rows:
        groups[row["question_id"]].append(row)
    return list(groups.values())
