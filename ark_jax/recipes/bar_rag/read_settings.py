"""The config section of the reader that learns from its own answers."""

import dataclasses

from ark_jax.schema import field


@dataclasses.dataclass(frozen=True)
class ReadSection:
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
    samples: int = field(8, "Answers to a question; paper: 10.", unit="answers", minimum=2)
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
    citable: int = field(
        0,
        "Largest number that counts as a citation; 0: the number of passages that are shown. "
        "Released code: 31, though five are shown.",
        unit="documents",
        minimum=0,
    )
    updates: int = field(
        1,
        "Updates of the weights from the answers of a step; above 1 the ratio is clipped.",
        minimum=1,
    )
    outcome_decides: bool = field(
        True,
        "Whether questions whose answers are all equally right teach nothing; in the paper F1 and "
        "citations teach there.",
    )
    clip_low: float = field(0.2, "The ratio is clipped below 1 minus this.", minimum=0, maximum=1)
    clip_high: float = field(0.2, "The ratio is clipped above 1 plus this.", minimum=0)
    kl: str = field(
        "none",
        "Estimate of the distance to the reader before the stage that is added to the loss; the "
        "released code: k3.",
        choices=("none", "k2", "k3"),
    )
    kl_coefficient: float = field(0.001, "Factor of that estimate.", minimum=0)
    keep_dead: bool = field(
        False,
        "Whether answers that teach nothing count in the loss's mean, as in the released code.",
    )
