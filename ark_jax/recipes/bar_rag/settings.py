"""Config sections of the BAR-RAG recipe: pools, warm start, success, filter, updates, prompts.

Equations and appendices are those of BAR-RAG (arXiv 2602.03689).
"""

import dataclasses

from ark_jax.recipes.bar_rag.evaluate_settings import EvaluateSection
from ark_jax.recipes.bar_rag.read_settings import ReadSection
from ark_jax.recipes.bar_rag.select_settings import SelectorSection, SelectSection
from ark_jax.recipes.common.settings import Core, InputSection
from ark_jax.schema import field
from ark_jax.train.config import LanguageModelConfig

INPUT, EVALUATION = InputSection(), EvaluateSection()
SELECTOR, SELECTION, READING = SelectorSection(), SelectSection(), ReadSection()
TRAINING = LanguageModelConfig()


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
    each: bool = field(
        True,
        "Whether each iteration filters anew, since its reader is another; in the paper the first "
        "one's questions are used throughout.",
    )
    right_at: float = field(
        0.0,
        "Least reward of a right answer in the filter; 0: that of `success`. Paper: 0.5.",
        minimum=0,
        maximum=1,
    )
    temperature: float = field(
        0.0,
        "Of the answers that the filter samples; 0: as in training. Released code: 0.7.",
        minimum=0,
    )
    top_p: float = field(
        0.0,
        "Likeliest tokens of the answers that the filter samples; 0: as in training. Released "
        "code: 0.95.",
        minimum=0,
        maximum=1,
    )
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
class PromptsSection:
    """Prompt texts: a file, or a packaged variant such as `plain`; empty: the packaged text."""

    read: str = field("plain", "Answers a question from passages.")
    cite: str = field("", "The same with a thought that cites them, for `read.cite`.")
    select: str = field("", "Picks passages for a reader, for `selector.kind=writer`.")


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
    selector: SelectorSection = SELECTOR
    select: SelectSection = SELECTION
    read: ReadSection = READING
    train: LanguageModelConfig = TRAINING
    prompts: PromptsSection = PromptsSection()
    evaluate: EvaluateSection = EVALUATION
