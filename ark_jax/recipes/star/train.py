"""The train stage: a scorer of question and path on lists."""

from pathlib import Path

from ark_jax.pipeline.stage import Context
from ark_jax.recipes.core import own_parts
from ark_jax.recipes.core.models import MASTER, load_base_scorer
from ark_jax.recipes.core.training import first_and_last_loss, training_run
from ark_jax.recipes.star.config import TrainSection
from ark_jax.recipes.star.data import load_questions, load_steps
from ark_jax.recipes.star.mine import load_lists, pair_lists
from ark_jax.schema import section_of


def train_scorer(context: Context, folder: Path) -> dict:
    """Trains from the base retriever; stores the scorer under `model`."""
    from ark_jax.train import listwise, losses

    config = context.config
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
        load_base_scorer(context).with_head(config.train.head, seed=config.seed),
        lists,
        section_of(config.train, TrainSection),
        training_run(context.metrics, folder, "train"),
        batch=config.train.batch,
        epochs=config.train.epochs,
        learning_rate=config.train.learning_rate,
        seed=config.seed,
        negatives=config.mine.negatives,
        choose_again=config.mine.by == "previous",
        temperature=config.train.temperature,
        loss=own_parts.load_loss(config, "ListLoss") or losses.weighted_lists,
    )
    tuned.save_pretrained(folder / "model", dtype=MASTER)
    return {"lists": len(lists), "steps": len(curve), **first_and_last_loss(curve)}


def load_tuned(context: Context):
    """The trained scorer."""
    from ark_jax.models.pairs import CrossEncoder

    context.enter_mesh()
    settings = context.config.retriever
    return CrossEncoder.from_pretrained(
        context / "train" / "model", compute=settings.compute, attention=settings.attention
    )
