"""The config section of the reader that learns from its own answers."""

import dataclasses

from ark_jax.schema import field
from ark_jax.train.config import GrpoConfig


@dataclasses.dataclass(frozen=True)
class ReadSection(GrpoConfig):
    """The reader: how it is asked, and how it learns from its own answers (eq. 14 to 18)."""

    train: str = field(
        "grpo",
        "How it learns: from the rewards of its own answers, or from reference answers in as many "
        "steps.",
        choices=("grpo", "supervised"),
    )
    evidence: str = field(
        "selected",
        "Passages that it learns from: the selector's most probable set, the first ones by the "
        "retriever, or drawn ones of the pool.",
        choices=("selected", "retrieved", "random"),
    )
    steps: int = field(60, "Steps; 0: one pass over its questions.", unit="steps", minimum=0)
    prompts: int = field(4, "Questions of a step.", unit="questions", minimum=1)
    learning_rate: float = field(1e-5, "Peak learning rate.", minimum=0)
    temperature: float = field(1.0, "Of sampled answers.", above=0)
    top_p: float = field(
        1.0, "Draws from the likeliest tokens of this probability.", above=0, maximum=1
    )
    max_new_tokens: int = field(
        16, "Longest sampled answer; paper: 1,024.", unit="tokens", minimum=1
    )
    chat: bool = field(
        False,
        "Whether a question is a turn of the model's chat template, as ARK's reader asks it; "
        "otherwise the answer continues a plain text.",
    )
    cite: bool = field(
        False,
        "Whether a reply has a thought that cites documents and an answer in tags, as in the "
        "paper; needs `success.by=samples` and `chat`.",
    )
    citation: float = field(
        0.2, "Weight of the citations in the reward, where it cites.", minimum=0, maximum=1
    )
    citations: int = field(2, "Cited documents that earn the most.", unit="documents", minimum=0)
    citable: int = field(
        0,
        "Largest number that counts as a citation; 0: the number of passages that are shown. "
        "Released code: 31, though five are shown.",
        unit="documents",
        minimum=0,
    )
    f1: float = field(
        0.7,
        "Weight of F1 in the reward of an answer; the rest is exact match.",
        minimum=0,
        maximum=1,
    )
    scale: str = field(
        "sd",
        "As `select.scale`, of the answers to a question.",
        choices=("sd", "none", "leave_one_out"),
    )
    outcome_decides: bool = field(
        True,
        "Whether questions whose answers are all equally right teach nothing; in the paper F1 and "
        "citations teach there.",
    )
    outcome: str = field(
        "f1",
        "Of what the answers to a question must differ so that it teaches.",
        choices=("f1", "exact_match"),
    )
