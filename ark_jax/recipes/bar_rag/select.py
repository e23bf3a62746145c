"""The stages filter and select: questions at the edge, and a selector that learns on them."""

import dataclasses
import functools
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from ark_jax.pipeline.stage import Context
from ark_jax.pipeline.tables import load_rows, save_json, save_rows
from ark_jax.recipes.bar_rag import rollouts
from ark_jax.recipes.bar_rag.reading import Rule, Success
from ark_jax.recipes.bar_rag.selectors import (
    EvidenceSelector,
    draw_sets,
    drawn_pools,
    load_pools,
    selector_before,
)
from ark_jax.recipes.core.models import training_run
from ark_jax.recipes.documents.reader_training import PooledQuestion, questions_of_steps
from ark_jax.runtime.log import say
from ark_jax.select import zone
from ark_jax.select.rewards import MALFORMED, SetReward

SHARD = 32  # questions between two saves
SHOWN = 200  # characters of an unreadable reply in an error


def filter_of(config, iteration: int) -> str:
    """The name of the stage that filters the questions of an iteration."""
    return rollouts.stage_of("filter", iteration if config.filter.each else 1)


def filter_questions(context: Context, folder: Path, *, iteration: int) -> dict:
    """Keeps the questions that the reader answers from some sets of passages, not from others.

    Raises:
        ValueError: none is kept; the message shows the histogram of p and what to change.
    """
    config = context.config
    questions = drawn_pools(context, "train", config.filter.questions)
    steps = _draw_sets(context, folder, questions, iteration)
    sets = _readable(steps.stored)
    probabilities: dict[str, list[float]] = {}
    for item in sets:
        probabilities.setdefault(item.question_id, []).append(item.p)
    verdicts = _judge(config, probabilities)
    save_rows(
        [_verdict_row(id, verdict) for id, verdict in verdicts.items()],
        folder / "questions.parquet",
    )
    histogram = zone.histogram([item.p for item in sets]).tolist()
    counts = zone.reason_counts(list(verdicts.values()))
    save_json({"p": histogram} | counts, folder / "histogram.json")
    say(f"  p of sets nearest to 0, .1, … 1: {', '.join(f'{count:,}' for count in histogram)}")
    if unread := len(questions) - len(verdicts):
        say(f"  {unread:,} questions are left out: no reply of the selector names a set for them")
    distinct = {(item.question_id, tuple(item.chunk_ids)) for item in sets}
    unreadable = len(steps.join()) - len(sets)
    return {
        "questions": len(questions),
        **{name.replace(" ", "_"): count for name, count in counts.items()},
        "mean_p": rollouts.mean([item.p for item in sets]),
        "sets_computed": len(distinct),
        "sets_remembered": len(sets) - len(distinct),
        **({"unreadable": unreadable} if unreadable else {}),
    }


def _draw_sets(
    context: Context, folder: Path, questions: list[PooledQuestion], iteration: int
) -> rollouts.StepRows[rollouts.DrawnSet]:
    """The sets of all questions, stored shard by shard, so that a killed run goes on."""
    config, stage = context.config, rollouts.stage_of("filter", iteration)
    selector = selector_before(context, iteration)
    success = Success(context, rollouts.reader_before(iteration), Rule.of_filter(config))
    steps = rollouts.StepRows(folder / "sets.parquet", rollouts.DrawnSet)
    for shard, start in enumerate(range(0, len(questions), SHARD)):
        part = questions[start : start + SHARD]
        drawn = functools.partial(
            draw_sets,
            selector,
            part,
            success,
            draws=config.filter.sets,
            seed=rollouts.stage_seed(config, stage),
            label=f"{stage}, questions {start + 1:,} to {start + len(part):,} of "
            f"{len(questions):,}",
        )
        steps.rows(shard, drawn)
    return steps


def _readable(stored: list[rollouts.DrawnSet]) -> list[rollouts.DrawnSet]:
    """The sets whose p is known; a reply that names no set has none."""
    sets = [item for item in stored if item.p is not None]
    if not sets:
        raise ValueError(
            f"config.selector: none of {len(stored):,} replies of the selector names a set "
            f"of passages; the first says: {stored[0].text[:SHOWN]!r}. Name a larger model "
            "(config.selector.path), let it write longer (config.selector.max_new_tokens), or take "
            "config.selector.strict=False"
        )
    return sets


