"""Config sections of the STAR recipe: graph and questions, paths, lists, training, search.

The copy of the publication that this follows has lost its numbers. Where a docstring names RD-P
(github.com/yooboh/RD-P) or SRTK (github.com/happen2me/subgraph-retrieval-toolkit), a default is
that of their published code, which is nearest to it. Other defaults are ours.
"""

import dataclasses

from ark_jax.recipes.common import fields
from ark_jax.recipes.common.graph_settings import GraphInput
from ark_jax.recipes.common.settings import Basics
from ark_jax.schema import field
from ark_jax.train.config import AdapterConfig


@dataclasses.dataclass(frozen=True)
class DataSection(GraphInput):
    """The graph, and questions with answers: one part to train on, one to measure with."""

    questions: str = field(
        "", "File or pattern of questions with answers and, if possible, topic entities."
    )
    held_out: float = field(
        0.4,
        "Share of the questions to measure with, drawn by a hash of their topics; the rest is "
        "trained on.",
        unit="fraction of topics",
        minimum=0,
        maximum=1,
    )
    few: int = field(
        0,
        "Questions to train on, drawn by a hash evenly over the groups; 0: all.",
        unit="questions",
        minimum=0,
    )


@dataclasses.dataclass(frozen=True)
class PathsSection:
    """Relation paths from topics to answers."""

    hops: int = field(3, "Longest path, in training and in search.", unit="relations", minimum=1)
    inverse: bool = field(True, "Walk relations backward too, as `inverse of` each.")
    hub: int = field(
        10_000,
        "Entities whose relations are looked at to go on; all of them count as reached.",
        unit="entities",
        minimum=1,
    )
    seconds: float = field(
        150.0, "Time limit of finding a question's paths; RD-P's.", unit="seconds", above=0
    )
    limit: int = field(25, "Paths kept of a question; RD-P's.", unit="paths", minimum=1)


@dataclasses.dataclass(frozen=True)
class MineSection:
    """Lists to train on: a positive path of a question and hard negatives."""

    positives: str = field(
        "similar",
        "Shortest paths to learn: those at least as similar to the question as the mean "
        "(algorithm 1), or all.",
        choices=("similar", "all"),
    )
    negatives: int = field(7, "Negatives of a list.", unit="paths", minimum=1)
    pool: str = field(
        "graph",
        "Relations that may replace the right one: those that leave the frontier, as in search, or "
        "all of the graph (algorithm 2).",
        choices=("graph", "all"),
    )
    choose: str = field(
        "similar",
        "Which candidates become negatives: those most similar to the question, or drawn ones.",
        choices=("similar", "random"),
    )
    k: int = field(
        15,
        "Candidates of each kind at a step: relations most similar to the right one, and drawn "
        "ones; RD-P's and SRTK's number of negatives.",
        unit="relations",
        minimum=1,
    )
    by: str = field(
        "base",
        "What judges similarity: the retriever before training, once, or the scorer itself, after "
        "each epoch.",
        choices=("base", "previous"),
    )
    spare: float = field(
        1.0,
        "Share of right ones among the entities that a path reaches from which it is never a "
        "negative.",
        unit="fraction of entities",
        above=0,
        maximum=1,
    )


@dataclasses.dataclass(frozen=True)
class TrainSection(AdapterConfig):
    """Training of the pair scorer on lists."""

    head: str = field(
        "cosine",
        "What scores a question with a path: the cosine of both texts, that cosine plus a logit of "
        "the pair that begins at zero, a classification head, or the publication's.",
        choices=("cosine", "sum", "linear", "star"),
    )
    weights: str = field(
        "both",
        "Which paths weigh more the rarer they are: positives and negatives, positives, or none.",
        choices=("both", "positive", "none"),
    )
    weight_range: tuple[float, float] = field(
        (0.5, 2.0),
        "Smallest and largest weight of a path; ours, since the publication's is lost.",
        above=0,
    )
    temperature: float = field(
        1.0,
        "Divisor of logits; ours. Cosines are multiplied by 20 already, where RD-P divides them "
        "by 0.1.",
        above=0,
    )
    epochs: int = field(5, "Passes over the lists.", unit="epochs", minimum=1)
    learning_rate: float = field(
        5e-5, "Peak learning rate; RD-P's on WebQSP (2e-5 on CWQ).", minimum=0
    )
    batch: int = field(16, "Lists per step; RD-P's on CWQ (32 on WebQSP).", unit="lists", minimum=1)
    lora_rank: int = field(
        0,
        "Rank of a LoRA adapter of the encoder, which needs about ten times the learning rate; the "
        "head is trained whole. 0: train all weights.",
        minimum=0,
    )


@dataclasses.dataclass(frozen=True)
class SearchSection:
    """Beam search over relation paths (algorithm 3)."""

    beam: int = field(
        5, "Paths that go on from each topic after a hop; ours (SRTK: 10).", unit="paths", minimum=1
    )
    keep: int = field(
        64,
        "Candidates of a hop that the scorer reads, best by cosine; further ones are dropped.",
        unit="paths",
        minimum=1,
    )
    k: int = field(5, "Paths found for a question.", unit="paths", minimum=1)


@dataclasses.dataclass(frozen=True)
class PromptsSection:
    """Prompt texts: a file, or a packaged variant; empty: the packaged text."""

    triple_reader: str = field("", "Answers a question from the paths found.")


@dataclasses.dataclass(frozen=True)
class EvaluateSection:
    """What is measured, and how."""

    part: str = field(
        "held_out",
        "Questions to measure with: those of `data.held_out`; or, to choose settings, the same "
        "share of the others, which are then not trained on.",
        choices=("held_out", "rest"),
    )
    questions: int = fields.questions_of_groups()
    metrics: tuple[str, ...] = field(
        ("hit@1", "hit@3", "path_hit@1", "f1", "answer_coverage"),
        "hit@k: whether one of the first k paths reaches an answer; path_hit@k: whether one is a "
        "shortest path to an answer; f1: entities that the first path reaches against the answers; "
        "answer_coverage: share of the answers that the paths found reach.",
    )
    baselines: tuple[str, ...] = field(
        ("frequent", "shortest"),
        "Systems without a model besides base, which follow the training paths that exist from the "
        "topic: most frequent ones first, or shortest ones.",
        choices=("frequent", "shortest"),
    )
    read: int = field(
        0,
        "Questions to answer from the paths found, drawn by a hash of their ids; -1: all, 0: none.",
        unit="questions",
        minimum=-1,
    )
    paths: int = field(3, "Paths found that the reader gets.", unit="paths", minimum=1)
    max_new_tokens: int = fields.max_new_tokens(64)
    bootstrap: int = fields.bootstrap()
    randomisation: int = fields.randomisation()


@dataclasses.dataclass(frozen=True)
class Star(Basics):
    """A run of STAR."""

    recipe: str = field("star", "The method: a recipe of ark_jax, or a module that defines RECIPE.")
    data: DataSection = DataSection()
    paths: PathsSection = PathsSection()
    mine: MineSection = MineSection()
    train: TrainSection = TrainSection()
    search: SearchSection = SearchSection()
    prompts: PromptsSection = PromptsSection()
    evaluate: EvaluateSection = EvaluateSection()
