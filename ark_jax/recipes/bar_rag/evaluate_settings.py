"""The config section of what is measured on held-out questions."""

import dataclasses

from ark_jax.recipes.common import fields
from ark_jax.schema import field


@dataclasses.dataclass(frozen=True)
class EvaluateSection:
    """What is measured on held-out questions: readers, each on what the retriever finds."""

    scope: str = field(
        "auto",
        "Chunks to search: those of the question's own documents, of all held-out questions' "
        "documents, or of the whole corpus; auto: as `data.pool`.",
        choices=("auto", "document", "held_out", "corpus"),
    )
    gold: str = field(
        "evidence",
        "Relevant chunks: those that hold marked evidence, or those that contain an answer. A "
        "question without either takes the chunks of its documents.",
        choices=("evidence", "answers"),
    )
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
    max_new_tokens: int = fields.max_new_tokens(32)
    temperature: float = field(
        0.0, "Of the measured answers; 0: the likeliest words. Released script: 0.3.", minimum=0
    )
