r"""GPR on your own graph: a retriever of triples, trained without a labelled question.

    ark-jax run --config=gpr --config.data.path=GRAPH --workdir=DIR

With questions to measure with:

    ark-jax run --config=gpr --config.data.path=GRAPH \
        --config.data.questions=QUESTIONS --workdir=DIR

Rules word the training questions unless a language model does: --config.llm.backend=openai. Words
after the colon: `paper` follows the publication, which asks a model about each triple.

    ark-jax retrieve --model=DIR/export --graph=GRAPH --questions=QUESTIONS > triples.jsonl
"""

import dataclasses

from ml_collections import ConfigDict

from ark_jax.recipes.core import settings
from ark_jax.recipes.core.presets import Row, Source, Step, preset_of, values, with_preset
from ark_jax.recipes.core.settings import Basics, GraphInput
from ark_jax.schema import field
from ark_jax.train.config import TripletConfig


@dataclasses.dataclass(frozen=True)
class DataSection(GraphInput):
    """The graph, and the questions that test what is retrieved from it."""

    questions: str = field(
        "",
        "File or pattern of questions with answers, to measure with; empty: nothing is measured.",
        content="files",
    )
    held_out: float = field(
        1.0,
        "Share of these questions to measure with, drawn by a hash of their topics; the rest is "
        "for choosing settings.",
        unit="fraction of topics",
        minimum=0,
        maximum=1,
    )


@dataclasses.dataclass(frozen=True)
class QuestionsSection:
    """Questions that ask for a masked entity of a triple."""

    by: str = field(
        "relations",
        "What one prompt asks wordings for: a relation, to be filled with the names of all its "
        "triples, or each triple by itself.",
        choices=("relations", "triples"),
    )
    triples: int = field(
        10_000,
        "Triples to ask about, drawn evenly over the relations by a hash; 0: all.",
        unit="triples",
        minimum=0,
    )
    per_triple: int = field(
        1, "Questions for each masked entity of a triple.", unit="questions", minimum=1
    )
    wordings: int = field(
        8, "Wordings to ask for, for each side of a relation.", unit="wordings", minimum=1
    )
    triples_per_prompt: int = field(
        8, "Triples in one prompt, if prompts are by triple.", unit="triples", minimum=1
    )
    replies: str = field(
        "",
        "Recorded replies.jsonl with questions or wordings, instead of asking the language model.",
        content="file",
    )


@dataclasses.dataclass(frozen=True)
class TrainSection(TripletConfig):
    """Training of the towers on three levels of relevance (eq. 4 and 5)."""

    towers: str = field(
        "one",
        "One model for questions and triples, or two that start alike.",
        choices=("one", "two"),
    )
    epochs: int = field(1, "Passes over the questions.", unit="epochs", minimum=1)
    learning_rate: float = field(3e-5, "Peak learning rate.", minimum=0)


@dataclasses.dataclass(frozen=True)
class SearchSection:
    """How triples are searched for: by cosine, and on from the best ones along the graph."""

    hops: int = field(
        3,
        "Longest chain of triples from one that is like the question; 1: cosines alone.",
        unit="triples",
        minimum=1,
    )
    share: float = field(
        0.9,
        "Weight of the triples before in the score of one that continues a chain.",
        minimum=0,
        maximum=1,
    )


@dataclasses.dataclass(frozen=True)
class PromptsSection:
    """Prompt texts: a file, or a packaged variant; empty: the packaged text."""

    triple_questions: str = field("", "Writes questions about single triples.", content="prompt")
    relation_wordings: str = field(
        "", "Writes wordings that fit all triples of a relation.", content="prompt"
    )
    triple_reader: str = field("", "Answers a question from retrieved triples.", content="prompt")


@dataclasses.dataclass(frozen=True)
class EvaluateSection:
    """What is measured, and which systems are compared."""

    part: str = field(
        "held_out",
        "Questions to measure with: those of `data.held_out`, or the rest, to choose settings.",
        choices=("held_out", "rest"),
    )
    questions: int = settings.questions_of_groups()
    metrics: tuple[str, ...] = field(
        (
            "answer_triple@1",
            "answer_triple@10",
            "answer_triple@100",
            "answer_recall@10",
            "answer_recall@100",
        ),
        "answer_triple@k: whether a triple that bears an answer is among the first k; "
        "answer_recall@k: share of the answers that are in the first k.",
    )
    baselines: tuple[str, ...] = field(
        ("bm25",), "Untrained systems besides base.", choices=("bm25",)
    )
    hybrids: tuple[str, ...] = field(
        ("bm25+gpr",), 'Systems to fuse by reciprocal ranks, as in "bm25+base".'
    )
    read: int = field(
        0,
        "Questions to answer from retrieved triples, drawn by a hash of their ids; -1: all, "
        "0: none.",
        unit="questions",
        minimum=-1,
    )
    triples: int = field(20, "Retrieved triples that the reader gets.", unit="triples", minimum=1)
    max_new_tokens: int = settings.longest_answer(64)


@dataclasses.dataclass(frozen=True)
class Gpr(Basics):
    """A run of GPR."""

    recipe: str = field("gpr", "The method: a recipe of ark_jax, or a module that defines RECIPE.")
    data: DataSection = DataSection()
    questions: QuestionsSection = QuestionsSection()
    train: TrainSection = TrainSection()
    search: SearchSection = SearchSection()
    prompts: PromptsSection = PromptsSection()
    evaluate: EvaluateSection = EvaluateSection()


