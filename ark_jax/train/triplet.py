"""Training of two towers on three levels of relevance (GPR): objective, and batches of triples."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from ark_jax.graph.levels import NONE, DrawRules, Levels, are_siblings, draw_levels, share_entity
from ark_jax.graph.triples import Triples
from ark_jax.models.pooling import VectorForm, embed
from ark_jax.models.towers import DualEncoder
from ark_jax.text.token_rows import RowsByKey, TokenIds
from ark_jax.train import fit, flops, losses, memory
from ark_jax.train.config import TripletConfig
from ark_jax.train.placement import TextGrid


@dataclasses.dataclass(frozen=True)
class MaskedQuestions:
    """Questions that each ask for one entity of a triple."""

    texts: Sequence[str]
    rows: np.ndarray  # int64 [n], of the triples in the graph
    asks_tail: np.ndarray  # bool [n]; the others ask for the head

    def __len__(self) -> int:
        return len(self.rows)


def train(
    towers: DualEncoder,
    graph: Triples,
    questions: MaskedQuestions,
    triple_texts: Callable[[np.ndarray], list[str]],
    config: TripletConfig,
    run: fit.Run,
    *,
    epochs: int,
    learning_rate: float,
    seed: int,
    loss: losses.Loss = losses.info_nce,
    mined: Sequence[Sequence[int]] = (),
) -> fit.Trained:
    """Trains a copy of the towers.

    Args:
        triple_texts: rows of the graph -> the texts of these triples.
        loss: what is minimised unless `config.loss` is "triplet".
        mined: see `Epochs`.

    Raises:
        ValueError: there are no questions, or no negative for any.
        FloatingPointError, preemption.Preempted, OSError: see `fit.train`.
    """
    if not len(questions):
        raise ValueError(
            "no question to train on; see the counts of the stage questions, which says why none "
            "was written"
        )
    sides = (towers.query, towers.document)
    configs = tuple(tower.cfg for tower in sides)
    drawn = Epochs(graph, questions, config, epochs=epochs, seed=seed, mined=mined)
    query_tokens = towers.query.tokenize(
        questions.texts, kind="query", label=f"{run.label}, questions"
    )
    used = drawn.rows_used()
    triple_tokens = towers.document.tokenize(
        triple_texts(used), kind="document", label=f"{run.label}, triples"
    )
    maker = TripletBatches.create(
        drawn, query_tokens, RowsByKey(used.tolist(), triple_tokens), configs
    )
    models = (towers.query.model,) if towers.is_one else tuple(tower.model for tower in sides)
    grids = (maker.questions, maker.triples)
    texts = map(memory.Texts.from_grid, grids)
    cfg = memory.choose_remat(configs[1], config, texts, models, None, run.label)
    objective = TripletObjective(
        tuple(dataclasses.replace(tower_cfg, remat=cfg.remat) for tower_cfg in configs),
        (towers.query.form_of("query"), towers.document.form_of("document")),
        tuple(grid.piece_tokens for grid in grids),
        None if config.loss == "triplet" else loss,
        tuple(config.margins),
        config.temperature,
    )
    trained = fit.train(
        objective, maker, config, run, models, steps=len(drawn), learning_rate=learning_rate
    )
    query = dataclasses.replace(towers.query, model=trained.model[0])
    document = (
        query if towers.is_one else dataclasses.replace(towers.document, model=trained.model[1])
    )
    return trained._replace(model=DualEncoder(query, document))


@dataclasses.dataclass(frozen=True)
class TripletObjective:
    """A loss between the questions and the triples of a batch."""

    cfgs: tuple[Any, Any]  # of the question's and the triple's tower
    forms: tuple[VectorForm, VectorForm]
    piece_tokens: tuple[int | None, int | None]  # of the questions' and the triples' `TextGrid`
    loss: losses.Loss | None  # None: two margins (eq. 5)
    margins: tuple[float, float]
    temperature: float

    def __call__(self, trainable: Any, frozen: Any, batch: Mapping) -> tuple[jax.Array, dict]:
        """The loss; see `fit.Objective`.

        Args:
            trainable: the models of both towers, or the one model of both.
            batch: `queries` and `triples`, each tokens and mask `[b t]`; `positive`, `neighbour`
                and `negative`, bool `[b c]`.
        """
        models = (trainable[0], trainable[-1])
        queries, triples = (
            embed(model, cfg, form, tokens, *batch[kind])
            for model, cfg, form, tokens, kind in zip(
                models,
                self.cfgs,
                self.forms,
                self.piece_tokens,
                ("queries", "triples"),
                strict=True,
            )
        )
        positive, neighbour, negative = (
            batch[name] for name in ("positive", "neighbour", "negative")
        )
        if self.loss is None:
            levels = (positive, neighbour, negative)
            return losses.two_margins(queries, triples, *levels, margins=self.margins), {}
        contrasts = neighbour | negative
        return self.loss(queries, triples, positive, contrasts, temperature=self.temperature), {}


class Epochs:
    """The questions of each step, and the triples drawn for them; drawn anew in each epoch.

    Args:
        mined: rows for each question. Each epoch takes the next one in place of a drawn negative.
            Empty: all negatives are drawn.
    """

    def __init__(
        self,
        graph: Triples,
        questions: MaskedQuestions,
        config: TripletConfig,
        *,
        epochs: int,
        seed: int,
        mined: Sequence[Sequence[int]] = (),
    ):
        self.graph, self.questions, self.config = graph, questions, config
        self.epochs, self.seed, self.mined = epochs, seed, mined
        self.steps = -(-len(questions) // config.batch)  # of one epoch
        self._drawn: tuple[int, np.ndarray, Levels] | None = None

    def __len__(self) -> int:
        """The steps of all epochs."""
        return self.steps * self.epochs

    def draw(self, epoch: int) -> tuple[np.ndarray, Levels]:
        """The order of the questions in an epoch, int64 `[n]`, and the triples of each question."""
        if self._drawn is None or self._drawn[0] != epoch:
            rng = np.random.default_rng([self.seed, epoch])
            order = rng.permutation(len(self.questions))
            levels = draw_levels(
                self.graph,
                self.questions.rows,
                self.questions.asks_tail,
                DrawRules(self.config.siblings, self.config.neighbours, self.config.hub),
                rng,
            )
            if self.mined:
                taken = [rows[epoch % len(rows)] if rows else NONE for rows in self.mined]
                levels = dataclasses.replace(levels, negatives=np.array(taken, np.int64))
            self._drawn = epoch, order, levels
        return self._drawn[1:]

    def step(self, step: int) -> tuple[np.ndarray, Levels]:
        """The numbers of a step's questions, and their triples."""
        epoch, place = divmod(step, self.steps)
        order, levels = self.draw(epoch)
        chosen = order[place * self.config.batch : (place + 1) * self.config.batch]
        return chosen, levels.select(chosen)

    def rows_used(self) -> np.ndarray:
        """The rows of all triples that some step encodes, ascending."""
        used = np.zeros(len(self.graph), bool)
        for epoch in range(self.epochs):
            levels = self.draw(epoch)[1]
            for rows in (levels.positives, levels.neighbours, levels.negatives):
                used[rows[rows != NONE]] = True
        return np.flatnonzero(used)


