"""Training of a pair scorer on weighted lists (STAR): objective, and batches of pairs."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import PartitionSpec as P

from ark_jax import layout
from ark_jax.models.pairs import Capacities, PairConfig, PairScorer, pair_logits
from ark_jax.text import tokens as tk
from ark_jax.train import fit, flops, losses, optim
from ark_jax.train.lists import ListEpochs, PairList
from ark_jax.train.placement import TextGrid


@dataclasses.dataclass(frozen=True)
class ListwiseConfig:
    """How a pair scorer is trained; most fields have the names of `config.train`."""

    epochs: int
    learning_rate: float  # at its peak
    warmup: float  # share of the steps
    weight_decay: float
    clip: float  # largest global norm of a gradient
    batch: int  # lists a step
    negatives: int  # most of a list; 0 for all
    choose_again: bool  # by the scorer itself, before each epoch after the first
    temperature: float  # divides logits
    save_every: int  # steps
    remat: str  # what the backward pass computes again, see the models' `Config`
    seed: int


def train(
    scorer: PairScorer,
    lists: Sequence[PairList],
    config: ListwiseConfig,
    folder: Path,
    *,
    on_step: Callable[[dict], None] = lambda row: None,
    on_pace: Callable[..., None] = lambda **pace: None,
) -> tuple[PairScorer, list[dict]]:
    """Trains a copy of the scorer, whichever head it has.

    Args:
        folder: gets checkpoints/, curve.jsonl and the choices of `ListEpochs`, from which a stopped
            run continues.
        on_step, on_pace: see `fit.fit`.

    Returns:
        The trained scorer, and the curve.

    Raises:
        ValueError: there are no lists, or a weight is not above 0.
        FloatingPointError, preemption.Preempted, OSError: see `fit.fit`.
    """
    _check(lists)
    body = dataclasses.replace(scorer.cfg.body, remat=config.remat)
    model_config = dataclasses.replace(scorer.cfg, body=body)
    texts = ListTexts.create(lists)

    def score(trainable: Any) -> list[np.ndarray]:
        scores = dataclasses.replace(scorer, model=trainable).score(texts.pairs, label="negatives")
        return [scores[members] for members in texts.members]

    epochs = ListEpochs(
        lists,
        batch=config.batch,
        negatives=config.negatives,
        seed=config.seed,
        folder=folder,
        score=score if config.choose_again else None,
    )
    steps = epochs.steps * config.epochs
    maker = ListwiseBatches.create(epochs, texts, scorer, steps)
    run = fit.TrainingRun(
        label="train",
        folder=folder,
        steps=steps,
        schedule=optim.schedule(config.learning_rate, steps, config.warmup),
        optimizer=optim.adamw(weight_decay=config.weight_decay, clip=config.clip),
        save_every=config.save_every,
    )
    objective = ListwiseObjective(model_config, maker.capacities, config.temperature)
    trained, curve = fit.fit(run, objective, maker, scorer.model, on_step=on_step, on_pace=on_pace)
    return dataclasses.replace(scorer, model=trained), curve


def _check(lists: Sequence[PairList]) -> None:
    if not lists:
        raise ValueError(
            "no list to train on; see the counts of the stages paths and mine, which say why none "
            "was made"
        )
    for number, one in enumerate(lists):
        weights = np.array(one.weights)
        if len(one.weights) != len(one.rights) or not (np.isfinite(weights) & (weights > 0)).all():
            raise ValueError(
                f"list {number} ({one.left[:40]!r}) has {len(one.rights)} texts and the weights "
                f"{one.weights}; give each text a weight above 0"
            )


@dataclasses.dataclass(frozen=True)
class ListwiseObjective:
    """The loss of weighted lists over the logits of a batch's pairs."""

    cfg: PairConfig
    capacities: Capacities
    temperature: float

    def __call__(self, trainable: Any, frozen: Any, batch: Mapping) -> tuple[jax.Array, dict]:
        """The loss; see `fit.Objective`.

        Args:
            trainable: the model of a pair scorer.
            batch: what `pair_logits` takes; `rows`, the pair of each candidate, int `[lists
                candidates]`, with `present` and `weights` as `losses.weighted_lists` takes them.
        """
        logits = pair_logits(trainable, self.cfg, batch, self.capacities) / self.temperature
        # A list's pairs lie on several devices; there are few lists.
        scores = jax.sharding.reshard(logits, P()).at[batch["rows"]].get(out_sharding=P())
        return losses.weighted_lists(scores, batch["present"], batch["weights"]), {}


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
        members = [np.array([number((one.left, right)) for right in one.rights]) for one in lists]
        lefts, rights = (list(dict.fromkeys(side)) for side in zip(*pairs, strict=True))
        of_left, of_right = ({text: i for i, text in enumerate(side)} for side in (lefts, rights))
        sides = np.array([(of_left[left], of_right[right]) for left, right in pairs])
        return cls(list(pairs), members, lefts, rights, sides)


