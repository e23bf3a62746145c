"""The recipe BAR-RAG: a reader that learns from evidence at the edge of what it can answer.

A selector draws sets of passages from what the retriever finds, and is rewarded where the reader is
right about half of the time. The reader then learns from its own answers to the selector's sets.
Both alternate. At the end the selector is thrown away: the reader reads what the retriever finds.
There are no negatives to mine, so it takes no miner of one's own.
"""

import functools
import math
import urllib.parse

from ark_jax import schema
from ark_jax.estimate.work import Texts, Work, measure
from ark_jax.pipeline.recipe import Forecast, Recipe
from ark_jax.pipeline.stage import Context, Stage
from ark_jax.recipes.bar_rag import evaluate, read, report, select, selectors
from ark_jax.recipes.bar_rag.config import BarRag
from ark_jax.recipes.bar_rag.evaluate import METRICS
from ark_jax.recipes.bar_rag.reading import reading_prompt
from ark_jax.recipes.bar_rag.rollouts import stage_of, steps_for
from ark_jax.recipes.bar_rag.select import filter_of
from ark_jax.recipes.core import own_parts
from ark_jax.recipes.core.checks import check_core, check_documents
from ark_jax.recipes.core.report import with_report
from ark_jax.recipes.core.tables import read_outcome
from ark_jax.recipes.documents import ingest, plan
from ark_jax.recipes.documents.corpus import load_questions, stored_chunks
from ark_jax.report.results import metric_heading
from ark_jax.text import prompts


def forecast(context: Context, done: set[str]) -> Forecast:
    """Rollouts, training and measuring; a prompt is computed once for all that follows it."""
    config, folder = context.config, context.config.generator.path
    train, held_out = (load_questions(context, part) for part in ("train", "held_out"))
    form, k = reading_prompt(config), config.select.passages
    passage = measure(folder, stored_chunks(context), plan.PASSAGE)
    bare = measure(folder, train, lambda x: form.fill(x.question, "")).mean
    answer = plan.measure_answers(train, folder).mean + 1
    prompt = lambda passages: bare + passages * passage.mean
    works: list[Work] = []

    def embed(texts: Texts) -> None:
        works.append(Work("pool", "retriever", "embedding", texts.count, texts.mean))

    def sample(stage: str, prompts: float, passages: int, samples: int, new: float) -> None:
        works.append(Work(stage, "generator", "reading", prompts, prompt(passages)))
        works.append(
            Work(stage, "generator", "reading", prompts * samples, 0, new, prompt(passages))
        )

    def update(stage, steps, batch, samples=1, new=answer, passages=k) -> None:
        texts = (batch, prompt(passages)), (batch * samples, new)
        step = tuple(Texts(count, mean, mean) for count, mean in texts)
        written = batch * samples * new
        works.append(Work(stage, "generator", "training", steps, written=written, step=step))

    def succeed(stage: str, sets: float, passages: int) -> None:
        """How likely the reader is right on so many sets."""
        if config.success.by == "samples":
            new = config.read.max_new_tokens
            return sample(stage, sets, passages, config.success.answers, new)
        amounts = (sets, prompt(passages) + answer, answer)
        return works.append(Work(stage, "generator", "likelihoods", *amounts))

    def measure_readers(stage: str, readers: int) -> None:
        read = config.evaluate.passages or k
        limit = config.evaluate.questions or len(held_out)
        asked = readers * min(limit, len(held_out))
        for size in (read, 1, *config.evaluate.sizes, *2 * (read,) * config.evaluate.removal):
            succeed(stage, asked, size)
            amounts = (asked, prompt(size), config.evaluate.max_new_tokens)
            works.append(Work(stage, "generator", "reading", *amounts))

    embed(measure(config.retriever.path, stored_chunks(context), plan.PASSAGE))
    embed(measure(config.retriever.path, [*train, *held_out], plan.QUESTION))
    warm = config.warm
    steps = math.ceil(len(train) / warm.batch) if warm.steps < 0 else warm.steps
    update("warm", steps, min(warm.batch, len(train)))
    looked_at = min(config.filter.questions or len(train), len(train))
    selecting = steps_for(config.select.steps, looked_at, config.select.questions)
    reading = steps_for(config.read.steps, len(train), config.read.prompts)
    batch = min(config.select.questions, looked_at)
    writes, new = config.selector.kind != "vectors", config.selector.max_new_tokens
    sets = answers = 0
    for iteration in range(1, config.iterations + 1):
        filtering, select = (stage_of(kind, iteration) for kind in ("filter", "select"))
        draws = []
        if filter_of(config, iteration) == filtering:
            draws.append((filtering, looked_at, config.filter.sets))
        if config.read.evidence == "selected":
            draws.append((select, selecting * batch, config.select.sets))
        for stage, asked, each in draws:
            if writes:
                sample(stage, asked, config.pool.size, each, new)
            if writes and stage == select:
                update(stage, selecting, batch, each, new, config.pool.size)
            succeed(stage, asked * each, k)
            sets += asked * each
        read, stage = config.read, stage_of("read", iteration)
        if read.train == "supervised":
            update(stage, reading, min(read.prompts, len(train)))
            continue
        sample(stage, reading * read.prompts, k, read.samples, read.max_new_tokens)
        update(stage, reading, read.prompts, read.samples, read.max_new_tokens)
        answers += reading * read.prompts * read.samples
    measure_readers("baselines", 2)
    measure_readers("evaluate", config.iterations)
    answers += sets * config.success.answers * (config.success.by == "samples")
    most = {"sets to judge, at most": sets, "answers to sample, at most": answers}
    return Forecast(
        inputs=plan.count_inputs(context) | {name: count for name, count in most.items() if count},
        work=tuple(work for work in works if work.items),
        notes=(
            "the filter keeps fewer questions, and sets that come again are computed once: both "
            "make it cheaper",
        ),
    )


