"""The recipe ARK: its stages, and the interface to the command-line tools.

A stage reads the files of earlier ones, calls a room that does the work, and writes its own.
Modules that start jax are imported inside the stage functions: looking up what is done must not
start it.
"""

import functools
from collections.abc import Callable

from ark_jax import schema
from ark_jax.pipeline.recipe import Recipe, search_command
from ark_jax.pipeline.stage import Context, Stage
from ark_jax.recipes.ark import curriculum, graph, plan, report, train
from ark_jax.recipes.ark.alignment import TARGETS, choose_positives, score
from ark_jax.recipes.ark.config import Ark
from ark_jax.recipes.ark.extract import extract, name_seeds, rewrite
from ark_jax.recipes.ark.graph import SEEDS, build_graph, find_communities, join_by_community
from ark_jax.recipes.core import own_parts
from ark_jax.recipes.core.ask import section_of
from ark_jax.recipes.core.baselines import STAGE, stored_doubts
from ark_jax.recipes.core.checks import check_base_url, check_shared_sections
from ark_jax.recipes.core.models import WARM_READER
from ark_jax.recipes.core.report import ending, with_report
from ark_jax.recipes.core.tables import read_outcome
from ark_jax.recipes.documents import choice, evaluate, ingest, judge, written_questions
from ark_jax.recipes.documents.corpus import load_questions
from ark_jax.recipes.documents.retrieve import HYDE
from ark_jax.report.results import metric_heading
from ark_jax.text import prompts
from ark_jax.train import trainer_formats


def check_ark(config) -> None:
    """Refuses a config on which some stage would fail, maybe hours from now.

    Raises:
        ValueError: the field, its value and what it may be.
        RuntimeError: a setting needs a library that is not installed.
    """
    schema.check(config, Ark)
    for name, path in config.prompts.items():
        prompts.load_template(name, path, target=TARGETS.get(name, ""))
    _check_graph(config.graph)
    _check_model(config)
    _check_score(config.score)
    _check_rewriter(config.rewriter)
    _check_stages(config.train)
    _check_teacher(config)
    _check_reranker(config)
    _check_reader(config)
    check_shared_sections(config)
    curriculum.systems(config).check()


def _check_graph(graph) -> None:
    for name in ("large", "small"):
        smallest, largest = graph[name]
        if smallest > largest:
            raise ValueError(
                f"config.graph.{name}={tuple(graph[name])}: must be the smallest and the largest "
                "size of a community, as in (3, 10)"
            )
    if graph.openie and graph.gleanings:
        raise ValueError(
            "config.graph.gleanings asks the language model for more records, but "
            "config.graph.openie replaces the language model: set one of them"
        )


def _check_model(config) -> None:
    """Refuses rules in place of the language model that a publication asks."""
    if config.llm.backend == "none" and not config.graph.rules and curriculum.builds_graph(config):
        raise ValueError(
            "config.llm.backend=none, but the presets paper and official have a language model "
            "extract and rewrite: set --config.llm.backend=openai, local or replay, or take "
            "--config=ark:default"
        )


def _check_score(score) -> None:
    """Refuses a factor on scores below 0, which would raise them."""
    if score.short and score.normalise != "minmax":
        raise ValueError(
            f"config.score.short={score.short} lowers scores above 0, and those of "
            f"config.score.normalise={score.normalise} are below: set normalise=minmax, or short=0"
        )


def _check_rewriter(rewriter) -> None:
    """Refuses an address or a path that nothing reads, and an endpoint without a model."""
    for name, backend in (("base_url", "openai"), ("path", "local")):
        if rewriter[name] and not rewriter.backend:
            raise ValueError(
                f"config.rewriter.{name}={rewriter[name]!r} is not read, since the empty "
                f"config.rewriter.backend is that of llm: set config.rewriter.backend={backend}"
            )
    if rewriter.backend == "openai" and not rewriter.model:
        raise ValueError("config.rewriter.model is empty: name a model of its endpoint")
    check_base_url(rewriter.base_url, "rewriter")


