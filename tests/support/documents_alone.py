"""Runs of the three-document corpus without its questions."""

from pathlib import Path

from support.world import make_world, tiny_config

from ark_jax.pipeline import engine
from ark_jax.recipes.ark.recipe import stages
from ark_jax.runtime.log import Metrics


def make_world_without_questions(root: Path) -> Path:
    make_world(root)
    (root / "corpus" / "questions.jsonl").unlink()
    return root


def documents_alone(world: Path, **questions):
    """The config of a run that writes its questions; keywords are fields of `questions`."""
    c = tiny_config(world)
    c.data.held_out_documents = ("great-surge",)
    c.questions.source, c.questions.passages, c.questions.margin = "written", 12, -99.0
    for name, value in questions.items():
        c.questions[name] = value
    return c


def run(c, workdir: Path, only: str = "") -> dict:
    """Runs all stages or one, and returns the counts of the last or that one."""
    context = engine.Context(c, workdir, Metrics(workdir / "metrics.jsonl"))
    engine.run(stages(c), context, only=only)
    return engine.read_manifest(workdir / (only or "report"))["counts"]