def check_bar_rag(config) -> None:
    """Refuses a config on which some stage would fail, maybe hours from now.

    Raises:
        ValueError: the field, its value and what it may be.
    """
    schema.check(config, BarRag)
    check_core(config)
    check_documents(config)
    for name, path in config.prompts.items():
        prompts.load_template(name, path)
    for section in ("generator", "selector"):
        path = config[section].path
        if urllib.parse.urlsplit(path).scheme in ("http", "https"):
            raise ValueError(
                f"config.{section}.path={path!r}: an endpoint's weights cannot be trained; name "
                "the folder of a model, or its Hub name"
            )
    if config.filter.low > config.filter.high:
        raise ValueError(
            f"config.filter.low={config.filter.low} is above config.filter.high="
            f"{config.filter.high}; swap them"
        )
    if config.select.passages > config.pool.size:
        raise ValueError(
            f"config.select.passages={config.select.passages}: a pool has only "
            f"config.pool.size={config.pool.size} passages; set one of them otherwise"
        )
    if config.read.cite and not (config.read.chat and config.success.by == "samples"):
        raise ValueError(
            "config.read.cite=True: a reply in tags is a turn of a chat and has a thought whose "
            "likelihood nobody knows; set config.read.chat=True and config.success.by=samples"
        )
    evaluate.check_evaluation(config)


def check_all(config) -> None:
    """As `check_bar_rag`, and imports the functions of the user's own that the config names."""
    check_bar_rag(config)
    own_parts.load_token_loss(config)
    own_parts.check_reader(config)


def stages(config) -> list[Stage]:
    """The stages of a config, in order.

    Raises:
        ValueError: a setting that a stage would fail on.
    """
    check_bar_rag(config)
    ordered = [
        Stage("data", ingest.ingest, alone=True),
        Stage("pool", selectors.find_pools),
        Stage("warm", read.train_warm),
    ]
    for iteration in range(1, config.iterations + 1):
        ordered += _iteration_stages(config, iteration)
    ordered += [
        Stage("baselines", evaluate.measure_baselines),
        Stage("evaluate", evaluate.evaluate),
        Stage("export", evaluate.export_reader, alone=True),
    ]
    return with_report(ordered, "BAR-RAG run", report.describe)


def _iteration_stages(config, iteration: int) -> list[Stage]:
    """The stages of an iteration: filter and selector if it has them, evidence, reader."""
    works = {"evidence": read.choose_evidence, "read": read.train_reader}
    if config.read.evidence == "selected":
        works = {"select": select.train_selector} | works
    if select.filter_of(config, iteration) == stage_of("filter", iteration):
        works = {"filter": select.filter_questions} | works
    return [
        Stage(stage_of(kind, iteration), functools.partial(work, iteration=iteration))
        for kind, work in works.items()
    ]


RECIPE = Recipe(
    name="bar_rag",
    stages=stages,
    schema=BarRag,
    check=check_all,
    look=ingest.describe_input,
    metrics={name: metric_heading(name) for name in METRICS},
    headline="p",
    outcome=functools.partial(read_outcome, metrics=METRICS),
    prepared=("data",),
    forecast=forecast,
)