def _check_teacher(config) -> None:
    """Refuses training that needs alignment scores if there are none."""
    for name, value in (("kind", "cross"), ("loss", "distil")):
        has_scores = name == "kind" and config.reranker.scores
        learns = config.train[name] == value and not has_scores
        if learns and config.score.supervision == "gold":
            raise ValueError(
                f"config.train.{name}={value} learns alignment scores, and "
                "config.score.supervision=gold learns from marked evidence instead: change one of "
                "them"
            )
    if config.train.unit == "pair" and curriculum.is_distilling(config):
        raise ValueError(
            "config.train.unit=pair has one positive in each pair, and config.train.loss=distil "
            "learns the shares of all chunks of a question: set one of them back"
        )


def _check_reranker(config) -> None:
    if config.train.kind != "cross":
        return
    if not config.reranker.path:
        raise ValueError(
            "config.train.kind=cross begins as a cross-encoder: name one in config.reranker.path, "
            "such as cross-encoder/ms-marco-MiniLM-L6-v2"
        )
    if config.evaluate.rerank:
        raise ValueError(
            f"config.evaluate.rerank={config.evaluate.rerank!r}: config.train.kind=cross trains a "
            "reranker of its own, for which the table has one row; leave this empty, or kind=bi"
        )


def _check_reader(config) -> None:
    if config.reader.warm and config.reader.backend != "local":
        raise ValueError(
            f"config.reader.warm=True trains a local reader, and config.reader.backend="
            f"{config.reader.backend} is none: change one of them"
        )


def _check_stages(train) -> None:
    stages = tuple(train.stages)
    repeats = len(set(stages)) < len(stages)
    if not stages or repeats or (0 in stages and len(stages) > 1):
        raise ValueError(
            f"config.train.stages={stages}: must hold each of 1, 2 and 3 at most once, or be (0,), "
            "which trains on all negatives in one stage"
        )
    for stage in stages:
        epochs = train.epochs[stage - 1] if stage else sum(train.epochs)
        if not epochs:
            raise ValueError(
                f"config.train.epochs={tuple(train.epochs)}: stage {stage} has no epoch; remove it "
                "from config.train.stages"
            )


def check_all(config) -> None:
    """As `check_ark`, and imports the functions of the user's own that the config names.

    Raises:
        ValueError: there is no such function, or it takes other parameters.
    """
    check_ark(config)
    own_parts.check_miner("mine.by", config.mine.by)
    own_parts.load_loss(config)
    own_parts.check_reader(config)


QUESTIONS = "questions"  # the stage that writes them


def stages(config) -> list[Stage]:
    """The stages of a config, in order.

    Raises:
        ValueError: a setting that a stage would fail on.
    """
    check_ark(config)
    ordered = [
        *_input_stages(config),
        *(_rewriting_stages(config) if curriculum.mines_by_graph(config) else ()),
        Stage("score", score),
        Stage("positives", choose_positives, alone=True),
        *_training_stages(config),
        *_closing_stages(config),
    ]
    return with_report(ordered, title="ARK run", describe=report.describe)


def _input_stages(config) -> list[Stage]:
    """From documents to training questions, their candidates, and a graph if one is read.

    Baselines come first, unless a language model has to write for them.
    """
    writing = written_questions.is_writing(config)
    waiting = writing or config.search.expand == HYDE
    measuring = Stage(STAGE, evaluate.measure_baselines, doubts=stored_doubts)
    # Candidates belong to questions, so they come after those that are to be written.
    candidate_stage = Stage("candidates", graph.find_candidates)
    write = functools.partial(written_questions.write_questions, join=join_by_community)
    return [
        Stage("data", ingest.ingest, alone=True),
        *([] if waiting else [measuring]),
        *([] if writing else [candidate_stage]),
        *(_graph_stages(config) if curriculum.builds_graph(config) else ()),
        *([Stage(QUESTIONS, write)] if writing else []),
        *([measuring] if waiting else []),
        *([candidate_stage] if writing else []),
    ]


def _graph_stages(config) -> list[Stage]:
    alone = config.llm.backend != "local"
    return [Stage("extract", extract, alone=alone), Stage("graph", build_graph)]


def _rewriting_stages(config) -> list[Stage]:
    alone = lambda role: config[section_of(config, role)].backend != "local"
    rewriting = Stage("rewrite", rewrite, alone=alone("rewriter"))
    if not curriculum.asks_for_seeds(config):
        return [Stage("communities", find_communities), rewriting]
    seeding = Stage(SEEDS, name_seeds, alone=alone("llm"))
    find = functools.partial(find_communities, by_model=True)
    return [seeding, Stage("communities", find), rewriting]


