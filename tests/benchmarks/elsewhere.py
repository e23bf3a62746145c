"""Retrievers on data they were not tuned on.

    python tests/benchmarks/elsewhere.py STUDY MODEL ...

STUDY is musique or fairytale, with variants behind a colon (fairytale:chunks=512). A MODEL is a
folder, say DIR/runs/base/stage3/model of a study's sweep, or a name on the hub. MuSiQue asks 99 of
its 100 questions over 1,890 passages. FairytaleQA asks the 1,025 questions of its `val` split over
23 stories. Each model is compared with MiniLM as in the studies: bootstrap intervals and paired
tests with Holm's correction.
"""

import runpy
import sys
import tempfile
from pathlib import Path

from ark_jax.pipeline.engine import Context, Stage, run
from ark_jax.recipes.ark import graph
from ark_jax.recipes.common import evaluate, systems
from ark_jax.runtime.log import Metrics

CONFIGS = Path(__file__).parent.parent.parent / "configs"


def measure(study: str, words: str, models: list[str]) -> None:
    """Prints a study's table for `models`, each under its path's last name.

    `words` are the variants of the study's config.
    """
    module = runpy.run_path(str(CONFIGS / f"{study}.py"))
    c = module["get_config"](words)
    c.evaluate.retrievers, c.evaluate.baselines, c.evaluate.read, c.train.stages = models, (), 0, ()
    if study == "musique":
        c.data.held_out_questions = module["QUESTIONS"][
            1:
        ]  # one must be left to train on, though nothing is
    with tempfile.TemporaryDirectory() as folder:
        context = Context(c, Path(folder), Metrics(Path(folder) / "metrics.jsonl"))
        run(
            [
                Stage("data", (), (), graph.data),
                Stage("baselines", ("data",), (), systems.baselines),
                Stage("evaluate", ("data", "baselines"), (), evaluate.evaluate),
            ],
            context,
        )


if __name__ == "__main__":
    measure(*sys.argv[1].partition(":")[::2], sys.argv[2:])
