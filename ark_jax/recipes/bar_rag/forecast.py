"""What the devices compute in a run of BAR-RAG and what it stores, for `ark-jax plan`."""

import dataclasses
import functools
import math
from collections.abc import Sequence

import numpy as np

from ark_jax import layout
from ark_jax.estimate import step_memory
from ark_jax.estimate.device_time import load_tokenizing_retriever, speed_note, trainable_parameters
from ark_jax.estimate.device_work import WeightlessModel, Work
from ark_jax.models.batching import batch_tokens_of_device
from ark_jax.pipeline.recipe import Forecast
from ark_jax.pipeline.stage import Context
from ark_jax.recipes.bar_rag.filter import filter_of
from ark_jax.recipes.bar_rag.readers import stage_of
from ark_jax.recipes.bar_rag.reading import reading_prompt
from ark_jax.recipes.bar_rag.updates import steps_for
from ark_jax.recipes.common.corpus import load_questions, stored_chunks
from ark_jax.recipes.common.estimate import count_inputs
from ark_jax.text.tokens import load_tokenizer
from ark_jax.train import memory, parts
from ark_jax.train.groups import BatchShape

SAMPLE = 1000  # texts whose tokens are counted
STATES = 3  # of each weight: itself, and AdamW's two moments
STORED = 4  # bytes of a parameter of a trained reader
TRAINING = np.array([3, 3.5])  # FLOPs with the backward pass, in those of a forward pass


@dataclasses.dataclass(frozen=True)
class _Sizes:
    """How much there is to compute; lengths are means in tokens of the generator."""

    questions: int  # to train on
    measured: int  # held out
    passage: float
    question: float  # with the words of the prompt
    answer: float

    def prompt(self, passages: int) -> float:
        return self.question + passages * self.passage


def forecast(context: Context, done: set[str]) -> Forecast:
    """Rollouts, training, measuring and disk space, as if the filter kept every question."""
    config = context.config
    context.enter_mesh()
    retriever = WeightlessModel.from_folder(
        config.retriever.path,
        compute=config.retriever.compute,
        batch=config.retriever.batch_tokens,
        head=False,
    )
    generator = WeightlessModel.from_folder(
        config.generator.path,
        compute=config.generator.dtype,
        batch=config.generator.batch_tokens,
        head=True,
    )
    sizes = _sizes(context, generator)
    planned = _Works(config, generator, sizes)
    works = [_embedding(context, retriever), *planned.all()]
    choices = {stage: x for stage, x in planned.choices.items() if stage not in done}
    trained = trainable_parameters(generator, config.train)
    readers = 1 + config.iterations
    rollouts = _rollouts(config, sizes)
    return Forecast(
        inputs=count_inputs(context) | {name: count for name, count in rollouts.items() if count},
        work=tuple(work for work in works if work.stage not in done),
        disk={
            "readers": (readers + 1) * generator.parameters * STORED,
            "checkpoints": 2 * STATES * trained * STORED,
        },
        notes=(
            "the filter keeps fewer questions, and sets that come again are computed once: both "
            "make it cheaper",
            speed_note([retriever, generator]),
            *step_memory.notes(choices),
        ),
    )


def _rollouts(config, sizes: _Sizes) -> dict[str, int]:
    """How many sets are judged and how many answers are sampled in all iterations."""
    sets = config.iterations * sum(_sets(config, sizes).values())
    per_set = config.success.answers if config.success.by == "samples" else 0
    read, is_sampling = config.read, config.read.train == "grpo"
    answers = steps_for(read.steps, sizes.questions, read.prompts) * read.prompts * read.samples
    return {
        "sets to judge, at most": sets,
        "answers to sample, at most": sets * per_set + config.iterations * answers * is_sampling,
    }


def _sets(config, sizes: _Sizes) -> dict[str, int]:
    """Sets that the filter and the selector draw in an iteration."""
    looked_at = min(config.filter.questions or sizes.questions, sizes.questions)
    select = config.select
    steps = steps_for(select.steps, looked_at, select.questions)
    selected = steps * min(select.questions, looked_at) * select.sets
    by_selector = config.read.evidence == "selected"
    return {"filter": looked_at * config.filter.sets, "select": selected * by_selector}


