"""A three-document corpus, tiny random models and the command line: what tests of the whole
pipeline run on."""

import json
import os
import subprocess
import sys
from pathlib import Path

from support import command_line, tiny
from support.paths import REPOSITORY

from ark_jax.pipeline import engine
from ark_jax.recipes.ark import config
from ark_jax.recipes.ark.recipe import stages
from ark_jax.recipes.core import models
from ark_jax.runtime.log import Metrics

EMBEDDED = REPOSITORY / "ark_jax" / "demo"
TRAINING, HELD_OUT = ("tidal-board", "great-surge"), ("salt-company",)


def make_world(root: Path, dtype: str = "float32") -> Path:
    """A folder with a three-document corpus and tiny random models; the retriever, whose checkpoint
    has this type, cuts all
    chunks but a document's last."""
    corpus = root / "corpus"
    corpus.mkdir()
    documents = [
        json.loads(line) for line in (EMBEDDED / "documents.jsonl").read_text().splitlines()
    ]
    questions = [
        json.loads(line) for line in (EMBEDDED / "questions.jsonl").read_text().splitlines()
    ]
    wanted = [d for d in documents if d["id"] in (*TRAINING, *HELD_OUT)]
    wanted = [{**d, "text": d["text"][:3900]} for d in wanted]
    texts = {d["id"]: d["text"] for d in wanted}
    asked = [
        q
        for q in questions
        if q["documents"][0] in texts and all(e in texts[q["documents"][0]] for e in q["evidence"])
    ]
    for name, rows in (("documents", wanted), ("questions", asked)):
        (corpus / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    retriever = tiny.write(root / "retriever", "bert", tokenizer="cls", dtype=dtype)
    tiny.sentence_transformer(retriever, pooling="mean", max_seq_length=64)
    tiny.write(
        root / "generator", "llama", tokenizer="plain", changes={"max_position_embeddings": 2048}
    )
    return root


def tiny_config(world: Path):
    c = config.ark()
    c.data.path, c.data.held_out_documents = str(world / "corpus"), HELD_OUT
    c.data.chunking, c.data.chunk_tokens, c.data.chunk_overlap = "tokens", 80, 8
    c.retriever.path, c.generator.path = str(world / "retriever"), str(world / "generator")
    c.mesh, c.mine.by = (1, 1, 1), "rewritten"
    c.score.candidates, c.score.positives, c.score.shard, c.mine.top, c.mine.negatives = (
        3,
        2,
        2,
        3,
        4,
    )
    c.train.stages = (1, 2, 3)
    c.train.batch, c.train.epochs, c.train.save_every = 4, (2, 1, 1), 1
    c.evaluate.passages, c.evaluate.max_new_tokens = 1, 4
    c.evaluate.baselines, c.evaluate.hybrids = (), ()
    models.suit_device(c)  # as the command line does
    return c


# A config file for the command line, since tests of kills need a process of their own.
CONFIG = """
import sys
sys.path[:0] = [{tests!r}]
from pathlib import Path
from support import world
def get_config():
    return world.tiny_config(Path({world!r}))
"""


def environment(world: Path) -> dict[str, str]:
    """A cache of its own."""
    return {**os.environ, "ARK_CACHE": str(world / "cache")}


def command(world: Path, workdir: Path, verb: str = "run", *flags: str) -> list[str]:
    path = world / "config.py"
    path.write_text(CONFIG.format(tests=str(REPOSITORY / "tests"), world=str(world)))
    return [
        sys.executable,
        "-m",
        "ark_jax",
        verb,
        f"--config={path}",
        f"--workdir={workdir}",
        *flags,
    ]


def call(
    world: Path, workdir: Path, verb: str = "run", *flags: str, **variables: str
) -> subprocess.CompletedProcess:
    # A relative path, as most users write it.
    workdir = Path(os.path.relpath(workdir, REPOSITORY))
    return subprocess.run(
        command(world, workdir, verb, *flags),
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
        env=environment(world) | variables,
        timeout=600,
    )


def call_here(
    world: Path, workdir: Path, verb: str = "run", *flags: str
) -> subprocess.CompletedProcess:
    """The same in the test's own process."""
    workdir = Path(os.path.relpath(workdir, REPOSITORY))
    words = command(world, workdir, verb, *flags)[3:]
    return command_line.call_here(words, REPOSITORY, environment(world))


def outputs(workdir: Path) -> dict:
    """What every stage produced: name -> file -> (size, sha256)."""
    files = {
        path.parent.name: json.loads(path.read_text())["outputs"]
        for path in workdir.glob("*/manifest.json")
    }
    # The report shows how long each stage took, which no two runs share.
    files.pop("report", None)
    return files


def stage_by_stage(world: Path, workdir: Path) -> None:
    c = tiny_config(world)
    for stage in stages(c):
        engine.run(
            stages(c),
            engine.Context(c, workdir, Metrics(workdir / "metrics.jsonl")),
            only=stage.name,
        )
