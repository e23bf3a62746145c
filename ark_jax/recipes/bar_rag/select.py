"""The select stages: a selector learns to draw sets from which the frozen reader may be right."""

import functools
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from ark_jax.pipeline.stage import Context
from ark_jax.pipeline.tables import load_rows
from ark_jax.recipes.bar_rag.filter import load_kept
from ark_jax.recipes.bar_rag.pool import PoolVectors
from ark_jax.recipes.bar_rag.readers import reader_before, stage_of
from ark_jax.recipes.bar_rag.selectors import drawn_rows, selector_before
from ark_jax.recipes.bar_rag.success import SUCCESS_SETTINGS, Success
from ark_jax.recipes.bar_rag.updates import StepRows, mean, stage_seed, steps_for
from ark_jax.recipes.common.reader_training import PooledQuestion, questions_of_steps
from ark_jax.runtime.log import say
from ark_jax.select import zone
from ark_jax.select.rewards import SetReward

SELECT_SETTINGS = (
    *(
        f"select.{name}"
        for name in (
            "passages",
            "steps",
            "questions",
            "sets",
            "learning_rate",
            "rank",
            "centre",
            "boundary",
            "relevance",
            "relevance_form",
            "tau",
            "spread",
            "outcome_decides",
            "scale",
        )
    ),
    *(f"train.{name}" for name in ("warmup", "weight_decay", "clip")),
    "pool.size",
    *SUCCESS_SETTINGS,
)


def train_selector(context: Context, folder: Path, *, iteration: int) -> dict:
    """Trains the selector on the questions of the filter; stores it under `selector`."""
    from ark_jax.select.scorer import Selector
    from ark_jax.select.training import SelectorGroup, SelectorTraining, train

    config, stage = context.config, stage_of("select", iteration)
    settings, seed = config.select, stage_seed(config, stage)
    questions, vectors = load_kept(context, iteration), PoolVectors(context)
    by_id = {pooled.id: pooled for pooled in questions}
    success = Success(context, reader_before(iteration))
    known = load_rows(context / stage_of("filter", iteration) / "sets.parquet")
    drawn = StepRows(folder / "sets.parquet")
    # What earlier steps computed decides which sets a step computes together, and so the last bits.
    success.remember([*known, *drawn.stored])
    steps = steps_for(settings.steps, len(questions), settings.questions)
    orders = itertools.islice(questions_of_steps(len(questions), settings.questions, seed), steps)
    chosen = [[questions[i] for i in numbers] for numbers in orders]

    def make_rows(step: int, selector: Selector) -> list[dict]:
        rows = drawn_rows(
            selector,
            vectors,
            chosen[step],
            success,
            k=settings.passages,
            draws=settings.sets,
            seed=seed,
            step=step,
        )
        return rewarded(rows, by_id, config)

    def make_groups(step: int, selector: Selector) -> list[SelectorGroup]:
        rows = drawn.of(step, functools.partial(make_rows, step, selector))
        groups = []
        for pooled, pool in zip(chosen[step], vectors.pools(chosen[step]), strict=True):
            own = [row for row in rows if row["question_id"] == pooled.id]
            places = {chunk: place for place, chunk in enumerate(pooled.chunk_ids)}
            groups.append(
                SelectorGroup(
                    pooled.id,
                    pool,
                    [np.array([places[x] for x in row["chunk_ids"]], np.int32) for row in own],
                    [row["reward"] for row in own],
                    [row["advantage"] for row in own],
                )
            )
        return groups

    selector, curve = train(
        selector_before(context, iteration),
        make_groups,
        SelectorTraining(
            steps=steps,
            learning_rate=settings.learning_rate,
            warmup=config.train.warmup,
            weight_decay=config.train.weight_decay,
            clip=config.train.clip,
            save_every=config.train.save_every,
            questions=min(settings.questions, len(questions)),
            candidates=config.pool.size,
            draws=settings.sets,
            k=settings.passages,
        ),
        folder,
        on_step=functools.partial(context.metrics.step, stage),
        on_pace=functools.partial(context.metrics.write, stage),
    )
    selector.save_pretrained(folder / "selector")
    sizes = {"questions": len(questions), "steps": len(curve)}
    return sizes | _counts(drawn.join(), known, [row["reward"] for row in curve])


def _counts(rows: Sequence[dict], known: Sequence[dict], rewards: Sequence[float]) -> dict:
    """Counts for the manifest.

    Args:
        rows: of all sets that were drawn; those of `known` had their p from the filter.
        rewards: the mean of each step.
    """
    if not any(row["live"] for row in rows):
        say(
            "  warning: no set of a question was better than another, so the selector has learned "
            "nothing; choose from more candidates (config.pool.size), or keep other questions "
            "(config.filter)"
        )
    live = sum(row["live"] for row in rows)
    of_set = lambda row: (row["question_id"], tuple(row["chunk_ids"]))
    computed = len(set(map(of_set, rows)) - set(map(of_set, known)))
    quarter = len(rewards) // 4 or 1
    return {
        "sets": len(rows),
        "live_share": round(live / len(rows), 4),
        "first_reward": mean(rewards[:quarter]),
        "last_reward": mean(rewards[-quarter:]),
        "sets_computed": computed,
        "sets_remembered": len(rows) - computed,
    }


def rewarded(rows: Sequence[dict], questions: Mapping[str, PooledQuestion], config) -> list[dict]:
    """The rows of drawn sets with reward, its parts, advantage, and whether the group is live.

    Of fewer candidates than a set has passages, all are drawn, and none is missing.

    Args:
        rows: of one step; those of a question follow one another.
        questions: id -> question.
    """
    from ark_jax.train import policy

    settings = config.select
    ids = list(dict.fromkeys(row["question_id"] for row in rows))
    groups = np.array([ids.index(row["question_id"]) for row in rows])
    scores = []
    for row in rows:
        pooled = questions[row["question_id"]]
        cosines = dict(zip(pooled.chunk_ids, pooled.cosines, strict=True))
        reward = SetReward(
            boundary_weight=settings.boundary,
            relevance_weight=settings.relevance,
            centre=settings.centre,
            relevance_form=settings.relevance_form,
            tau=settings.tau,
            target=min(settings.passages, len(pooled.chunk_ids)),
        )
        scores.append(reward(row["p"], [cosines[chunk] for chunk in row["chunk_ids"]]))
    spread = settings.spread if config.success.by == "likelihood" else 0.0
    p = np.array([row["p"] for row in rows])
    live = np.array([zone.outcomes_differ(p[groups == i], spread=spread) for i in range(len(ids))])
    rewards = np.array([score.reward for score in scores])
    advantages = policy.advantages(
        rewards, groups, scale=settings.scale, live=live if settings.outcome_decides else None
    )
    return [
        row
        | {
            "boundary": score.boundary,
            "relevance": score.relevance,
            "penalty": score.penalty,
            "reward": score.reward,
            "advantage": float(advantage),
            "live": bool(live[group]),
        }
        for row, score, advantage, group in zip(rows, scores, advantages, groups, strict=True)
    ]