def _judge(config, probabilities: dict[str, list[float]]) -> dict[str, zone.Verdict]:
    """question id -> whether it is kept, by the p of its sets."""
    settings = zone.Zone(
        low=config.filter.low,
        high=config.filter.high,
        variance=config.filter.variance,
        chance=config.filter.chance,
    )
    answers = config.success.answers if config.success.by == "samples" else None
    verdicts = {
        id: zone.judge(values, settings, answers=answers) for id, values in probabilities.items()
    }
    try:
        zone.check_kept(list(verdicts.values()), settings)
    except ValueError as error:
        raise ValueError(f"config.filter: {error}") from None
    return verdicts


def _verdict_row(id: str, verdict: zone.Verdict) -> dict:
    return {
        "question_id": id,
        "mean": verdict.mean,
        "variance": verdict.variance,
        "chance": verdict.chance_variance,
        "kept": not verdict.problem,
        "reason": verdict.problem,
    }


def load_kept(context: Context, iteration: int) -> list[PooledQuestion]:
    """The questions that the filter of an iteration kept."""
    rows = load_rows(context / filter_of(context.config, iteration) / "questions.parquet")
    kept_ids = {row["question_id"] for row in rows if row["kept"]}
    return [pooled for pooled in load_pools(context, "train") if pooled.id in kept_ids]


def judged_sets(context: Context, iteration: int) -> list[rollouts.DrawnSet]:
    """The filter's sets, if their p is what the selector's stage would compute; else none."""
    config = context.config
    if filter_of(config, iteration) != rollouts.stage_of("filter", iteration):
        return []  # their p is that of an earlier reader
    if config.success.by == "samples" and Rule.of_filter(config) != Rule.of_training(config):
        return []
    return load_rows(
        context / rollouts.stage_of("filter", iteration) / "sets.parquet", rollouts.DrawnSet
    )


NEVER = 0.05  # p below this counts as never, and p above 1 - this as always


def train_selector(context: Context, folder: Path, *, iteration: int) -> dict:
    """Trains the selector to pick sets that the reader can just about answer from."""
    config, stage = context.config, rollouts.stage_of("select", iteration)
    settings, seed = config.select, rollouts.stage_seed(config, stage)
    questions, selector = load_kept(context, iteration), selector_before(context, iteration)
    by_id = {pooled.id: pooled for pooled in questions}
    success = Success(context, rollouts.reader_before(iteration))
    drawn, summaries = rollouts.StepRows(folder / "sets.parquet", rollouts.RewardedSet), {}
    known = judged_sets(context, iteration)
    # The last bits of p depend on the sets that are computed together, and so on the known ones.
    success.remember([*known, *drawn.stored])
    steps = rollouts.steps_for(settings.steps, len(questions), settings.questions)
    numbers_of_steps = questions_of_steps(len(questions), settings.questions, seed)
    chosen = [
        [questions[i] for i in numbers] for numbers in itertools.islice(numbers_of_steps, steps)
    ]

    def draw_rewarded(step: int, selector: EvidenceSelector) -> list[rollouts.RewardedSet]:
        sets = draw_sets(selector, chosen[step], success, draws=settings.sets, seed=seed, step=step)
        return reward_sets(sets, by_id, config)

    def make_sets(step: int, selector: EvidenceSelector) -> list[rollouts.RewardedSet]:
        sets = drawn.rows(step, functools.partial(draw_rewarded, step, selector))
        summaries[step + 1] = summary(sets)
        return sets

    run = training_run(context.metrics, folder, stage, label="select")
    on_step = lambda row: run.on_step(row | summaries.get(row["step"], {}))
    trained, _, curve = selector.train(chosen, make_sets, dataclasses.replace(run, on_step=on_step))
    trained.save(folder / "selector")
    sizes = {"questions": len(questions), "steps": len(curve)}
    return sizes | _counts(drawn.join(), known)


