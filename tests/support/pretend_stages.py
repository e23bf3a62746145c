"""A recipe with ARK's stages, over functions that only pretend to work, and read what ARK's do.

It is for tests of what is run when.
"""

import dataclasses
import functools
import json
import os
import signal
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ark_jax.llm import complete
from ark_jax.pipeline.fingerprints import fingerprint
from ark_jax.pipeline.reads import element
from ark_jax.pipeline.stage import Context, Stage
from ark_jax.pipeline.tables import save_json
from ark_jax.recipes.ark import config
from ark_jax.recipes.ark.curriculum import MINING_SIZES, epochs
from ark_jax.recipes.ark.recipe import RECIPE as ARK
from ark_jax.recipes.core import models
from ark_jax.recipes.core.ask import ask
from ark_jax.schema import setting

BASE = 0.05  # the temperature of the base
# Stage, without its number -> stages that it reads, sections and fields that it reads.
READS = {
    "data": ((), ("data.path", "data.held_out", "data.fold", "seed")),
    "candidates": (("data",), ("data.candidates", "retriever.path")),
    "extract": (("data", "candidates"), ("graph.gleanings",)),
    "graph": (("extract",), ("graph.similarity",)),
    "communities": (("data", "candidates", "graph"), ("graph.teleport", "graph.large")),
    "rewrite": (("data", "graph", "communities"), ("graph.rewrites",)),
    "score": (("data", "candidates"), ("score.candidates", "generator.path")),
    "positives": (("data", "score"), ("score.forward", "score.backward", "score.keep")),
    "mine": (("data", "rewrite", "positives"), ("mine.by", "mine.margin", "mine.negatives")),
    "stage": (("data", "positives"), ("train.temperature", "train.batch", "train.clip", "seed")),
    "baselines": (("data",), ("evaluate.scope", "evaluate.baselines")),
    "evaluate": (("data", "baselines"), ("train.stages", "evaluate.metrics", "seed")),
    "choice": (("data", "evaluate"), ("seed",)),
    "export": (("evaluate", "choice"), ()),
    "report": (("evaluate", "export"), ()),
}


def pretending(world: str):
    """A config whose stages only write down what they were given."""
    c = config.ark()
    c.recipe = __name__
    c.data.path = str(Path(world) / "corpus.jsonl")
    c.retriever.path, c.generator.path = "somebody/retriever", "somebody/generator"
    c.mine.by, c.train.stages = "rewritten", (1, 2, 3)  # all stages
    models.suit_device(c)  # as the command line does
    return c


def pretend_stages(c) -> list[Stage]:
    """ARK's stages; `c.data.path` lies in the folder where they leave their traces."""
    world = Path(c.data.path).parent
    return [dataclasses.replace(stage, run=pretended(stage, world)) for stage in ARK.stages(c)]


def pretended(stage: Stage, world: Path):
    """The function that stands in for that of a stage, with the same arguments."""

    def run(context: Context, folder: Path, **given) -> dict:
        return pretend(context, folder, world=world, stage=stage)

    return functools.partial(run, **stage.arguments)


def read(context: Context, stage: Stage) -> tuple[dict, dict]:
    """What a stage reads of earlier stages and of the config."""
    names, settings = READS[stage.name.rstrip("0123456789")]
    number, before = stage.arguments.get("stage"), stage.arguments.get("before", "base")
    c = context.config
    if number is not None and before != "base":
        names = (*names, before)
    if stage.name.startswith("stage"):
        names += (f"mine{number}",) if number in MINING_SIZES else ()
    if stage.name == "evaluate":
        names += tuple(f"stage{n}" for n in c.train.stages)
    inputs = {name: (context / name / "out.json").read_text() for name in names}
    values = {field: setting(c, field) for field in settings}
    if stage.name.startswith("stage"):
        values |= {"epochs": epochs(c.train, number)}
        values |= {"rate": element(c.train, "learning_rates", max(number - 1, 0))}
    return inputs, values


def pretend(context: Context, folder: Path, *, world: Path, stage: Stage) -> dict:
    """Writes down what a stage was given, and fails or waits where a test asks for it."""
    c = context.config
    devices = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    witness = [stage.name, context.workdir.name, os.getpid(), devices]
    if stage.name in ("extract", "rewrite") and c.llm.backend != "none":
        items = [f"{stage.name}/{i}" for i in range(5)]
        calls = [complete.Call(item, "extract", (item.replace("/", " "),)) for item in items]
        ask(context, calls, stage.name, lambda call, texts, cut: None)
    if stage.name == "score":
        witness[0] += " resumed" * (folder / "shard").is_file()
        (folder / "shard").touch()
    with (world / "witness").open("a") as file:
        file.write(json.dumps(witness) + "\n")
    if stage.name == "score" and (world / "hold").is_file():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # as one that is deep in a library
        time.sleep(600)
    if stage.name == "stage2" and c.train.clip == 666:
        raise FloatingPointError("stage 2: step 3 gave loss nan")
    if stage.name == "stage1" and c.train.clip == 143:
        print("stopped: run the same command again to go on", flush=True)
        os._exit(0)
    inputs, values = read(context, stage)
    (folder / "deep").mkdir(exist_ok=True)
    (folder / "deep" / "file").write_text(stage.name)
    save_json([fingerprint(inputs), values], folder / "out.json")
    if stage.name == "evaluate":
        evaluate(c, folder)
    if stage.name == "report":
        (context.workdir / "report.html").write_text("a page")
    return {"files": 2}


# There is no passage that a system found, so nothing to show at the end.
RECIPE = dataclasses.replace(ARK, name="pretend", stages=pretend_stages, ending=lambda context: [])


def gain(c) -> np.ndarray:
    """nDCG of eight questions over that of the base."""
    moved = {0.02: 0.1, BASE: 0.0, 0.1: -0.1}[c.train.temperature]
    return moved + np.arange(8) / 100 * (moved != 0) - 0.3 * (1 - c.score.forward)


def evaluate(c, folder: Path) -> None:
    """Metrics of the untuned retriever and three stages; the last alone depends on the config."""
    values = {name: np.linspace(0.3, 0.5, 8) for name in ("base", "stage1", "stage2")}
    values["stage3"] = np.linspace(0.4, 0.6, 8) + gain(c)
    metrics = {"recall@5": 0.1, "recall@10": 0.2, "ndcg@10": 0.0, "mrr": -0.1, "answer_f1": -0.2}
    rows = [
        {"system": name, "question": f"q{i}", **{m: each[i] + more for m, more in metrics.items()}}
        for name, each in values.items()
        for i in range(8)
    ]
    pq.write_table(pa.Table.from_pylist(rows), folder / "questions.parquet")
    interval = lambda x: {"mean": float(x.mean()), "low": float(x.min()), "high": float(x.max())}
    save_json(
        {
            "table": [
                {
                    "system": name,
                    "values": {m: interval(each + more) for m, more in metrics.items()},
                }
                for name, each in values.items()
            ]
        },
        folder / "metrics.json",
    )
