"""Batches of lists for a pair scorer: each text of a step once, and where the candidates are."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import PartitionSpec as P

from ark_jax import layout
from ark_jax.models.pairs import Capacities, CrossEncoder
from ark_jax.text import tokens as tk
from ark_jax.text.token_rows import TokenRows
from ark_jax.train import fit, flops, memory
from ark_jax.train.lists import ListEpochs, PairList
from ark_jax.train.placement import TextGrid


@dataclasses.dataclass(frozen=True)
class ListTexts:
    """The texts of all lists, each once: as pairs, and as left and right texts."""

    pairs: list[tuple[str, str]]
    members: list[np.ndarray]  # for each list the numbers of its candidates' pairs
    lefts: list[str]
    rights: list[str]
    sides: np.ndarray  # int64 [pairs, 2], the numbers of each pair's left and right text

    @classmethod
    def create(cls, lists: Sequence[PairList]) -> "ListTexts":
        """Numbers the distinct pairs and texts in the order of their first occurrence."""
        pairs: dict[tuple[str, str], int] = {}
        number = lambda pair: pairs.setdefault(pair, len(pairs))
        members = [
            np.array([number((pair_list.left, right)) for right in pair_list.rights])
            for pair_list in lists
        ]
        lefts, rights = (list(dict.fromkeys(side)) for side in zip(*pairs, strict=True))
        left_numbers, right_numbers = (
            {text: i for i, text in enumerate(side)} for side in (lefts, rights)
        )
        sides = np.array([(left_numbers[left], right_numbers[right]) for left, right in pairs])
        return cls(list(pairs), members, lefts, rights, sides)


@dataclasses.dataclass(frozen=True)
class ListwiseBatches:
    """Makes the batches of a run: tokens of pairs and of single texts, and where candidates are."""

    epochs: ListEpochs
    texts: ListTexts
    tokens: Mapping[str, TokenRows]  # part of a batch -> ids of each of its texts
    segments: TokenRows | None  # of the pairs' tokens
    grids: Mapping[str, TextGrid]  # of the same parts
    rows: int  # number of pairs in a batch, empty rows included
    candidates: int  # of the longest list
    body: Any  # the encoder's configuration
    adapter: int  # entries of an adapter's factors; 0 trains all weights

    @classmethod
    def create(
        cls,
        epochs: ListEpochs,
        texts: ListTexts,
        scorer: CrossEncoder,
        steps: int,
        adapter: int = 0,
        label: str = "train",
    ) -> "ListwiseBatches":
        """Tokenises, and finds the shapes that hold every batch on the current mesh."""
        tokens, segments = _tokenize(texts, scorer, label)
        grids, rows = _grids_and_rows(epochs, texts, tokens, steps)
        longest = max(map(len, texts.members))
        list_length = min(longest, epochs.negatives + 1) if epochs.negatives else longest
        body = scorer.cfg.body
        return cls(epochs, texts, tokens, segments, grids, rows, list_length, body, adapter)

    def texts_of_device(self) -> list[memory.Texts]:
        """What a device encodes at once, for each part of a batch."""
        return list(map(memory.Texts.from_grid, self.grids.values()))

    @property
    def capacities(self) -> Capacities:
        """Packing room of each part, as `ListwiseObjective` takes it."""
        return Capacities(**{part: grid.piece_tokens for part, grid in self.grids.items()})

    def __call__(self, step: int, trainable: Any = None) -> fit.TrainingBatch:
        """The batch after `step` steps; see `fit.MakeBatch`. Each text is encoded once."""
        chosen = self.epochs.step(step, trainable)
        numbers = distinct_numbers(self.texts, [self.texts.members[k][c] for k, c in chosen])
        arrays, places = {}, {"pairs": np.arange(len(numbers["pairs"]))}
        for part, grid in self.grids.items():
            beside = (self.segments,) if part == "pairs" else ()
            texts = ([ids[i] for i in numbers[part]] for ids in (self.tokens[part], *beside))
            places[part], arrays[part] = grid.place(*texts)
        arrays |= self._side_indices(numbers, places) | self._candidate_arrays(
            chosen, numbers["pairs"], places
        )
        lengths = [len(self.tokens[part][i]) for part in self.grids for i in numbers[part]]
        names = [self.texts.pairs[i] for i in numbers["pairs"]]
        ids = {
            "questions": [left for left, _ in names],
            "candidates": [right for _, right in names],
        }
        step_flops = flops.training(self.body, lengths, self.adapter)
        return fit.TrainingBatch(arrays, ids, sum(lengths), step_flops)

    def _side_indices(self, numbers: Mapping, places: Mapping) -> dict[str, jax.Array]:
        """`left_index` and `right_index` of `pair_logits`; empty if the head embeds no texts.

        Args:
            numbers: from `distinct_numbers`.
            places: the row of each of these texts, by part.
        """
        arrays = {}
        for column, part in enumerate(("left", "right")):
            if part in self.grids:
                index = np.zeros(self.rows, np.int32)
                texts = self.texts.sides[numbers["pairs"], column]
                index[places["pairs"]] = places[part][np.searchsorted(numbers[part], texts)]
                arrays[f"{part}_index"] = layout.rows(index)
        return arrays

    def _candidate_arrays(
        self, chosen: Sequence, pairs: np.ndarray, places: Mapping
    ) -> dict[str, jax.Array]:
        """`rows`, `present` and `weights` of a step's candidates, `[lists candidates]`.

        Args:
            chosen: from `ListEpochs.step`.
            pairs: numbers of the batch's pairs, ascending.
            places: as in `_side_indices`.
        """
        shape = (self.epochs.batch, self.candidates)
        rows, present = np.zeros(shape, np.int32), np.zeros(shape, bool)
        weights = np.ones(shape, np.float32)
        for row, (number, places_in_list) in enumerate(chosen):
            count = len(places_in_list)
            members = self.texts.members[number][places_in_list]
            rows[row, :count] = places["pairs"][np.searchsorted(pairs, members)]
            present[row, :count] = True
            weights[row, :count] = np.array(self.epochs.lists[number].weights)[places_in_list]
        arrays = {"rows": rows, "present": present, "weights": weights}
        return {name: layout.put(array, P()) for name, array in arrays.items()}


def distinct_numbers(texts: ListTexts, members: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
    """The numbers of a batch's pairs, left and right texts, by part: each once, ascending.

    Args:
        members: for each list the numbers of its pairs.
    """
    pairs = np.unique(np.concatenate(members))
    left, right = (np.unique(column) for column in texts.sides[pairs].T)
    return {"pairs": pairs, "left": left, "right": right}


def _tokenize(
    texts: ListTexts, scorer: CrossEncoder, label: str
) -> tuple[dict[str, TokenRows], TokenRows | None]:
    """Token ids of the parts that the head needs, and segments of the pairs if it reads pairs."""
    tokens, segments = {}, None
    if scorer.cfg.reads_pairs:
        pairs = scorer.tokenize(texts.pairs, label=f"{label}, pairs")
        tokens["pairs"], segments = pairs.ids, pairs.segments
    if scorer.cfg.has_cosine:
        retriever = scorer.retriever
        for part, kind, side in (
            ("left", "query", texts.lefts),
            ("right", "document", texts.rights),
        ):
            tokens[part] = retriever.tokenize(side, kind=kind, label=f"{label}, {part} texts")
    return tokens, segments


def _grids_and_rows(
    epochs: ListEpochs, texts: ListTexts, tokens: Mapping, steps: int
) -> tuple[dict[str, TextGrid], int]:
    """The grid of each part of a batch, and the number of pairs, empty rows included.

    If later epochs choose other negatives, the grids hold any choice.
    """
    batches = []
    for step in range(steps):
        members = [texts.members[number] for number in epochs.numbers(step)]
        if epochs.negatives and not epochs.may_change:
            members = [candidates[: epochs.negatives + 1] for candidates in members]
        batches.append(distinct_numbers(texts, members))
    longest = max(map(len, texts.members))
    list_length = min(longest, epochs.negatives + 1) if epochs.negatives else longest
    text_limit = epochs.batch * list_length
    grids = {}
    for part, ids in tokens.items():
        lengths = [[len(ids[i]) for i in batch[part]] for batch in batches]
        grid = (
            TextGrid.for_any(lengths, text_limit)
            if epochs.may_change
            else TextGrid.from_lengths(lengths)
        )
        grids[part] = grid
    multiple = math.lcm(2, layout.batch_multiple())
    largest = min(text_limit, max(len(batch["pairs"]) for batch in batches))
    return grids, grids["pairs"].rows if "pairs" in grids else tk.round_up(largest, multiple)
