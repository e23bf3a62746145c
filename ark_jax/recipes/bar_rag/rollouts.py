"""What a step of training draws, and what that is worth: the rows of a step's file."""

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rollout:
    """What was drawn for a question. A field with the default None is stored where it is known."""

    step: int = 0
    question_id: str
    # Of a language model's reply:
    sample: int | None = None  # its number among those to one prompt
    ids: list[int] | None = None  # its tokens
    text: str | None = None
    ended: bool | None = None  # False: it was cut off
    # log p of each token, in nats, by the policy that drew it and by the one of the KL.
    old: list[float] | None = None
    policy_reference: list[float] | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Answer(Rollout):
    """A reader's answer."""

    answer: str
    well_formed: bool
    f1: float
    em: float  # exact match
    citations: list[int]
    reward: float
    advantage: float
    live: bool  # whether its group teaches


@dataclasses.dataclass(frozen=True, kw_only=True)
class DrawnSet(Rollout):
    """A set of passages that a selector drew."""

    chunk_ids: list[str]  # in the order in which they are read
    log_prob: float | None = None  # of an ordered draw
    problem: str | None = None  # why a reply names no set; "": it names one
    p: float | None  # that the reader answers rightly; None: not known, or there is no set


@dataclasses.dataclass(frozen=True, kw_only=True)
class RewardedSet(DrawnSet):
    """A set with its reward, the parts of it, and what it teaches."""

    boundary: float
    relevance: float
    penalty: float
    reward: float
    advantage: float
    live: bool  # whether its group teaches
