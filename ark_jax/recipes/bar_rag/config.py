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

from ark_jax.recipes.core import settings
from ark_jax.recipes.core.presets import Row, Source, Step, preset_of, values, with_preset
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


# What the paper of BAR-RAG and its released code say, line by line, and what the presets do.
A5, A6 = "appendix A.5", "appendix A.6"
CODE, OWN_WORDS = "the released code's", "own words that ask for the same"
PAPER = Source(
    "Rethinking the Reranker: Boundary-Aware Evidence Selection (arXiv 2602.03689)",
    {
        "iterations": Row(3, f"{A5}: T"),
        "retriever.path": Row("intfloat/e5-base-v2", f"{A5}: E5"),
        "retriever.prompts.query": Row("query: ", "appendix A.7: E5, whose card says it"),
        "retriever.prompts.document": Row("passage: ", "appendix A.7: E5, whose card says it"),
        "generator.path": Row("Qwen/Qwen2.5-7B-Instruct", f"{A5}: and two others"),
        "pool.size": Row(25, f"{A5}: n"),
        "warm.steps": Row(0, "section 2.4: no such stage"),
        "success.by": Row("samples", "eq. 3, 4"),
        "success.answers": Row(10, f"{A5}: K"),
        "success.right_at": Row(0.8, f"{A5}: δ"),
        "filter.questions": Row(0, "section 2.2: each training query"),
        "filter.sets": Row(8, f"{A6}: N"),
        "filter.each": Row(False, "Algorithm 1, line 2: once"),
        "filter.right_at": Row(0.5, f"{A6}: δ"),
        "filter.low": Row(0.25, f"{A6}: m_min"),
        "filter.high": Row(0.85, f"{A6}: m_max"),
        "filter.variance": Row(0.02, f"{A6}: v_min"),
        "filter.chance": Row(False, f"{A6}: the plain variance"),
        "filter.reader": Row(False, f"{A6}: selector training alone"),
        "selector.kind": Row("writer", "Table 8"),
        "selector.path": Row("", f"{A5}: the generator's backbone"),
        "selector.strict": Row(True, "eq. 8; Table 8"),
        "selector.max_new_tokens": Row(1024, "not given", CODE),
        "selector.kl": Row("k3", f"{A5}: its factor alone", "the released code's estimate"),
        "selector.lora_rank": Row(32, A5),
        "selector.lora_alpha": Row(16.0, A5),
        "select.passages": Row(5, f"{A5}: k"),
        "select.steps": Row(0, "section 2.4: one epoch"),
        "select.questions": Row(8, f"{A5}: batch size"),
        "select.sets": Row(8, f"{A5}: M"),
        "select.learning_rate": Row(4e-6, A5),
        "select.centre": Row(0.5, f"{A5}: c"),
        "select.boundary": Row(1.0, f"{A5}: λ_bdy"),
        "select.relevance": Row(0.2, f"{A5}: λ_rel"),
        "select.relevance_form": Row("saturating", f"{A5}: by τ", "the released code's formula"),
        "select.tau": Row(10.0, f"{A5}: τ"),
        "select.format_bonus": Row(0.0, "eq. 10: a factor, no term"),
        "select.outcome_decides": Row(False, "eq. 11: each group"),
        "select.scale": Row("sd", "eq. 11"),
        "read.train": Row("grpo", "section 2.4"),
        "read.loss": Row("clipped", "eq. 12, 18"),
        "read.evidence": Row("selected", "section 2.4: S = π_r(q, C)"),
        "read.steps": Row(0, "section 2.4: one epoch"),
        "read.prompts": Row(8, f"{A5}: batch size"),
        "read.samples": Row(10, f"{A5}: K"),
        "read.learning_rate": Row(4e-6, A5),
        "read.ratio": Row("output", "eq. 12, 18: of the whole output"),
        "read.mean": Row("sequence", "eq. 18: over outputs"),
        "read.clip_low": Row(0.2, f"{A5}: ε"),
        "read.clip_high": Row(0.2, f"{A5}: ε"),
        "read.kl": Row("k3", f"{A5}: its factor alone", "the released code's estimate"),
        "read.kl_coefficient": Row(0.001, A5),
        "read.keep_dead": Row(True, "eq. 18: all outputs"),
        "read.outcome_decides": Row(False, "eq. 18: each group"),
        "read.scale": Row("sd", "section 2.4: as eq. 11"),
        "read.max_new_tokens": Row(1024, "not given", CODE),
        "read.chat": Row(True, "Table 7; section 3.3: instruction-tuned"),
        "read.cite": Row(True, "eq. 16; Table 7"),
        "read.citation": Row(0.2, f"{A5}: λ_cite; λ_acc is the rest"),
        "read.citations": Row(2, f"{A5}: n*"),
        "read.citable": Row(0, "section 2.4: the provided documents"),
        "read.f1": Row(0.7, f"{A5}: β1; β2 is the rest"),
        "train.lora_rank": Row(32, A5),
        "train.lora_alpha": Row(16.0, A5),
        "train.warmup": Row(0.02, A5),
        "train.decay": Row("cosine", A5),
        "train.floor": Row(0.1, "not given", CODE),
        "prompts.cite": Row("paper", "Table 7", OWN_WORDS),
        "prompts.select": Row("paper", "Table 8", OWN_WORDS),
        "evaluate.passages": Row(0, "section 2.5: top k, as in training"),
        "evaluate.sizes": Row((1, 3, 5, 10), "Figure 4: 1 to 30", "15 and 30 are yours to add"),
        "evaluate.removal": Row(True, "Table 4"),
        "evaluate.temperature": Row(0.0, "not given", "the likeliest words"),
        "evaluate.max_new_tokens": Row(1024, "not given", CODE),
    },
    (
        Step("eq. 1", "sets by the selector", "recipes/bar_rag/selectors.py"),
        Step("eq. 2, 13", "answers of a set", "recipes/bar_rag/reading.py"),
        Step("section 2.3", "by vLLM: `rollout.backend`", "recipes/bar_rag/rollout_engine.py"),
        Step("eq. 3, 4, 6", "share of right answers", "select/zone.py"),
        Step("eq. 5, 7 to 10", "reward of a set", "select/rewards.py"),
        Step("eq. 9", "α 0.5, k* 5, P_max 1.0", "select/rewards.py"),
        Step("eq. 11", "advantages", "train/policy.py"),
        Step("eq. 12, 18", "clipped ratio", "train/policy.py"),
        Step("eq. 14 to 17", "reward of an answer", "train/rewards.py"),
        Step("Algorithm 1", "filter, then T rounds", "recipes/bar_rag/recipe.py"),
        Step("section 2.5", "no selector afterwards", "recipes/bar_rag/evaluate.py"),
        Step(A6, "filter", "recipes/bar_rag/select.py"),
        Step("appendix A.7", "NQ and HotpotQA mixed", "data/readers.py"),
        Step("appendix A.7", "Wikipedia of 2018", "data/table_files.py"),
        Step("Table 5", "HotpotQA, 2Wiki, MuSiQue, NQ", "data/formats/rows.py"),
        Step("Table 5", "TriviaQA, PopQA, Bamboogle", "data/formats/rows.py"),
        Step("Table 1", "seven data sets", "recipes/papers/bar_rag_table1.py"),
        Step("section 3.1", "EM", "evaluate/answers.py"),
        Step(
            "Table 1", "Direct Inference, CoT", "comparison/answering.py", "by `ark-jax evaluate`"
        ),
        Step("Table 1", "RAG", "recipes/bar_rag/evaluate.py"),
        Step("Table 1", "RAG w/Reranker, IRCoT", "comparison/rankings.py", "by `ark-jax evaluate`"),
        Step("Table 1", "RAG SFT: study's supervised", "recipes/bar_rag/config.py"),
        Step("Table 2", "sweep ablations", "recipes/bar_rag/config.py"),
        Step("Figure 2", "recall against accuracy", "", "not drawn"),
        Step("Figure 5", "histogram of p", "recipes/bar_rag/report.py"),
        Step("Table 3", "Search-o1 to DynamicRAG", "comparison/imported.py", "imported, not run"),
        Step("Table 4", "cited documents removed, kept", "recipes/bar_rag/evaluate.py"),
    ),
)