@dataclasses.dataclass(frozen=True)
class ListwiseBatches:
    """Makes the batches of a run: tokens of pairs and of single texts, and where candidates are."""

    epochs: ListEpochs
    texts: ListTexts
    tokens: Mapping[str, Sequence[Sequence[int]]]  # part of a batch -> ids of each of its texts
    segments: Sequence[Sequence[int]]  # of the pairs' tokens
    grids: Mapping[str, TextGrid]  # of the same parts
    rows: int  # of pairs, with empty ones
    candidates: int  # most of a list
    body: Any  # the encoder's configuration

    @classmethod
    def create(
        cls, epochs: ListEpochs, texts: ListTexts, scorer: PairScorer, steps: int
    ) -> "ListwiseBatches":
        """Tokenises, and finds the shapes that hold every batch on the current mesh."""
        tokens, segments = _tokenize(texts, scorer)
        grids, rows = _grids(epochs, texts, tokens, steps)
        longest = max(map(len, texts.members))
        most = min(longest, epochs.negatives + 1) if epochs.negatives else longest
        return cls(epochs, texts, tokens, segments, grids, rows, most, scorer.cfg.body)

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
            ids = [self.tokens[part][i] for i in numbers[part]]
            places[part], arrays[part] = grid.place(ids)
        if "pairs" in self.grids:
            segments = [self.segments[i] for i in numbers["pairs"]]
            grid = self.grids["pairs"]
            padded, _ = tk.pad_rows(segments, places["pairs"], grid.rows, grid.length)
            arrays["pairs"] = (*arrays["pairs"], layout.rows(padded))
        arrays |= self._sides(numbers, places) | self._lists(chosen, numbers["pairs"], places)
        lengths = [len(self.tokens[part][i]) for part in self.grids for i in numbers[part]]
        names = [self.texts.pairs[i] for i in numbers["pairs"]]
        ids = {"questions": [left for left, _ in names], "paths": [right for _, right in names]}
        work = flops.training(self.body, lengths, 0)
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
    texts: ListTexts, scorer: PairScorer
) -> tuple[dict[str, Sequence[Sequence[int]]], Sequence[Sequence[int]]]:
    """Token ids by part of a batch, of the parts that the head needs, and segments of the pairs."""
    tokens, segments = {}, []
    if scorer.cfg.reads_pairs:
        pairs = scorer.tokenize(texts.pairs, label="train, pairs")
        tokens["pairs"], segments = pairs.ids, pairs.segments
    if scorer.cfg.has_cosine:
        retriever = scorer.retriever
        for part, kind, side in (
            ("left", "query", texts.lefts),
            ("right", "document", texts.rights),
        ):
            tokens[part] = retriever.tokenize(side, kind=kind, label=f"train, {part} texts")
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
    most = epochs.batch * (min(longest, epochs.negatives + 1) if epochs.negatives else longest)
    grids = {}
    for part, ids in tokens.items():
        lengths = [[len(ids[i]) for i in batch[part]] for batch in batches]
        grid = (
            TextGrid.for_any(lengths, most) if epochs.may_change else TextGrid.from_lengths(lengths)
        )
        grids[part] = grid
    multiple = math.lcm(2, layout.batch_multiple())
    largest = min(most, max(len(batch["pairs"]) for batch in batches))
    return grids, grids["pairs"].rows if "pairs" in grids else tk.round_up(largest, multiple)
