"""How often a reader is right, and which questions a selector can learn from (appendix A.6)."""

import collections
import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

TOO_HARD = "too hard"
TOO_EASY = "too easy"
ALIKE = "no set better than another"
BINS = 10
ROUNDING = 1e-9

Values = Sequence[float] | np.ndarray


def p_hat(rewards: Values, *, right_at: float = 0.8) -> float:
    """The share of right answers, whose reward is at least `right_at`; eq. 3, 4 and 6.

    With the weights of the paper only an exact match reaches .8.

    Raises:
        ValueError: there is no answer, or a reward is not finite. A failed answer is not a wrong
            answer: leave its set out, and count it.
    """
    values = np.array(rewards, float)
    if not values.size or not np.isfinite(values).all():
        raise ValueError(
            f"rewards {list(rewards)} of the answers to one set: each answer needs a finite one; "
            "leave out a set whose answers failed"
        )
    return float((values >= right_at - ROUNDING).mean())


def outcomes_differ(p: Values, *, spread: float = 0.0) -> bool:
    """Whether p differs between the sets of a group, so that the group can teach something.

    Otherwise its rewards differ only by relevance or citations.

    Args:
        spread: largest minus smallest p must exceed it. A p that is a likelihood always differs
            somewhat.
    """
    values = np.array(p, float)
    return bool(values.max() - values.min() > spread + ROUNDING)


def chance_variance(p: Values, answers: int) -> float:
    """The variance of p over sets that chance alone explains, if all sets were equally good.

    It is an unbiased estimate of that part of the population variance that `judge` computes. For
    eight sets with p = .5 and ten answers each it is .022, above the paper's threshold of .02.

    Raises:
        ValueError: a set has one answer only.
    """
    if answers < 2:
        raise ValueError(
            f"{answers} answer(s) a set do not show how much p varies by chance; draw at least two"
        )
    values = np.array(p, float)
    of_a_set = (values * (1 - values)).mean() / (answers - 1)
    return float(of_a_set * (len(values) - 1) / len(values))


@dataclasses.dataclass(frozen=True)
class Zone:
    """Which questions are kept. Defaults are the paper's, but for `chance`."""

    low: float = 0.25  # mean of p over sets
    high: float = 0.85
    variance: float = 0.02  # least, over sets
    chance: bool = True  # whether `chance_variance` is subtracted first; the paper does not


class Verdict(NamedTuple):
    """The filter's result for one question."""

    mean: float  # of p over sets
    variance: float  # of p over sets, population
    chance_variance: float  # the part of it that chance explains
    problem: str  # why the question is left out; empty if it is kept


def judge(p: Values, zone: Zone, *, answers: int | None) -> Verdict:
    """Whether a selector can learn from a question.

    Args:
        p: of each set that was drawn for the question.
        answers: number of answers behind each p; None if p is a likelihood, which has no such
            variance.

    Raises:
        ValueError: there is no set, or see `chance_variance`.
    """
    values = np.array(p, float)
    if not values.size or not np.isfinite(values).all():
        raise ValueError(f"p={list(p)}: a question needs a finite p of at least one set")
    mean, variance = float(values.mean()), float(values.var())
    by_chance = chance_variance(values, answers) if answers is not None and zone.chance else 0.0
    if mean < zone.low - ROUNDING:
        problem = TOO_HARD
    elif mean > zone.high + ROUNDING:
        problem = TOO_EASY
    else:
        problem = ALIKE if variance - by_chance < zone.variance - ROUNDING else ""
    return Verdict(mean, variance, by_chance, problem)


def histogram(p: Values) -> np.ndarray:
    """The number of values nearest to 0, .1, … 1: int64 `[11]`."""
    edges = (np.arange(BINS + 2) - 0.5) / BINS
    return np.histogram(np.array(p, float), edges)[0]


def reason_counts(verdicts: Sequence[Verdict]) -> dict[str, int]:
    """How many questions are kept, and how many are left out for each reason."""
    reasons = collections.Counter(verdict.problem for verdict in verdicts)
    return {"kept": reasons[""]} | {name: reasons[name] for name in (TOO_HARD, TOO_EASY, ALIKE)}


def check_kept(verdicts: Sequence[Verdict], zone: Zone) -> None:
    """Checks that at least one question is kept.

    Raises:
        ValueError: none is; the message shows the means of p and what to change.
    """
    reasons = reason_counts(verdicts)
    if reasons["kept"]:
        return
    shown = ", ".join(
        f"{number / BINS:.1f}: {count}"
        for number, count in enumerate(histogram([verdict.mean for verdict in verdicts]))
        if count
    )
    advice = {
        TOO_HARD: "train the reader longer before, or give it more or nearer passages",
        TOO_EASY: "give it fewer passages, or harder questions",
        ALIKE: "draw more answers a set, or choose from more candidates",
    }
    main = max((TOO_HARD, TOO_EASY, ALIKE), key=lambda name: reasons[name])
    left_out = ", ".join(f"{reasons[name]} {name}" for name in advice if reasons[name])
    raise ValueError(
        f"none of {len(verdicts)} questions is left to train the selector on: {left_out}; mean "
        f"share of right answers, and how many questions have it: {shown or 'none'}. For most, "
        f"{advice[main]}, or widen low={zone.low}, high={zone.high}, variance={zone.variance}"
    )
