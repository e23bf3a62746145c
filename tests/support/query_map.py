"""A fifth method: a square map of query vectors, learned over a frozen retriever.

It has what the four have (config, stages, training that resumes, a search, a report), in one file
beside its maths.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from support.query_map_loss import QueryMapLoss, apply_map

from ark_jax import schema
from ark_jax.pipeline.recipe import Recipe
from ark_jax.pipeline.stage import Stage
from ark_jax.pipeline.tables import load_json, save_json
from ark_jax.recipes.core.models import encode, first_and_last_loss, training_run
from ark_jax.recipes.core.report import with_report
from ark_jax.recipes.core.settings import Core, InputSection
from ark_jax.recipes.documents import ingest
from ark_jax.recipes.documents.corpus import (
    Passages,
    evidence_chunks,
    load_questions,
    passages_of,
    stored_chunks,
    views_of,
)
from ark_jax.retrieval.searcher import Dense
from ark_jax.schema import field
from ark_jax.train import fit
from ark_jax.train.config import UpdateConfig

DATA = InputSection()


@dataclasses.dataclass(frozen=True)
class TrainSection(UpdateConfig):
    """Training of the map."""

    save_every: int = 5
    steps: int = field(20, "Steps.", unit="steps", minimum=1)
    learning_rate: float = field(1e-2, "Peak learning rate.", minimum=0)
    temperature: float = field(0.05, "Divisor of cosines.", above=0)


@dataclasses.dataclass(frozen=True)
class QueryMap(Core):
    """A run of the method."""

    recipe: str = field("support.query_map", "This module.")
    data: InputSection = DATA
    train: TrainSection = TrainSection()
    k: int = field(5, "Chunks that count as found.", unit="chunks", minimum=1)


def embed(context, folder):
    """Vectors of the training questions, and of the first passage of their evidence."""
    chunks, questions = stored_chunks(context), load_questions(context, "train")
    marked = evidence_chunks(context, questions, chunks.by_document)
    pairs = [(q, marked[q.id][0][0]) for q in questions if marked[q.id]]
    passages = Passages(chunks)
    texts = {
        "query": [question.question for question, _ in pairs],
        "document": [passages[chunk] for _, chunk in pairs],
    }
    for kind, of_kind in texts.items():
        np.save(folder / f"{kind}.npy", encode(context, "base", of_kind, kind, kind))
    return {"pairs": len(pairs)}


def train(context, folder):
    """Trains the map from the identity; stores it as `map.npy`."""
    context.enter_mesh()
    settings, vectors = context.config.train, {}
    for kind, name in (("query", "queries"), ("document", "passages")):
        vectors[name] = jnp.asarray(np.load(context / "embed" / f"{kind}.npy"))
    batch = fit.TrainingBatch(vectors, {"pairs": ["all"]}, tokens=0, flops=0.0)
    trained = fit.train(
        QueryMapLoss(settings.temperature),
        lambda step, matrix: batch,
        schema.section_of(settings, TrainSection),
        training_run(context.metrics, folder, "train"),
        jnp.eye(vectors["queries"].shape[1]),
        steps=settings.steps,
        learning_rate=settings.learning_rate,
    )
    np.save(folder / "map.npy", np.asarray(trained.model))
    return {"steps": len(trained.curve), **first_and_last_loss(trained.curve)}


def evaluate(context, folder):
    """Recall of marked passages in the whole corpus, with and without the map."""
    chunks, questions = stored_chunks(context), load_questions(context, "held_out")
    marked = evidence_chunks(context, questions, chunks.by_document)
    searched = views_of(chunks)
    vectors = encode(context, "base", passages_of(searched), "document", "chunks")
    matrix = np.load(context / "train" / "map.npy")

    def recall(change) -> float:
        embed_queries = lambda texts: change(encode(context, "base", texts, "query", "questions"))
        searcher = Dense(vectors, embed_queries)
        found = searcher.search([question.question for question in questions], context.config.k)
        hits = [
            any(searched[i].id in passage for i in ranking.ids for passage in marked[question.id])
            for question, ranking in zip(questions, found, strict=True)
        ]
        return float(np.mean(hits))

    mapped = lambda queries: np.asarray(jax.jit(apply_map)(matrix, queries))
    save_json({"base": recall(lambda x: x), "mapped": recall(mapped)}, folder / "recall.json")
    return {"recall": load_json(folder / "recall.json")["mapped"]}


def stages(config):
    schema.check(config, QueryMap)
    return with_report(
        [
            Stage("data", ingest.ingest, alone=True),
            Stage("embed", embed),
            Stage("train", train),
            Stage("evaluate", evaluate),
        ],
        title="Query map",
    )


def get_config(words=""):
    return schema.to_config_dict(QueryMap)


RECIPE = Recipe(
    "query_map",
    stages,
    schema=QueryMap,
    look=ingest.describe_input,
    metrics={"recall": "recall"},
    headline="recall",
)
