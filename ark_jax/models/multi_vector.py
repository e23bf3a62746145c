"""A late-interaction retriever: keeps a vector for each token, compared by MaxSim (ColBERT)."""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ark_jax.models import hf
from ark_jax.models import sentence_folder as files
from ark_jax.models.batching import Batching
from ark_jax.models.pooling import TOKENS, VectorForm
from ark_jax.models.retriever import Retriever
from ark_jax.text.token_rows import TokenIds
from ark_jax.text.token_vectors import TokenVectors


@dataclasses.dataclass
class MultiVectorRetriever(Retriever):
    """A retriever whose texts have a unit vector for each token, special tokens included.

    `ark_jax.retrieval.late.maxsim` compares them. A question then finds rare names, which one
    vector of a whole passage hardly holds. A passage takes as many vectors as it has tokens. Any
    model that `Retriever` opens can be used, since only its pooling is left out; some are good
    without training. It saves itself for MultiVectorEncoder of sentence-transformers 6.
    """

    @classmethod
    def _choose_poolings(cls, declared: tuple[str, ...] | None, folder: Path) -> tuple[str, ...]:
        return (TOKENS,)

    def encode(  # type: ignore[override]  # vectors of tokens in place of one of a text
        self,
        texts: Sequence[str],
        *,
        kind: str,
        batch_tokens: int = 0,
        label: str = "",
        batching: Batching | None = None,
    ) -> TokenVectors:
        """Unit vectors of each text's tokens, float32; see `Retriever.encode`."""
        batches = self.encode_batches(
            texts, kind=kind, batch_tokens=batch_tokens, label=label, batching=batching
        )
        return self._restore_order(batches, len(texts))

    def _restore_order(self, batches: Iterable[tuple[list[int], Any]], count: int) -> TokenVectors:
        """The token vectors of `count` texts, in the order of the texts."""
        vectors: list[np.ndarray] = [np.zeros((0, self.width), np.float32)] * count
        for numbers, part in batches:
            for number, text in zip(numbers, part, strict=True):
                vectors[number] = text
        return TokenVectors.from_texts(vectors, self.width)

    def _embed_batches(
        self, ids: Sequence[TokenIds], batching: Batching, form: VectorForm
    ) -> Iterator[tuple[list[int], Any]]:
        """The numbers of the texts of each batch, and their vectors `[t e]` without padding."""
        for numbers, padded in super()._embed_batches(ids, batching, form):
            # A copy, so that the batch is freed.
            yield (
                numbers,
                [row[: len(ids[i])].copy() for i, row in zip(numbers, padded, strict=True)],
            )

    def _write_settings(self, folder: Path) -> None:
        """Writes the files that MultiVectorEncoder of sentence-transformers reads."""
        files.write_multi_vector_modules(folder)
        files.write_text_limit(folder, self.max_length, lower=self.lower)
        files.write_settings(folder, self.settings, multi_vector=True)


def open_retriever(
    name_or_folder: str | Path, *, compute: str = "float32", attention: str = "auto"
) -> Retriever:
    """The retriever of a folder or hub name: a `MultiVectorRetriever` if the folder declares one.

    Args:
        compute, attention: as in `Retriever.from_pretrained`.

    Raises:
        FileNotFoundError, ValueError: as `Retriever.from_pretrained`.
    """
    folder = hf.resolve(str(name_or_folder))
    kind = MultiVectorRetriever if is_multi_vector(folder) else Retriever
    return kind.from_pretrained(folder, compute=compute, attention=attention)


def is_multi_vector(folder: Path) -> bool:
    """Whether a model folder declares a vector for each token."""
    return files.read_model(folder).poolings == (TOKENS,)
