"""The stages warm, evidence and read: the reader learns from sets of passages."""

import dataclasses
import functools
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ark_jax.evaluate.reading import ReadingPrompt
from ark_jax.pipeline.stage import Context
from ark_jax.pipeline.tables import load_rows, save_rows
from ark_jax.recipes.bar_rag import rollouts
from ark_jax.recipes.bar_rag.config import ReadSection
from ark_jax.recipes.bar_rag.reading import Asked, draw_answers, group_of, reading_prompt, summary
from ark_jax.recipes.bar_rag.rollout_engine import Sample, sampler
from ark_jax.recipes.bar_rag.select import load_kept
from ark_jax.recipes.bar_rag.selectors import load_pools, load_selector
from ark_jax.recipes.core import own_parts
from ark_jax.recipes.core.models import training_run
from ark_jax.recipes.documents import reader_training
from ark_jax.recipes.documents.corpus import Passages, stored_chunks
from ark_jax.runtime.log import say
from ark_jax.schema import section_of
from ark_jax.train.config import LanguageModelConfig

if TYPE_CHECKING:  # these modules start jax
    from ark_jax.models.language import LanguageModel
    from ark_jax.train.fit import Run, Trained
    from ark_jax.train.groups import Group


def train_warm(context: Context, folder: Path) -> dict:
    """Teaches the untuned generator to answer from passages, the warm start.

    Raises:
        ValueError: no training question has a passage that holds its answer.
    """
    config = context.config
    reader, form = rollouts.load_reader(context, rollouts.UNTUNED), reading_prompt(config)
    _ = reader.end_id  # raises if no reply could end
    if not config.warm.steps:
        save_reader(reader, None, form, folder, config.generator.path)
        return {"steps": 0}
    pools = load_pools(context, "train")
    shown = [pooled for pooled in pools if any(pooled.gold)]
    if not shown:
        raise ValueError(
            f"config.warm: none of {len(pools):,} training questions has a passage that holds its "
            "answer; mark evidence in the data, set config.evaluate.gold=answers, or leave the "
            "warm start out with config.warm.steps=0"
        )
    if missing := len(pools) - len(shown):
        say(f"  {missing:,} questions have no passage that holds their answer: not shown")
    steps = config.warm.steps if config.warm.steps > 0 else -(-len(shown) // config.warm.batch)
    sets = reader_training.sets_with_gold(
        shown,
        steps,
        config.warm.batch,
        config.select.passages,
        rollouts.stage_seed(config, rollouts.WARM),
    )
    (tuned, adapter, _), counts = reader_training.teach(
        reader,
        form,
        sets,
        Passages(stored_chunks(context)),
        section_of(config.train, LanguageModelConfig),
        training_run(context.metrics, folder, rollouts.WARM),
        batch=config.warm.batch,
        learning_rate=config.warm.learning_rate,
        seed=config.seed,
    )
    save_reader(tuned, adapter, form, folder, config.generator.path)
    return counts | ({"without_gold": missing} if missing else {})


def save_reader(tuned, adapter, form: ReadingPrompt, folder: Path, base: str) -> None:
    """Stores a trained reader under `model`, and its adapter, if it has one, under `adapter`.

    The weights are float32: in the type of a base in bfloat16, small updates would be rounded away.

    Args:
        form: of its prompts.
        base: the model before training; one in the workdir is named relative to it.
    """
    from ark_jax.models import lora

    tuned.save_pretrained(folder / "model", dtype="float32")
    form.write(folder / "model")
    if adapter is not None:
        lora.save_peft(adapter, folder / "adapter", base=base, task="CAUSAL_LM")


BLOCK = 1024  # questions whose sets the selector chooses at once


def choose_evidence(context: Context, folder: Path, *, iteration: int) -> dict:
    """Picks the passages from which the reader will answer each question."""
    config = context.config
    if config.filter.reader:
        questions = load_kept(context, iteration)
    else:
        questions = load_pools(context, "train")
    sets = _choose_sets(context, questions, iteration)
    rows = [
        {"question_id": pooled.id, "chunk_ids": chosen_set.chunk_ids, "problem": chosen_set.problem}
        for pooled, chosen_set in zip(questions, sets, strict=True)
    ]
    if unreadable := sum(bool(chosen_set.problem) for chosen_set in sets):
        say(
            f"  {unreadable:,} replies of the selector name no set of passages: the nearest "
            "passages are used instead"
        )
    save_rows(rows, folder / "sets.parquet")
    needed = {pooled.id: {x for holders in pooled.gold for x in holders} for pooled in questions}
    holding = sum(not needed[row["question_id"]].isdisjoint(row["chunk_ids"]) for row in rows)
    return {
        "questions": len(rows),
        "share_with_gold": round(holding / len(rows), 4),
        **({"unreadable": unreadable} if unreadable else {}),
    }


def _choose_sets(
    context: Context, questions: list[reader_training.PooledQuestion], iteration: int
) -> list[rollouts.ChosenSet]:
    """The set of each question, by the way `read.evidence` names."""
    config = context.config
    if config.read.evidence == "selected":
        selector, sets = load_selector(context, iteration), []
        for start in range(0, len(questions), BLOCK):
            sets += selector.best(questions[start : start + BLOCK])
        return sets
    chosen = [list(pooled.chunk_ids) for pooled in questions]
    if config.read.evidence == "random":
        seed = rollouts.stage_seed(config, rollouts.stage_of("evidence", iteration))
        chosen = [shuffled(pooled, seed) for pooled in questions]
    return [rollouts.ChosenSet(ids[: config.select.passages]) for ids in chosen]


def shuffled(pooled: reader_training.PooledQuestion, seed: int) -> list[str]:
    """The chunk ids of a pool in a random order, which depends on the seed and the question."""
    order = np.random.default_rng([seed, pooled.number]).permutation(len(pooled.chunk_ids))
    return [pooled.chunk_ids[place] for place in order]


def load_evidence(
    context: Context, iteration: int
) -> list[tuple[reader_training.PooledQuestion, list[str]]]:
    """Each question that the reader learns from, with the chunk ids of its set."""
    rows = load_rows(context / rollouts.stage_of("evidence", iteration) / "sets.parquet")
    pools = {pooled.id: pooled for pooled in load_pools(context, "train")}
    return [(pools[row["question_id"]], row["chunk_ids"]) for row in rows]


def train_reader(context: Context, folder: Path, *, iteration: int) -> dict:
    """Trains the reader by rewards of its own answers from these passages."""
    config, stage = context.config, rollouts.stage_of("read", iteration)
    settings, seed = config.read, rollouts.stage_seed(config, stage)
    sets, before = load_evidence(context, iteration), rollouts.reader_before(iteration)
    reader, form = rollouts.load_reader(context, before), reading_prompt(config)
    passages, run = Passages(stored_chunks(context)), training_run(context.metrics, folder, stage)
    steps = rollouts.steps_for(settings.steps, len(sets), settings.prompts)
    numbers_of_steps = reader_training.questions_of_steps(len(sets), settings.prompts, seed)
    chosen = [numbers.tolist() for numbers in itertools.islice(numbers_of_steps, steps)]
    if settings.train == "supervised":
        (tuned, adapter, _), counts = reader_training.teach(
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
        (tuned, adapter, _), counts = _train_by_grpo(
            sampler(context), reader, form, sets, passages, run, chosen, config, seed
        )
    save_reader(tuned, adapter, form, folder, f"{before}/model")
    return counts


def _train_by_grpo(
    sample: Sample,
    reader: "LanguageModel",
    form: ReadingPrompt,
    sets: Sequence[tuple[reader_training.PooledQuestion, Sequence[str]]],
    passages: Mapping[str, str],
    run: "Run",
    chosen: Sequence[Sequence[int]],
    config,
    seed: int,
) -> tuple["Trained", dict]:
    """Trains a copy of the reader by GRPO on its own answers; returns it and counts."""
    from ark_jax.train import tuning

    settings = config.read
    items, cut = _prompt_sets(reader, form, sets, passages, settings.max_new_tokens)
    drawn, summaries = rollouts.StepRows(run.folder / "answers.parquet", rollouts.Answer), {}

    def make_groups(step: int, model) -> "list[Group]":
        batch = [items[i] for i in chosen[step]]
        draw = functools.partial(
            draw_answers, sample, model, reader, form, batch, config, seed=seed, step=step
        )
        answers = drawn.rows(step, draw)
        summaries[step] = summary(answers)
        answers_of = lambda item: [x for x in answers if x.question_id == item.pooled.id]
        return [group_of(answers_of(item), item.ids, item.pooled.id) for item in batch]

    def on_step(row: dict) -> None:
        # Several updates may learn from the same answers; each shows their summary.
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
        by_token=own_parts.load_token_loss(config),
    )
    return trained, _counts(drawn.join(), len(trained.curve), len(sets), cut)


def _prompt_sets(
    reader: "LanguageModel",
    form: ReadingPrompt,
    sets: Sequence[tuple[reader_training.PooledQuestion, Sequence[str]]],
    passages: Mapping[str, str],
    room: int,
) -> tuple[list[Asked], int]:
    """Each set with its prompt, and the number of prompts that were cut to leave `room` tokens."""
    prompts = reader_training.reading_prompts(
        reader,
        form,
        [(pooled.question.question, [passages[x] for x in chunks]) for pooled, chunks in sets],
        room,
    )
    ids = reader.prompt_ids(prompts.texts)
    items = [
        Asked(pooled, len(chunks), *prompt)
        for (pooled, chunks), *prompt in zip(sets, prompts.texts, ids, strict=True)
    ]
    return items, prompts.cut


def _counts(answers: Sequence[rollouts.Answer], steps: int, questions: int, cut: int) -> dict:
    """Counts for the manifest; warns if no answer teaches anything."""
    if not any(answer.live for answer in answers):
        say(
            "  warning: all answers to a question were equally right, so the reader has learned "
            "nothing; keep other questions (config.filter), draw more answers "
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
