"""The recipe BAR-RAG: a reader that learns from evidence at the edge of what it can answer.

A selector draws sets of passages from what the retriever finds, and is rewarded where the reader is
right about half of the time. The reader then learns from its own answers to the selector's sets.
Both alternate. At the end the selector is thrown away: the reader reads what the retriever finds.
There are no negatives to mine, so it takes no miner of one's own.
"""

import dataclasses
import functools
import math
import urllib.parse
from pathlib import Path

from ark_jax import schema
from ark_jax.estimate.work import Texts, Work, measure
from ark_jax.pipeline.recipe import Forecast, Recipe
from ark_jax.pipeline.stage import Context, Stage
from ark_jax.recipes.bar_rag import evaluate, read, report, select, selectors
from ark_jax.recipes.bar_rag.config import BarRag
from ark_jax.recipes.bar_rag.evaluate import METRICS
from ark_jax.recipes.bar_rag.reading import reading_prompt
from ark_jax.recipes.bar_rag.rollout_engine import call_settings
from ark_jax.recipes.bar_rag.rollouts import UNTUNED, stage_of, steps_for
from ark_jax.recipes.core import own_parts
from ark_jax.recipes.core.baselines import STAGE, stored_doubts
from ark_jax.recipes.core.checks import check_base_url, check_core, check_documents
from ark_jax.recipes.core.report import ending, with_report
from ark_jax.recipes.core.tables import read_outcome
from ark_jax.recipes.documents import ingest, plan
from ark_jax.recipes.documents.corpus import load_questions, stored_chunks
from ark_jax.report.results import metric_heading
from ark_jax.text import prompts


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
            f"config.pool.size={config.pool.size} passages; change one of them"
        )
    if config.read.cite and not (config.read.chat and config.success.by == "samples"):
        raise ValueError(
            "config.read.cite=True: a reply in tags is a turn of a chat and has a thought whose "
            "likelihood nobody knows; set config.read.chat=True and config.success.by=samples"
        )
    if config.rollout.backend != "local":
        _check_engine(config)
    evaluate.check_evaluation(config)


