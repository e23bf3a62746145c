"""The train stage: two towers, or one, on questions about masked triples."""

import dataclasses
from pathlib import Path

import numpy as np

from ark_jax.pipeline.stage import Context
from ark_jax.pipeline.tables import read_table
from ark_jax.recipes.common import own_loss
from ark_jax.recipes.common.graph_data import load_graph, texts_of
from ark_jax.recipes.common.models import load_retriever
from ark_jax.recipes.common.training import first_and_last_loss, training_run
from ark_jax.recipes.gpr.config import TrainSection
from ark_jax.schema import section_of


def train_towers(context: Context, folder: Path) -> dict:
    """Trains from the base retriever; stores the towers under `model`."""
    from ark_jax.models.towers import DualEncoder
    from ark_jax.train import losses, triplet

    config, graph = context.config, load_graph(context)
    base = load_retriever(context)
    # Two towers start alike, but they are two objects: each is trained by itself.
    towers = DualEncoder(base, base if config.train.towers == "one" else dataclasses.replace(base))
    tuned, _, curve = triplet.train(
        towers,
        graph,
        _masked_questions(context),
        lambda rows: texts_of(graph, config, rows),
        section_of(config.train, TrainSection),
        training_run(context.metrics, folder, "train"),
        epochs=config.train.epochs,
        learning_rate=config.train.learning_rate,
        seed=config.seed,
        loss=own_loss.load(config) or losses.info_nce,
    )
    tuned.save_pretrained(folder / "model")
    return {"steps": len(curve), **first_and_last_loss(curve)}


def _masked_questions(context: Context):
    from ark_jax.train.triplet import MaskedQuestions

    table = read_table(context / "questions" / "questions.parquet", ["row", "side", "text"])
    rows = table["row"].to_numpy().astype(np.int64)
    sides = np.array(table["side"].to_pylist(), object)
    return MaskedQuestions(table["text"].to_pylist(), rows, sides == "tail")


def load_tuned(context: Context):
    """The trained towers."""
    from ark_jax.models.towers import DualEncoder

    context.enter_mesh()
    settings = context.config.retriever
    return DualEncoder.from_pretrained(
        context / "train" / "model", compute=settings.compute, attention=settings.attention
    )
