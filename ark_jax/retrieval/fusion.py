"""Fusion of several rankings into one."""

import dataclasses
import json
import math
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import TypeVar

FUSION_FILE = "fusion.json"  # in the folder of a retriever
RANK_CONSTANT = 60  # Cormack, Clarke and Büttcher 2009
SCORE_DECIMALS = 12  # equal sums must compare equal, whatever the order of their terms

Id = TypeVar("Id", bound=Hashable)
Pairs = Sequence[tuple[Id, float]]  # ids and their scores, best first
BY = ("ranks", "scores")


@dataclasses.dataclass(frozen=True)
class Fusion:
    """How the rankings of words and of vectors are joined.

    Attributes:
        constant: of reciprocal ranks; a large one makes ranks differ less.
        bm25: weight of the ranking by words.
        dense: weight of the ranking by vectors.
        depth: how many of each ranking are joined, at least.
        by: "ranks" adds reciprocal ranks. "scores" adds shares of the best score, from the least
            that a score can be: 0 of BM25, -1 of a cosine (Bruch, Gai and Ingber 2023). Products
            beyond 1, which are no cosines, count from the lowest of the ranking.
    """

    constant: float = RANK_CONSTANT
    bm25: float = 1.0
    dense: float = 1.0
    depth: int = 20
    by: str = "ranks"

    def __post_init__(self):
        numbers = (self.constant, self.bm25, self.dense, self.depth)
        if not all(0 <= x < math.inf for x in numbers) or self.depth < 1 or self.by not in BY:
            raise ValueError(
                f"{self}: numbers must be finite and not negative, depth at least 1, by one of "
                f"{', '.join(BY)}"
            )

    def join(self, by_words: Pairs, by_vectors: Pairs) -> list[tuple[Id, float]]:
        """All ids of both rankings, best first, with their scores."""
        if self.by == "ranks":
            # The recipes join them in this order, which decides between equal sums.
            weights = (self.bm25, self.dense)
            return by_ranks(by_words, by_vectors, constant=self.constant, weights=weights)
        scores_of_vectors = [score for _, score in by_vectors]
        are_cosines = all(abs(score) < 1.001 for score in scores_of_vectors)
        offset = 1.0 if are_cosines else -min(scores_of_vectors)
        words, vectors = _shares(by_words, 0.0), _shares(by_vectors, offset)
        # A text that is not listed has no word of the question, or a cosine below all listed ones.
        lowest = min(vectors.values(), default=0.0)
        scores = {
            id: self.bm25 * words.get(id, 0.0) + self.dense * vectors.get(id, lowest)
            for id in words | vectors
        }
        return sorted(scores.items(), key=_sort_key)


def _shares(ranking: Pairs, offset: float) -> dict[Id, float]:
    """id -> its score as a share of the best one, both moved by the offset."""
    best = max((score + offset for _, score in ranking), default=0.0)
    return {id: (score + offset) / best if best > 0 else 0.0 for id, score in ranking}


def _sort_key(scored: tuple[Id, float]) -> float:
    """Sorts the highest score first; scores that differ by rounding are equal."""
    return -round(scored[1], SCORE_DECIMALS)


def retriever_fusion(model: str) -> Fusion:
    """How a retriever and BM25 are joined: as the retriever's folder says, or else `Fusion()`.

    Args:
        model: folder or hub name.

    Raises:
        FileNotFoundError: there is no such model.
        ValueError: the file in its folder is damaged.
    """
    from ark_jax.models import hf

    return load_fusion(hf.resolve(model))


def load_fusion(folder: Path) -> Fusion:
    """The settings in a retriever's folder, or the defaults; see `retriever_fusion`."""
    path = folder / FUSION_FILE
    if not path.is_file():
        return Fusion()
    try:
        return Fusion(**json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError, RecursionError) as error:
        raise ValueError(
            f"{path} is damaged ({error}); delete it to join by reciprocal ranks"
        ) from None


def save_fusion(fusion: Fusion, folder: Path) -> None:
    """Writes the settings into a retriever's folder."""
    text = json.dumps(dataclasses.asdict(fusion)) + "\n"
    (folder / FUSION_FILE).write_text(text, encoding="utf-8")


def by_ranks(
    *rankings: Pairs, constant: float = RANK_CONSTANT, weights: Sequence[float] | None = None
) -> list[tuple[Id, float]]:
    """Fuses rankings by reciprocal ranks (Cormack, Clarke and Büttcher 2009).

    The score of an id is the sum of 1 / (60 + rank) over the rankings that contain it.

    Args:
        rankings: ids with scores, which do not matter; best first.
        constant: as in `Fusion`.
        weights: of the rankings; None weighs all by 1.

    Returns:
        All ids with their sums, best first. Ids with equal sums keep the order in which the
        rankings first name them.
    """
    scores: dict[Id, float] = {}
    for ranking, weight in zip(rankings, weights or [1.0] * len(rankings), strict=True):
        for rank, (id, _) in enumerate(ranking, 1):
            scores[id] = scores.get(id, 0.0) + weight / (constant + rank)
    return sorted(scores.items(), key=_sort_key)
