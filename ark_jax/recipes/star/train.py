"""The train stage: a scorer of question and path on lists."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ark_jax.pipeline.stage import Context
from ark_jax.pipeline.tables import load_json, save_json
from ark_jax.recipes.core import models, own_parts
from ark_jax.recipes.star.config import TrainSection
from ark_jax.recipes.star.data import HEADLINE, PathQuestion, load_questions, load_steps
from ark_jax.recipes.star.mine import load_lists, pair_lists
from ark_jax.recipes.star.search import beam_search, measure
from ark_jax.runtime import distributed
from ark_jax.runtime.log import say
from ark_jax.schema import section_of

if TYPE_CHECKING:  # it starts jax
    from ark_jax.models.pairs import CrossEncoder


def train_scorer(context: Context, folder: Path) -> dict:
    """Trains the scorer of paths, beginning with the base retriever."""
    from ark_jax.train import listwise, losses

    config = context.config
    validated = config.data.validation and load_questions(context, "validation")
    choice = EpochChoice(context, folder / "epochs", validated) if validated else None
    questions = {question.id: question.question for question in load_questions(context, "train")}
    lists = pair_lists(
        load_lists(context),
        questions,
        load_steps(context),
        weights=config.train.weights,
        weight_range=tuple(config.train.weight_range),
        weight_scale=config.train.weight_scale,
    )
    tuned, _, curve = listwise.train(
        models.load_base_scorer(context).with_head(config.train.head, seed=config.seed),
        lists,
        section_of(config.train, TrainSection),
        models.training_run(context.metrics, folder, "train"),
        batch=config.train.batch,
        epochs=config.train.epochs,
        learning_rate=config.train.learning_rate,
        seed=config.seed,
        negatives=config.mine.negatives,
        choose_again=config.mine.by == "previous",
        temperature=config.train.temperature,
        loss=own_parts.load_loss(config, "ListLoss") or losses.weighted_lists,
        after_epoch=choice,
    )
    counts = {"lists": len(lists), "steps": len(curve), **models.first_and_last_loss(curve)}
    if not choice:
        tuned.save_pretrained(folder / "model", dtype=models.MASTER)
        return counts
    distributed.on_first_process(lambda: choice.move_best(folder / "model"))
    return counts | {"chosen_epoch": choice.best, "validation_hit": max(choice.hits)}


class EpochChoice:
    """Keeps the scorer of the epoch after which search finds most of the validation's answers.

    Args:
        folder: gets hits.json, the hit@1 after each epoch, and the best scorer. What it holds is
            never made again, so that a resumed run chooses the same.
    """

    def __init__(self, context: Context, folder: Path, questions: Sequence[PathQuestion]):
        self.context, self.folder, self.questions = context, folder, questions
        self.steps = load_steps(context)

    @property
    def hits(self) -> list[float]:
        """hit@1 after each epoch so far."""
        path = self.folder / "hits.json"
        return load_json(path) if path.is_file() else []

    @property
    def best(self) -> int:
        """The number of the best epoch so far, the first one of equals; 0 before the first."""
        hits = self.hits
        return 1 + hits.index(max(hits)) if hits else 0

    def __call__(self, epoch: int, scorer: "CrossEncoder") -> None:
        """Measures the scorer after an epoch, and keeps it if it is the best one."""
        hits = self.hits
        if epoch <= len(hits):
            return
        found = beam_search(self.context, self.questions, self.steps, scorer).paths
        measured = [measure(self.steps, x, (), found[x.id], (HEADLINE,)) for x in self.questions]
        hit = float(np.mean([values[HEADLINE] for values in measured]))
        say(f"  epoch {epoch}: hit@1 {hit:.3f} of {len(self.questions):,} validation questions")
        if hit > max(hits, default=-1):
            scorer.save_pretrained(self.folder / f"{epoch}", dtype=models.MASTER)
        distributed.on_first_process(lambda: self._store([*hits, hit]))

    def _store(self, hits: list[float]) -> None:
        """Stores the hits; then the scorers that are not the best one go."""
        save_json(hits, self.folder / "hits.new")
        (self.folder / "hits.new").rename(self.folder / "hits.json")
        for folder in self.folder.iterdir():
            if folder.is_dir() and folder.name != str(self.best):
                shutil.rmtree(folder)

    def move_best(self, target: Path) -> None:
        """Moves the best scorer's folder to `target`, unless that was done before a kill."""
        if not target.exists():
            (self.folder / str(self.best)).rename(target)


def load_tuned(context: Context):
    """The trained scorer."""
    from ark_jax.models.pairs import CrossEncoder

    return models.load_trained(context, CrossEncoder)
