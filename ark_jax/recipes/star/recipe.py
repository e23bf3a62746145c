"""The recipe STAR: a scorer of question and path that walks a graph by beam search.

Relation paths from topics to answers, hard negatives at each step, lists with weights for rare
paths, and a search that ends where END scores highest.
"""

import functools

from ark_jax import schema
from ark_jax.pipeline import own_functions
from ark_jax.pipeline.recipe import Recipe
from ark_jax.pipeline.stage import Stage
from ark_jax.recipes.core import own_parts
from ark_jax.recipes.core.baselines import STAGE, stored_doubts
from ark_jax.recipes.core.checks import check_basics
from ark_jax.recipes.core.closing import ending, retrieve_command
from ark_jax.recipes.core.report import with_report
from ark_jax.recipes.core.tables import read_outcome
from ark_jax.recipes.graphs import graph_data
from ark_jax.recipes.graphs.fact_reader import LISTS
from ark_jax.recipes.star import data, evaluate, measures, plan, report
from ark_jax.recipes.star.config import Star
from ark_jax.recipes.star.data import HEADLINE
from ark_jax.recipes.star.measures import BIASES, STANDARD
from ark_jax.recipes.star.mine import mine_lists
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
        measures.parse_metric(metric)
    low, high = config.train.weight_range
    if low > high:
        raise ValueError(
            f"config.train.weight_range={(low, high)}: the smallest weight is above the largest; "
            "swap them"
        )
    if config.mine.choose == "random" and own_functions.is_own(config.mine.by):
        raise ValueError(
            f"config.mine.by={config.mine.by!r} chooses negatives, and config.mine.choose=random "
            "draws them: set config.mine.choose=similar"
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
    return ["llm", *graph_data.unused_sections(config)]


MEASURED = (*STANDARD, *BIASES, *LISTS.values())  # the last ones where a reader answers
RECIPE = Recipe(
    name="star",
    stages=stages,
    schema=Star,
    check=check_all,
    unread=unused_sections,
    look=graph_data.describe_graph,
    metrics={name: metric_heading(name) for name in MEASURED},
    headline=HEADLINE,
    outcome=functools.partial(read_outcome, metrics=MEASURED),
    prepared=("data", "paths"),
    forecast=plan.forecast,
    conclusion=evaluate.conclusion,
    ending=functools.partial(
        ending,
        headline=HEADLINE,
        questions=functools.partial(data.load_questions, part="test"),
        first=evaluate.first_path,
        command=retrieve_command,
    ),
)
