"""Answers from retrieved triples, by the reader."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from ark_jax.graph.triples import Triples
from ark_jax.pipeline.stage import Context
from ark_jax.recipes.common.fact_reader import Scores, read_facts
from ark_jax.recipes.common.graph_data import texts_of
from ark_jax.recipes.gpr.data import TestQuestion


def read_triples(
    context: Context,
    graph: Triples,
    rankings: Mapping[str, Mapping[str, Sequence[int]]],
    questions: Sequence[TestQuestion],
    folder: Path,
) -> tuple[Scores, dict]:
    """What `read_facts` returns of the first `evaluate.triples` of each system."""
    config = context.config

    def first_triples(system: str, question: TestQuestion) -> list[str]:
        first = rankings[system][question.id][: config.evaluate.triples]
        return texts_of(graph, config, np.asarray(first, np.int64))

    return read_facts(context, list(rankings), questions, first_triples, folder)
