"""The reward of a reader's answer in BAR-RAG, eq. 14 to 17."""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

from ark_jax.evaluate import answers
from ark_jax.text.cited import CitedAnswer


def citation(count: int, *, target: int = 2) -> float:
    """1 if `count` cited documents are `target`, 0.5 for one more or less, else 0; eq. 16."""
    return {0: 1.0, 1: 0.5}.get(abs(count - target), 0.0)


class AnswerScore(NamedTuple):
    """The reward of an answer and its parts."""

    reward: float
    well_formed: bool
    f1: float
    exact_match: float
    citation: float


@dataclasses.dataclass(frozen=True)
class AnswerReward:
    """The reward of a reader, eq. 17. Defaults are the paper's; appendix A.5."""

    answer_weight: float = 0.8
    citation_weight: float = 0.2
    f1_weight: float = 0.7
    exact_weight: float = 0.3
    citations: int = 2  # that earn the most

    def __call__(self, reply: CitedAnswer, references: Sequence[str]) -> AnswerScore:
        """The reward of a reply; 0 if it has a problem, eq. 14.

        Raises:
            ValueError: see `usable_references`.
        """
        usable = usable_references(references)
        if reply.problem:
            return AnswerScore(0.0, False, 0.0, 0.0, 0.0)
        f1 = answers.f1(reply.answer, usable)
        exact = answers.exact_match(reply.answer, usable)
        cited = citation(len(reply.citations), target=self.citations)
        accuracy = self.f1_weight * f1 + self.exact_weight * exact
        reward = self.answer_weight * accuracy + self.citation_weight * cited
        return AnswerScore(reward, True, f1, exact, cited)


def usable_references(references: Sequence[str]) -> list[str]:
    """The references that still have a word after SQuAD's normalisation.

    Otherwise an answer without words would be an exact match of "the" or "...".

    Raises:
        ValueError: there is none.
    """
    usable = [reference for reference in references if answers.normalise(reference)]
    if not usable:
        raise ValueError(
            f"reference answers {list(references)}: none has a word beside articles and "
            "punctuation, so no answer can be right; correct them or leave the question out"
        )
    return usable
