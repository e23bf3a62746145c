"""Small runs of STAR: the demo's graph and questions, a tiny retriever."""

import subprocess
import sys
from pathlib import Path

from support.gpr_world import make_world
from support.paths import REPOSITORY
from support.world import environment

import ark_jax.demo
from ark_jax.recipes.star import config

__all__ = ["DEMO", "call", "make_world", "tiny_config"]

DEMO = Path(ark_jax.demo.__file__).parent / "gpr"
QUESTIONS = DEMO.parent / "star" / "questions.jsonl"

# A config file for the command line, since tests of kills need a process of their own.
CONFIG = """
import sys
sys.path[:0] = [{tests!r}]
from pathlib import Path
from support import star_world
def get_config():
    return star_world.tiny_config(Path({world!r}))
"""


def tiny_config(world: Path):
    """A run of a few steps over the demo's graph."""
    c = config.star()
    c.data.path, c.data.names = str(DEMO / "graph.tsv"), str(DEMO / "names.tsv")
    c.data.questions = str(QUESTIONS)
    c.data.few = 24
    c.retriever.path, c.generator.path = str(world / "retriever"), str(world / "generator")
    c.mesh = (1, 1, 1)
    c.mine.negatives, c.mine.k = 3, 3
    c.train.epochs, c.train.batch, c.train.save_every, c.train.learning_rate = 1, 8, 2, 1e-3
    c.paths.hops = 2
    c.evaluate.questions = 8
    c.evaluate.bootstrap, c.evaluate.randomisation = 50, 100
    return c


def call(world: Path, workdir: Path, verb: str = "run", *flags: str, **options):
    """Runs a verb of the command line."""
    path = world / "config.py"
    path.write_text(CONFIG.format(tests=str(REPOSITORY / "tests"), world=str(world)))
    words = [sys.executable, "-m", "ark_jax", verb, f"--config={path}", f"--workdir={workdir}"]
    return subprocess.run(
        [*words, *flags],
        cwd=world,
        env=environment(world) | {"PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        encoding="utf-8",
        check=False,
        **options,
    )
