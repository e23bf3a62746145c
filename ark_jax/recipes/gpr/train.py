"""The train stage: two towers, or one, on questions about masked triples."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ark_jax.graph.levels import are_siblings
from ark_jax.graph.triples import Triples
from ark_jax.pipeline import own_functions
from ark_jax.pipeline.parts import stored_rows
from ark_jax.pipeline.stage import Context
from ark_jax.pipeline.tables import read_table
from ark_jax.recipes.core import models, own_parts
from ark_jax.recipes.gpr.config import TrainSection
from ark_jax.recipes.graphs import load_graph, texts_of
from ark_jax.runtime import distributed
from ark_jax.schema import section_of

if TYPE_CHECKING:  # its module starts jax
    from ark_jax.train.triplet import MaskedQuestions

MINED = "mined.parquet"
CANDIDATES = 100  # triples of a question that are used; a function's further ones are ignored


def train_towers(context: Context, folder: Path) -> dict:
    """Trains the retriever to rank triples by their relevance to a question."""
    from ark_jax.models.towers import DualEncoder
    from ark_jax.train import losses, triplet

    config, graph = context.config, load_graph(context)
    questions = _masked_questions(context)
    mined = []
    if own_functions.is_own(config.train.negatives):
        stored = stored_rows(folder / MINED, lambda: _mine_by_own(context, graph, questions))
        mined = [row["rows"] for row in stored]
    base = models.load_retriever(context)
    # Two towers start alike, but they are two objects: each is trained by itself.
    towers = DualEncoder(base, base if config.train.towers == "one" else dataclasses.replace(base))
    tuned, _, curve = triplet.train(
        towers,
        graph,
        questions,
        lambda rows: texts_of(graph, config, rows),
        section_of(config.train, TrainSection),
        models.training_run(context.metrics, folder, "train"),
        epochs=config.train.epochs,
        learning_rate=config.train.learning_rate,
        seed=config.seed,
        loss=own_parts.load_loss(config) or losses.info_nce,
        mined=mined,
    )
    tuned.save_pretrained(folder / "model", dtype=models.MASTER)
    return {"steps": len(curve), **models.first_and_last_loss(curve)}


def _mine_by_own(context: Context, graph: Triples, questions: "MaskedQuestions") -> list[dict]:
    """{"rows": negatives} of each question, found by a function of the user's own.

    Rows that answer the question are left out.
    """
    from ark_jax.retrieval.mining import MiningTask

    named, numbers = context.config.train.negatives, range(len(questions))
    texts = texts_of(graph, context.config)
    queries = models.encode(context, "base", questions.texts, "query", "questions")
    task = MiningTask(
        questions={str(i): questions.texts[i] for i in numbers},
        pools=dict.fromkeys(map(str, numbers), range(len(graph))),
        texts=texts,
        query_vectors={str(i): queries[i] for i in numbers},
        chunk_vectors=models.encode(context, "base", texts, "document", "triples"),
        top=CANDIDATES,
    )
    found = distributed.on_first_process(
        lambda: own_parts.mine_by_own("train.negatives", named, task)
    ).values()
    mined = []
    for row, asks_tail, rows in zip(questions.rows, questions.asks_tail, found, strict=True):
        rows = np.array(rows, np.int64)
        mined.append({"rows": rows[~are_siblings(graph, row, asks_tail, rows)].tolist()})
    if not any(listed["rows"] for listed in mined):
        raise ValueError(
            f"config.train.negatives={named!r} found no triple for any question but those that "
            "answer it"
        )
    return mined


def _masked_questions(context: Context) -> "MaskedQuestions":
    from ark_jax.train.triplet import MaskedQuestions

    table = read_table(context / "questions" / "questions.parquet", ["row", "side", "text"])
    rows = table["row"].to_numpy().astype(np.int64)
    sides = np.array(table["side"].to_pylist(), object)
    return MaskedQuestions(table["text"].to_pylist(), rows, sides == "tail")


def load_tuned(context: Context):
    """The trained towers."""
    from ark_jax.models.towers import DualEncoder

    return models.load_trained(context, DualEncoder)