SELECT, READ = "selector_training.sh", "generator_training.sh"
FILTER, INFER = "filter.sh", "inference.sh"
OFFICIAL = Source(
    "GasolSun36/BAR-RAG, commit 02c7b59",
    {
        "iterations": Row(3, "README: 2 to 3"),
        "retriever.path": Row("intfloat/e5-base-v2", "README"),
        "retriever.prompts.query": Row("query: ", "README: E5, whose card says it"),
        "retriever.prompts.document": Row("passage: ", "README: E5, whose card says it"),
        "generator.path": Row("Qwen/Qwen2.5-7B-Instruct", "README: and two others"),
        "pool.size": Row(25, "README: top_n"),
        "warm.steps": Row(0, "README: no such step"),
        "success.by": Row("samples", f"{SELECT}: K_ROLLOUTS"),
        "success.answers": Row(10, f"{SELECT}: K_ROLLOUTS"),
        "success.right_at": Row(0.8, f"{SELECT}: GENERATOR_REWARD_THRESHOLD"),
        "filter.questions": Row(0, f"{FILTER}: num_samples -1"),
        "filter.sets": Row(8, f"{FILTER}: selector_rollouts"),
        "filter.each": Row(True, "README: in each iteration"),
        "filter.right_at": Row(0.0, f"{FILTER}: reward_threshold 0.8, as in training"),
        "filter.temperature": Row(0.7, f"{FILTER}: generator_temperature"),
        "filter.top_p": Row(0.95, "filter.py"),
        "filter.low": Row(0.25, f"{FILTER}: mean_min"),
        "filter.high": Row(0.85, f"{FILTER}: mean_max"),
        "filter.variance": Row(0.02, f"{FILTER}: var_min"),
        "filter.chance": Row(False, f"{FILTER}: the plain variance"),
        "filter.reader": Row(False, "README: the full training set"),
        "selector.kind": Row("writer", SELECT),
        "selector.path": Row("", "README: the generator's backbone"),
        "selector.strict": Row(False, "reward_score/selector.py: a number in range"),
        "selector.max_new_tokens": Row(1024, f"{SELECT}: max_response_length"),
        "selector.temperature": Row(1.0, f"{FILTER}: selector_temperature"),
        "selector.kl": Row("k3", f"{SELECT}: low_var_kl"),
        "selector.lora_rank": Row(32, f"{SELECT}: lora_rank"),
        "selector.lora_alpha": Row(16.0, f"{SELECT}: lora_alpha"),
        "select.passages": Row(5, f"{SELECT}: REWARD_TARGET_NUM_DOCS"),
        "select.steps": Row(0, f"{SELECT}: total_epochs 1"),
        "select.questions": Row(8, f"{SELECT}: train_batch_size"),
        "select.sets": Row(8, f"{SELECT}: rollout.n"),
        "select.learning_rate": Row(4e-6, f"{SELECT}: optim.lr"),
        "select.centre": Row(0.6, f"{SELECT}: REWARD_TARGET_CENTER"),
        "select.boundary": Row(1.0, f"{SELECT}: REWARD_LAMBDA_UNC"),
        "select.relevance": Row(0.2, f"{SELECT}: REWARD_LAMBDA_REL, MAX_REL 1.0"),
        "select.relevance_form": Row("saturating", "reward_score/selector.py: s / (s + 10)"),
        "select.tau": Row(10.0, "reward_score/selector.py: s / (s + 10)"),
        "select.format_bonus": Row(0.0, f"{SELECT}: REWARD_FORMAT_BONUS"),
        "select.outcome_decides": Row(False, "verl: each group"),
        "select.scale": Row("sd", "verl: norm_adv_by_std_in_grpo"),
        "read.train": Row("grpo", f"{READ}: adv_estimator"),
        "read.loss": Row("clipped", "verl"),
        "read.evidence": Row("selected", "selector2generator.sh"),
        "read.steps": Row(0, f"{READ}: total_epochs 1"),
        "read.prompts": Row(32, f"{READ}: train_batch_size"),
        "read.samples": Row(8, f"{READ}: rollout.n"),
        "read.learning_rate": Row(5e-6, f"{READ}: optim.lr"),
        "read.updates": Row(1, f"{READ}: ppo_mini_batch_size 32"),
        "read.ratio": Row("token", "verl"),
        "read.mean": Row("token", "verl: token-mean"),
        "read.clip_low": Row(0.2, "verl: clip_ratio"),
        "read.clip_high": Row(0.2, "verl: clip_ratio"),
        "read.kl": Row("k3", f"{READ}: low_var_kl"),
        "read.kl_coefficient": Row(0.001, f"{READ}: kl_loss_coef"),
        "read.keep_dead": Row(True, "verl: they count in the mean"),
        "read.outcome_decides": Row(False, "verl: each group"),
        "read.scale": Row("sd", "verl: norm_adv_by_std_in_grpo"),
        "read.temperature": Row(1.0, f"{SELECT}: GENERATOR_TEMPERATURE"),
        "read.top_p": Row(1.0, f"{SELECT}: GENERATOR_TOP_P"),
        "read.max_new_tokens": Row(1024, f"{READ}: max_response_length"),
        "read.chat": Row(True, "reward_score/selector.py: messages"),
        "read.cite": Row(True, "reward_score/generator.py"),
        "read.citation": Row(0.2, f"{SELECT}: GENERATOR_ACC_WEIGHT 0.8"),
        "read.citations": Row(2, f"{SELECT}: GENERATOR_TARGET_CITE"),
        "read.citable": Row(25, f"{SELECT}: GENERATOR_MAX_DOC_ID", "elsewhere 31; one field"),
        "read.f1": Row(0.7, f"{SELECT}: GENERATOR_F1_WEIGHT"),
        "train.lora_rank": Row(64, f"{READ}: lora_rank"),
        "train.lora_alpha": Row(32.0, f"{READ}: lora_alpha"),
        "train.lora_targets": Row((), f"{READ}: target_modules=all-linear"),
        "train.weight_decay": Row(0.01, "verl: weight_decay"),
        "train.warmup": Row(0.02, f"{READ}: lr_warmup_steps_ratio"),
        "train.decay": Row("cosine", f"{READ}: lr_scheduler_type"),
        "train.floor": Row(0.1, f"{READ}: min_lr_ratio"),
        "prompts.cite": Row("paper", "reward_score/selector.py", OWN_WORDS),
        "prompts.select": Row("paper", "process_selector.py", OWN_WORDS),
        "evaluate.passages": Row(0, f"{INFER}: TOPKS 5"),
        "evaluate.sizes": Row((1, 3, 5, 10), f"{INFER}: 5", "the paper's figure 4, too"),
        "evaluate.temperature": Row(0.3, f"{INFER}: temperature"),
        "evaluate.max_new_tokens": Row(1024, f"{INFER}: max_new_tokens"),
    },
    (
        Step(FILTER, "256 tokens, top_p 0.95", "recipes/bar_rag/selectors.py", "as in training"),
        Step("filter.py", "shorter prompts", "text/prompts.py", "one prompt in all stages"),
        Step(SELECT, "passages cut alike", "recipes/documents/reader.py", "the end"),
        Step(
            "reward_score/selector.py",
            "failed call: -0.5",
            "recipes/bar_rag/rollouts.py",
            "asked again",
        ),
        Step("filter.py", "no set: the first five", "recipes/bar_rag/select.py", "has no p"),
        Step("README", "rows with `ctxs`", "data/formats/rows.py"),
    ),
)

# preset -> the source that it follows
SOURCES = {"paper": PAPER, "official": OFFICIAL}
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
