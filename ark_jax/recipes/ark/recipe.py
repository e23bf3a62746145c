"""The recipe ARK: its stages, and what the tools know of them.

Each stage is a thin layer between files and the room that does the work. Heavy imports stand inside
the stage functions, since looking up what is done must not start jax.
"""

import dataclasses
import functools

from ark_jax.pipeline.recipe import Needs, Recipe
from ark_jax.pipeline.stage import Stage
from ark_jax.recipes.ark import (
    estimate_calls,
    estimate_devices,
    export,
    mine,
    own_parts,
    report,
    reranker,
    train,
    training_data,
    warm_reader,
)
from ark_jax.recipes.ark.checks import check_ark
from ark_jax.recipes.ark.curriculum import (
    MINING_SIZES,
    RERANKER,
    asks_writer,
    builds_graph,
    is_distilling,
    last_mining,
    mine_name,
    mines_by_graph,
    model_before,
    stage_name,
    systems,
    trained_stages,
    training_inputs,
)
from ark_jax.recipes.ark.extract import extract
from ark_jax.recipes.ark.graph import build_graph, find_communities
from ark_jax.recipes.ark.join_passages import join_by_community
from ark_jax.recipes.ark.report_sections import SECTIONS
from ark_jax.recipes.ark.rewrite import rewrite
from ark_jax.recipes.ark.score import choose_positives, score
from ark_jax.recipes.common import (
    candidates,
    choose_fusion,
    dependencies,
    evaluate,
    folds,
    ingest,
    judge,
    outcome,
    retrieve,
    write_questions,
    written_from,
)
from ark_jax.recipes.common.dependencies import COMPUTE
from ark_jax.recipes.common.models import WARM_READER
from ark_jax.recipes.common.report import with_report
from ark_jax.recipes.common.systems import Systems
from ark_jax.train import trainer_formats

QUESTIONS = "questions"  # the stage that writes them
COMMUNITIES = tuple(
    f"graph.{name}" for name in ("teleport", "tolerance", "floor", "large", "small")
)
SCORE = ("score.candidates", "score.references", "generator.dtype")
POSITIVES = tuple(
    f"score.{name}"
    for name in (
        "answers",
        "normalise",
        "forward",
        "backward",
        "retriever",
        "positives",
        "keep",
        "supervision",
    )
)
MINE = tuple(f"mine.{name}" for name in ("by", "model", "top", "negatives", "margin", "spare"))
TRAIN = tuple(
    f"train.{name}"
    for name in (
        "warmup",
        "weight_decay",
        "clip",
        "batch",
        "chunks",
        "loss",
        "temperature",
        "matryoshka",
        "denominator",
        "merge_copies",
        "order",
        "lora_rank",
        "lora_alpha",
        "lora_targets",
    )
)


def stages(config) -> list[Stage]:
    """The stages of a config, in order.

    Raises:
        ValueError: a setting that a stage would fail on.
    """
    check_ark(config)
    ordered = [
        *_input_stages(config),
        *(_rewriting_stages(config) if mines_by_graph(config) else ()),
        *_score_stages(),
        *_training_stages(config),
        *_closing_stages(config),
    ]
    ordered = _reading_written_questions(ordered)
    return with_report(ordered, title="ARK run", gather=report.gather, sections=SECTIONS)


def _reading_written_questions(stages: list[Stage]) -> list[Stage]:
    """The stages after `questions` that read the input's questions read the written ones too."""
    names = [stage.name for stage in stages]
    if QUESTIONS not in names:
        return stages
    start = names.index(QUESTIONS) + 1
    widen = lambda stage: dataclasses.replace(stage, after=(*stage.after, QUESTIONS))
    return [
        *stages[:start],
        *(widen(stage) if "data" in stage.after else stage for stage in stages[start:]),
    ]


def _input_stages(config) -> list[Stage]:
    """From documents to training questions, their candidates, and a graph if one is read."""
    base, writing = dependencies.base_vectors, written_from.is_writing(config)
    # Candidates belong to questions, so they come after those that are to be written.
    candidate_stage = Stage(
        "candidates",
        after=("data",),
        settings=("data.candidates", *COMPUTE),
        run=candidates.find_candidates,
        external=base,
    )
    return [
        Stage(
            "data",
            after=(),
            settings=ingest.INGEST_SETTINGS,
            run=ingest.ingest,
            external=dependencies.all_of(
                dependencies.input_files, dependencies.models("retriever")
            ),
            alone=True,
        ),
        *([] if writing else [candidate_stage]),
        *(_graph_stages(config) if builds_graph(config) else ()),
        *([_questions_stage(config), candidate_stage] if writing else []),
    ]


