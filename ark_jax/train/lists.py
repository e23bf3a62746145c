"""Lists to train a pair scorer on: a positive each, and the negatives of each epoch."""

import dataclasses
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ark_jax.runtime import distributed


@dataclasses.dataclass(frozen=True)
class PairList:
    """A text with a right partner and wrong ones.

    Attributes:
        left: the text, such as a question.
        rights: the partners: the positive, then the negatives that are never left out, then the
            others, the most useful first.
        weights: of each partner, above 0; see `losses.weighted_lists`. For
            `losses.list_cross_entropy`, the share of each partner.
        required: number of negatives that are never left out.
    """

    left: str
    rights: tuple[str, ...]
    weights: tuple[float, ...]
    required: int = 0


class ListEpochs:
    """The lists of each step, and which negatives each list has in it.

    In the first epoch a list has its first negatives. With `score`, the current scorer chooses
    before each later epoch the negatives that it ranks highest. The choice is stored, because a run
    that continues in the middle of an epoch has another scorer by then.

    Args:
        lists: at least one.
        batch: lists a step.
        negatives: most negatives of a list; 0 for all.
        seed: of the order of the lists, which differs from epoch to epoch.
        folder: gets negatives_2.parquet and so on, one for each epoch after the first.
        score: the trainable state -> the score of each partner of each list.
    """

    def __init__(
        self,
        lists: Sequence[PairList],
        *,
        batch: int,
        negatives: int,
        seed: int,
        folder: Path,
        score: Callable[[Any], list[np.ndarray]] | None = None,
    ):
        self.lists, self.batch, self.negatives, self.seed = lists, batch, negatives, seed
        self.folder, self.score = folder, score
        self.steps = -(-len(lists) // batch)  # of one epoch
        self._chosen: tuple[int, list[np.ndarray]] | None = None
        self._order: tuple[int, np.ndarray] | None = None

    @property
    def may_change(self) -> bool:
        """Whether a list can have other negatives in a later epoch."""
        longest = max(len(chosen.rights) for chosen in self.lists) - 1
        return self.score is not None and 0 < self.negatives < longest

    def numbers(self, step: int) -> np.ndarray:
        """Which lists a step trains on: int64 `[lists]`."""
        epoch, place = divmod(step, self.steps)
        if self._order is None or self._order[0] != epoch:
            rng = np.random.default_rng([self.seed, epoch])
            self._order = epoch, rng.permutation(len(self.lists))
        return self._order[1][place * self.batch : (place + 1) * self.batch]

    def step(self, step: int, trainable: Any) -> list[tuple[int, np.ndarray]]:
        """The number of each list of a step, and places of the partners that it has there.

        Raises:
            ValueError: the stored choice of an epoch that has begun cannot be read.
        """
        epoch, place = divmod(step, self.steps)
        if self._chosen is None or self._chosen[0] != epoch:
            self._chosen = epoch, self._choose_negatives(epoch, trainable, begins=place == 0)
        return [(number, self._chosen[1][number]) for number in self.numbers(step).tolist()]

    def _choose_negatives(self, epoch: int, trainable: Any, *, begins: bool) -> list[np.ndarray]:
        """Places of each list's partners in an epoch; stored when the epoch begins, then read."""
        if not epoch or not self.may_change:
            return [choose_partners(pair_list, None, self.negatives) for pair_list in self.lists]
        path = self.folder / f"negatives_{epoch + 1}.parquet"
        if not begins:
            return _read_choice(path, self.lists)
        scores = self.score(trainable)
        chosen = [
            choose_partners(pair_list, values, self.negatives)
            for pair_list, values in zip(self.lists, scores, strict=True)
        ]
        if distributed.is_first_process():
            _write_choice(path, chosen)
        return chosen


def choose_partners(pair_list: PairList, scores: np.ndarray | None, negatives: int) -> np.ndarray:
    """Places of the partners that a list is trained on, int64. The positive, place 0, is first.

    Args:
        scores: of each partner. After the required negatives come those with the highest scores;
            ties keep the list's order. None keeps the order of all.
        negatives: number of negatives that are taken; 0 for all.
    """
    places = np.arange(1, len(pair_list.rights))
    if scores is not None:
        optional = places[pair_list.required :]
        ranked = optional[np.argsort(-scores[optional], kind="stable")]
        places = np.concatenate([places[: pair_list.required], ranked])
    return np.concatenate([[0], places[: negatives or None]])


def _write_choice(path: Path, chosen: Sequence[np.ndarray]) -> None:
    """Stores the places of each list; a killed process leaves no partial file."""
    new = path.with_suffix(".new")
    table = pa.table({"chosen": [places.tolist() for places in chosen]})
    pq.write_table(table, new, write_page_checksum=True)
    with new.open("rb") as file:
        os.fsync(file.fileno())
    new.replace(path)


def _read_choice(path: Path, lists: Sequence[PairList]) -> list[np.ndarray]:
    """The places that `_write_choice` stored.

    Raises:
        ValueError: the file cannot be read, or has another number of lists.
    """
    fix = f"delete {path.parent / 'checkpoints'} to train from the first epoch"
    try:
        rows = pq.read_table(path, page_checksum_verification=True)["chosen"].to_pylist()
    except (pa.ArrowException, OSError) as error:
        raise ValueError(
            f"{path} cannot be read ({' '.join(str(error).split())}): it holds the negatives of an "
            f"epoch that has begun, which cannot be chosen again; {fix}"
        ) from error
    if len(rows) != len(lists):
        raise ValueError(
            f"{path} has {len(rows):,} lists, {len(lists):,} are trained on: it belongs to another "
            f"run; {fix}"
        )
    return [np.array(places, np.int64) for places in rows]
