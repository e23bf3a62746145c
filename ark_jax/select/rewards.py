"""The reward of a set of documents in BAR-RAG, eq. 5 to 10."""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

ROUNDING = 1e-6  # tolerance of probabilities and cosines outside their range

Values = Sequence[float] | np.ndarray


def boundary(p: float, *, centre: float = 0.5) -> float:
    """1 at `p` = `centre`, falling linearly to 0 at p = 0 and p = 1; eq. 5.

    Args:
        p: probability of a right answer; see `zone.p_hat`.

    Raises:
        ValueError: `p` is not a probability, or `centre` is not between 0 and 1.
    """
    if not 0 < centre < 1:
        raise ValueError(f"centre={centre}: must be above 0 and below 1")
    if not -ROUNDING <= p <= 1 + ROUNDING:
        raise ValueError(f"p={p}: a share of right answers must be from 0 to 1")
    p = min(max(p, 0.0), 1.0)
    return min(p / centre, (1 - p) / (1 - centre))


def relevance(scores: Values, *, form: str = "cosine", tau: float = 10.0) -> float:
    """The mean retrieval score of a set, rescaled into 0..1; eq. 7.

    Args:
        scores: of each document of the set, by the retriever.
        form: "cosine" is (1 + mean) / 2 for scores from -1 to 1. "saturating" is s / (s + tau),
            where s is the mean of the scores, negative ones as 0: the released code's, and the
            only known reading of appendix A.5's "relevance temperature" of 10.

    Raises:
        ValueError: a score is missing or not finite, or no cosine.
    """
    values = np.array(scores, float)
    if not values.size or not np.isfinite(values).all():
        raise ValueError(f"retrieval scores {list(scores)}: each document of a set needs one")
    if form == "saturating":
        mean = float(np.maximum(values, 0).mean())
        return mean / (mean + tau)
    if form != "cosine":
        raise ValueError(f"form={form!r}: must be cosine or saturating")
    if np.abs(values).max() > 1 + ROUNDING:
        raise ValueError(
            f"retrieval scores {list(scores)}: a cosine is from -1 to 1; scores of another kind "
            "need form=saturating"
        )
    return float((1 + values.mean()) / 2)


def count_penalty(count: int, *, target: int = 5, rate: float = 0.5, limit: float = 1.0) -> float:
    """`rate` for each document that a set has too many or too few, at most `limit`; eq. 9."""
    return min(rate * abs(count - target), limit)


class SetScore(NamedTuple):
    """The reward of a set of documents and its parts."""

    reward: float
    boundary: float
    relevance: float
    penalty: float  # for the number of documents


@dataclasses.dataclass(frozen=True)
class SetReward:
    """The reward of a selector, eq. 10. Defaults are the paper's; appendix A.5."""

    boundary_weight: float = 1.0
    relevance_weight: float = 0.2
    format_bonus: float = 0.0  # of each well-formed set
    centre: float = 0.5  # the released code's is .6
    relevance_form: str = "cosine"  # or "saturating"
    tau: float = 10.0  # of the saturating form
    target: int = 5  # documents of a set
    rate: float = 0.5  # of the penalty, for each document too many or too few
    limit: float = 1.0  # of the penalty

    def __call__(self, p: float, scores: Values) -> SetScore:
        """The reward of a set that is well formed. A malformed one has the reward `MALFORMED`.

        Args:
            p: probability that the reader answers rightly from the set.
            scores: of its documents, by the retriever.

        Raises:
            ValueError: see `boundary` and `relevance`.
        """
        near = boundary(p, centre=self.centre)
        relevant = relevance(scores, form=self.relevance_form, tau=self.tau)
        penalty = count_penalty(len(scores), target=self.target, rate=self.rate, limit=self.limit)
        weighted = self.boundary_weight * near + self.relevance_weight * relevant
        return SetScore(weighted + self.format_bonus - penalty, near, relevant, penalty)


MALFORMED = SetScore(0.0, 0.0, 0.0, 0.0)  # of a reply whose `Choice` has a problem, eq. 8
