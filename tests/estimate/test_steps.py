"""Abstract training steps against the arrays of real ones, and what XLA's program holds."""

import jax
import numpy as np
import pytest
from support.plans import model
from support.training import PAIRS, PASSAGES, QUESTIONS, TRAINING, contrastive_config

from ark_jax import Retriever
from ark_jax.estimate import steps
from ark_jax.estimate.work import Texts, Work
from ark_jax.recipes.ark import config
from ark_jax.train import contrastive, fit, memory

STEP = Texts(4, 10, 10), Texts(16, 60, 60)


def test_an_abstract_step_has_the_arrays_of_a_real_one(world, mesh, tmp_path, monkeypatch):
    real = {}

    def train(objective, make_batch, *_, **__):
        real["objective"], real["maker"] = objective, make_batch
        raise StopIteration

    monkeypatch.setattr(fit, "train", train)
    retriever = Retriever.from_pretrained(str(world / "retriever"))
    settings = contrastive_config(remat="all", chunks=2), fit.Run(tmp_path, "stage")
    with pytest.raises(StopIteration):
        contrastive.train(retriever, PAIRS, QUESTIONS, PASSAGES, *settings, **TRAINING)
    objective, maker = real["objective"], real["maker"]
    grids = maker.questions, maker.passages
    texts = [memory.Texts.from_grid(grid) for grid in grids]
    planned, batch = steps.contrastive(objective.cfg, texts, objective.pieces)
    assert planned.piece_tokens == objective.piece_tokens
    shapes = lambda tree: jax.tree.map(lambda x: (x.shape, np.dtype(x.dtype)), tree)
    assert shapes(batch) == shapes(maker(0, None).arrays)


@pytest.mark.parametrize(
    ("objective", "rank"), [("contrastive", 0), ("contrastive", 2), ("triplet", 0)]
)
def test_a_planned_step_compiles(objective, rank, world, mesh):
    base, train = model(world, "retriever"), config.ark().train
    train.lora_rank, train.chunks = rank, 1
    work = Work("train", "retriever", "training", 1, step=STEP, objective=objective)
    choice = base.choose(train, work)
    held = steps.held(base.lowered(train, work, choice).compile())
    # An adapter adds nothing that is trained; a model takes four times its weights, at least.
    assert held > (1 if rank else 3) * 4 * base.parameters
    assert held < 3 * choice.memory.total
    assert base.verify(train, work, choice).startswith("verified: compiles in ")


def test_a_step_without_a_builder_is_named(world, mesh):
    base, train = model(world, "retriever"), config.ark().train
    work = Work("train", "retriever", "training", 1, step=STEP)
    assert base.verify(train, work, base.choose(train, work)).startswith("not verified: ")
