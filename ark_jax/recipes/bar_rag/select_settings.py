"""The config sections of the selector: what it is, and how it learns."""

import dataclasses

from ark_jax.schema import field


@dataclasses.dataclass(frozen=True)
class SelectorSection:
    """What selects sets of passages from a pool, and how it draws them."""

    kind: str = field(
        "vectors",
        "vectors: a few weights over the retriever's vectors; writer: a language model that writes "
        "which passages it picks, as in the paper.",
        choices=("vectors", "writer"),
    )
    path: str = field(
        "", "Folder or hub name of a writer, an instruction model; empty: that of `generator.path`."
    )
    max_new_tokens: int = field(
        256, "Longest reply of a writer; paper: 1,024.", unit="tokens", minimum=1
    )
    strict: bool = field(
        True,
        "Whether a writer's reply needs a thought and nothing but a list of passages that exist; "
        "in the released code one number of a passage in the answer suffices.",
    )
    kl: str = field(
        "none",
        "As `read.kl`, of a writer: the distance to the writer before the stage.",
        choices=("none", "k2", "k3"),
    )
    lora_rank: int = field(
        0, "As `train.lora_rank`, of a writer; paper and released code: 32.", minimum=0
    )
    lora_alpha: float = field(16.0, "As `train.lora_alpha`, of a writer.", above=0)


@dataclasses.dataclass(frozen=True)
class SelectSection:
    """How the selector learns: sets drawn from a pool, rewarded for p near a centre (eq. 5-12)."""

    passages: int = field(2, "Passages of a set (k); paper: 5.", unit="passages", minimum=1)
    steps: int = field(
        40, "Steps; 0: one pass over the questions of the filter.", unit="steps", minimum=0
    )
    questions: int = field(8, "Questions of a step.", unit="questions", minimum=1)
    sets: int = field(8, "Sets that are drawn of a question (M).", unit="sets", minimum=2)
    learning_rate: float = field(
        0.0,
        "Peak learning rate; 0 suits the kind of selector: 0.03 for vectors, 1e-5 for a writer. "
        "Paper: 4e-6.",
        minimum=0,
    )
    centre: float = field(
        0.5, "p with the largest reward (c); the released code: 0.6.", above=0, maximum=0.99
    )
    boundary: float = field(1.0, "Weight of the reward by p.", minimum=0)
    relevance: float = field(0.2, "Weight of the retriever's scores in the reward.", minimum=0)
    relevance_form: str = field(
        "cosine",
        "How scores become a reward: the mean cosine from -1..1 to 0..1, or s / (s + tau), the "
        "released code's.",
        choices=("cosine", "saturating"),
    )
    format_bonus: float = field(
        0.0, "Reward of each well-formed set, whatever it is; released code: 0.1.", minimum=0
    )
    spread: float = field(
        0.01,
        "Smallest difference of p in a group of sets that teaches, where p is a likelihood; a "
        "share of answers teaches if it differs at all.",
        minimum=0,
        maximum=1,
    )
    outcome_decides: bool = field(
        True,
        "Whether groups without a difference in p teach nothing; in the paper relevance alone "
        "teaches there.",
    )
