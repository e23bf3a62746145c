"""Retrievers on data they were not tuned on: `python tests/benchmarks/elsewhere.py STUDY MODEL ...`.

STUDY is musique or fairytale, with variants behind a colon (fairytale:chunks=512). A MODEL is a folder, say
DIR/runs/base/stage3/model of a study's sweep, or a name on the hub. They are asked all of MuSiQue's hundred questions but one,
over the 1,890 passages, or the 1,025 questions of FairytaleQA's `val`, over its 23 stories, and compared with MiniLM as the
studies compare: intervals by bootstrap, paired tests, Holm-corrected.
"""

import runpy
import sys
import tempfile
from pathlib import Path

from ark_jax.log import Metrics
from ark_jax.pipeline import Context, Stage, run
from ark_jax.stages import graph, outcome, systems

CONFIGS = Path(__file__).parent.parent.parent / "configs"


def measure(study: str, words: str, models: list[str]) -> None:
    """Prints a study's table for `models`, each under its path's last name; `words` are the config's variants."""
    module = runpy.run_path(str(CONFIGS / f"{study}.py"))
    c = module["get_config"](words)
    c.evaluate.retrievers, c.evaluate.baselines, c.evaluate.read, c.train.stages = models, (), 0, ()
    if study == "musique":
        c.data.held_out_questions = module["QUESTIONS"][1:]  # one must be left to train on, though nothing is
    with tempfile.TemporaryDirectory() as folder:
        context = Context(c, Path(folder), Metrics(Path(folder) / "metrics.jsonl"))
        run([Stage("data", (), (), graph.data), Stage("baselines", ("data",), (), systems.baselines),
             Stage("evaluate", ("data", "baselines"), (), outcome.evaluate)], context)


if __name__ == "__main__":
    measure(*sys.argv[1].partition(":")[::2], sys.argv[2:])
