r"""STAR on your own graph: relation paths from the topic of a question to its answers.

    ark-jax run --config=star --config.data.path=GRAPH \
        --config.data.questions=QUESTIONS --workdir=DIR

QUESTIONS have answers and, if possible, topics: {"question", "answers", "entities"}. A share of
them, --config.data.held_out, measures what training on the others gives. Words after the colon:
`paper` follows the publication.

    ark-jax retrieve --model=DIR/export --graph=GRAPH --questions=QUESTIONS > paths.jsonl
"""

import dataclasses

from ml_collections import ConfigDict

from ark_jax.recipes.core import settings
from ark_jax.recipes.core.presets import Row, Source, Step, preset_of, values, with_preset
from ark_jax.recipes.core.settings import Basics, GraphInput
from ark_jax.schema import field
from ark_jax.train.config import AdapterConfig


@dataclasses.dataclass(frozen=True)
class DataSection(GraphInput):
    """The graph, and questions with answers: one part to train on, one to measure with."""

    questions: str = field(
        "",
        "File or pattern of questions with answers and, if possible, topic entities.",
        content="files",
    )
    held_out: float = field(
        0.4,
        "Share of the questions to measure with, drawn by a hash of their topics; the rest is "
        "trained on.",
        unit="fraction of topics",
        minimum=0,
        maximum=1,
    )
    validation: float = field(
        0.0,
        "Share of the training questions, drawn by a hash of their topics, that is not trained on: "
        "the epoch after which their hit@1 is highest gives the scorer; 0: the last epoch does. "
        "`few` limits them in proportion.",
        unit="fraction of topics",
        minimum=0,
        maximum=1,
    )
    test: str = field(
        "",
        "File or pattern of questions to measure with, instead of a share of `questions`, all of "
        "which are then trained on.",
        content="files",
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
    seconds: float = field(
        150.0, "Time limit of finding a question's paths.", unit="seconds", above=0
    )


@dataclasses.dataclass(frozen=True)
class MineSection:
    """Lists to train on: a positive path of a question and negatives."""

    positives: str = field(
        "weighted",
        "Shortest paths to learn: all, each weighted by the F1 of what it reaches against the "
        "answers, as a share of the question's best; all of equal weight; or those at least as "
        "similar to the question as the mean (algorithm 1).",
        choices=("weighted", "all", "similar"),
    )
    negatives: int = field(7, "Negatives of a list.", unit="paths", minimum=1)
    pool: str = field(
        "graph",
        "Relations that may replace the right one: those that leave the frontier, as in search, or "
        "all of the graph (algorithm 2).",
        choices=("graph", "all"),
    )
    by: str = field(
        "random",
        "What chooses the negatives among the candidates: a draw; their similarity to the "
        "question, by the retriever before training (base) or after each epoch by the scorer "
        "itself (previous); or a function of one's own, see ark_jax/recipes/ark/README.md.",
        choices=("random", "base", "previous"),
        importable=True,
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
        "What scores a question with a path: the cosine of both texts, a classification head, or "
        "the publication's.",
        choices=("cosine", "linear", "star"),
    )
    loss: str = field(
        "lists",
        "What is minimised: weighted lists (eq. 5), or a function of one's own, see "
        "ark_jax/recipes/ark/README.md.",
        choices=("lists",),
        importable=True,
    )
    weights: str = field(
        "none",
        "Which paths weigh more the rarer they are: none, positives, or positives and negatives.",
        choices=("none", "positive", "both"),
    )
    weight_range: tuple[float, float] = field(
        (0.5, 2.0), "Smallest and largest weight of a path.", above=0
    )
    weight_scale: str = field(
        "log",
        "What is scaled to that range: the logarithm of a path's count in each class, or the "
        "inverse of its share of the class in both together, as the publication says, which sets "
        "apart only the rarest paths.",
        choices=("log", "inverse"),
    )
    temperature: float = field(
        1.0, "Divisor of logits. Cosines are multiplied by 20 already.", above=0
    )
    epochs: int = field(5, "Passes over the lists.", unit="epochs", minimum=1)
    learning_rate: float = field(5e-5, "Peak learning rate.", minimum=0)
    batch: int = field(16, "Lists per step.", unit="lists", minimum=1)
    lora_rank: int = field(
        0,
        "Rank of a LoRA adapter of the encoder, which needs about ten times the learning rate; the "
        "head is trained whole. 0: train all weights.",
        minimum=0,
    )


@dataclasses.dataclass(frozen=True)
class SearchSection:
    """Beam search over relation paths (algorithm 3)."""

    beam: int = field(5, "Paths that go on from each topic after a hop.", unit="paths", minimum=1)
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

    triple_reader: str = field("", "Answers a question from the paths found.", content="prompt")


@dataclasses.dataclass(frozen=True)
class EvaluateSection:
    """What is measured, and how."""

    part: str = field(
        "held_out",
        "Questions to measure with: those of `data.held_out`; or, to choose settings, the same "
        "share of the others, which are then not trained on.",
        choices=("held_out", "rest"),
    )
    questions: int = settings.questions_of_groups()
    metrics: tuple[str, ...] = field(
        ("hit@1", "hit@3", "path_hit@1", "f1", "answer_coverage"),
        "hit@k: whether one of the first k paths reaches an answer; path_hit@k: whether one is a "
        "shortest path to an answer; f1: entities that the first path reaches against the answers; "
        "answer_coverage: share of the answers that the paths found reach.",
    )
    similar_at: float = field(
        0.0,
        "Least cosine, by the retriever before training, of a path that looks like its question; "
        "a wrong one is a shortcut. 0: the mean of the question's shortest paths, since the "
        "publication's number is lost.",
        unit="cosine",
        minimum=0,
        maximum=1,
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
    max_new_tokens: int = settings.longest_answer(64)


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


# What the paper of STAR says, line by line, and what the preset does. Our copy has lost the numbers
# in its text. Where one is lost, the value is ours, or that of the nearest published code: RD-P
# (github.com/yooboh/RD-P), or SRTK (github.com/happen2me/subgraph-retrieval-toolkit).
HITS = tuple(f"hit@{k}" for k in (1, 3, 5, 7))
PAPER = Source(
    "STAR: Semantic-Tuned and Tail-Adaptive Retriever (arXiv 2605.18765)",
    {
        "retriever.path": Row("princeton-nlp/sup-simcse-roberta-base", "sections 4.1, 5.1: SimCSE"),
        "data.held_out": Row(0.4, "Table 1: the sets' own parts", "without `data.test`"),
        "data.validation": Row(0.1, "section 5.1: 90:10; 95:5 on CWQ"),
        "paths.hops": Row(2, "Table 1: WebQSP; CWQ, GrailQA 4"),
        "paths.inverse": Row(True, "not given", "Freebase names its inverses; others need them"),
        "paths.seconds": Row(150.0, "not given", "RD-P's"),
        "mine.positives": Row("similar", "section 4.1: at least the mean; algorithm 1"),
        "mine.pool": Row("all", "section 4.1: the entire relation set; algorithm 2"),
        "mine.by": Row("base", "section 4.1: highest-scoring, prior to model training"),
        "mine.negatives": Row(7, "section 5.1: lost", "ours"),
        "mine.spare": Row(1.0, "section 4.1: incorrect paths"),
        "train.head": Row("star", "section 4.1: cross-attentive architecture"),
        "train.loss": Row("lists", "section 4.2: the final loss"),
        "train.weights": Row("both", "section 4.2: both classes"),
        "train.weight_scale": Row("inverse", "section 4.2: inverse occurrence count"),
        "train.weight_range": Row((0.5, 2.0), "section 5.1: lost", "ours"),
        "train.temperature": Row(1.0, "section 4.1: none in the loss"),
        "train.epochs": Row(50, "section 5.1: WebQSP, GrailQA; 100 on CWQ"),
        "train.learning_rate": Row(5e-5, "section 5.1: lost", "RD-P's on WebQSP; CWQ 2e-5"),
        "train.batch": Row(16, "not given", "RD-P's on CWQ; WebQSP 32"),
        "search.beam": Row(5, "section 5.1: lost", "ours; SRTK's is 10"),
        "search.keep": Row(1_000_000, "section 4.2: all new paths are scored"),
        "search.k": Row(7, "Table 6: K up to 7"),
        "evaluate.metrics": Row((*HITS, "path_hit@1", "f1"), "Table 6"),
        "evaluate.read": Row(0, "Table 2: all questions", "a model that you name: set -1"),
        "evaluate.paths": Row(1, "section 5.1: the top-1 path"),
        "evaluate.similar_at": Row(0.0, "section 3.1: lost", "the mean of the shortest paths"),
        "prompts.triple_reader": Row("", "not printed", "ours"),
    },
    (
        Step("section 4.1", "input and markers", "models/pair_tokens.py"),
        Step("section 4.1", "attention, network", "models/pair_heads.py", "the network's size"),
        Step(
            "section 4.1",
            "sigmoid of the score",
            "models/pair_heads.py",
            "none, since a softmax follows",
        ),
        Step("section 4.1", "all shortest paths", "graph/steps.py"),
        Step("algorithm 1", "those above the mean", "recipes/star/mine.py"),
        Step("algorithm 2", "near and drawn negatives", "recipes/star/mine.py", "END is one, too"),
        Step("section 4.1", "softmax over a list", "train/losses.py"),
        Step("section 4.2", "share of the class", "recipes/star/mine.py"),
        Step("algorithm 3", "beam search, END", "graph/beam.py"),
        Step("section 5.1", "best epoch by validation", "recipes/star/train.py"),
        Step("section 5.1", "WebQSP, CWQ in RoG's rows", "graph/triple_rows.py"),
        Step("Table 2", "three data sets", "recipes/papers/star_table2.py"),
        Step("section 5.1", "Hits@1", "recipes/star/evaluate.py"),
        Step("section 5.1", "F1 of replies", "evaluate/answer_lists.py"),
        Step("section 5.1", "RT, seconds a question", "recipes/star/evaluate.py", "of all at once"),
        Step("Table 2", "models without a graph", "recipes/graphs.py"),
        Step("Table 2", "RoG, Graph CoT, ToG", "comparison/imported.py", "imported, not run"),
        Step("Table 2", "DALK, G-Retriever, GRAG", "comparison/imported.py", "imported, not run"),
        Step("Table 2", "RD-P: `dual` of the study", "recipes/star/config.py", "by our lists"),
        Step("Table 3", "sweep ablations", "recipes/star/config.py", "all shortest paths, not one"),
        Step("Table 3", "TweetNLP, BERT: `retriever.path`", "models/retriever.py"),
        Step("Table 4", "sweep ablations", "recipes/star/config.py"),
        Step("section 3.1", "tail: the rarest fifth", "recipes/star/evaluate.py"),
        Step("section 3.1", "shortcut errors by similarity", "recipes/star/search.py"),
        Step("Figure 3", "biases of right and wrong", "recipes/star/search.py"),
        Step("Table 5", "other readers: `reader.path`", "recipes/graphs.py"),
        Step("Figure 5", "map of attention", "", "weights are not stored"),
    ),
)
SOURCES = {"paper": PAPER}  # preset -> the source that it follows
PRESETS = {"default": {}, **values(SOURCES)}
# All shortest paths alike, drawn negatives, no weights. With cosines it is the plain way to train a
# retriever of paths, RD-P's dual encoder.
PLAIN = {"mine.positives": "all", "mine.by": "random", "train.weights": "none"}
DUAL = PLAIN | {"train.head": "cosine"}
# The publication's: positives and negatives that are similar to the question, and weights.
HARD_PATHS = {"mine.positives": "similar", "mine.by": "base", "train.weights": "none"}
HARD = HARD_PATHS | {"train.weights": "both"}


def star(preset: str = "default") -> ConfigDict:
    """The config of `ark-jax run --config=star`.

    Args:
        preset: `default`, or `paper`, which follows the publication.
    """
    return with_preset(Star, PRESETS, preset)


def study(config: ConfigDict) -> dict[str, dict]:
    """Runs that compare `config` with its competitors, over three seeds: run -> changed fields."""
    arms = {"dual": DUAL, "hard": HARD}
    return {
        **arms,
        "cross": PLAIN | {"train.head": "linear"},
        "cross-hard": HARD_PATHS | {"train.head": "linear"},
        **{f"seed{seed}": {"seed": seed} for seed in (1, 2)},
        **{f"{name}-seed{seed}": arms[name] | {"seed": seed} for name in arms for seed in (1, 2)},
    }


def switches(config: ConfigDict) -> dict[str, dict]:
    """Runs that change one part each: run -> changed fields."""
    return {
        "star-head": {"train.head": "star"},
        "hard-negatives": {"mine.by": "base"},
        "mined-by-itself": {"mine.by": "previous"},
        "all-relations": {"mine.pool": "all"},
        "similar-positives": {"mine.positives": "similar"},
        "positive-weights": {"train.weights": "positive"},
        "weights": {"train.weights": "both"},
    }


# Tables 3 and 4 of the publication, for its preset, whose own run is their last row. Their plain
# arms learn one shortest path against random walks; here all of them, against drawn relations.
ABLATIONS = {
    "similarity-based": DUAL,
    "cross-attentive": PLAIN,
    "hard-paths": HARD_PATHS,
    "weights": PLAIN | {"train.weights": "both"},
}
SWEEPS = {"study": study(star()), "switches": switches(star()), "ablations": ABLATIONS}


def get_config(words: str = ""):
    """The config for the words after the colon: a preset, and `sweep=NAME`."""
    return star(preset_of(words, PRESETS))
