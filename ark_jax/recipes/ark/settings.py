"""Config sections of the ARK recipe: graph, alignment scores, negatives, training."""

import dataclasses

from ark_jax.recipes.common import settings
from ark_jax.recipes.common.settings import Common
from ark_jax.schema import field
from ark_jax.train.config import ContrastiveConfig


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
        "", "File of triples in HippoRAG's form, instead of extraction by the language model."
    )
    gleanings: int = field(
        0, "Further extraction passes over each chunk for what earlier ones missed.", minimum=0
    )
    similarity: float = field(
        0.8, "Smallest cosine of two entities that joins them by an edge.", minimum=-1, maximum=1
    )
    nearest: int = field(
        1000,
        "Most similar entities of each that similarity may join it to; an edge stays where either "
        "entity keeps it. 0: all.",
        unit="entities",
        minimum=0,
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

    candidates: int = field(
        0,
        "Chunks to score for each question: those nearest to it under the base retriever; "
        "0: all chunks of its documents.",
        unit="chunks",
        minimum=0,
    )
    shard: int = field(32, "Questions scored between two saves.", unit="questions", minimum=1)
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


@dataclasses.dataclass(frozen=True)
class MineSection:
    """Hard negatives of stages 0, 2 and 3."""

    by: str = field(
        "rewritten",
        "What finds candidates: vectors of the rewritten questions or of the question itself, "
        "BM25, chance, or a function of one's own; see ark_jax/recipes/ark/README.md.",
        choices=("rewritten", "question", "bm25", "random"),
        importable=True,
    )
    model: str = field(
        "previous",
        "Retriever that finds candidates: the previous stage's, or base for every stage.",
        choices=("previous", "base"),
    )
    top: int = field(20, "Candidates for each query.", unit="chunks", minimum=1)
    negatives: int = field(
        20, "Hardest candidates that become negatives of a question.", unit="chunks", minimum=1
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
    teacher_temperature: float = field(
        0.5,
        "Divisor of a question's alignment scores, whose softmax is the shares of `loss=distil`.",
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
    """The reranker of `train.kind=cross`, which learns the alignment scores of a question's chunks.

    Further settings of its training are those of `train`.
    """

    path: str = field(
        "",
        "Cross-encoder to begin from, a sequence classifier with one label; CrossEncoder of "
        "sentence-transformers opens the result too. Empty: the last tuned retriever, whose cosine "
        "gets a logit of the pair as a second summand.",
    )
    candidates: int = field(
        6,
        "Chunks of a question that are compared: its positives, hard negatives of the last stage, "
        "then other scored ones.",
        unit="chunks",
        minimum=2,
    )
    temperature: float = field(
        0.5, "Divisor of alignment scores, whose softmax is learned.", unit="nats", above=0
    )
    epochs: int = field(1, "Passes over the training questions.", unit="epochs", minimum=1)
    learning_rate: float = field(3e-5, "Peak learning rate.", minimum=0)


@dataclasses.dataclass(frozen=True)
class ReaderSection(settings.ReaderSection):
    """The model that answers from retrieved passages. Limits of requests are those of `llm`."""

    backend: str = field(
        "local",
        "Source of answers. openai: any compatible endpoint; local: a model on these devices; "
        "replay: a recording; or a function of one's own, see ark_jax/recipes/ark/README.md.",
        choices=settings.MODEL_BACKENDS,
        importable=True,
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
    retriever: RetrieverSection = RetrieverSection()
    graph: GraphSection = GraphSection()
    score: ScoreSection = ScoreSection()
    mine: MineSection = MineSection()
    train: TrainSection = TrainSection()
    reranker: RerankerSection = RerankerSection()
    reader: ReaderSection = ReaderSection()
