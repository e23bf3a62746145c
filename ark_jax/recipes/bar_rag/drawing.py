"""The selector that draws passages one after the other, by a few weights over vectors."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ark_jax.pipeline.stage import Context
from ark_jax.recipes.bar_rag.choices import ChosenSet, MakeSets, by_question
from ark_jax.recipes.bar_rag.pool import PoolVectors
from ark_jax.recipes.bar_rag.rollouts import DrawnSet, RewardedSet
from ark_jax.recipes.common.reader_training import PooledQuestion

if TYPE_CHECKING:  # their modules start jax
    from ark_jax.select.pools import Pool
    from ark_jax.select.scorer import DrawnSets, Selector
    from ark_jax.select.training import SelectorGroup, SelectorTraining
    from ark_jax.train.fit import Run, Trained

LEARNING_RATE = 0.03  # peak, unless it is set


@dataclasses.dataclass(frozen=True)
class DrawingSelector:
    """Ordered draws with exact probabilities; `make_pools` says what they are drawn from."""

    selector: "Selector"
    make_pools: "Callable[[Sequence[PooledQuestion]], list[Pool]]"
    config: object

    @classmethod
    def open(cls, context: Context, folder: Path | None) -> "DrawingSelector":
        """That of a folder; without one it draws by the retriever's cosine."""
        from ark_jax.select.scorer import Selector

        vectors, config = PoolVectors(context), context.config
        if folder is None:
            selector = Selector.new(vectors.width, seed=config.seed)
        else:
            selector = Selector.from_pretrained(folder)
        return cls(selector, vectors.pools, config)

    def draw(
        self, questions: Sequence[PooledQuestion], *, draws: int, seed: int, step: int = 0
    ) -> list[list[DrawnSet]]:
        """See `EvidenceSelector.draw`."""
        k, pools = self.config.select.passages, self.make_pools(questions)
        drawn = self.selector.draw(pools, k=k, draws=draws, seed=seed, step=step)
        return [
            [
                DrawnSet(question_id=pooled.id, chunk_ids=ids, log_prob=float(log_prob), p=None)
                for ids, log_prob in zip(_chunk_ids(pooled, sets), sets.log_probs, strict=True)
            ]
            for pooled, sets in zip(questions, drawn, strict=True)
        ]

    def best(self, questions: Sequence[PooledQuestion]) -> list[ChosenSet]:
        """See `EvidenceSelector.best`."""
        best = self.selector.best(self.make_pools(questions), k=self.config.select.passages)
        return [ChosenSet(ids) for (ids,) in map(_chunk_ids, questions, best)]

    def train(
        self, steps: Sequence[Sequence[PooledQuestion]], make_sets: MakeSets, run: "Run"
    ) -> "Trained":
        """See `EvidenceSelector.train`."""
        from ark_jax.select import training

        def make_groups(step: int, selector) -> "list[SelectorGroup]":
            sets = make_sets(step, dataclasses.replace(self, selector=selector))
            pools = self.make_pools(steps[step])
            return list(map(_group, steps[step], pools, by_question(steps[step], sets)))

        trained = training.train(self.selector, make_groups, _training(self.config, steps), run)
        return trained._replace(model=dataclasses.replace(self, selector=trained.model))

    def save(self, folder: Path) -> None:
        """See `EvidenceSelector.save`."""
        self.selector.save_pretrained(folder)


def _chunk_ids(pooled: PooledQuestion, drawn: "DrawnSets") -> list[list[str]]:
    return [[pooled.chunk_ids[place] for place in places] for places in drawn.sets]


def _group(pooled: PooledQuestion, pool: "Pool", sets: Sequence[RewardedSet]) -> "SelectorGroup":
    """The sets of one question, as an update takes them."""
    from ark_jax.select.training import SelectorGroup

    places = {chunk: place for place, chunk in enumerate(pooled.chunk_ids)}
    return SelectorGroup(
        pooled.id,
        pool,
        [np.array([places[x] for x in one.chunk_ids], np.int32) for one in sets],
        [one.reward for one in sets],
        [one.advantage for one in sets],
    )


def _training(config, steps: Sequence[Sequence[PooledQuestion]]) -> "SelectorTraining":
    """The settings of a selector's training; `config.train` gives those that readers share."""
    from ark_jax.select.training import SelectorTraining

    settings = config.select
    return SelectorTraining(
        steps=len(steps),
        learning_rate=settings.learning_rate or LEARNING_RATE,
        warmup=config.train.warmup,
        weight_decay=config.train.weight_decay,
        clip=config.train.clip,
        remat=config.train.remat,
        save_every=config.train.save_every,
        questions=max(map(len, steps)),
        candidates=config.pool.size,
        draws=settings.sets,
        k=settings.passages,
    )