@dataclasses.dataclass(frozen=True)
class TripletBatches:
    """Makes the batches of a run: tokens of questions and triples, masks of their pairs."""

    epochs: Epochs
    question_tokens: Sequence[TokenIds]
    triple_tokens: Mapping[int, TokenIds]  # row -> ids
    cfgs: tuple[Any, Any]
    questions: TextGrid
    triples: TextGrid

    @classmethod
    def create(
        cls,
        epochs: Epochs,
        question_tokens: Sequence[TokenIds],
        triple_tokens: Mapping[int, TokenIds],
        cfgs: tuple[Any, Any],
    ) -> "TripletBatches":
        """Finds the two shapes that hold every batch on the current mesh."""
        lengths: tuple[list, list] = ([], [])
        for step in range(len(epochs)):
            chosen, levels = epochs.step(step)
            lengths[0].append([len(question_tokens[number]) for number in chosen])
            lengths[1].append([len(triple_tokens[row]) for row in distinct_rows(levels).tolist()])
        grids = map(TextGrid.from_lengths, lengths)
        return cls(epochs, question_tokens, triple_tokens, cfgs, *grids)

    def __call__(self, step: int, trainable: Any = None) -> fit.TrainingBatch:
        """The batch after `step` steps; see `fit.MakeBatch`. Each triple is encoded once."""
        chosen, levels = self.epochs.step(step)
        rows = distinct_rows(levels)
        questions = [self.question_tokens[number] for number in chosen]
        triples = [self.triple_tokens[row] for row in rows.tolist()]
        question_places, queries = self.questions.place(questions)
        triple_places, documents = self.triples.place(triples)

        def make_masks(numbers: np.ndarray) -> tuple[np.ndarray, ...]:
            """The positive, neighbour and negative masks of these questions of the step."""
            masks = pair_masks(self.epochs, chosen[numbers], levels.select(numbers), rows)
            return masks["positive"], masks["neighbour"], masks["negative"]

        masks = self.questions.place_pairs(self.triples, question_places, triple_places, make_masks)
        arrays = {"queries": queries, "triples": documents}
        arrays |= dict(zip(("positive", "neighbour", "negative"), masks, strict=True))
        lengths = [list(map(len, questions)), list(map(len, triples))]
        work = sum(
            flops.training(cfg, counts, 0) for cfg, counts in zip(self.cfgs, lengths, strict=True)
        )
        ids = {"questions": list(map(str, chosen)), "triples": list(map(str, rows))}
        return fit.TrainingBatch(arrays, ids, sum(map(sum, lengths)), work)


def distinct_rows(levels: Levels) -> np.ndarray:
    """The rows of a batch's triples, each once, ascending."""
    rows = np.unique(np.concatenate([levels.positives, levels.neighbours, levels.negatives]))
    return rows[rows != NONE]


def pair_masks(
    epochs: Epochs, chosen: np.ndarray, levels: Levels, rows: np.ndarray
) -> dict[str, np.ndarray]:
    """Which triples of a batch are at which level for each question, bool `[b c]`.

    With `negatives="random"`, only the drawn triple is a negative. Otherwise every triple of the
    batch that shares no entity with the question's triple is one too. A loss other than the margins
    takes all other triples as negatives, except siblings unless these are drawn as neighbours.

    Args:
        chosen: numbers of the questions.
        levels: the triples drawn for them.
        rows: the triples of the batch.
    """
    graph, config = epochs.graph, epochs.config
    rows_asked = epochs.questions.rows[chosen][:, None]
    asks_tail = epochs.questions.asks_tail[chosen][:, None]
    drawn_rows = (levels.positives, levels.neighbours, levels.negatives)
    positive, neighbour, negative = (drawn[:, None] == rows[None] for drawn in drawn_rows)
    if config.negatives != "random":
        spared = share_entity(graph, rows_asked, rows[None])
        if config.loss != "triplet":
            spared = rows_asked == rows[None]
            if config.siblings != "neighbour":
                spared = spared | are_siblings(graph, rows_asked, asks_tail, rows[None])
        negative = negative | ~spared
    return {
        "positive": positive,
        "neighbour": neighbour & ~positive,
        "negative": negative & ~positive,
    }
