"""The mine stage: which paths of the training questions are learned, and against which others."""

import collections
import functools
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from ark_jax.graph.relation_paths import GoldPath
from ark_jax.graph.steps import END_TEXT, Steps
from ark_jax.pipeline import own_functions
from ark_jax.pipeline.stage import Context
from ark_jax.pipeline.tables import load_rows, save_rows
from ark_jax.recipes.common import own_miner
from ark_jax.recipes.common.models import encode, load_base_scorer
from ark_jax.recipes.star.data import PathQuestion, load_questions, load_steps
from ark_jax.recipes.star.lists import (
    CANDIDATES,
    KINDS,
    ListMaker,
    ListRules,
    PathList,
    hard_positives,
    text_of,
    with_counts,
    with_negatives,
    with_order,
)
from ark_jax.recipes.star.paths import load_paths
from ark_jax.runtime import distributed

LISTS_FILE = "lists.parquet"
NEAREST = 1000  # steps that are kept as near ones of each step


def mine_lists(context: Context, folder: Path) -> dict:
    """Stores the lists that are trained on.

    Raises:
        ValueError: no list has a negative.
    """
    config, steps = context.config, load_steps(context)
    questions, gold = load_questions(context, "train"), load_paths(context, "train")
    rules = ListRules(
        config.mine.negatives,
        config.mine.pool,
        config.mine.choose,
        CANDIDATES,
        config.mine.spare,
        config.paths.hops,
        config.seed,
    )
    positives = _positives(context, questions, gold, steps)
    maker = ListMaker(steps, _near(context, steps), rules)
    lists = [
        path_list
        for question in questions
        if question.id in gold
        for path_list in maker.lists_of(
            question.id, positives[question.id], gold[question.id], question.answer_nodes
        )
    ]
    if not lists:
        raise ValueError(
            "no step of a training path has a wrong one beside it, so there is nothing to learn: "
            "the graph has too few relations, or config.mine.spare spares them all"
        )
    lists = with_counts(_ordered(context, lists, questions, steps, rules))
    save_rows(lists, folder / LISTS_FILE, PathList)
    kinds = collections.Counter(kind for path_list in lists for kind in path_list.kinds)
    with_list = {path_list.question for path_list in lists}
    return {
        "lists": len(lists),
        "positive_paths": sum(map(len, positives.values())),
        "other_shortest_paths": sum(len(gold[id]) - len(positives[id]) for id in positives),
        **{f"negatives_{kind}": kinds[kind] for kind in KINDS},
        **{name: maker.left_out[name] for name in ("spared", "of_other_gold_paths")},
        "lists_without_negative": maker.left_out["lists_without_negative"],
        "questions_without_list": sum(question.id not in with_list for question in questions),
    }


def _positives(
    context: Context,
    questions: Sequence[PathQuestion],
    gold: Mapping[str, list[GoldPath]],
    steps: Steps,
) -> dict[str, list[GoldPath]]:
    """The paths of each question that are learned."""
    answerable = [question for question in questions if question.id in gold]
    if context.config.mine.positives == "all":
        return {question.id: gold[question.id] for question in answerable}
    similarities = _similarities(
        context,
        [
            (question.question, text_of(steps, path.topic, path.steps))
            for question in answerable
            for path in gold[question.id]
        ],
        "positive paths",
    )
    ends = np.cumsum([len(gold[question.id]) for question in answerable])[:-1]
    return {
        question.id: [
            path
            for path, learned in zip(gold[question.id], hard_positives(values), strict=True)
            if learned
        ]
        for question, values in zip(answerable, np.split(similarities, ends), strict=True)
    }


def _near(context: Context, steps: Steps) -> np.ndarray:
    """The steps nearest to each one, and to END, by the cosine of their texts; see `ListMaker`."""
    if context.config.mine.choose == "random":
        return np.zeros((len(steps) + 1, 0), np.int64)
    vectors = encode(context, "base", [*steps.names, END_TEXT], "document")
    near = []
    for number, vector in enumerate(vectors):
        order = np.argsort(-(vectors[:-1] @ vector), kind="stable")
        near.append(order[order != number][:NEAREST])
    width = min(map(len, near))
    return np.array([row[:width] for row in near])


def _ordered(
    context: Context,
    lists: Sequence[PathList],
    questions: Sequence[PathQuestion],
    steps: Steps,
    rules: ListRules,
) -> list[PathList]:
    """The lists with the negatives that are kept, in the order of their use.

    Where the scorer chooses among them later, all are kept.
    """
    by = context.config.mine.by
    limit = 0 if by == "previous" else rules.negatives
    if rules.choose == "random":
        return [
            with_order(path_list, [0.0] * len(path_list.negatives), rules, limit)
            for path_list in lists
        ]
    texts = {question.id: question.question for question in questions}
    if own_functions.is_own(by):
        return _chosen(context, lists, texts, steps, limit)
    scores = _similarities(
        context,
        [
            (texts[path_list.question], text_of(steps, path_list.topic, path))
            for path_list in lists
            for path in path_list.candidates[1:]
        ],
        "negative paths",
    )
    ends = np.cumsum([len(path_list.negatives) for path_list in lists])[:-1]
    return [
        with_order(path_list, values.tolist(), rules, limit)
        for path_list, values in zip(lists, np.split(scores, ends), strict=True)
    ]


def _chosen(
    context: Context,
    lists: Sequence[PathList],
    questions: Mapping[str, str],
    steps: Steps,
    limit: int,
) -> list[PathList]:
    """The lists with the negatives that a function of the user's own chooses, and with END."""
    from ark_jax.retrieval.mining import MiningTask

    starts = list(itertools.accumulate((len(one.negatives) for one in lists), initial=0))
    texts = [text_of(steps, one.topic, path) for one in lists for path in one.candidates[1:]]
    asked = encode(context, "base", list(questions.values()), "query", "questions")
    vectors = dict(zip(questions, asked, strict=True))
    task = MiningTask(
        questions={str(i): questions[one.question] for i, one in enumerate(lists)},
        pools={str(i): range(*bounds) for i, bounds in enumerate(itertools.pairwise(starts))},
        texts=texts,
        query_vectors={str(i): vectors[one.question] for i, one in enumerate(lists)},
        chunk_vectors=encode(context, "base", texts, "document", "negative paths"),
        top=limit,
    )
    mine = functools.partial(own_miner.mine, "mine.by", context.config.mine.by, task)
    mined = distributed.on_first_process(mine).values()
    chosen = []
    for one, start, indices in zip(lists, starts[:-1], mined, strict=True):
        end_places = [place for place, kind in enumerate(one.kinds) if kind == "end"]
        places = dict.fromkeys([*end_places, *(index - start for index in indices)])
        chosen.append(with_negatives(one, list(places)[:limit]))
    return [one for one in chosen if one.negatives]


def _similarities(context: Context, pairs: Sequence[tuple[str, str]], label: str) -> np.ndarray:
    """The cosines of questions and paths by the retriever before training."""
    scorer = load_base_scorer(context)
    budget = context.config.retriever.batch_tokens
    return scorer.score(pairs, batch_tokens=budget, label=label) / scorer.cfg.scale


def load_lists(context: Context) -> list[PathList]:
    """The lists that are trained on."""
    return load_rows(context / "mine" / LISTS_FILE, PathList)
