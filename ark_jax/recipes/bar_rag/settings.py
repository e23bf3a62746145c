"""Config sections of the BAR-RAG recipe: pools, warm start, zone, selector, reader.

Equations and appendices are those of BAR-RAG (arXiv 2602.03689).
"""

import dataclasses

from ark_jax.recipes.bar_rag.evaluate_settings import EvaluateSection
from ark_jax.recipes.common.settings import Core, InputSection
from ark_jax.schema import field

INPUT, EVALUATION = InputSection(), EvaluateSection()


@dataclasses.dataclass(frozen=True)
class PoolSection:
    """What a question's evidence is chosen from."""

    size: int = field(
        8,
        "Chunks of a question, nearest ones by the retriever; paper: 25.",
        unit="chunks",
        minimum=1,
    )


@dataclasses.dataclass(frozen=True)
class WarmSection:
    """The warm start: supervised steps on passages that hold the answer, among others."""

    steps: int = field(
        60,
        "Steps; 0: no warm start, as in the paper; -1: one pass over the training questions.",
        unit="steps",
        minimum=-1,
    )
    batch: int = field(8, "Questions of a step.", unit="questions", minimum=1)
    learning_rate: float = field(3e-5, "Peak learning rate.", minimum=0)


@dataclasses.dataclass(frozen=True)
class SuccessSection:
    """p, the probability that the reader answers a question rightly from a set of passages."""

    by: str = field(
        "likelihood",
        "likelihood: the probability of the reference answers, which needs no sampling; samples: "
        "the share of right ones among sampled answers (eq. 3, 4).",
        choices=("likelihood", "samples"),
    )
    answers: int = field(
        10, "Answers of a set, where p is a share of them (K).", unit="answers", minimum=2
    )
    right_at: float = field(
        0.8,
        "Least reward of a right answer (delta); at the paper's 0.8 only an exact match is right.",
        above=0,
        maximum=1,
    )


@dataclasses.dataclass(frozen=True)
class FilterSection:
    """Questions to train on: those of which a set can decide whether they are answered (A.6)."""

    questions: int = field(
        0,
        "Training questions that are looked at, drawn by a hash of their ids; 0: all.",
        unit="questions",
        minimum=0,
    )
    sets: int = field(8, "Sets that the selector draws of a question.", unit="sets", minimum=2)
    low: float = field(0.05, "Smallest mean of p; paper: 0.25.", minimum=0, maximum=1)
    high: float = field(0.95, "Largest mean of p; paper: 0.85.", minimum=0, maximum=1)
    variance: float = field(
        0.001,
        "Smallest variance of p over the sets; paper: 0.02, of p from ten answers.",
        minimum=0,
    )
    chance: bool = field(
        True,
        "Whether the variance that chance explains is taken off, where p is a share of answers; "
        "the paper does not.",
    )
    reader: bool = field(
        True, "Whether the reader learns from these questions alone too; in the paper, from all."
    )


@dataclasses.dataclass(frozen=True)
class SelectSection:
    """The selector: ordered draws from a pool, rewarded for p near its centre (eq. 5 to 12)."""

    passages: int = field(2, "Passages of a set (k); paper: 5.", unit="passages", minimum=1)
    steps: int = field(
        40, "Steps; 0: one pass over the questions of the filter.", unit="steps", minimum=0
    )
    questions: int = field(8, "Questions of a step.", unit="questions", minimum=1)
    sets: int = field(8, "Sets that are drawn of a question (M).", unit="sets", minimum=2)
    learning_rate: float = field(0.03, "Peak learning rate.", minimum=0)
    rank: int = field(
        8, "Rank of the product of question and passage in the scores; 0: none.", minimum=0
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
    tau: float = field(10.0, "Of the saturating form.", above=0)
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
    scale: str = field(
        "sd",
        "Rewards of a group as advantages: less their mean, divided by their standard deviation "
        "(eq. 11) or by nothing; or less the mean of the others.",
        choices=("sd", "none", "leave_one_out"),
    )


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
    citation: float = field(
        0.2, "Weight of the citations in the reward, where it cites.", minimum=0, maximum=1
    )
    citations: int = field(2, "Cited documents that earn the most.", unit="documents", minimum=0)
    f1: float = field(
        0.7,
        "Weight of F1 in the reward of an answer; the rest is exact match.",
        minimum=0,
        maximum=1,
    )
    updates: int = field(
        1,
        "Updates of the weights from the answers of a step; above 1 the ratio is clipped.",
        minimum=1,
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
    mean: str = field(
        "token",
        "Mean of the loss: over the tokens of a step, or over each answer and then over answers.",
        choices=("token", "sequence"),
    )
    ratio: str = field(
        "token",
        "What is clipped: the ratio of a token's probabilities, or that of a whole answer.",
        choices=("token", "sequence"),
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
    keep_cut_off: bool = field(
        True, "Whether answers that were cut off at `max_new_tokens` are trained on."
    )


@dataclasses.dataclass(frozen=True)
class TrainSection:
    """Updates of the reader's weights, in `warm` and in `read`."""

    warmup: float = field(
        0.02, "Linear warm-up of the learning rate.", unit="fraction of steps", minimum=0, maximum=1
    )
    decay: str = field("cosine", "How the learning rate falls.", choices=("linear", "cosine"))
    floor: float = field(
        0.1, "What it falls to.", unit="fraction of the peak", minimum=0, maximum=1
    )
    weight_decay: float = field(0.0, "Decoupled weight decay of AdamW.", minimum=0)
    clip: float = field(1.0, "Largest global gradient norm; longer gradients are scaled.", above=0)
    remat: str = field(
        "products",
        "What the backward pass computes again: all but products with weights, or everything, "
        "which saves memory.",
        choices=("products", "all"),
    )
    save_every: int = field(20, "Steps between two checkpoints.", unit="steps", minimum=1)
    lora_rank: int = field(
        0,
        "Rank of a LoRA adapter, which needs about ten times the learning rates; 0: train all "
        "weights. Paper: 32.",
        minimum=0,
    )
    lora_alpha: float = field(
        16.0, "Scale of the adapter: its product is multiplied by alpha / rank.", above=0
    )
    lora_targets: tuple[str, ...] = field(
        (), "Matrices to adapt: q, k, v, o, gate, up, down; empty: all of them."
    )


@dataclasses.dataclass(frozen=True)
class PromptsSection:
    """Prompt texts: a file, or a packaged variant such as `plain`; empty: the packaged text."""

    read: str = field("plain", "Answers a question from passages.")
    cite: str = field("", "The same with a thought that cites them, for `read.cite`.")


@dataclasses.dataclass(frozen=True)
class BarRag(Core):
    """A run of BAR-RAG."""

    recipe: str = field(
        "bar_rag", "The method: a recipe of ark_jax, or a module that defines RECIPE."
    )
    iterations: int = field(
        1,
        "Rounds of filter, selector and reader; 0: the warm start alone. Paper: 3.",
        unit="rounds",
        minimum=0,
    )
    data: InputSection = INPUT
    pool: PoolSection = PoolSection()
    warm: WarmSection = WarmSection()
    success: SuccessSection = SuccessSection()
    filter: FilterSection = FilterSection()
    select: SelectSection = SelectSection()
    read: ReadSection = ReadSection()
    train: TrainSection = TrainSection()
    prompts: PromptsSection = PromptsSection()
    evaluate: EvaluateSection = EVALUATION