def _counts(sets: Sequence[rollouts.RewardedSet], known: Sequence[rollouts.DrawnSet]) -> dict:
    """Counts for the manifest; warns if the selector could not learn."""
    if not any(item.live for item in sets):
        say(
            "  warning: no set of a question was better than another, so the selector has learned "
            "nothing; choose from more candidates (config.pool.size), or keep other questions "
            "(config.filter)"
        )
    readable = [item for item in sets if item.p is not None]
    if not readable:
        say(
            "  warning: no reply of the selector named a set, so it has learned nothing; name a "
            "larger model (config.selector.path), let it write longer "
            "(config.selector.max_new_tokens), or take config.selector.strict=False"
        )
    key = lambda item: (item.question_id, tuple(item.chunk_ids))
    computed = len(set(map(key, readable)) - set(map(key, known)))
    last = max(item.step for item in sets)
    first = summary([item for item in sets if item.step <= last // 4])
    final = summary([item for item in sets if item.step >= last - last // 4])
    overall, unreadable = summary(sets), len(sets) - len(readable)
    return {
        "sets": len(sets),
        "live_share": overall["live"],
        "phantom_share": overall["phantom"],
        "first_reward": first["reward"],
        "last_reward": final["reward"],
        "sets_computed": computed,
        "sets_remembered": len(readable) - computed,
        **({"unreadable": unreadable} if unreadable else {}),
    }


def summary(sets: Sequence[rollouts.RewardedSet]) -> dict[str, float]:
    """Means and shares over the sets of a step.

    p and the parts of the reward are means over readable sets. `phantom` is the share of sets whose
    group has one outcome but different rewards.
    """
    rewards: dict[str, set[float]] = {}
    for item in sets:
        rewards.setdefault(item.question_id, set()).add(item.reward)
    readable = [item for item in sets if item.p is not None]
    column = lambda name, items: rollouts.mean([getattr(item, name) for item in items])
    share = lambda test: rollouts.mean([bool(test(item.p)) for item in readable])
    return {
        **{name: column(name, sets) for name in ("reward", "live")},
        **{name: column(name, readable) for name in ("p", "boundary", "relevance", "penalty")},
        "p_near_0": share(lambda p: p < NEVER),
        "p_near_1": share(lambda p: p > 1 - NEVER),
        "well_formed": len(readable) / len(sets),
        "phantom": rollouts.mean(
            [not item.live and len(rewards[item.question_id]) > 1 for item in sets]
        ),
        **({} if sets[0].ended is None else {"ended": column("ended", sets)}),
        **(
            {}
            if sets[0].ids is None
            else {"tokens": rollouts.mean([len(item.ids) for item in sets])}
        ),
    }


def reward_sets(
    sets: Sequence[rollouts.DrawnSet], questions: Mapping[str, PooledQuestion], config
) -> list[rollouts.RewardedSet]:
    """The sets with their rewards, the parts of these, and advantages.

    A pool that is smaller than a set is drawn whole, without a penalty.

    Args:
        sets: of one step; those of a question follow one another.
        questions: id -> question.
    """
    settings = config.select
    ids = list(dict.fromkeys(item.question_id for item in sets))
    groups = np.array([ids.index(item.question_id) for item in sets])
    scores = []
    for item in sets:
        if item.p is None:
            scores.append(MALFORMED)
            continue
        pooled = questions[item.question_id]
        cosines = dict(zip(pooled.chunk_ids, pooled.cosines, strict=True))
        reward = SetReward(
            boundary_weight=settings.boundary,
            relevance_weight=settings.relevance,
            centre=settings.centre,
            relevance_form=settings.relevance_form,
            tau=settings.tau,
            format_bonus=settings.format_bonus,
            target=min(settings.passages, len(pooled.chunk_ids)),
        )
        scores.append(reward(item.p, [cosines[chunk] for chunk in item.chunk_ids]))
    spread = settings.spread if config.success.by == "likelihood" else 0.0
    p = np.array([np.nan if item.p is None else item.p for item in sets])
    live = np.array([_outcomes_differ(p[groups == i], spread) for i in range(len(ids))])
    columns = rollouts.compare_in_groups(scores, groups, live, settings)
    return [
        rollouts.RewardedSet(
            **vars(item),
            boundary=score.boundary,
            relevance=score.relevance,
            penalty=score.penalty,
            **compared,
        )
        for item, score, compared in zip(sets, scores, columns, strict=True)
    ]


def _outcomes_differ(p: np.ndarray, spread: float) -> bool:
    """Whether the sets of a question differ in their outcome.

    Args:
        p: of each set; NaN if a reply names none, which is an outcome too.
        spread: a difference of p counts if it is larger.
    """
    readable = p[np.isfinite(p)]
    if not readable.size or readable.size < p.size:
        return bool(readable.size)
    return zone.outcomes_differ(p, spread=spread)
