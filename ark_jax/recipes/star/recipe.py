"""The recipe STAR: a scorer of question and path that walks a graph by beam search.

Relation paths from topics to answers, a list of the right step and wrong ones at each step, and a
search that ends where END scores highest.
"""

import functools
import itertools
import math
from collections.abc import Mapping, Sequence

import numpy as np

from ark_jax import schema
from ark_jax.estimate.work import Texts, Work, measure
from ark_jax.graph.beam import BeamRules, search
from ark_jax.graph.steps import END, END_TEXT, GoldPath, Steps
from ark_jax.pipeline.recipe import Forecast, Recipe
from ark_jax.pipeline.stage import Context, Stage
from ark_jax.recipes import graphs
from ark_jax.recipes.core import own_parts
from ark_jax.recipes.core.baselines import STAGE, stored_doubts
from ark_jax.recipes.core.checks import check_basics
from ark_jax.recipes.core.report import ending, retrieve_command, with_report
from ark_jax.recipes.core.tables import read_outcome
from ark_jax.recipes.graphs import LISTS
from ark_jax.recipes.star import data, evaluate, report
from ark_jax.recipes.star.config import Star
from ark_jax.recipes.star.data import HEADLINE, PathQuestion, load_paths, load_questions, load_steps
from ark_jax.recipes.star.mine import CANDIDATES, mine_lists
from ark_jax.recipes.star.search import BIASES, STANDARD, parse_metric
from ark_jax.recipes.star.train import train_scorer
from ark_jax.report.results import metric_heading
from ark_jax.text import prompts


def check_star(config) -> None:
    """Refuses a config on which some stage would fail, maybe hours from now."""
    schema.check(config, Star)
    check_basics(config)
    for name, path in config.prompts.items():
        prompts.load_template(name, path)
    for metric in config.evaluate.metrics:
        parse_metric(metric)
    low, high = config.train.weight_range
    if low > high:
        raise ValueError(
            f"config.train.weight_range={(low, high)}: the smallest weight is above the largest; "
            "swap them"
        )
    if config.data.held_out == 1:
        raise ValueError(
            "config.data.held_out=1 leaves no question to train on: set it lower, as 0.4"
        )


def check_all(config) -> None:
    """As `check_star`, and imports the functions of the user's own that the config names."""
    check_star(config)
    own_parts.check_miner("mine.by", config.mine.by)
    own_parts.check_reader(config)
    own_parts.load_loss(config, "ListLoss")


def stages(config) -> list[Stage]:
    """The stages of a config, in order."""
    check_star(config)
    working_stages = [
        Stage("data", data.ingest, alone=True),
        Stage("paths", data.find_paths, alone=True),
        Stage(STAGE, evaluate.measure_baselines, doubts=stored_doubts),
        Stage("mine", mine_lists),
        Stage("train", train_scorer),
        Stage("evaluate", evaluate.evaluate),
        Stage("export", evaluate.export_scorer, alone=True),
    ]
    return with_report(working_stages, title="STAR run", describe=report.describe)


def unused_sections(config) -> list[str]:
    """The config sections that a run ignores, `llm` among them: no model writes questions."""
    return ["llm", *graphs.unused_sections(config)]


SAMPLE = 50  # questions whose search is walked through without a model
TEXTS = 1000  # gold paths whose texts show how long they are


class _NeverEnding:
    """A scorer that draws scores and puts END last, so that a search takes all its hops."""

    def score(self, pairs: Sequence[tuple[str, str]]) -> np.ndarray:
        drawn = np.random.default_rng(0).random(len(pairs))
        return np.where([path.endswith(f", {END_TEXT}") for _, path in pairs], -1.0, drawn)


def forecast(context: Context, done: set[str]) -> Forecast:
    """The work of mining, training and searching, from the gold paths and a sample of searches."""
    config, steps = context.config, load_steps(context)
    train, test = (load_questions(context, part) for part in ("train", "test"))
    paths = load_paths(context, "train")
    lists, searched = _count_lists(paths), _count_pairs(test, steps, config)
    first = itertools.islice(itertools.chain.from_iterable(paths.values()), TEXTS)
    texts = [steps.text(path.topic, (*path.steps, END)) for path in first]
    path = measure(config.retriever.path, texts)
    question = measure(config.retriever.path, train, lambda x: x.question)
    # A cosine reads paths alone, since questions are few.
    joined = Texts(0, path.mean + question.mean, path.longest + question.longest)
    pair = path if config.train.head == "cosine" else joined
    in_list = 1 + config.mine.negatives
    chosen = 0
    if config.data.validation:
        validation = load_questions(context, "validation")
        chosen = config.train.epochs * _count_pairs(validation, steps, config)
    updates = config.train.epochs * math.ceil(lists / config.train.batch)
    mined = lists * (1 + 2 * CANDIDATES)
    mined *= config.train.epochs if config.mine.by == "previous" else 1
    step = (pair.with_count(min(config.train.batch, lists) * in_list),)
    return Forecast(
        inputs={
            "triples": len(steps.graph),
            "entities": len(steps.graph.nodes),
            "training questions": len(train),
            "lists to train on, at most": lists,
            "pairs to train on, at most": config.train.epochs * lists * in_list,
            "steps, at most": updates,
            **({"pairs to choose an epoch by, at most": chosen} if chosen else {}),
            "test questions": len(test),
            "pairs of a search, at most": searched,
        },
        work=(
            Work("baselines", "retriever", "embedding", searched, path.mean),
            Work("mine", "retriever", "embedding", mined, path.mean),
            Work("train", "retriever", "training", updates, step=step),
            Work("train", "retriever", "embedding", chosen, pair.mean),
            Work("evaluate", "retriever", "embedding", searched, pair.mean),
        ),
    )


def _count_lists(paths: Mapping[str, Sequence[GoldPath]]) -> int:
    """The number of lists: one for each different step of each question's paths, END included."""
    return len(
        {
            (id, path.topic, path.steps[:hop], path.steps[hop : hop + 1])
            for id, listed in paths.items()
            for path in listed
            for hop in range(len(path.steps) + 1)
        }
    )


def _count_pairs(test: Sequence[PathQuestion], steps: Steps, config) -> int:
    """The pairs that a search over all test questions scores, estimated from an even sample."""
    stride = max(math.ceil(len(test) / SAMPLE), 1)
    sample = test[::stride]
    if not sample:
        return 0
    rules = BeamRules(config.search.beam, config.paths.hops, config.search.keep)
    texts, topics = zip(*((x.question, x.topics) for x in sample), strict=True)
    result = search(texts, topics, steps, _NeverEnding(), rules, _NeverEnding())
    return round(result.pairs * len(test) / len(sample))


MEASURED = (*STANDARD, *BIASES, *LISTS.values())  # the last ones where a reader answers
RECIPE = Recipe(
    name="star",
    stages=stages,
    schema=Star,
    check=check_all,
    unread=unused_sections,
    look=graphs.describe_graph,
    metrics={name: metric_heading(name) for name in MEASURED},
    headline=HEADLINE,
    outcome=functools.partial(read_outcome, metrics=MEASURED),
    prepared=("data", "paths"),
    forecast=forecast,
    conclusion=evaluate.conclusion,
    ending=functools.partial(
        ending,
        headline=HEADLINE,
        questions=functools.partial(data.load_questions, part="test"),
        first=evaluate.first_path,
        command=retrieve_command,
    ),
)
