r"""BAR-RAG on your own documents and questions: a reader that reads noisy evidence well.

    ark-jax run --config=bar_rag --config.data.path=FILE --workdir=DIR

The pool of evidence comes from any retriever, an ARK export among them:

    ark-jax run --config=bar_rag --config.retriever.path=ARK_RUN/export \
        --config.data.path=FILE --workdir=DIR

The tuned reader is in DIR/export; ARK's table may use it: --config.reader.path=DIR/export. A word
after the colon is a preset: `small` (the default), `paper`, or `official` (the released code).

    ark-jax sweep --config=bar_rag:sweep=study --config.data.path=FILE --workdir=DIR
"""

import dataclasses

from ml_collections import ConfigDict

from ark_jax.recipes.bar_rag import sources
from ark_jax.recipes.core import settings
from ark_jax.recipes.core.presets import preset_of, values, with_preset
from ark_jax.recipes.core.settings import Core, InputSection
from ark_jax.schema import field
from ark_jax.train.config import GrpoConfig, LanguageModelConfig

# Equations and appendices are those of BAR-RAG (arXiv 2602.03689).


INPUT, TRAINING = InputSection(), LanguageModelConfig()


@dataclasses.dataclass(frozen=True)
class PoolSection:
    """What a question's evidence is chosen from."""

    size: int = field(
        8, "Chunks of a question, nearest ones by the retriever.", unit="chunks", minimum=1
    )