def _graph_stages(config) -> list[Stage]:
    """From passages to a graph."""
    writing = written_from.is_writing(config)
    return [
        Stage(
            "extract",
            after=("data",) if writing else ("data", "candidates"),
            settings=(
                *dependencies.writer_settings(config),
                "graph.gleanings",
                *(written_from.DRAW_SETTINGS if writing else ()),
            ),
            run=extract,
            external=dependencies.all_of(
                dependencies.prompt_texts("extract", "glean"),
                _openie_records,
                dependencies.language_model("llm"),
            ),
            alone=config.llm.backend != "local",
        ),
        Stage(
            "graph",
            ("extract",),
            ("graph.similarity", "graph.nearest", *COMPUTE),
            build_graph,
            dependencies.base_vectors,
        ),
    ]


def _rewriting_stages(config) -> list[Stage]:
    """From a graph to questions rewritten with its communities."""
    return [
        Stage(
            "communities",
            after=("data", "candidates", "graph"),
            settings=(*COMMUNITIES, *COMPUTE),
            run=find_communities,
            external=dependencies.base_vectors,
        ),
        Stage(
            "rewrite",
            after=("data", "graph", "communities"),
            settings=(*dependencies.writer_settings(config), "graph.rewrites"),
            run=rewrite,
            external=dependencies.all_of(
                dependencies.prompt_texts("rewrite"), dependencies.language_model("llm")
            ),
            alone=config.llm.backend != "local",
        ),
    ]


def _questions_stage(config) -> Stage:
    joins = written_from.joins_passages(config)
    return Stage(
        QUESTIONS,
        after=("data", *(("graph",) if joins else ())),
        settings=(
            *dependencies.writer_settings(config),
            *write_questions.WRITING_SETTINGS,
            *(COMMUNITIES if joins else ()),
            *COMPUTE,
        ),
        run=functools.partial(write_questions.write_questions, join=join_by_community),
        external=dependencies.all_of(
            dependencies.prompt_texts("questions", "forward"),
            dependencies.base_vectors,
            dependencies.models("generator"),
            dependencies.language_model("questions"),
        ),
    )


def _openie_records(config) -> dict[str, str]:
    path = config.graph.openie
    return {"openie": dependencies.input_digest(path) if path else ""}


def _score_stages() -> list[Stage]:
    """From candidates to positives."""
    model = dependencies.models("generator")
    prompts = dependencies.prompt_texts("forward", "backward")
    external = dependencies.all_of(model, prompts)
    return [
        Stage("score", ("data", "candidates"), SCORE, score, external),
        Stage("positives", ("data", "score"), POSITIVES, choose_positives, alone=True),
    ]


def _training_stages(config) -> list[Stage]:
    """Mining and training in turn, and the merge of the last stage with the base."""
    base, rewritten = dependencies.base_vectors, ("rewrite",) if mines_by_graph(config) else ()
    stages = []
    for stage in config.train.stages:
        before = model_before(config, stage)
        model = () if before == "base" else (before,)
        if stage in MINING_SIZES:
            miner = model if config.mine.model == "previous" else ()
            inputs = ("data", *rewritten, "positives", *miner)
            run = functools.partial(mine.mine, stage=stage)
            external = dependencies.all_of(base, dependencies.own_functions_of("mine.by"))
            stages.append(Stage(mine_name(stage), inputs, (*MINE, *COMPUTE), run, external))
        teacher = ("train.teacher_temperature",) if is_distilling(config) else ()
        settings = (*_own_settings(stage), *TRAIN, *teacher, "seed", *COMPUTE)
        inputs = (*training_inputs(stage), *model)
        run = functools.partial(train.train_stage, stage=stage)
        external = dependencies.all_of(base, dependencies.own_functions_of("train.loss"))
        stages.append(Stage(stage_name(stage), inputs, settings, run, external))
    if config.train.merge != 1:
        last = trained_stages(config)[-1:]
        stages.append(Stage("merged", last, ("train.merge", *COMPUTE), train.merge_with_base, base))
    if config.train.kind == "cross":
        stages.append(_reranker_stage(config))
    return stages


def _reranker_stage(config) -> Stage:
    """Training of a cross-encoder, which begins as the last tuned retriever or a named model."""
    mining = last_mining(config)
    return Stage(
        RERANKER,
        after=(
            "data",
            "positives",
            *((mine_name(mining),) if mining is not None else ()),
            *(() if config.reranker.path else (systems(config).last,)),
        ),
        settings=(*reranker.RERANKER_SETTINGS, "seed", *COMPUTE),
        run=reranker.train_reranker,
        external=reranker.base_model,
    )


