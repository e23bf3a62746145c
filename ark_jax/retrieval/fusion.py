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


@dataclasses.dataclass(frozen=True)
class Fusion:
    """How the rankings of words and of vectors are joined.

    Attributes:
        constant: of reciprocal ranks; a large one makes ranks differ less.
        bm25: weight of the ranking by words.
        dense: weight of the ranking by vectors.
        depth: how many of each ranking are joined, if no more are asked for.
    """

    constant: float = RANK_CONSTANT
    bm25: float = 1.0
    dense: float = 1.0
    depth: int = 20

    def join(self, by_words: Sequence[Id], by_vectors: Sequence[Id]) -> list[tuple[Id, float]]:
        """All ids of both rankings, best first, with their scores."""
        # In this order the recipes join them, which decides between equal sums.
        return fused_scores(
            [by_words, by_vectors], constant=self.constant, weights=(self.bm25, self.dense)
        )


def fusion_of(model: str) -> Fusion:
    """How a retriever wants to be joined with BM25: as its folder says, else as `Fusion()` does.

    Args:
        model: folder or hub name.

    Raises:
        FileNotFoundError: no such model.
        ValueError: what its folder says is damaged.
    """
    from ark_jax.models import hf

    path = hf.resolve(model) / FUSION_FILE
    if not path.is_file():
        return Fusion()
    try:
        fusion = Fusion(**json.loads(path.read_text(encoding="utf-8")))
        numbers = dataclasses.astuple(fusion)
        if not all(math.isfinite(x) for x in numbers) or min(numbers) < 0 or fusion.depth < 1:
            raise ValueError("its numbers must be finite and not negative, depth at least 1")
        return fusion
    except (ValueError, TypeError, RecursionError) as error:
        raise ValueError(
            f"{path} is damaged ({error}); delete it to join by reciprocal ranks"
        ) from None


def save_fusion(fusion: Fusion, folder: Path) -> None:
    """Writes how a retriever wants to be joined into its folder."""
    text = json.dumps(dataclasses.asdict(fusion)) + "\n"
    (folder / FUSION_FILE).write_text(text, encoding="utf-8")


def fuse(rankings: Sequence[Sequence[str]], k: int) -> list[str]:
    """Fuses rankings by reciprocal rank (Cormack, Clarke and Büttcher 2009).

    The score of an id is the sum of 1 / (60 + rank) over the rankings that contain it.

    Args:
        rankings: lists of ids, best first.
        k: largest number of ids to return.

    Returns:
        The `k` ids with the highest scores, best first. Ids with equal scores keep the order in
        which the rankings first name them.
    """
    return [id for id, _ in fused_scores(rankings)][:k]


def fused_scores(
    rankings: Sequence[Sequence[Id]],
    *,
    constant: float = RANK_CONSTANT,
    weights: Sequence[float] | None = None,
) -> list[tuple[Id, float]]:
    """All ids of the rankings with their scores, in the order of `fuse`.

    Args:
        constant: as in `Fusion`.
        weights: of the rankings; None weighs all by 1.
    """
    scores: dict[Id, float] = {}
    for ranking, weight in zip(rankings, weights or [1.0] * len(rankings), strict=True):
        for rank, id in enumerate(ranking, 1):
            scores[id] = scores.get(id, 0.0) + weight / (constant + rank)
    return sorted(scores.items(), key=lambda item: -round(item[1], SCORE_DECIMALS))
