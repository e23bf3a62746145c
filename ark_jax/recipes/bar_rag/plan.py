"""What a run of BAR-RAG computes, for `ark-jax plan`: rollouts, training and measuring."""

import dataclasses
import math

from ark_jax.estimate.work import Texts, Work, measure
from ark_jax.pipeline.recipe import Forecast
from ark_jax.pipeline.stage import Context
from ark_jax.recipes.bar_rag.reading import reading_prompt
from ark_jax.recipes.bar_rag.rollouts import stage_of, steps_for
from ark_jax.recipes.bar_rag.select import filter_of
from ark_jax.recipes.documents import plan
from ark_jax.recipes.documents.corpus import load_questions, stored_chunks


def forecast(context: Context, done: set[str]) -> Forecast:
    """The work of all stages, and how many sets and answers are drawn at most."""
    config, chunks = context.config, stored_chunks(context)
    train, held_out = (load_questions(context, part) for part in ("train", "held_out"))
    works = _Works.for_questions(context, train)
    works.embed(measure(config.retriever.path, chunks, plan.PASSAGE))
    works.embed(measure(config.retriever.path, [*train, *held_out], plan.QUESTION))
    warm = config.warm
    steps = math.ceil(len(train) / warm.batch) if warm.steps < 0 else warm.steps
    works.update("warm", steps, min(warm.batch, len(train)))
    sets = answers = 0
    for iteration in range(1, config.iterations + 1):
        sets += _select(works, iteration, len(train))
        answers += _read(works, iteration, len(train))
    measured = min(config.evaluate.questions or len(held_out), len(held_out))
    works.measure_readers("baselines", 2, measured)
    works.measure_readers("evaluate", config.iterations, measured)
    answers += sets * config.success.answers * (config.success.by == "samples")
    most = {"sets to judge, at most": sets, "answers to sample, at most": answers}
    return Forecast(
        inputs=plan.count_inputs(context) | {name: count for name, count in most.items() if count},
        work=tuple(work for work in works.works if work.items),
        notes=(
            "the filter keeps fewer questions, and sets that come again are computed once: both "
            "make it cheaper",
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
    """

    config: object
    bare: float
    passage: float
    answer: float
    works: list[Work] = dataclasses.field(default_factory=list)

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
        """Adds replies to prompts: `samples` of `new` tokens to each."""
        prompt = self.prompt(passages)
        self.works.append(Work(stage, "generator", "reading", prompts, prompt))
        self.works.append(Work(stage, "generator", "reading", prompts * samples, 0, new, prompt))

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
    filtering, select = (stage_of(kind, iteration) for kind in ("filter", "select"))
    looked_at = min(config.filter.questions or questions, questions)
    steps = steps_for(config.select.steps, looked_at, config.select.questions)
    batch = min(config.select.questions, looked_at)
    draws = []  # (stage, questions, sets of each)
    if filter_of(config, iteration) == filtering:
        draws.append((filtering, looked_at, config.filter.sets))
    if config.read.evidence == "selected":
        draws.append((select, steps * batch, config.select.sets))
    writes, new = config.selector.kind != "vectors", config.selector.max_new_tokens
    sets = 0
    for stage, asked, each in draws:
        if writes:
            works.sample(stage, asked, config.pool.size, each, new)
        if writes and stage == select:
            works.update(stage, steps, batch, each, new, config.pool.size)
        works.judge(stage, asked * each, config.select.passages)
        sets += asked * each
    return sets


def _read(works: _Works, iteration: int, questions: int) -> int:
    """Adds the training of an iteration's reader; returns how many answers are sampled at most."""
    config, stage = works.config, stage_of("read", iteration)
    read = config.read
    steps = steps_for(read.steps, questions, read.prompts)
    if read.train == "supervised":
        works.update(stage, steps, min(read.prompts, questions))
        return 0
    passages = config.select.passages
    works.sample(stage, steps * read.prompts, passages, read.samples, read.max_new_tokens)
    works.update(stage, steps, read.prompts, read.samples, read.max_new_tokens)
    return steps * read.prompts * read.samples