def _sizes(context: Context, generator: WeightlessModel) -> _Sizes:
    tokenizer = load_tokenizer(str(generator.folder))
    form = reading_prompt(context.config)

    def mean(texts: Sequence[str]) -> float:
        sample = texts[:: -(-len(texts) // SAMPLE) or 1]
        ids = tokenizer(list(sample), add_special_tokens=False)["input_ids"] if sample else []
        return float(np.mean(list(map(len, ids)))) if ids else 0.0

    train, held_out = (load_questions(context, part) for part in ("train", "held_out"))
    chunks = stored_chunks(context)
    limit = context.config.evaluate.questions
    return _Sizes(
        questions=len(train),
        measured=min(limit or len(held_out), len(held_out)),
        passage=mean([chunk.passage for chunk in chunks[:: -(-len(chunks) // SAMPLE) or 1]]),
        question=mean([form.fill(question.question, "") for question in train]),
        answer=mean([answer for question in train for answer in question.answers[:1]]) + 1,
    )


def _embedding(context: Context, retriever: WeightlessModel) -> Work:
    """The vectors of all chunks and questions."""
    chunks = stored_chunks(context)
    asked = [q.question for part in ("train", "held_out") for q in load_questions(context, part)]
    tokenizer = load_tokenizing_retriever(retriever)
    lengths = [
        *(chunk.tokens for chunk in chunks),
        *map(len, tokenizer.tokenize(asked, kind="query")),
    ]
    return retriever.work("pool", "embedding", sum(lengths), retriever.text_flops(lengths))


@dataclasses.dataclass(frozen=True)
class _Works:
    """The work of the generator, stage by stage."""

    config: object
    model: WeightlessModel
    sizes: _Sizes
    choices: dict[str, memory.Choice] = dataclasses.field(default_factory=dict)  # by stage

    def all(self) -> list[Work]:
        config, sizes = self.config, self.sizes
        k, works = config.select.passages, []
        warm = config.warm
        passes = -(-sizes.questions // warm.batch)
        steps = passes if warm.steps < 0 else warm.steps
        works.append(self._training("warm", steps * warm.batch, warm.batch))
        for iteration in range(1, config.iterations + 1):
            name = functools.partial(stage_of, iteration=iteration)
            for kind, sets in _sets(config, sizes).items():
                if sets and name(kind) in (filter_of(config, iteration), name("select")):
                    works += self._selecting(name(kind), sets)
                    works += self._success(name(kind), sets, k)
            works += self._reading(name("read"))
        read = config.evaluate.passages or k
        works += self._measuring("baselines", 2, read)
        works += self._measuring("evaluate", config.iterations, read)
        return works

    def _training(
        self,
        stage: str,
        prompts: int,
        batch: int,
        samples: int = 1,
        new: float = 0,
        passages: int = 0,
    ) -> Work:
        """Updates from `samples` completions of each prompt, `batch` prompts a step."""
        new = new or self.sizes.answer
        length = self.sizes.prompt(passages or self.config.select.passages)
        choice = self._step_choice(min(batch, prompts), samples, math.ceil(length), math.ceil(new))
        if prompts:
            self.choices[stage] = choice
        tokens = prompts * (length + samples * new)
        pairs = prompts * (length**2 / 2 + samples * new * (length + new / 2))
        flops = self.model.flops(tokens, pairs, prompts * samples * new)
        again = int(choice.remat == "all")
        return self.model.work(stage, "training", tokens, flops * (TRAINING + again))

    def _step_choice(self, prompts: int, samples: int, length: int, new: int) -> memory.Choice:
        """How a step of prompts of a length with completions of `new` tokens is computed."""
        full = functools.partial(
            BatchShape.full, samples=samples, prompt_tokens=length, completion_tokens=new
        )
        part = parts.prompts_of_part(full(prompts=max(prompts, 1)), batch_tokens_of_device())
        texts = full(prompts=part * layout.batch_multiple()).texts_of_device()
        return step_memory.choose(self.model, self.config.train, lambda _: texts)

    def _reading(self, stage: str) -> list[Work]:
        read = self.config.read
        prompts = steps_for(read.steps, self.sizes.questions, read.prompts) * read.prompts
        if read.train == "supervised":
            return [self._training(stage, prompts, read.prompts)]
        passages, new = self.config.select.passages, read.max_new_tokens
        sampled = self._sampled(stage, prompts, passages, read.samples)
        return [*sampled, self._training(stage, prompts, read.prompts, read.samples, new)]

    def _selecting(self, stage: str, sets: int) -> list[Work]:
        """What a writer computes for so many sets, as large as the generator."""
        if self.config.selector.kind == "vectors":
            return []
        pool = self.config.pool.size
        draws = self.config.filter.sets if stage.startswith("filter") else self.config.select.sets
        questions = sets // draws
        works = self._sampled(stage, questions, pool, draws, self.config.selector.max_new_tokens)
        if stage.startswith("select"):
            new = self.config.selector.max_new_tokens
            batch = self.config.select.questions
            works.append(self._training(stage, questions, batch, draws, new, pool))
        return works

    def _success(self, stage: str, sets: int, passages: int) -> list[Work]:
        """p of so many sets."""
        if self.config.success.by == "samples":
            return self._sampled(stage, sets, passages, self.config.success.answers)
        length = self.sizes.prompt(passages) + self.sizes.answer
        flops = sets * self.model.text_flops([length], self.sizes.answer)
        return [self.model.work(stage, "likelihoods", sets * length, flops)]

    def _sampled(
        self, stage: str, prompts: int, passages: int, samples: int, new: int = 0
    ) -> list[Work]:
        """Sampled replies, as long as they may be; a prompt is computed once for all of them."""
        length, new = self.sizes.prompt(passages), new or self.config.read.max_new_tokens
        shared = prompts * self.model.text_flops([length])
        return [
            self.model.work(stage, "reading", prompts * length, shared),
            self.model.generation(stage, prompts * samples, 1, new),
        ]

    def _measuring(self, stage: str, readers: int, passages: int) -> list[Work]:
        """p and the answer of readers on what the retriever finds, and on what they need."""
        config, asked = self.config.evaluate, readers * self.sizes.measured
        if not asked:
            return []
        works = []
        for size in (passages, 1, *config.sizes, *((passages, passages) if config.removal else ())):
            length = self.sizes.prompt(size)
            works += self._success(stage, asked, size)
            works.append(self.model.generation(stage, asked, length, config.max_new_tokens))
        return works
