"""The recipe ARK: its stages, and what the tools know of them.

A stage reads the files of earlier ones, calls a room that does the work, and writes its own.
Modules that start jax are imported inside the stage functions: looking up what is done must not
start it.
"""

import functools

from ark_jax.pipeline.recipe import Recipe
from ark_jax.pipeline.stage import Stage
from ark_jax.recipes.ark import (
    export,
    mine,
    own_parts,
    plan,
    report,
    reranker,
    train,
    training_data,
    warm_reader,
)
from ark_jax.recipes.ark.checks import check_ark
from ark_jax.recipes.ark.config import Ark
from ark_jax.recipes.ark.curriculum import (
    MINING_SIZES,
    RERANKER,
    asks_writer,
    builds_graph,
    last_mining,
    mine_name,
    mines_by_graph,
    model_before,
    stage_name,
    systems,
    trained_stages,
)
from ark_jax.recipes.ark.extract import extract
from ark_jax.recipes.ark.graph import build_graph, find_communities
from ark_jax.recipes.ark.join_passages import join_by_community
from ark_jax.recipes.ark.rewrite import rewrite
from ark_jax.recipes.ark.score import choose_positives, score
from ark_jax.recipes.common import (
    candidates,
    choose_fusion,
    evaluate,
    folds,
    ingest,
    judge,
    retrieve,
    write_questions,
    written_from,
)
from ark_jax.recipes.common.models import WARM_READER
from ark_jax.recipes.common.report import with_report
from ark_jax.recipes.common.table import read_outcome
from ark_jax.report.results import metric_heading
from ark_jax.train import trainer_formats

QUESTIONS = "questions"  # the stage that writes them


def stages(config) -> list[Stage]:
    """The stages of a config, in order.

    Raises:
        ValueError: a setting that a stage would fail on.
    """
    check_ark(config)
    ordered = [
        *_input_stages(config),
        *(_rewriting_stages(config) if mines_by_graph(config) else ()),
        Stage("score", score),
        Stage("positives", choose_positives, alone=True),
        *_training_stages(config),
        *_closing_stages(config),
    ]
    return with_report(ordered, title="ARK run", describe=report.describe)


def _input_stages(config) -> list[Stage]:
    """From documents to training questions, their candidates, and a graph if one is read."""
    writing = written_from.is_writing(config)
    # Candidates belong to questions, so they come after those that are to be written.
    candidate_stage = Stage("candidates", candidates.find_candidates)
    write = functools.partial(write_questions.write_questions, join=join_by_community)
    return [
        Stage("data", ingest.ingest, alone=True),
        *([] if writing else [candidate_stage]),
        *(_graph_stages(config) if builds_graph(config) else ()),
        *([Stage(QUESTIONS, write), candidate_stage] if writing else []),
    ]


def _graph_stages(config) -> list[Stage]:
    """From passages to a graph."""
    alone = config.llm.backend != "local"
    return [Stage("extract", extract, alone=alone), Stage("graph", build_graph)]


def _rewriting_stages(config) -> list[Stage]:
    """From a graph to questions rewritten with its communities."""
    alone = config.llm.backend != "local"
    return [Stage("communities", find_communities), Stage("rewrite", rewrite, alone=alone)]


def _training_stages(config) -> list[Stage]:
    """Mining and training in turn, and the merge of the last stage with the base."""
    stages = []
    for stage in config.train.stages:
        given = {"stage": stage, "before": model_before(config, stage)}
        if stage in MINING_SIZES:
            stages.append(Stage(mine_name(stage), functools.partial(mine.mine, **given)))
        stages.append(Stage(stage_name(stage), functools.partial(train.train_stage, **given)))
    if config.train.merge != 1:
        last = trained_stages(config)[-1]
        stages.append(Stage("merged", functools.partial(train.merge_with_base, last=last)))
    if config.train.kind == "cross":
        reranker.check_base(config)
        train_reranker = functools.partial(reranker.train_reranker, mined=last_mining(config))
        stages.append(Stage(RERANKER, train_reranker))
    return stages


def _closing_stages(config) -> list[Stage]:
    """Retrieval, answers, judgement, export."""
    choose = functools.partial(
        choose_fusion.choose_fusion, systems_of=systems, learned=train.learned_questions
    )
    chooses = config.evaluate.fusion == "chosen"
    judging = functools.partial(judge.judge_answers, system=systems(config).last)
    return [
        *([Stage(WARM_READER, warm_reader.train_warm_reader)] if config.reader.warm else []),
        Stage("baselines", retrieve.retrieve_baselines),
        *([Stage(choose_fusion.STAGE, choose)] if chooses else []),
        Stage("evaluate", functools.partial(evaluate.evaluate, systems_of=systems)),
        *(
            [Stage("judge", judging, alone=config.judge.backend != "local")]
            if config.judge.repeats
            else []
        ),
        Stage("export", export.export, alone=True),
    ]


def unread(config) -> list[str]:
    """The sections that a run of this config does not read."""
    read = {
        "llm": asks_writer(config),
        "graph": builds_graph(config),
        "judge": config.judge.repeats,
        "reranker": config.train.kind == "cross",
    }
    return [section for section, is_read in read.items() if not is_read]


def _training_file(format: str):
    return lambda context: training_data.write_training_files(
        context, format, stages(context.config)
    )


RECIPE = Recipe(
    name="ark",
    stages=stages,
    schema=Ark,
    check=own_parts.check_all,
    unread=unread,
    look=ingest.look_at,
    metrics={name: metric_heading(name) for name in evaluate.MODEL_CARD_METRICS},
    headline="ndcg@10",
    outcome=functools.partial(read_outcome, metrics=evaluate.MODEL_CARD_METRICS),
    pool=folds.pool_folds,
    training_files={name: _training_file(name) for name in trainer_formats.FORMATS},
    prepared=("data",),
    forecast=plan.forecast,
    index_words=export.index_words,
)