def _training_stages(config) -> list[Stage]:
    """Mining and training in turn, and the merge of the last stage with the base."""
    stages = []
    for stage, number in curriculum.trainings(config):
        place = {"stage": stage, "before": curriculum.model_before(config, stage, number)}
        if number > 1:
            place["number"] = number
            if stage == config.train.stages[0]:
                stages += _scoring_stages(config, number)
        if curriculum.has_negatives(config, stage):
            mine = functools.partial(curriculum.mine, **place)
            stages.append(Stage(curriculum.mine_name(stage, number), mine))
        train_stage = functools.partial(train.train_stage, **place)
        stages.append(Stage(curriculum.stage_name(stage, number), train_stage))
    if config.train.merge != 1:
        last = curriculum.trained_stages(config)[-1]
        stages.append(Stage("merged", functools.partial(train.merge_with_base, last=last)))
    if config.train.kind == "cross":
        train.check_base(config)
        train_reranker = functools.partial(
            train.train_reranker, mined=curriculum.last_mining(config)
        )
        stages.append(Stage(curriculum.RERANKER, train_reranker))
    return stages


def _scoring_stages(config, number: int) -> list[Stage]:
    """A later round's candidates, scores and positives, by the retriever of the round before."""
    name = functools.partial(graph.in_round, number=number)
    find = functools.partial(graph.find_candidates, system=curriculum.round_base(config, number))
    choose = functools.partial(choose_positives, number=number)
    return [
        Stage(name("candidates"), find),
        Stage(name("score"), functools.partial(score, number=number)),
        Stage(name("positives"), choose, alone=True),
    ]


def _closing_stages(config) -> list[Stage]:
    """Retrieval, answers, choice, judgement, export."""
    chooses_by = {"systems_of": curriculum.systems, "learned": train.learned_questions}
    choose = functools.partial(choice.choose_fusion, **chooses_by)
    chooses = config.evaluate.fusion == "chosen"
    judging = functools.partial(judge.judge_answers, system=curriculum.systems(config).last)
    return [
        *([Stage(WARM_READER, train.train_warm_reader)] if config.reader.warm else []),
        *([Stage(choice.FUSION, choose)] if chooses else []),
        Stage("evaluate", functools.partial(evaluate.evaluate, systems_of=curriculum.systems)),
        Stage(choice.STAGE, functools.partial(choice.choose, **chooses_by)),
        *(
            [Stage("judge", judging, alone=config.judge.backend != "local")]
            if config.judge.repeats
            else []
        ),
        # An export of an earlier version read no choice. The argument makes it stale.
        Stage("export", functools.partial(train.export, chosen_by=choice.STAGE), alone=True),
    ]


def unused_sections(config) -> list[str]:
    """The config sections that a run ignores."""
    read = {
        "llm": curriculum.asks_writer(config),
        "graph": curriculum.builds_graph(config),
        "judge": config.judge.repeats,
        "rewriter": config.rewriter.backend and curriculum.mines_by_graph(config),
        "reranker": config.train.kind == "cross",
    }
    return [section for section, is_read in read.items() if not is_read]


def _training_file(format: str) -> Callable[[Context], None]:
    return lambda context: train.write_training_files(context, format, stages(context.config))


RECIPE = Recipe(
    name="ark",
    stages=stages,
    schema=Ark,
    check=check_all,
    unread=unused_sections,
    look=ingest.describe_input,
    metrics={name: metric_heading(name) for name in evaluate.MODEL_CARD_METRICS},
    headline="ndcg@10",
    outcome=functools.partial(read_outcome, metrics=evaluate.MODEL_CARD_METRICS),
    pool=evaluate.pool_folds,
    training_files={name: _training_file(name) for name in trainer_formats.FORMATS},
    prepared=("data",),
    forecast=plan.forecast,
    index_words=train.index_words,
    conclusion=choice.conclusion,
    ending=functools.partial(
        ending,
        headline="ndcg@10",
        questions=functools.partial(load_questions, part="held_out"),
        first=evaluate.first_passage,
        command=lambda context, question: (
            f"search your documents with it: {search_command(context.workdir, question)}"
        ),
    ),
)