def _check_engine(config) -> None:
    folder, writer = Path(config.rollout.model), config.selector.path
    check_base_url(config.rollout.base_url, "rollout")
    if not config.rollout.base_url or not folder.is_absolute():
        raise ValueError(
            f"config.rollout.backend=openai needs config.rollout.base_url, which is "
            f"{config.rollout.base_url!r}, and config.rollout.model, which is {str(folder)!r}: "
            "give the address of the engine, and the absolute path of a folder that it sees too"
        )
    for field in ("generator", "selector"):
        path = config[field].path
        if path and folder.resolve() == Path(path).resolve():
            raise ValueError(
                f"config.rollout.model={folder} is config.{field}.path too, and the run overwrites "
                "the weights there: copy the folder, and start the engine with the copy"
            )
    if config.selector.kind == "writer" and writer not in ("", config.generator.path):
        raise ValueError(
            f"config.selector.path={writer!r}: an engine changes its weights, not its model, and "
            f"config.generator.path={config.generator.path!r} is another one; leave "
            "config.selector.path empty, or set config.rollout.backend=local"
        )


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
        Stage(STAGE, evaluate.measure_baselines, doubts=stored_doubts),
        Stage("warm", read.train_warm),
        Stage(evaluate.TEST_WARM, evaluate.measure_warm),
    ]
    for iteration in range(1, config.iterations + 1):
        ordered += _iteration_stages(config, iteration)
    ordered += [
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


def forecast(context: Context, done: set[str]) -> Forecast:
    """The work of all stages, for `ark-jax plan`; sets and answers are counted at most."""
    config, chunks = context.config, stored_chunks(context)
    train, held_out = (load_questions(context, part) for part in ("train", "held_out"))
    works = _Works.for_questions(context, train)
    works.embed(measure(config.retriever.path, chunks, plan.PASSAGE))
    works.embed(measure(config.retriever.path, [*train, *held_out], plan.QUESTION))
    measured = min(config.evaluate.questions or len(held_out), len(held_out))
    works.measure_readers(STAGE, 1, measured)
    warm = config.warm
    steps = math.ceil(len(train) / warm.batch) if warm.steps < 0 else warm.steps
    works.update("warm", steps, min(warm.batch, len(train)))
    works.measure_readers(evaluate.TEST_WARM, int(warm.steps != 0), measured)
    sets = answers = 0
    for iteration in range(1, config.iterations + 1):
        sets += _select(works, iteration, len(train))
        answers += _read(works, iteration, len(train))
    works.measure_readers("evaluate", config.iterations, measured)
    answers += sets * config.success.answers * (config.success.by == "samples")
    limits = {"sets to judge, at most": sets, "answers to sample, at most": answers}
    return Forecast(
        inputs=plan.count_inputs(context)
        | {name: count for name, count in limits.items() if count},
        work=tuple(work for work in works.works if work.items),
        notes=(
            "the filter keeps fewer questions, and sets that come again are computed once: both "
            "make it cheaper",
            *works.hand_over_notes(),
        ),
    )


@dataclasses.dataclass
class _Works:
    """The works of a run, in the order in which they are added.

    A prompt is computed once for all replies that follow it.

    Attributes:
        bare: tokens of a prompt without passages.
        passage: tokens of a passage, in the mean.
        answer: tokens of a reference answer with its end, in the mean.
        hand_overs: stage -> how often an engine gets other weights.
    """

    config: object
    bare: float
    passage: float
    answer: float
    works: list[Work] = dataclasses.field(default_factory=list)
    hand_overs: dict[str, int] = dataclasses.field(default_factory=dict)

    @classmethod
    def for_questions(cls, context: Context, questions: list) -> "_Works":
        """No work yet; lengths are those of these questions and of the stored chunks."""
        folder, form = context.config.generator.path, reading_prompt(context.config)
        bare = measure(folder, questions, lambda x: form.fill(x.question, "")).mean
        passage = measure(folder, stored_chunks(context), plan.PASSAGE).mean
        answer = plan.measure_answers(questions, folder).mean + 1
        return cls(context.config, bare, passage, answer)

    def prompt(self, passages: int) -> float:
        """Tokens of a prompt with this number of passages."""
        return self.bare + passages * self.passage

    def embed(self, texts: Texts) -> None:
        """Adds the vectors of texts, for the pools."""
        self.works.append(Work("pool", "retriever", "embedding", texts.count, texts.mean))

    def sample(self, stage: str, prompts: float, passages: int, samples: int, new: float) -> None:
        """Adds replies to prompts: `samples` of `new` tokens to each, in one call of an engine."""
        prompt = self.prompt(passages)
        if self.config.rollout.backend != "local":
            shown = {"label": stage, "settings": call_settings(self.config), "total": prompts}
            amounts = (prompts, prompt, samples * new)
            self.works.append(Work(stage, "rollout", "ask", *amounts, replies=samples, **shown))
            return
        self.works.append(Work(stage, "generator", "reading", prompts, prompt))
        self.works.append(Work(stage, "generator", "reading", prompts * samples, 0, new, prompt))

    def hand_over_notes(self) -> list[str]:
        """A note on the weights that an engine gets, if there is one."""
        if self.config.rollout.backend == "local":
            return []
        counts = ", ".join(
            f"{count:,} times in {stage}" for stage, count in self.hand_overs.items()
        )
        note = f"weights go to the engine at most {counts}, and once for each reader elsewhere"
        return [f"{note}; the time of that is left out"] if counts else []

    def update(
        self,
        stage: str,
        steps: int,
        batch: int,
        samples: int = 1,
        new: float | None = None,
        passages: int | None = None,
    ) -> None:
        """Adds steps of training on `batch` prompts with `samples` replies each.

        Args:
            new: tokens of a reply; None: those of a reference answer.
            passages: of a prompt; None: those of a set.
        """
        new = self.answer if new is None else new
        passages = self.config.select.passages if passages is None else passages
        texts = (batch, self.prompt(passages)), (batch * samples, new)
        step = tuple(Texts(count, mean, mean) for count, mean in texts)
        written = batch * samples * new
        self.works.append(Work(stage, "generator", "training", steps, written=written, step=step))

    def judge(self, stage: str, sets: float, passages: int) -> None:
        """Adds the computation of p, the probability that the reader is right, for sets."""
        success = self.config.success
        if success.by == "samples":
            self.sample(stage, sets, passages, success.answers, self.config.read.max_new_tokens)
            return
        amounts = (sets, self.prompt(passages) + self.answer, self.answer)
        self.works.append(Work(stage, "generator", "likelihoods", *amounts))

    def measure_readers(self, stage: str, readers: int, questions: int) -> None:
        """Adds p and an answer of each reader to each question, for each kind of set."""
        settings, asked = self.config.evaluate, readers * questions
        read = settings.passages or self.config.select.passages
        by_citations = [read, read] if settings.removal else []
        for size in (read, 1, *settings.sizes, *by_citations):  # 1: the needed passages
            self.judge(stage, asked, size)
            amounts = (asked, self.prompt(size), settings.max_new_tokens)
            self.works.append(Work(stage, "generator", "reading", *amounts))


def _select(works: _Works, iteration: int, questions: int) -> int:
    """Adds filter and selector of an iteration; returns how many sets are judged at most."""
    config = works.config
    filtering, selecting = (stage_of(kind, iteration) for kind in ("filter", "select"))
    looked_at = min(config.filter.questions or questions, questions)
    steps = steps_for(config.select.steps, looked_at, config.select.questions)
    batch = min(config.select.questions, looked_at)
    draws = []  # (stage, questions, sets of each)
    if select.filter_of(config, iteration) == filtering:
        draws.append((filtering, looked_at, config.filter.sets))
    if config.read.evidence == "selected":
        draws.append((selecting, steps * batch, config.select.sets))
    writes, new = config.selector.kind != "vectors", config.selector.max_new_tokens
    sets = 0
    for stage, asked, count in draws:
        if writes:
            works.sample(stage, asked, config.pool.size, count, new)
            # The writer draws, then the reader answers, both with the same engine.
            turns = steps if stage == selecting else -(-asked // select.SHARD)
            works.hand_overs[stage] = 2 * turns
        if writes and stage == selecting:
            works.update(stage, steps, batch, count, new, config.pool.size)
        works.judge(stage, asked * count, config.select.passages)
        sets += asked * count
    return sets


def _read(works: _Works, iteration: int, questions: int) -> int:
    """Adds the training of an iteration's reader; returns how many answers are sampled at most."""
    config, stage = works.config, stage_of("read", iteration)
    settings = config.read
    steps = steps_for(settings.steps, questions, settings.prompts)
    if settings.train == "supervised":
        works.update(stage, steps, min(settings.prompts, questions))
        return 0
    passages = config.select.passages
    works.hand_overs[stage] = steps
    works.sample(
        stage, steps * settings.prompts, passages, settings.samples, settings.max_new_tokens
    )
    works.update(stage, steps, settings.prompts, settings.samples, settings.max_new_tokens)
    return steps * settings.prompts * settings.samples


RECIPE = Recipe(
    name="bar_rag",
    stages=stages,
    schema=BarRag,
    check=check_all,
    unread=lambda config: ("rollout",) if config.rollout.backend == "local" else (),
    look=ingest.describe_input,
    metrics={name: metric_heading(name) for name in METRICS},
    headline=evaluate.HEADLINE,
    outcome=functools.partial(read_outcome, metrics=METRICS),
    prepared=("data",),
    forecast=forecast,
    conclusion=evaluate.conclusion,
    ending=functools.partial(
        ending,
        headline=evaluate.HEADLINE,
        questions=lambda context: [x.question for x in evaluate.measured_questions(context)],
        first=lambda context: lambda row: row["answer"] or "",
        command=evaluate.ask_command,
        base=UNTUNED,
    ),
)
