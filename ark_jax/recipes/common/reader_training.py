"""Training of a reader on reference answers, from passages that hold them among others."""

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ark_jax.data.records import Question
from ark_jax.evaluate.reading import ReadingPrompt
from ark_jax.recipes.common.reader_passages import fit_to_reader
from ark_jax.recipes.common.training import first_and_last_loss
from ark_jax.text.cited import reply_in_tags
from ark_jax.train.config import LanguageModelConfig
from ark_jax.train.rewards import usable_references

if TYPE_CHECKING:  # their modules start jax
    from ark_jax.models.language import LanguageModel
    from ark_jax.train.fit import Run, Trained


@dataclasses.dataclass(frozen=True)
class PooledQuestion:
    """A question and its pool, best chunk first by the retriever."""

    number: int  # among the questions of its part; random draws depend on it
    question: Question  # some reference answer has a word
    chunk_ids: tuple[str, ...]
    cosines: tuple[float, ...]
    gold: tuple[tuple[str, ...], ...]  # needed passages, each as the chunks that hold it

    @property
    def id(self) -> str:
        return self.question.id

    def needed(self, limit: int) -> list[str]:
        """A chunk of each needed passage, the nearest of those that hold it; at most so many."""
        ranks = {chunk: rank for rank, chunk in enumerate(self.chunk_ids)}
        rank = lambda chunk: ranks.get(chunk, len(ranks))
        nearest = (min(holders, key=rank) for holders in self.gold if holders)
        return list(dict.fromkeys(nearest))[:limit]


@dataclasses.dataclass(frozen=True)
class Prompts:
    """Prompts of a reader, and how many of them were cut at their passages' end to fit it."""

    texts: list[str]
    cut: int


def reading_prompts(
    lm: "LanguageModel",
    form: ReadingPrompt,
    readings: Sequence[tuple[str, Sequence[str]]],
    room: int,
) -> Prompts:
    """The prompts of questions with their passages, in the order in which they are shown.

    Args:
        readings: (question, passages).
        room: tokens that a reply may take.

    Raises:
        ValueError: a question leaves no room for passages.
    """
    joined = [form.join(passages) for _, passages in readings]
    prompt = lambda question, passages: form.for_model(lm, form.fill(question, passages))
    texts = [prompt(question, text) for (question, _), text in zip(readings, joined, strict=True)]
    cut = 0
    for i, ids in enumerate(lm.prompt_ids(texts) if texts else []):
        if len(ids) + room >= lm.max_length:
            question = readings[i][0]
            texts[i] = prompt(question, fit_to_reader(lm, form, question, joined[i], room))
            cut += 1
    return Prompts(texts, cut)


def reply_ids(
    lm: "LanguageModel", form: ReadingPrompt, answer: str, thought: str = ""
) -> list[int]:
    """The tokens of a reply that a reader is to give, with the one that ends it.

    Args:
        thought: where replies have one.

    Raises:
        ValueError: the model has no token that ends a text.
    """
    text = reply_in_tags(thought, answer.strip()) if form.cite else answer.strip()
    # A plain prompt ends without the blank that belongs to the word after it.
    text = text if form.chat else f" {text}"
    return [*lm.tokenizer(text, add_special_tokens=False)["input_ids"], lm.end_id]


def questions_of_steps(count: int, batch: int, seed: int) -> Iterator[np.ndarray]:
    """The numbers of the questions of each step, without end; each pass has its own order.

    A step has `batch` questions, or all of them if they are fewer.
    """
    random, left = np.random.default_rng(seed), np.zeros(0, int)
    batch = min(batch, count)
    while True:
        while len(left) < batch:
            order = random.permutation(count)
            # Of a step over the end of a pass, no question comes twice.
            order = [*(i for i in order if i not in left), *(i for i in order if i in left)]
            left = np.concatenate([left, np.array(order, int)])
        yield left[:batch]
        left = left[batch:]


def sets_with_gold(
    questions: Sequence[PooledQuestion], steps: int, batch: int, size: int, seed: int
) -> list[tuple[PooledQuestion, list[str]]]:
    """The sets of all steps: a chunk of each needed passage, and others of the pool, in any order.

    Args:
        questions: each has a needed passage.
        size: chunks of a set, if the pool has so many.
    """
    random, sets = np.random.default_rng([seed, 1]), []
    for numbers in itertools.islice(questions_of_steps(len(questions), batch, seed), steps):
        for pooled in (questions[i] for i in numbers):
            needed = pooled.needed(size)
            holding = {chunk for holders in pooled.gold for chunk in holders}
            unneeded = [chunk for chunk in pooled.chunk_ids if chunk not in holding]
            count = min(size - len(needed), len(unneeded))
            drawn = [unneeded[i] for i in random.choice(len(unneeded), count, replace=False)]
            chosen = [*needed, *drawn]
            sets.append((pooled, [chosen[i] for i in random.permutation(len(chosen))]))
    return sets


def teach(
    reader: "LanguageModel",
    form: ReadingPrompt,
    sets: Sequence[tuple[PooledQuestion, Sequence[str]]],
    passages: Mapping[str, str],
    config: LanguageModelConfig,
    run: "Run",
    *,
    batch: int,
    learning_rate: float,
    seed: int,
) -> tuple["Trained", dict]:
    """Trains a copy of a reader on a reference answer to each set, each once.

    Args:
        sets: (question, chunk ids).
        passages: chunk id -> passage.
        batch: sets of a step.

    Returns:
        what `tuning.sft` returns, and counts for the manifest.
    """
    from ark_jax.train import tuning

    replies = [_reply(reader, form, pooled, chunks) for pooled, chunks in sets]
    prompts = reading_prompts(
        reader,
        form,
        [(pooled.question.question, [passages[x] for x in chunks]) for pooled, chunks in sets],
        room=max(map(len, replies)),
    )
    demonstrations = [
        tuning.Demonstration(ids, reply, name=pooled.id)
        for ids, reply, (pooled, _) in zip(
            reader.prompt_ids(prompts.texts), replies, sets, strict=True
        )
    ]
    trained = tuning.sft(
        reader, demonstrations, config, run, batch=batch, learning_rate=learning_rate, seed=seed
    )
    return trained, {
        "steps": len(trained.curve),
        "questions": len({pooled.id for pooled, _ in sets}),
        **first_and_last_loss(trained.curve),
        **({"cut_prompts": prompts.cut} if prompts.cut else {}),
    }


def _reply(reader, form: ReadingPrompt, pooled: PooledQuestion, chunks: Sequence[str]) -> list[int]:
    """The reply to learn: the first usable reference; a thought names the passages that hold it."""
    reference = usable_references(pooled.question.answers)[0]
    holding = {chunk for holders in pooled.gold for chunk in holders}
    cited = [f"Doc [{i}]" for i, chunk in enumerate(chunks, 1) if chunk in holding]
    thought = f"The answer is in {' and '.join(cited)}." if cited else "No document says it."
    return reply_ids(reader, form, reference, thought)
