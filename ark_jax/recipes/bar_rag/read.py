"""The read stages: the reader learns from its own answers to the sets of evidence."""

import dataclasses
import functools
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ark_jax.evaluate.reading import ReadingPrompt
from ark_jax.pipeline.stage import Context
from ark_jax.recipes.bar_rag.evidence import load_evidence
from ark_jax.recipes.bar_rag.readers import load_reader, reader_before, stage_of
from ark_jax.recipes.bar_rag.reading import answer_reward, reading_prompt, sample_answers
from ark_jax.recipes.bar_rag.updates import (
    ASKING_SETTINGS,
    REWARD_SETTINGS,
    SAMPLING_SETTINGS,
    UPDATE_SETTINGS,
    StepRows,
    mean,
    stage_seed,
    steps_for,
    update_settings,
)
from ark_jax.recipes.bar_rag.warm import save_reader, train_on_references
from ark_jax.recipes.common.corpus import Passages, chunks_by_document
from ark_jax.recipes.common.reader_training import (
    PooledQuestion,
    questions_of_steps,
    reading_prompts,
)
from ark_jax.runtime.log import say

if TYPE_CHECKING:  # its module starts jax
    from ark_jax.train import tuning

READ_SETTINGS = (
    *(
        f"read.{name}"
        for name in (
            "train",
            "steps",
            "prompts",
            "samples",
            "learning_rate",
            "updates",
            "scale",
            "outcome_decides",
            "outcome",
            "mean",
            "ratio",
            "clip_low",
            "clip_high",
            "kl",
            "kl_coefficient",
            "keep_dead",
            "keep_cut_off",
        )
    ),
    *ASKING_SETTINGS,
    *REWARD_SETTINGS,
    *SAMPLING_SETTINGS,
    *UPDATE_SETTINGS,
)
OUTCOMES = {"f1": "f1", "exact_match": "em"}  # `read.outcome` -> column


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
    return _reinforce(context, folder, sets, chosen, before, stage)


@dataclasses.dataclass(frozen=True)
class _Asked:
    """A question with its set, as the reader gets it."""

    pooled: PooledQuestion
    documents: int  # that the prompt shows
    prompt: str
    ids: list[int]


