"""Small runs of GPR: the demo's graph and questions, a tiny retriever."""

import subprocess
import sys
from pathlib import Path

from support import command_line, tiny
from support.paths import REPOSITORY
from support.world import environment

import ark_jax.demo
from ark_jax.recipes.gpr import config

DEMO = Path(ark_jax.demo.__file__).parent / "gpr"

# A config file for the command line, since tests of kills need a process of their own.
CONFIG = """
import sys
sys.path[:0] = [{tests!r}]
from pathlib import Path
from support import {module}
def get_config():
    return {module}.tiny_config(Path({world!r}))
"""


def make_world(folder: Path) -> Path:
    """A folder with a tiny retriever and generator."""
    path = tiny.write(folder / "retriever", "bert", tokenizer="cls")
    tiny.sentence_transformer(path, pooling="mean")
    tiny.write(folder / "generator", "llama", tokenizer="cls")
    return folder


def tiny_config(world: Path):
    """A run of a few steps over the demo's graph."""
    c = config.gpr()
    c.data.path, c.data.names = str(DEMO / "graph.tsv"), str(DEMO / "names.tsv")
    c.data.questions = str(DEMO / "questions.jsonl")
    c.retriever.path, c.generator.path = str(world / "retriever"), str(world / "generator")
    c.mesh = (1, 1, 1)
    c.questions.triples = 40
    c.train.batch, c.train.save_every, c.train.learning_rate = 16, 5, 1e-3
    return c


def call(
    world: Path, workdir: Path, verb: str = "run", *flags: str, module: str = "gpr_world", **options
):
    """Runs a verb of the command line with the config of a module of `support`."""
    return subprocess.run(
        command(world, workdir, verb, *flags, module=module),
        **process_options(world),
        capture_output=True,
        encoding="utf-8",
        check=False,
        **options,
    )


def call_here(
    world: Path, workdir: Path, verb: str = "run", *flags: str, module: str = "gpr_world"
) -> subprocess.CompletedProcess:
    """The same in the test's own process."""
    words = command(world, workdir, verb, *flags, module=module)[3:]
    return command_line.call_here(words, world, environment(world))


def start(world: Path, workdir: Path, *flags: str, module: str = "gpr_world") -> subprocess.Popen:
    """Starts a run of the command line, which says nothing."""
    return subprocess.Popen(
        command(world, workdir, "run", *flags, module=module),
        **process_options(world),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def command(world: Path, workdir: Path, verb: str, *flags: str, module: str) -> list[str]:
    path = world / "config.py"
    tests = str(REPOSITORY / "tests")
    path.write_text(CONFIG.format(tests=tests, module=module, world=str(world)))
    words = [sys.executable, "-m", "ark_jax", verb, f"--config={path}", f"--workdir={workdir}"]
    return [*words, *flags]


def process_options(world: Path) -> dict:
    """Where a process runs, and its environment."""
    return {"cwd": world, "env": environment(world) | {"PYTHONPATH": str(REPOSITORY)}}
