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
    """The texts of all lists, each once: pairs, and what stands on either side of them."""

    pairs: list[tuple[str, str]]
    members: list[np.ndarray]  # of each list, the pairs of its candidates
    lefts: list[str]
    rights: list[str]
    sides: np.ndarray  # int64 [pairs, 2], the left and the right text of each pair

    @classmethod
    def create(cls, lists: Sequence[PairList]) -> "ListTexts":
        pairs: dict[tuple[str, str], int] = {}
        number = lambda pair: pairs.setdefault(pair, len(pairs))
        members = [
            np.array([number((pair_list.left, right)) for right in pair_list.rights])
            for pair_list in lists
        ]
        lefts, rights = (list(dict.fromkeys(side)) for side in zip(*pairs, strict=True))
        of_left, of_right = ({text: i for i, text in enumerate(side)} for side in (lefts, rights))
        sides = np.array([(of_left[left], of_right[right]) for left, right in pairs])
        return cls(list(pairs), members, lefts, rights, sides)


@dataclasses.dataclass(frozen=True)
class ListwiseBatches:
    """Makes the batches of a run: tokens of pairs and of single texts, and where candidates are."""

    epochs: ListEpochs
    texts: ListTexts
    tokens: Mapping[str, TokenRows]  # part of a batch -> ids of each of its texts
    segments: TokenRows | None  # of the pairs' tokens
    grids: Mapping[str, TextGrid]  # of the same parts
    rows: int  # of pairs, with empty ones
    candidates: int  # most of a list
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
        grids, rows = _grids(epochs, texts, tokens, steps)
        longest = max(map(len, texts.members))
        list_length = min(longest, epochs.negatives + 1) if epochs.negatives else longest
        body = scorer.cfg.body
        return cls(epochs, texts, tokens, segments, grids, rows, list_length, body, adapter)

    def texts_of_device(self) -> list[memory.Texts]:
        """What a device encodes at once."""
        return list(map(memory.Texts.from_grid, self.grids.values()))

    @property
    def capacities(self) -> Capacities:
        """Packing room of each part, as `ListwiseObjective` takes it."""
        return Capacities(**{part: grid.piece_tokens for part, grid in self.grids.items()})

    def __call__(self, step: int, trainable: Any = None) -> fit.TrainingBatch:
        """The batch after `step` steps; see `fit.MakeBatch`. Each text is encoded once."""
        chosen = self.epochs.step(step, trainable)
        numbers = numbers_of_texts(self.texts, [self.texts.members[k][c] for k, c in chosen])
        arrays, places = {}, {"pairs": np.arange(len(numbers["pairs"]))}
        for part, grid in self.grids.items():
            beside = (self.segments,) if part == "pairs" else ()
            texts = ([ids[i] for i in numbers[part]] for ids in (self.tokens[part], *beside))
            places[part], arrays[part] = grid.place(*texts)
        arrays |= self._sides(numbers, places) | self._lists(chosen, numbers["pairs"], places)
        lengths = [len(self.tokens[part][i]) for part in self.grids for i in numbers[part]]
        names = [self.texts.pairs[i] for i in numbers["pairs"]]
        ids = {
            "questions": [left for left, _ in names],
            "candidates": [right for _, right in names],
        }
        work = flops.training(self.body, lengths, self.adapter)
        return fit.TrainingBatch(arrays, ids, sum(lengths), work)

    def _sides(self, numbers: Mapping, places: Mapping) -> dict[str, jax.Array]:
        """The rows of each pair's two texts, where single texts are embedded."""
        arrays = {}
        for column, part in enumerate(("left", "right")):
            if part in self.grids:
                index = np.zeros(self.rows, np.int32)
                texts = self.texts.sides[numbers["pairs"], column]
                index[places["pairs"]] = places[part][np.searchsorted(numbers[part], texts)]
                arrays[f"{part}_index"] = layout.rows(index)
        return arrays

    def _lists(self, chosen: Sequence, pairs: np.ndarray, places: Mapping) -> dict[str, jax.Array]:
        """Rows, presence and weights of the candidates of a step's lists."""
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


def numbers_of_texts(texts: ListTexts, members: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
    """Which pairs and single texts the candidates of a batch need: each once, ascending."""
    pairs = np.unique(np.concatenate(members))
    left, right = (np.unique(column) for column in texts.sides[pairs].T)
    return {"pairs": pairs, "left": left, "right": right}


def _tokenize(
    texts: ListTexts, scorer: CrossEncoder, label: str
) -> tuple[dict[str, TokenRows], TokenRows | None]:
    """Token ids by part of a batch, of the parts that the head needs, and segments of the pairs."""
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


def _grids(
    epochs: ListEpochs, texts: ListTexts, tokens: Mapping, steps: int
) -> tuple[dict[str, TextGrid], int]:
    """The shapes of the parts of a batch, and the number of pairs with empty rows.

    Where later epochs choose other negatives, the shapes hold any choice.
    """
    batches = []
    for step in range(steps):
        members = [texts.members[number] for number in epochs.numbers(step)]
        if epochs.negatives and not epochs.may_change:
            members = [candidates[: epochs.negatives + 1] for candidates in members]
        batches.append(numbers_of_texts(texts, members))
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
