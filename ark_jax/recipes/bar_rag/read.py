"""The read stages: the reader learns from its own answers to the sets of evidence."""

import dataclasses
import functools
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ark_jax.pipeline.stage import Context
from ark_jax.recipes.bar_rag.answers import Asked, draw_answers, group_of, summary
from ark_jax.recipes.bar_rag.config import ReadSection
from ark_jax.recipes.bar_rag.evidence import load_evidence
from ark_jax.recipes.bar_rag.readers import load_reader, reader_before, stage_of
from ark_jax.recipes.bar_rag.reading import reading_prompt
from ark_jax.recipes.bar_rag.rollouts import Answer
from ark_jax.recipes.bar_rag.updates import StepRows, stage_seed, steps_for
from ark_jax.recipes.bar_rag.warm import save_reader, train_on_references
from ark_jax.recipes.common import own_loss
from ark_jax.recipes.common.corpus import Passages, stored_chunks
from ark_jax.recipes.common.reader_training import (
    PooledQuestion,
    questions_of_steps,
    reading_prompts,
)
from ark_jax.recipes.common.training import training_run
from ark_jax.runtime.log import say
from ark_jax.schema import section_of
from ark_jax.train.config import LanguageModelConfig

if TYPE_CHECKING:  # its module starts jax
    from ark_jax.train.groups import Group


def train_reader(context: Context, folder: Path, *, iteration: int) -> dict:
    """Trains the reader of the iteration before; stores it under `model`."""
    config, stage = context.config, stage_of("read", iteration)
    settings, seed = config.read, stage_seed(config, stage)
    sets, before = load_evidence(context, iteration), reader_before(iteration)
    steps = steps_for(settings.steps, len(sets), settings.prompts)
    orders = itertools.islice(questions_of_steps(len(sets), settings.prompts, seed), steps)
    chosen = [numbers.tolist() for numbers in orders]
    if settings.train == "supervised":
        return train_on_references(
            context,
            folder,
            [sets[i] for numbers in chosen for i in numbers],
            before=before,
            stage=stage,
            batch=min(settings.prompts, len(sets)),
            learning_rate=settings.learning_rate,
        )
    return _grpo(context, folder, sets, chosen, before, stage)


def _grpo(
    context: Context,
    folder: Path,
    sets: Sequence[tuple[PooledQuestion, Sequence[str]]],
    chosen: Sequence[Sequence[int]],
    before: str,
    stage: str,
) -> dict:
    """Policy gradients on the reader's own answers.

    Args:
        chosen: the numbers of each step's sets.
        before: the reader to begin with.
    """
    from ark_jax.train import tuning

    config, reader = context.config, load_reader(context, before)
    settings, form, seed = config.read, reading_prompt(config), stage_seed(config, stage)
    passages = Passages(stored_chunks(context))
    prompts = reading_prompts(
        reader,
        form,
        [(pooled.question.question, [passages[x] for x in chunks]) for pooled, chunks in sets],
        settings.max_new_tokens,
    )
    ids = reader.prompt_ids(prompts.texts)
    items = [
        Asked(pooled, len(chunks), *prompt)
        for (pooled, chunks), *prompt in zip(sets, prompts.texts, ids, strict=True)
    ]
    drawn, summaries = StepRows(folder / "answers.parquet", Answer), {}

    def make_groups(step: int, model) -> "list[Group]":
        batch = [items[i] for i in chosen[step]]
        draw = functools.partial(
            draw_answers, model, reader, form, batch, config, seed=seed, step=step
        )
        answers = drawn.rows(step, draw)
        summaries[step] = summary(answers)
        of_item = lambda item: [x for x in answers if x.question_id == item.pooled.id]
        return [group_of(of_item(item), item.ids, item.pooled.id) for item in batch]

    def on_step(row: dict) -> None:
        # Of several updates from the same answers, each has the same summary.
        shared = summaries.get((row["step"] - 1) // settings.updates, {})
        context.metrics.step(stage, row | shared)

    run = training_run(context, folder, stage)
    tuned, adapter, curve = tuning.grpo(
        reader,
        make_groups,
        section_of(config.train, LanguageModelConfig),
        dataclasses.replace(run, on_step=on_step),
        policy=section_of(settings, ReadSection),
        steps=len(chosen),
        prompts=max(map(len, chosen)),
        prompt_tokens=max(len(item.ids) for item in items),
        completion_tokens=settings.max_new_tokens,
        learning_rate=settings.learning_rate,
        seed=config.seed,
        by_token=own_loss.load_of_tokens(config),
    )
    save_reader(context, folder, before, tuned, adapter)
    return _counts(drawn.join(), len(curve), len(sets), prompts.cut)


def _counts(answers: Sequence[Answer], steps: int, questions: int, cut: int) -> dict:
    """Counts for the manifest."""
    if not any(answer.live for answer in answers):
        say(
            "  warning: all answers to a question were equally right, so the reader has learned "
            "nothing; keep questions of other p (config.filter), draw more answers "
            "(config.read.samples) or warm it up longer (config.warm.steps)"
        )
    last = max(answer.step for answer in answers)
    first = [answer for answer in answers if answer.step <= last // 4]
    final = [answer for answer in answers if answer.step >= last - last // 4]
    overall = summary(answers)
    return {
        "questions": questions,
        "steps": steps,
        "answers": len(answers),
        "live_share": overall["live"],
        "phantom_share": overall["phantom"],
        "ended_share": overall["ended"],
        "first_reward": summary(first)["reward"],
        "last_reward": summary(final)["reward"],
        **({"cut_prompts": cut} if cut else {}),
    }
