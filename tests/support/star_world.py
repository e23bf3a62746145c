"""Small runs of STAR: the demo's graph and questions, a tiny retriever."""

import functools
from pathlib import Path

from support import gpr_world
from support.gpr_world import DEMO, make_world

from ark_jax.recipes.star import config

__all__ = ["DEMO", "call", "call_here", "make_world", "tiny_config"]

QUESTIONS = DEMO.parent / "star" / "questions.jsonl"

call = functools.partial(gpr_world.call, module="star_world")
call_here = functools.partial(gpr_world.call_here, module="star_world")


def tiny_config(world: Path):
    """A run of a few steps over the demo's graph."""
    c = config.star()
    c.data.path, c.data.names = str(DEMO / "graph.tsv"), str(DEMO / "names.tsv")
    c.data.questions = str(QUESTIONS)
    c.data.few = 24
    c.retriever.path, c.generator.path = str(world / "retriever"), str(world / "generator")
    c.mesh = (1, 1, 1)
    c.mine.negatives = 3
    c.train.epochs, c.train.batch, c.train.save_every, c.train.learning_rate = 1, 8, 5, 1e-3
    c.paths.hops = 2
    c.evaluate.questions = 8
    return c
