"""The read stages: the reader learns from its own answers to the sets of evidence."""

import dataclasses
import functools
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ark_jax.evaluate.reading import ReadingPrompt
from ark_jax.pipeline.stage import Context
from ark_jax.recipes.bar_rag.answers import Asked, draw_answers, group_of, summary
from ark_jax.recipes.bar_rag.config import ReadSection
from ark_jax.recipes.bar_rag.evidence import load_evidence
from ark_jax.recipes.bar_rag.readers import load_reader, reader_before, stage_of
from ark_jax.recipes.bar_rag.reading import reading_prompt
from ark_jax.recipes.bar_rag.rollouts import Answer
from ark_jax.recipes.bar_rag.updates import StepRows, stage_seed, steps_for
from ark_jax.recipes.bar_rag.warm import save_reader
from ark_jax.recipes.common import own_loss
from ark_jax.recipes.common.corpus import Passages, stored_chunks
from ark_jax.recipes.common.reader_training import (
    PooledQuestion,
    questions_of_steps,
    reading_prompts,
    teach,
)
from ark_jax.recipes.common.training import training_run
from ark_jax.runtime.log import say
from ark_jax.schema import section_of
from ark_jax.train.config import LanguageModelConfig

if TYPE_CHECKING:  # their modules start jax
    from ark_jax.models.language import LanguageModel
    from ark_jax.train.fit import Run, Trained
    from ark_jax.train.groups import Group


def train_reader(context: Context, folder: Path, *, iteration: int) -> dict:
    """Trains the reader of the iteration before; stores it under `model`."""
    config, stage = context.config, stage_of("read", iteration)
    settings, seed = config.read, stage_seed(config, stage)
    sets, before = load_evidence(context, iteration), reader_before(iteration)
    reader, form = load_reader(context, before), reading_prompt(config)
    passages, run = Passages(stored_chunks(context)), training_run(context.metrics, folder, stage)
    steps = steps_for(settings.steps, len(sets), settings.prompts)
    orders = itertools.islice(questions_of_steps(len(sets), settings.prompts, seed), steps)
    chosen = [numbers.tolist() for numbers in orders]
    if settings.train == "supervised":
        (tuned, adapter, _), counts = teach(
            reader,
            form,
            [sets[i] for numbers in chosen for i in numbers],
            passages,
            section_of(config.train, LanguageModelConfig),
            run,
            batch=min(settings.prompts, len(sets)),
            learning_rate=settings.learning_rate,
            seed=config.seed,
        )
    else:
        (tuned, adapter, _), counts = _grpo(reader, form, sets, passages, run, chosen, config, seed)
    save_reader(tuned, adapter, form, folder, f"{before}/model")
    return counts


def _grpo(
    reader: "LanguageModel",
    form: ReadingPrompt,
    sets: Sequence[tuple[PooledQuestion, Sequence[str]]],
    passages: Mapping[str, str],
    run: "Run",
    chosen: Sequence[Sequence[int]],
    config,
    seed: int,
) -> tuple["Trained", dict]:
    """Policy gradients on the reader's own answers.

    Args:
        chosen: the numbers of each step's sets.
        seed: of the draws.
    """
    from ark_jax.train import tuning

    settings = config.read
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
    drawn, summaries = StepRows(run.folder / "answers.parquet", Answer), {}

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
        run.on_step(row | shared)

    trained = tuning.grpo(
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
    return trained, _counts(drawn.join(), len(trained.curve), len(sets), prompts.cut)


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
