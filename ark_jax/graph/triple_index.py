"""The vectors of a graph's triples, and the best triples of a query by exact search."""

import dataclasses
import functools
import hashlib
from pathlib import Path

import numpy as np

from ark_jax.graph.triples import By, Triples, triple_texts
from ark_jax.models.towers import DualEncoder
from ark_jax.retrieval import dense, vector_files
from ark_jax.runtime.log import say
from ark_jax.runtime.storage import local_path

DTYPES = ("float32", "float16")  # of stored vectors
_BATCH = 1 << 16


@dataclasses.dataclass(frozen=True)
class TripleIndex:
    """A unit vector for each text of a graph's triples. Triples with equal texts share one."""

    vectors: np.ndarray  # float32 or float16 [t e], in order of the texts' first triples
    texts: np.ndarray  # int64 [m]: the text of each triple of the graph

    @classmethod
    def open(
        cls,
        folder: str | Path | None,
        towers: DualEncoder,
        graph: Triples,
        *,
        by: By = "last",
        dtype: str = "float32",
        batch_tokens: int = 0,
    ) -> "TripleIndex":
        """Maps an index into memory. The texts that it lacks are embedded, and those alone.

        If the document tower, `by` or `dtype` is another than the index was made with, all texts
        are embedded again. A killed run goes on after its last block of 2,048 texts. Every
        process must call this; process 0 writes.

        Args:
            folder: where the index is kept; None keeps it in memory.
            towers: the document tower embeds the texts.
            by: how a relation is written, see `relation_texts`.
            dtype: of the stored vectors; "float16" takes half the space and is rounded.
            batch_tokens: as in `Retriever.encode`.

        Raises:
            ValueError: the graph has no triple, or `by` or `dtype` is another word.
            OSError: the folder cannot be written.
        """
        if not len(graph):
            raise ValueError("the graph has no triple to search; give a file that holds some")
        if dtype not in DTYPES:
            raise ValueError(f"dtype is {dtype!r}: give {' or '.join(map(repr, DTYPES))}")
        keys, first, texts = _distinct_texts(graph, by)
        cut = 0

        def embed(positions: np.ndarray) -> np.ndarray:
            """The vectors of some distinct texts; counts those that are cut."""
            nonlocal cut
            rows = first[positions]
            vectors_of_rows = towers.encode(
                triple_texts(graph, rows, by), kind="document", batch_tokens=batch_tokens
            )
            cut += towers.document.truncated[""]
            return vectors_of_rows

        if folder is None:
            starts = range(vector_files.BLOCK, len(keys), vector_files.BLOCK)
            blocks = np.split(np.arange(len(keys)), starts)
            vectors = np.concatenate([embed(block).astype(dtype) for block in blocks])
        else:
            made_with = {
                "model": towers.document.digest("document"),
                "relation text": by,
                "dtype": dtype,
                "width": towers.document.width,
            }
            vectors = vector_files.open_vectors(
                local_path(folder), keys, embed, made_with, "embed triples"
            )
        if cut:
            limit = towers.document.max_length
            say(f"  {cut:,} triples are longer than {limit} tokens and are cut there")
        return cls(vectors, texts)

    def __len__(self) -> int:
        """The number of triples."""
        return len(self.texts)

    def cosines(self, query: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Cosines of some triples with one query `[e]`, float32 `[n]`."""
        vectors_of_rows = np.asarray(self.vectors[self.texts[rows]], np.float64)
        return (vectors_of_rows @ query.astype(np.float64)).astype(np.float32)

    @functools.cached_property
    def _keys(self) -> dense.Keys:
        return dense.Keys(self.vectors)

    def search(self, queries: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """The k best triples of each query: int64 rows and float32 scores, `[q k]`, best first.

        Of equal scores, the triple whose text occurs first in the graph is first. With fewer than
        k triples all are returned.

        Args:
            queries: unit vectors `[q e]`.

        Raises:
            ValueError: k is below 1, or the widths differ.
        """
        positions, scores = dense.top_k(queries, self._keys, k)
        if len(self.vectors) == len(self.texts):  # triple i has text i
            return positions.astype(np.int64), scores
        k = min(k, len(self.texts))
        order = np.argsort(self.texts, kind="stable")
        bounds = np.searchsorted(self.texts[order], np.arange(len(self.vectors) + 1))
        sizes = np.diff(bounds)[positions]
        rows, expanded = np.empty((len(queries), k), np.int64), np.empty((len(queries), k), "f4")
        for i, (texts, counts) in enumerate(zip(positions, sizes, strict=True)):
            # Enough texts to fill k places; the last may have more triples than there is room for.
            texts = texts[: np.searchsorted(np.cumsum(counts), k) + 1]
            groups = [order[bounds[text] : bounds[text + 1]] for text in texts]
            rows[i] = np.concatenate(groups)[:k]
            expanded[i] = np.repeat(scores[i, : len(texts)], counts[: len(texts)])[:k]
        return rows, expanded


def _distinct_texts(graph: Triples, by: By) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The key of each different text, its first triple, and the text of each triple."""
    keys = np.empty(len(graph), vector_files.KEY)
    for start in range(0, len(graph), _BATCH):
        rows = np.arange(start, min(start + _BATCH, len(graph)))
        keys[rows] = [
            hashlib.blake2b(text.encode(), digest_size=vector_files.KEY.itemsize).digest()
            for text in triple_texts(graph, rows, by)
        ]
    distinct, first, numbers = np.unique(keys, return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    return distinct[order], first[order], rank[numbers]
