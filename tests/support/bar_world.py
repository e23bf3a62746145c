"""Small runs of BAR-RAG: bells of two metals, a tiny retriever, a tiny generator."""

import functools
import itertools
import json
from pathlib import Path

from support import gpr_world, tiny

from ark_jax.pipeline.stage import Context
from ark_jax.recipes.bar_rag import config
from ark_jax.runtime.log import Metrics

call = functools.partial(gpr_world.call, module="bar_world")
call_here = functools.partial(gpr_world.call_here, module="bar_world")
start = functools.partial(gpr_world.start, module="bar_world")

PLACES = ("Arl", "Brod", "Cray", "Dunn", "Esk", "Fell", "Garth", "Holm", "Inch", "Jarr")
METALS = ("tin", "iron")
HELD_OUT = PLACES[-2:]


def metal(place: int) -> str:
    return METALS[place * 7 // 3 % 2]


def make_world(root: Path) -> Path:
    """A folder with a corpus and two models. A reader can learn there that a bell is of one of two
    metals, so that some of its answers are right and others wrong."""
    corpus = root / "corpus"
    corpus.mkdir()
    documents = [
        {"id": place, "title": "", "text": f"The bell of {place} is of {metal(i)}."}
        for i, place in enumerate(PLACES)
    ]
    questions = [
        {
            "id": f"{place}-{form}",
            "question": f"{start} the bell of {place}?",
            "answers": [metal(i)],
            "documents": [place],
        }
        for (i, place), (form, start) in itertools.product(
            enumerate(PLACES), enumerate(("Of what is", "What metal is"))
        )
    ]
    for name, rows in (("documents", documents), ("questions", questions)):
        (corpus / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    retriever = tiny.write(root / "retriever", "bert", tokenizer="cls")
    tiny.sentence_transformer(retriever, pooling="mean")
    tiny.write(root / "generator", "llama", tokenizer="plain")
    (root / "select.txt").write_text("{passages}\n{question} Pick {count}:")
    return root


def tiny_config(world: Path):
    c = config.bar_rag()
    c.data.path, c.data.held_out_documents = str(world / "corpus"), HELD_OUT
    c.data.pool, c.data.chunk_overlap = "corpus", 0
    c.retriever.path, c.generator.path = str(world / "retriever"), str(world / "generator")
    c.mesh = (1, 1, 1)
    c.pool.size = 4
    c.warm.steps, c.warm.batch, c.warm.learning_rate = 12, 4, 1e-2
    c.filter.sets, c.filter.low, c.filter.variance = 4, 1e-4, 0.0
    c.select.steps, c.select.questions, c.select.sets, c.select.spread = 3, 4, 3, 0.0
    c.read.steps, c.read.prompts, c.read.samples, c.read.max_new_tokens = 3, 4, 6, 3
    c.read.learning_rate = 1e-3
    c.train.save_every = 2
    c.evaluate.sizes = (1, 3)
    c.evaluate.max_new_tokens = 3
    c.evaluate.sizes = (1, 3)
    return c


def context_of(world: Path, workdir: Path, **changes) -> Context:
    c = tiny_config(world)
    c.update_from_flattened_dict(changes)
    return Context(c, workdir, Metrics(workdir / "metrics.jsonl"))