def _reader_stage() -> Stage:
    return Stage(
        WARM_READER,
        after=("data", "candidates"),
        settings=warm_reader.WARM_SETTINGS,
        run=warm_reader.train_warm_reader,
        external=dependencies.all_of(
            warm_reader.reading_form, dependencies.language_model("reader")
        ),
    )


def _fusion_stage(compared: Systems) -> Stage:
    settings = tuple(f"evaluate.{name}" for name in ("scope", "gold", "metrics", "passages"))
    return Stage(
        choose_fusion.STAGE,
        after=("data", "positives", compared.last),
        settings=(*settings, *COMPUTE),
        run=functools.partial(
            choose_fusion.choose_fusion, systems=compared, learned=train.learned_questions
        ),
    )


def _own_settings(stage: int) -> tuple[str, str]:
    """The fields of a stage's own epochs and rate.

    A change of a later stage's settings thus trains no earlier stage again.
    """
    if stage == 0:
        return "train.epochs", "train.learning_rates.0"
    return f"train.epochs.{stage - 1}", f"train.learning_rates.{stage - 1}"


def _closing_stages(config) -> list[Stage]:
    """Retrieval, answers, judgement, export."""
    compared, base = systems(config), dependencies.base_vectors
    own_reranker = (compared.reranker,) if compared.reranker else ()
    own_reader = (WARM_READER,) if config.reader.warm else ()
    fusion = (choose_fusion.STAGE,) if config.evaluate.fusion == "chosen" else ()
    stages = [
        *([_reader_stage()] if config.reader.warm else []),
        Stage(
            "baselines",
            after=("data",),
            settings=(
                *retrieve.RETRIEVAL_SETTINGS,
                *dependencies.expansion_settings(config),
                *COMPUTE,
            ),
            run=functools.partial(retrieve.retrieve_baselines, systems=compared),
            external=dependencies.all_of(
                base, dependencies.compared_retrievers, dependencies.expansion
            ),
        ),
        *([_fusion_stage(compared)] if fusion else []),
        Stage(
            "evaluate",
            after=("data", "baselines", *compared.tuned, *fusion, *own_reranker, *own_reader),
            settings=(*evaluate.EVALUATION_SETTINGS, *COMPUTE, "seed"),
            run=functools.partial(evaluate.evaluate, systems=compared),
            external=dependencies.all_of(
                dependencies.prompt_texts("read"),
                dependencies.language_model("reader"),
                dependencies.own_functions_of("reader.backend"),
                dependencies.reranker,
            ),
        ),
    ]
    if config.judge.repeats:
        judging = Stage(
            "judge",
            after=("data", "evaluate"),
            settings=judge.JUDGE_SETTINGS,
            run=functools.partial(judge.judge_answers, system=compared.last),
            external=dependencies.all_of(
                dependencies.prompt_texts("judge"), dependencies.language_model("judge")
            ),
            alone=config.judge.backend != "local",
        )
        stages.append(judging)
    exported = (compared.last, *fusion, *own_reranker)
    return [*stages, Stage("export", (*exported, "evaluate"), (), export.export, alone=True)]


def needs(config) -> Needs:
    """The input, models, records and endpoints that a config names."""
    writer = ("llm",) if asks_writer(config) else ()
    roles = (*writer, "reader", *(("judge",) if config.judge.repeats else ()))
    local = {f"{role}.path": config[role].path for role in roles if config[role].backend == "local"}
    retrievers = {f"evaluate.retrievers, {path}": path for path in config.evaluate.retrievers}
    return Needs(
        data=config.data.path,
        models={
            "retriever.path": config.retriever.path,
            "generator.path": config.generator.path,
            **local,
            **retrievers,
            "evaluate.rerank": config.evaluate.rerank,
            "reranker.path": config.reranker.path if config.train.kind == "cross" else "",
        },
        files={
            "graph.openie": config.graph.openie if builds_graph(config) else "",
            "questions.replies": config.questions.replies,
        },
        roles=roles,
        read=functools.partial(ingest.look_at, config.data),
    )


def _training_file(format: str):
    return lambda context: training_data.write_training_files(
        context, format, stages(context.config)
    )


RECIPE = Recipe(
    name="ark",
    stages=stages,
    check=own_parts.check_all,
    needs=needs,
    metrics=outcome.METRIC_HEADINGS,
    headline="ndcg@10",
    outcome=outcome.read_outcome,
    pool=folds.pool_folds,
    training_files={name: _training_file(name) for name in trainer_formats.FORMATS},
    prepared=("data",),
    llm_calls=estimate_calls.llm_calls,
    forecast=estimate_devices.forecast,
    index_words=export.index_words,
)