# What the paper of GPR says, line by line, and what the preset does.
PAPER = Source(
    "GPR: Empowering Generation with Graph-Pretrained Retriever",
    {
        "retriever.path": Row("distilbert/distilbert-base-uncased", "appendix B"),
        "llm.backend": Row("none", "section 3: LLaMA-3.1-8B", "must be set; none is refused"),
        "llm.model": Row("gemini-2.5-flash", "section 3: LLaMA-3.1-8B-Instruct", "yours to name"),
        "prompts.triple_questions": Row("", "section 3: not printed", "ours"),
        "data.held_out": Row(1.0, "appendix B: zero-shot, no question trains"),
        "questions.by": Row("triples", "section 3: each triplet"),
        "questions.triples": Row(0, "section 3: each triplet"),
        "questions.per_triple": Row(1, "Table 2: one for each masked side"),
        "questions.triples_per_prompt": Row(1, "section 3: each triplet"),
        "train.towers": Row("two", "section 3: E_q, E_τ"),
        "train.loss": Row("triplet", "eq. 5"),
        "train.margins": Row((0.5, 0.5), "appendix B: γ1, γ2"),
        "train.negatives": Row("random", "eq. 2: sampled at random"),
        "train.siblings": Row("neighbour", "eq. 1: any that shares an entity"),
        "train.neighbours": Row("triple", "eq. 1: how it is drawn is not given", "all evenly"),
        "train.hub": Row(0, "eq. 1: any that shares an entity"),
        "train.epochs": Row(5, "appendix B"),
        "train.learning_rate": Row(2e-5, "appendix B"),
        "train.batch": Row(512, "appendix B"),
        "search.hops": Row(1, "section 3: the top K by cosine"),
        "evaluate.read": Row(0, "Table 1: all questions", "a model that you name: set -1"),
        "evaluate.triples": Row(20, "section 3: K without a value", "ours"),
    },
    (
        Step("section 3", "masking both sides", "recipes/gpr/questions.py"),
        Step("eq. 1 to 3", "three levels", "graph/levels.py", "without neighbours: no term"),
        Step("section 3", "two towers", "models/towers.py"),
        Step("eq. 4, 5", "two margins", "train/losses.py"),
        Step("appendix B", "AdamW", "train/optim.py"),
        Step("section 3", "top K of the whole graph", "graph/triple_retriever.py"),
        Step("appendix B", "WebQSP and CWQ in RoG's rows", "graph/triple_rows.py"),
        Step("Table 1", "accuracy to F1", "evaluate/answer_lists.py", "whole words match"),
        Step("Table 1", "two data sets", "recipes/papers/gpr_table1.py"),
        Step("Table 1", "ChatGPT, LLaMA2-7B", "recipes/graphs.py"),
        Step("Table 1", "Flan-T5-XL", "", "no encoder-decoder; by an endpoint"),
        Step("Table 1", "the model alone", "recipes/graphs.py"),
        Step("Table 1", "+ Two Tower: `base`", "recipes/gpr/evaluate.py"),
        Step("Table 1", "+ SKP", "", "masked words are not trained"),
        Step("Table 1", "+ Hybrid", "recipes/gpr/evaluate.py", "no cross-encoder after it"),
        Step("Table 1", "+ G-Retriever, G-RAG", "comparison/imported.py", "imported, not run"),
        Step("Figure 1", "triples found for a question", "recipes/gpr/report.py"),
        Step("Figure 2", "answers by K: sweep triples", "recipes/gpr/config.py"),
        Step("Table 2", "examples of questions", "recipes/gpr/report.py"),
    ),
)
SOURCES = {"paper": PAPER}  # preset -> the source that it follows
# The plain way to train a retriever on the same questions: each other triple of the batch is a
# negative, and the graph plays no part.
INFO_NCE = {"train.siblings": "neighbour", "train.neighbours": "none"}
PRESETS = {"default": {}, **values(SOURCES)}


def gpr(preset: str = "default") -> ConfigDict:
    """The config of `ark-jax run --config=gpr`.

    Args:
        preset: `default` was chosen on a part of MetaQA's questions
            (configs/metaqa.py). `paper` follows the publication. It needs a language model:
            --config.llm.backend=openai, local or replay.
    """
    return with_preset(Gpr, PRESETS, preset)


def study(config: ConfigDict) -> dict[str, dict]:
    """Runs that compare `config` with its competitors, over three seeds: run -> changed fields.

    All runs share the questions, and train for as many steps.
    """
    shared = ("train.epochs", "train.batch")
    paper = {
        name: value
        for name, value in PRESETS["paper"].items()
        if name.startswith("train.") and name not in shared
    }
    return {
        "infonce": INFO_NCE,
        "paper": paper,
        **{f"seed{seed}": {"seed": seed} for seed in (1, 2)},
        **{f"infonce-seed{seed}": INFO_NCE | {"seed": seed} for seed in (1, 2)},
    }


def switches(config: ConfigDict) -> dict[str, dict]:
    """Runs that change one part each: run -> changed fields."""
    return {
        "siblings": {"train.siblings": "neighbour"},
        "sibling-positives": {"train.siblings": "positive"},
        "no-neighbours": {"train.neighbours": "none"},
        "neighbours-by-triple": {"train.neighbours": "triple", "train.hub": 0},
        "random-negatives": {"train.negatives": "random"},
        "triplet": {"train.loss": "triplet"},
        "two-towers": {"train.towers": "two"},
    }


# Figure 2 of the publication: the reader's answers by the number K of triples that it gets.
TRIPLES = {f"triples={k}": {"evaluate.triples": k} for k in (1, 5, 10, 20, 50, 100)}
SWEEPS = {"study": study(gpr()), "triples": TRIPLES}


def get_config(words: str = ""):
    """The config for the words after the colon: a preset, and `sweep=NAME`."""
    return gpr(preset_of(words, PRESETS))