@dataclasses.dataclass(frozen=True)
class WarmSection:
    """The warm start: supervised steps on passages that hold the answer, among others."""

    steps: int = field(
        60,
        "Steps; 0: no warm start; -1: one pass over the training questions.",
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
    """Questions to train on: those that some sets of passages answer and others do not (A.6)."""

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
        "Least reward of a right answer in the filter; 0: that of `success`.",
        minimum=0,
        maximum=1,
    )
    temperature: float = field(
        0.0, "Of the answers that the filter samples; 0: as in training.", minimum=0
    )
    top_p: float = field(
        0.0,
        "Likeliest tokens of the answers that the filter samples; 0: as in training.",
        minimum=0,
        maximum=1,
    )
    low: float = field(0.05, "Smallest mean of p.", minimum=0, maximum=1)
    high: float = field(0.95, "Largest mean of p.", minimum=0, maximum=1)
    variance: float = field(0.001, "Smallest variance of p over the sets.", minimum=0)
    chance: bool = field(
        True,
        "Whether the variance that chance explains is taken off, where p is a share of answers.",
    )
    reader: bool = field(
        True, "Whether the reader learns from these questions alone too, and not from all."
    )


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
        "",
        "Folder or hub name of a writer, an instruction model; empty: that of `generator.path`.",
        content="model",
    )
    max_new_tokens: int = field(256, "Longest reply of a writer.", unit="tokens", minimum=1)
    temperature: float = field(1.0, "Of a writer's sampled replies.", above=0)
    top_p: float = field(
        1.0, "Likeliest tokens that a writer's replies are drawn from.", above=0, maximum=1
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
    lora_rank: int = field(0, "As `train.lora_rank`, of a writer.", minimum=0)
    lora_alpha: float = field(16.0, "As `train.lora_alpha`, of a writer.", above=0)


@dataclasses.dataclass(frozen=True)
class SelectSection:
    """How the selector learns: sets drawn from a pool, rewarded for p near a centre (eq. 5-12)."""

    passages: int = field(2, "Passages of a set (k).", unit="passages", minimum=1)
    steps: int = field(
        40, "Steps; 0: one pass over the questions of the filter.", unit="steps", minimum=0
    )
    questions: int = field(8, "Questions of a step.", unit="questions", minimum=1)
    sets: int = field(8, "Sets that are drawn of a question (M).", unit="sets", minimum=2)
    learning_rate: float = field(
        0.0,
        "Peak learning rate; 0 suits the kind of selector: 0.03 for vectors, 1e-5 for a writer.",
        minimum=0,
    )
    centre: float = field(0.5, "p with the largest reward (c).", above=0, maximum=0.99)
    boundary: float = field(1.0, "Weight of the reward by p.", minimum=0)
    relevance: float = field(0.2, "Weight of the retriever's scores in the reward.", minimum=0)
    relevance_form: str = field(
        "cosine",
        "How scores become a reward: the mean cosine from -1..1 to 0..1, or s / (s + tau), that of "
        "paper and released code.",
        choices=("cosine", "saturating"),
    )
    tau: float = field(10.0, "Of the saturating form.", above=0)
    format_bonus: float = field(0.0, "Reward of each well-formed set, whatever it is.", minimum=0)
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
class ReadSection(GrpoConfig):
    """The reader: how it is asked, and how it learns from its own answers (eq. 14 to 18)."""

    train: str = field(
        "grpo",
        "How it learns: from the rewards of its own answers, or from reference answers in as many "
        "steps.",
        choices=("grpo", "supervised"),
    )
    loss: str = field(
        "clipped",
        "Of `grpo`, what a token of an answer loses: its advantage times the clipped ratio (eq. "
        "18), or by a function of one's own, see ark_jax/recipes/ark/README.md.",
        choices=("clipped",),
        importable=True,
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
    max_new_tokens: int = field(16, "Longest sampled answer.", unit="tokens", minimum=1)
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
        "Largest number that counts as a citation; 0: the number of passages that are shown.",
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


@dataclasses.dataclass(frozen=True)
class ReaderSection:
    """A reader besides those that are trained, which the table compares with them."""

    backend: str = field(
        "none",
        "A function of one's own that answers from passages, see ark_jax/recipes/ark/README.md; "
        "its p is 1 where its answer is right.",
        choices=("none",),
        importable=True,
    )


@dataclasses.dataclass(frozen=True)
class RolloutSection:
    """What samples the replies to learn from, and those that p is a share of."""

    backend: str = field(
        "local",
        "local: the model itself, on these devices; openai: an engine behind an address that gets "
        "the weights whenever they have changed.",
        choices=("local", "openai"),
    )
    engine: str = field(
        "vllm",
        "What answers at the address: vLLM from 0.10.2 on, or SGLang from 0.5.3 on.",
        choices=("vllm", "sglang"),
        affects_output=False,
    )
    base_url: str = field(
        "", "Address of the engine, such as http://HOST:8000/v1.", affects_output=False
    )
    key_env: str = field(
        "OPENAI_API_KEY",
        "Environment variable that holds the engine's key, if it wants one.",
        affects_output=False,
    )
    model: str = field(
        "",
        "Absolute path of a folder that the engine sees too. It is started with this path; the run "
        "overwrites the weights there.",
        affects_output=False,
    )
    tolerance: float = field(
        0.1,
        "Largest mean difference between the engine's log-probabilities of a few sampled tokens "
        "and ours; above it the engine has other weights.",
        unit="nats",
        above=0,
        affects_output=False,
    )
    concurrency: int = field(
        16, "Prompts at the engine at once.", unit="prompts", minimum=1, affects_output=False
    )
    timeout: float = field(
        600.0,
        "Time that all replies to a prompt, or new weights, may take.",
        unit="seconds",
        above=0,
        affects_output=False,
    )
    retries: int = field(
        8,
        "Repeats of a request after a temporary failure.",
        unit="requests",
        minimum=0,
        affects_output=False,
    )
    price: tuple[float, ...] = field(
        (),
        "Price of input and of output tokens, for `ark-jax plan`; empty: unknown.",
        unit="USD per million tokens",
        minimum=0,
        lengths=(0, 2),
        affects_output=False,
    )


@dataclasses.dataclass(frozen=True)
class PromptsSection:
    """Prompt texts: a file, or a packaged variant such as `plain`; empty: the packaged text."""

    read: str = field("plain", "Answers a question from passages.", content="prompt")
    cite: str = field(
        "", "The same with a thought that cites them, for `read.cite`.", content="prompt"
    )
    select: str = field(
        "", "Picks passages for a reader, for `selector.kind=writer`.", content="prompt"
    )


@dataclasses.dataclass(frozen=True)
class EvaluateSection:
    """What is measured on held-out questions: readers, each on what the retriever finds."""

    scope: str = settings.searched_scope()
    gold: str = settings.relevant_chunks()
    questions: int = field(
        0, "Held-out questions, drawn by a hash of their ids; 0: all.", unit="questions", minimum=0
    )
    passages: int = field(
        0,
        "Retrieved chunks that a reader gets; 0: as many as a set to train on has.",
        unit="chunks",
        minimum=0,
    )
    sizes: tuple[int, ...] = field(
        (1, 3, 5),
        "Numbers of retrieved chunks with which each reader is measured too; none: no such table.",
        unit="chunks",
        minimum=1,
    )
    removal: bool = field(
        True,
        "Whether each reader also answers without the chunks that its answers cite, and from these "
        "alone. An answer without citations cites the chunks that contain it.",
    )
    max_new_tokens: int = settings.longest_answer(32)
    temperature: float = field(0.0, "Of the measured answers; 0: the likeliest words.", minimum=0)


@dataclasses.dataclass(frozen=True)
class BarRag(Core):
    """A run of BAR-RAG."""

    recipe: str = field(
        "bar_rag", "The method: a recipe of ark_jax, or a module that defines RECIPE."
    )
    iterations: int = field(
        1,
        "Rounds of filter, selector and reader; 0: the warm start alone.",
        unit="rounds",
        minimum=0,
    )
    data: InputSection = INPUT
    pool: PoolSection = PoolSection()
    warm: WarmSection = WarmSection()
    success: SuccessSection = SuccessSection()
    filter: FilterSection = FilterSection()
    selector: SelectorSection = SelectorSection()
    select: SelectSection = SelectSection()
    read: ReadSection = ReadSection()
    train: LanguageModelConfig = TRAINING
    rollout: RolloutSection = RolloutSection()
    reader: ReaderSection = ReaderSection()
    prompts: PromptsSection = PromptsSection()
    evaluate: EvaluateSection = EvaluateSection()


# preset -> the source that it follows
SOURCES = {"paper": sources.PAPER, "official": sources.OFFICIAL}
# preset -> its changes of the defaults
PRESETS = {"small": {}, **values(SOURCES)}


def bar_rag(preset: str = "small") -> ConfigDict:
    """The config of `ark-jax run --config=bar_rag`.

    Args:
        preset: `small` is the defaults, for small models and machines. `paper` follows the
            publication, `official` the released code, both with a language model that selects.

    Raises:
        ValueError: no such preset.
    """
    return with_preset(BarRag, PRESETS, preset)


# Supervised steps in the time of one step of GRPO, of as many questions: 46 s against 13 s on a
# machine that had other work at the time, for `squad_reader.py`.
SUPERVISED_STEPS = 4


def study(config: ConfigDict) -> dict[str, dict]:
    """Runs that part selection from reinforcement, over three seeds: run -> changed fields.

    The run of `config` itself is reinforcement on selected sets. The arms of a seed begin from one
    warm start, and their readers learn for equal times. Other numbers of passages and cited ones
    are looked at in the run of `config` alone, since they take longer than the training.
    """
    supervised = {"read.train": "supervised", "read.steps": SUPERVISED_STEPS * config.read.steps}
    arms = {
        "supervised-retrieved": supervised | {"read.evidence": "retrieved"},
        "supervised-selected": supervised,
        "grpo-retrieved": {"read.evidence": "retrieved"},
        "grpo-random": {"read.evidence": "random"},
    }
    short = {"evaluate.sizes": (), "evaluate.removal": False}
    seeds = {f"seed{seed}": {"seed": seed} for seed in (1, 2)}
    runs = arms | seeds | {f"{arm}-{s}": arms[arm] | seeds[s] for arm in arms for s in seeds}
    return {name: changes | short for name, changes in runs.items()}


def ablations(config: ConfigDict) -> dict[str, dict]:
    """Runs that leave out one part, as in table 2: run -> changed fields."""
    return {
        "without-boundary": {"select.boundary": 0.0, "select.outcome_decides": False},
        "without-relevance": {"select.relevance": 0.0},
        "without-citations": {"read.citation": 0.0},
        "without-filter": {
            "filter.low": 0.0,
            "filter.high": 1.0,
            "filter.variance": 0.0,
            "filter.chance": False,
        },
        "without-selector": {"read.evidence": "retrieved"},
        "without-reader": {"iterations": 0},
    }


SWEEPS = {"study": study, "ablations": ablations(bar_rag())}


def get_config(words: str = ""):
    """The config for the words after the colon: a preset, and `sweep=NAME`."""
    return bar_rag(preset_of(words, PRESETS))
