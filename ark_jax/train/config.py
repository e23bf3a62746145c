"""Config sections of training: a trainer reads them, and a recipe's section inherits them.

Nothing here starts jax, so that a config is read at once.
"""

import dataclasses

from ark_jax.schema import field

# How AdamW's two moments are stored -> their bytes for a byte of the float32 weights.
MOMENTS = {"float32": 2.0, "bfloat16": 1.0, "int8": 0.5}


@dataclasses.dataclass(frozen=True)
class UpdateConfig:
    """How weights are updated, by AdamW."""

    warmup: float = field(
        0.1, "Linear warm-up of the learning rate.", unit="fraction of steps", minimum=0, maximum=1
    )
    weight_decay: float = field(0.01, "Decoupled weight decay of AdamW.", minimum=0)
    clip: float = field(1.0, "Largest global gradient norm; longer gradients are scaled.", above=0)
    moments: str = field(
        "float32",
        "How AdamW's two moments are stored: in 8, 4 or 2 bytes a trained weight; prices in "
        "configs/README.md.",
        choices=tuple(MOMENTS),
    )
    remat: str = field(
        "auto",
        "What the backward pass computes again: all but products with weights, or everything, "
        "which saves memory; auto: the first where it fits, as `ark-jax plan` says.",
        choices=("auto", "products", "all"),
        affects_output=False,
    )
    save_every: int = field(
        100, "Steps between two checkpoints.", unit="steps", minimum=1, affects_output=False
    )


@dataclasses.dataclass(frozen=True)
class AdapterConfig(UpdateConfig):
    """How weights are updated, or an adapter beside them."""

    lora_rank: int = field(
        0,
        "Rank of a LoRA adapter, which needs about ten times the learning rates; 0: train all "
        "weights.",
        minimum=0,
    )
    lora_alpha: float = field(
        32.0, "Scale of the adapter: its product is multiplied by alpha / rank.", above=0
    )
    lora_targets: tuple[str, ...] = field(
        (), "Matrices to adapt: q, k, v, o, gate, up, down; empty: all of them."
    )


@dataclasses.dataclass(frozen=True)
class ContrastiveConfig(AdapterConfig):
    """How a retriever learns from questions and their passages."""

    batch: int = field(16, "Training questions per step.", unit="questions", minimum=1)
    chunks: int = field(
        0,
        "Pieces in which GradCache encodes a batch, to save memory; 0: as few as fit.",
        unit="pieces",
        minimum=0,
    )
    temperature: float = field(0.05, "Divisor of cosines in the loss.", above=0)
    matryoshka: tuple[int, ...] = field(
        (), "Narrower widths whose truncated vectors are trained too.", unit="components", minimum=1
    )
    denominator: str = field(
        "batch",
        "Chunks in the loss of stages 2 and 3: own hard negatives (eq. 8), the whole batch but "
        "the question's other positives, or all of the batch.",
        choices=("own", "batch", "all"),
    )
    order: str = field(
        "document",
        "Order of training: questions shuffled, or documents shuffled and their questions "
        "kept together.",
        choices=("question", "document"),
    )


@dataclasses.dataclass(frozen=True)
class TripletConfig(UpdateConfig):
    """How towers learn three levels of relevance (eq. 4 and 5 of GPR)."""

    loss: str = field(
        "nce",
        "Two margins (eq. 5), InfoNCE over the triples of the batch, or a function of one's own, "
        "see ark_jax/recipes/ark/README.md.",
        choices=("triplet", "nce"),
        importable=True,
    )
    margins: tuple[float, float] = field(
        (0.1, 0.1),
        "Of `triplet`: how far a neighbour lies below the triple, and the negative below it.",
        unit="cosine",
        minimum=0,
    )
    temperature: float = field(0.05, "Divisor of cosines; margins have none.", above=0)
    negatives: str = field(
        "batch",
        "Negatives of a question: the drawn one, all triples of the batch that may be, or these "
        "and one that a function of one's own finds, see ark_jax/recipes/ark/README.md.",
        choices=("random", "batch"),
        importable=True,
    )
    siblings: str = field(
        "skip",
        "Other triples that answer the question, and those of the same two entities: never drawn, "
        "drawn as neighbours (eq. 2), or as positives.",
        choices=("skip", "neighbour", "positive"),
    )
    neighbours: str = field(
        "entity",
        "How a neighbour is drawn: one of the two entities first, one of all triples of both, or "
        "not at all.",
        choices=("entity", "triple", "none"),
    )
    hub: int = field(
        1000,
        "An entity with more triples lends no neighbours if the other one has fewer; 0: all do.",
        unit="triples",
        minimum=0,
    )
    batch: int = field(32, "Questions per step.", unit="questions", minimum=1)


@dataclasses.dataclass(frozen=True)
class LanguageModelConfig(AdapterConfig):
    """How a language model's weights are updated, by given answers or by its own."""

    warmup: float = 0.02
    weight_decay: float = 0.0
    save_every: int = 20
    lora_alpha: float = 16.0
    decay: str = field("cosine", "How the learning rate falls.", choices=("linear", "cosine"))
    floor: float = field(
        0.1, "What it falls to.", unit="fraction of the peak", minimum=0, maximum=1
    )


@dataclasses.dataclass(frozen=True)
class GrpoConfig:
    """How a language model learns from its own answers (eq. 12 and 18 of BAR-RAG)."""

    samples: int = field(8, "Answers to a question.", unit="answers", minimum=2)
    updates: int = field(
        1,
        "Updates of the weights from the answers of a step; above 1 the ratio is clipped.",
        minimum=1,
    )
    mean: str = field(
        "token",
        "Mean of the loss: over the tokens of a step, or over each answer and then over answers.",
        choices=("token", "sequence"),
    )
    ratio: str = field(
        "token",
        "What is clipped: the ratio of a token's probabilities, its geometric mean over an answer "
        "(sequence), or its product, the ratio of the whole answer (output, eq. 12 and 18).",
        choices=("token", "sequence", "output"),
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
