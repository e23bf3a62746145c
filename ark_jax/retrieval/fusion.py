"""Fusion of several rankings into one."""

from collections.abc import Sequence

RANK_CONSTANT = 60  # Cormack, Clarke and Büttcher 2009
SCORE_DECIMALS = 12  # equal sums must compare equal, whatever the order of their terms


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
    scores: dict[str, float] = {}
    for ranking in rankings:
        for rank, id in enumerate(ranking, 1):
            scores[id] = scores.get(id, 0.0) + 1 / (RANK_CONSTANT + rank)
    return sorted(scores, key=lambda id: -round(scores[id], SCORE_DECIMALS))[:k]