def _reinforce(
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
    from ark_jax.train.groups import Group

    config, reader = context.config, load_reader(context, before)
    settings, form = config.read, reading_prompt(config)
    passages = Passages(chunks_by_document(context))
    prompts = reading_prompts(
        reader,
        form,
        [(pooled.question.question, [passages[x] for x in chunks]) for pooled, chunks in sets],
        settings.max_new_tokens,
    )
    ids = reader.prompt_ids(prompts.texts)
    asked = [
        _Asked(pooled, len(chunks), *prompt)
        for (pooled, chunks), *prompt in zip(sets, prompts.texts, ids, strict=True)
    ]
    drawn, summaries = StepRows(folder / "answers.parquet"), {}

    def make_groups(step: int, model) -> list[Group]:
        batch = [asked[i] for i in chosen[step]]
        make = functools.partial(_answer, context, model, reader, form, batch, step, stage)
        rows = drawn.of(step, make)
        summaries[step] = summary(rows)
        groups = []
        for item in batch:
            own = [row for row in rows if row["question_id"] == item.pooled.id]
            column = lambda name, own=own: [row[name] for row in own] if name in own[0] else None
            groups.append(
                Group(
                    item.ids,
                    [np.array(row["ids"], np.int32) for row in own],
                    column("advantage"),
                    old=column("old"),
                    reference=column("reference"),
                    ended=column("ended"),
                    name=item.pooled.id,
                )
            )
        return groups

    def on_step(row: dict) -> None:
        # Of several updates from the same answers, each has the same summary.
        shared = summaries.get((row["step"] - 1) // settings.updates, {})
        context.metrics.step(stage, row | shared)

    tuned, adapter, curve = tuning.reinforce(
        reader,
        make_groups,
        _training(config, chosen, max(len(item.ids) for item in asked)),
        folder,
        label=stage,
        on_step=on_step,
        on_pace=functools.partial(context.metrics.write, stage),
    )
    save_reader(context, folder, before, tuned, adapter)
    return _counts(drawn.join(), len(curve), len(sets), prompts.cut)


def _training(
    config, chosen: Sequence[Sequence[int]], prompt_tokens: int
) -> "tuning.ReinforceConfig":
    """The settings of the policy gradients.

    Args:
        chosen: the numbers of each step's sets.
        prompt_tokens: of the longest prompt.
    """
    from ark_jax.train import policy, tuning

    settings = config.read
    return tuning.ReinforceConfig(
        **update_settings(config),
        learning_rate=settings.learning_rate,
        steps=len(chosen),
        updates=settings.updates,
        loss=policy.PolicyLoss(
            mean=settings.mean,
            ratio=settings.ratio,
            clip_low=settings.clip_low,
            clip_high=settings.clip_high,
            kl=settings.kl,
            kl_coefficient=settings.kl_coefficient,
        ),
        keep_dead=settings.keep_dead,
        keep_cut_off=settings.keep_cut_off,
        entropy=True,
        prompts=max(map(len, chosen)),
        samples=settings.samples,
        prompt_tokens=prompt_tokens,
        completion_tokens=settings.max_new_tokens,
    )


def _answer(
    context: Context,
    model,
    frozen,
    form: ReadingPrompt,
    batch: Sequence[_Asked],
    step: int,
    stage: str,
) -> list[dict]:
    """The rows of a step: what the model answers, and what that is worth.

    Args:
        frozen: the reader before the stage, which a KL is measured to.
    """
    config = context.config
    settings = config.read
    rollouts = sample_answers(
        model,
        settings,
        [item.prompt for item in batch],
        n=settings.samples,
        seed=stage_seed(config, stage),
        places=np.array([(step, item.pooled.number) for item in batch]),
        log_probs=settings.updates > 1,
        batch_tokens=config.generator.batch_tokens,
    )
    rows = [
        {"sample": int(sample), "ids": ids.tolist(), "text": text, "ended": bool(end)}
        for sample, ids, text, end in zip(
            rollouts.samples, rollouts.ids, rollouts.texts, rollouts.ended, strict=True
        )
    ]
    if rollouts.log_probs is not None:
        rows = [
            row | {"old": values.tolist()}
            for row, values in zip(rows, rollouts.log_probs, strict=True)
        ]
    if settings.kl != "none":
        values = frozen.token_log_likelihood(
            [batch[i].ids for i in rollouts.prompts],
            rollouts.ids,
            batch_tokens=config.generator.batch_tokens,
        )
        rows = [row | {"reference": x.tolist()} for row, x in zip(rows, values, strict=True)]
    owners = [batch[i] for i in rollouts.prompts]
    return rewarded(rows, owners, rollouts.prompts, form, config)


def rewarded(
    rows: Sequence[dict], owners: Sequence[_Asked], groups: np.ndarray, form: ReadingPrompt, config
) -> list[dict]:
    """The rows of answers with what each says, earns and is worth in its group.

    Args:
        owners: the question of each row.
        groups: the number of each row's group.
    """
    from ark_jax.train import policy

    settings, reward, judged = config.read, answer_reward(config), []
    for row, item in zip(rows, owners, strict=True):
        reply = form.parse(row["text"], item.documents)
        score = reward(reply, item.pooled.question.answers)
        judged.append(
            {
                "question_id": item.pooled.id,
                **row,
                "answer": reply.answer,
                "well_formed": score.well_formed,
                "f1": score.f1,
                "em": score.exact_match,
                "citations": list(reply.citations),
                "reward": score.reward,
            }
        )
    outcomes = np.array([row[OUTCOMES[settings.outcome]] for row in judged])
    rewards = np.array([row["reward"] for row in judged])
    live = policy.live_groups(outcomes, groups)
    advantages = policy.advantages(
        rewards, groups, scale=settings.scale, live=live if settings.outcome_decides else None
    )
    return [
        row | {"advantage": float(advantage), "live": bool(live[group])}
        for row, advantage, group in zip(judged, advantages, groups, strict=True)
    ]


def summary(rows: Sequence[dict]) -> dict[str, float]:
    """What the answers of a step are worth, in means and shares.

    `phantom` is the share of answers whose group has one outcome and several rewards.
    """
    rewards: dict[str, set[float]] = {}
    for row in rows:
        rewards.setdefault(row["question_id"], set()).add(row["reward"])
    column = lambda name: mean([row[name] for row in rows])
    return {
        **{name: column(name) for name in ("reward", "f1", "em", "well_formed", "ended", "live")},
        "phantom": mean([not row["live"] and len(rewards[row["question_id"]]) > 1 for row in rows]),
        "tokens": mean([len(row["ids"]) for row in rows]),
        "citations": mean([len(row["citations"]) for row in rows]),
    }


def _counts(rows: Sequence[dict], steps: int, questions: int, cut: int) -> dict:
    """Counts for the manifest."""
    if not any(row["live"] for row in rows):
        say(
            "  warning: all answers to a question were equally right, so the reader has learned "
            "nothing; keep questions of other p (config.filter), draw more answers "
            "(config.read.samples) or warm it up longer (config.warm.steps)"
        )
    last = max(row["step"] for row in rows)
    first = [row for row in rows if row["step"] <= last // 4]
    final = [row for row in rows if row["step"] >= last - last // 4]
    whole = summary(rows)
    return {
        "questions": questions,
        "steps": steps,
        "answers": len(rows),
        "live_share": whole["live"],
        "phantom_share": whole["phantom"],
        "ended_share": whole["ended"],
        "first_reward": summary(first)["reward"],
        "last_reward": summary(final)["reward"],
        **({"cut_prompts": cut} if cut else {}),
    }
