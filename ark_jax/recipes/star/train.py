"""The train stage: a scorer of question and path on lists."""

from pathlib import Path

from ark_jax.pipeline.stage import Context
from ark_jax.recipes.common.models import load_base_scorer
from ark_jax.recipes.common.pair_training import train_pair_scorer
from ark_jax.recipes.star.data import load_questions, load_steps
from ark_jax.recipes.star.lists import pair_lists
from ark_jax.recipes.star.mine import load_lists

TRAIN_SETTINGS = (
    *(
        f"train.{name}"
        for name in (
            "head",
            "weights",
            "temperature",
            "epochs",
            "learning_rate",
            "warmup",
            "weight_decay",
            "clip",
            "batch",
            "lora_rank",
            "lora_alpha",
            "lora_targets",
        )
    ),
    "mine.negatives",
    "mine.by",
    "paths.inverse",
)


def train_scorer(context: Context, folder: Path) -> dict:
    """Trains from the base retriever; stores the scorer under `model`."""
    from ark_jax.train import losses

    config = context.config
    questions = {question.id: question.question for question in load_questions(context, "train")}
    lists = pair_lists(
        load_lists(context), questions, load_steps(context), weights=config.train.weights
    )
    return train_pair_scorer(
        context,
        folder,
        load_base_scorer(context).with_head(config.train.head, seed=config.seed),
        lists,
        loss=losses.weighted_lists,
        label="train",
        negatives=config.mine.negatives,
        choose_again=config.mine.by == "previous",
    )


def load_tuned(context: Context):
    """The trained scorer."""
    from ark_jax.models.pairs import PairScorer

    context.enter_mesh()
    settings = context.config.retriever
    return PairScorer.from_pretrained(
        context / "train" / "model", compute=settings.compute, attention=settings.attention
    )
