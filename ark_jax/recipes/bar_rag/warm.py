"""The warm stage: supervised steps on passages that hold the answer, among others of the pool.

A small model answers hardly any question rightly at first, and then there is no reward to learn
from.
"""

import functools
import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ark_jax.evaluate.reading import ReadingPrompt
from ark_jax.pipeline.stage import Context
from ark_jax.recipes.bar_rag.pool import PooledQuestion, load_pools
from ark_jax.recipes.bar_rag.readers import UNTUNED, WARM, load_reader
from ark_jax.recipes.bar_rag.reading import reading_prompt, reading_prompts, reply_ids
from ark_jax.recipes.bar_rag.updates import (
    ASKING_SETTINGS,
    UPDATE_SETTINGS,
    questions_of_steps,
    stage_seed,
    update_settings,
)
from ark_jax.recipes.common.corpus import Passages, chunks_by_document
from ark_jax.runtime.log import say
from ark_jax.select.rewards import usable_references

WARM_SETTINGS = (
    "warm.steps",
    "warm.batch",
    "warm.learning_rate",
    "select.passages",
    *ASKING_SETTINGS,
    *UPDATE_SETTINGS,
)


def train_warm(context: Context, folder: Path) -> dict:
    """Trains from the untuned generator; stores the reader under `model`.

    Raises:
        ValueError: no training question has a passage that holds its answer.
    """
    config = context.config
    reader = load_reader(context, UNTUNED)
    _ = reader.end_id  # raises if no reply could end
    if not config.warm.steps:
        save_reader(context, folder, UNTUNED, reader, None)
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
    sets = sets_with_gold(
        shown, steps, config.warm.batch, config.select.passages, stage_seed(config, WARM)
    )
    counts = train_on_references(
        context,
        folder,
        sets,
        before=UNTUNED,
        stage=WARM,
        batch=config.warm.batch,
        learning_rate=config.warm.learning_rate,
    )
    return counts | ({"without_gold": missing} if missing else {})


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
            ranks = {chunk: rank for rank, chunk in enumerate(pooled.chunk_ids)}
            rank = lambda chunk, ranks=ranks: ranks.get(chunk, len(ranks))
            needed = list(
                dict.fromkeys(min(holders, key=rank) for holders in pooled.gold if holders)
            )
            needed = needed[:size]
            holding = {chunk for holders in pooled.gold for chunk in holders}
            others = [chunk for chunk in pooled.chunk_ids if chunk not in holding]
            count = min(size - len(needed), len(others))
            drawn = [others[i] for i in random.choice(len(others), count, replace=False)]
            chosen = [*needed, *drawn]
            sets.append((pooled, [chosen[i] for i in random.permutation(len(chosen))]))
    return sets


def train_on_references(
    context: Context,
    folder: Path,
    sets: Sequence[tuple[PooledQuestion, Sequence[str]]],
    *,
    before: str,
    stage: str,
    batch: int,
    learning_rate: float,
) -> dict:
    """Trains a reader on a reference answer to each set; stores it under `model`.

    Args:
        sets: (question, chunk ids).
        before: the reader to begin with.
        stage: for progress lines and metrics.
        batch: sets of a step.
    """
    from ark_jax.train import tuning

    config, reader = context.config, load_reader(context, before)
    form, passages = reading_prompt(config), Passages(chunks_by_document(context))
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
    tuned, adapter, curve = tuning.supervise(
        reader,
        demonstrations,
        tuning.SuperviseConfig(
            **update_settings(config), learning_rate=learning_rate, epochs=1, batch=batch
        ),
        folder,
        label=stage,
        on_step=functools.partial(context.metrics.step, stage),
        on_pace=functools.partial(context.metrics.write, stage),
    )
    save_reader(context, folder, before, tuned, adapter)
    return {
        "steps": len(curve),
        "questions": len({pooled.id for pooled, _ in sets}),
        "first_loss": round(curve[0]["loss"], 4),
        "last_loss": round(curve[-1]["loss"], 4),
        **({"cut_prompts": prompts.cut} if prompts.cut else {}),
    }


def _reply(reader, form: ReadingPrompt, pooled: PooledQuestion, chunks: Sequence[str]) -> list[int]:
    """The reply to learn: the first usable reference; a thought names the passages that hold it."""
    reference = usable_references(pooled.question.answers)[0]
    holding = {chunk for holders in pooled.gold for chunk in holders}
    cited = [f"Doc [{i}]" for i, chunk in enumerate(chunks, 1) if chunk in holding]
    thought = f"The answer is in {' and '.join(cited)}." if cited else "No document says it."
    return reply_ids(reader, form, reference, thought)


def save_reader(context: Context, folder: Path, before: str, tuned, adapter) -> None:
    """Stores a trained reader under `model`, and its adapter, if it has one, under `adapter`.

    The weights are float32: in the type of a base in bfloat16, small updates would be rounded away.

    Args:
        before: the reader that training began with.
    """
    from ark_jax.models import lora

    tuned.save_pretrained(folder / "model", dtype="float32")
    reading_prompt(context.config).write(folder / "model")
    if adapter is not None:
        # A base in the workdir is named relative to it.
        base = context.config.generator.path if before == UNTUNED else f"{before}/model"
        lora.save_peft(adapter, folder / "adapter", base=base, task="CAUSAL_LM")
