"""The filter stages: questions of which a set of passages can decide whether they are answered."""

import functools
from pathlib import Path

from ark_jax.pipeline.stage import Context
from ark_jax.pipeline.tables import load_rows, save_json, save_rows
from ark_jax.recipes.bar_rag.pool import load_pools
from ark_jax.recipes.bar_rag.readers import reader_before, stage_of
from ark_jax.recipes.bar_rag.rollouts import DrawnSet
from ark_jax.recipes.bar_rag.selectors import draw_sets, selector_before
from ark_jax.recipes.bar_rag.success import Rule, Success
from ark_jax.recipes.bar_rag.updates import StepRows, mean, stage_seed
from ark_jax.recipes.common.reader import questions_to_answer
from ark_jax.recipes.common.reader_training import PooledQuestion
from ark_jax.runtime.log import say
from ark_jax.select import zone

SHARD = 32  # questions between two saves
SHOWN = 200  # characters of a reply that could not be read


def filter_of(config, iteration: int) -> str:
    """The stage that keeps the questions of an iteration."""
    return stage_of("filter", iteration if config.filter.each else 1)


def filter_questions(context: Context, folder: Path, *, iteration: int) -> dict:
    """Draws sets of every training question and stores which questions are kept, and why not.

    Raises:
        ValueError: none is kept; the message shows the histogram of p and what to change.
    """
    questions, config = _questions(context), context.config
    steps = _draw_sets(context, folder, questions, iteration)
    sets = _readable(steps.stored)
    probabilities: dict[str, list[float]] = {}
    for one in sets:
        probabilities.setdefault(one.question_id, []).append(one.p)
    verdicts = _judge(config, probabilities)
    save_rows(
        [_verdict_row(id, verdict) for id, verdict in verdicts.items()],
        folder / "questions.parquet",
    )
    histogram = zone.histogram([one.p for one in sets]).tolist()
    counts = zone.counts(list(verdicts.values()))
    save_json({"p": histogram} | counts, folder / "histogram.json")
    say(f"  p of sets nearest to 0, .1, … 1: {', '.join(f'{count:,}' for count in histogram)}")
    if unread := len(questions) - len(verdicts):
        say(f"  of {unread:,} questions no reply of the selector names a set: they are left out")
    distinct = {(one.question_id, tuple(one.chunk_ids)) for one in sets}
    unreadable = len(steps.join()) - len(sets)
    return {
        "questions": len(questions),
        **{name.replace(" ", "_"): count for name, count in counts.items()},
        "mean_p": mean([one.p for one in sets]),
        "sets_computed": len(distinct),
        "sets_remembered": len(sets) - len(distinct),
        **({"unreadable": unreadable} if unreadable else {}),
    }


def _draw_sets(
    context: Context, folder: Path, questions: list[PooledQuestion], iteration: int
) -> StepRows[DrawnSet]:
    """The sets of all questions, which are saved shard by shard, so that a killed run goes on."""
    config, stage = context.config, stage_of("filter", iteration)
    selector = selector_before(context, iteration)
    success = Success(context, reader_before(iteration), Rule.of_filter(config))
    steps = StepRows(folder / "sets.parquet", DrawnSet)
    for shard, start in enumerate(range(0, len(questions), SHARD)):
        part = questions[start : start + SHARD]
        drawn = functools.partial(
            draw_sets,
            selector,
            part,
            success,
            draws=config.filter.sets,
            seed=stage_seed(config, stage),
            label=f"{stage}, questions {start + 1:,} to {start + len(part):,} of "
            f"{len(questions):,}",
        )
        steps.rows(shard, drawn)
    return steps


def _readable(stored: list[DrawnSet]) -> list[DrawnSet]:
    """The sets that replies name.

    Raises:
        ValueError: there are none.
    """
    sets = [one for one in stored if one.p is not None]
    if not sets:
        raise ValueError(
            f"config.selector: none of {len(stored):,} replies of the selector names a set "
            f"of passages; the first says: {stored[0].text[:SHOWN]!r}. Name a larger model "
            "(config.selector.path), let it write longer (config.selector.max_new_tokens), or take "
            "config.selector.strict=False"
        )
    return sets


def _judge(config, probabilities: dict[str, list[float]]) -> dict[str, zone.Verdict]:
    """Question id -> whether it is kept, by the p of its sets.

    Raises:
        ValueError: none is kept.
    """
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
    """A row of questions.parquet."""
    return {
        "question_id": id,
        "mean": verdict.mean,
        "variance": verdict.variance,
        "chance": verdict.chance_variance,
        "kept": not verdict.problem,
        "reason": verdict.problem,
    }


def _questions(context: Context) -> list[PooledQuestion]:
    """The training questions that the filter looks at."""
    pools = load_pools(context, "train")
    limit = context.config.filter.questions
    drawn = questions_to_answer([pooled.question for pooled in pools], limit or -1)
    ids = {question.id for question in drawn}
    return [pooled for pooled in pools if pooled.id in ids]


def load_kept(context: Context, iteration: int) -> list[PooledQuestion]:
    """The questions that the filter of an iteration kept."""
    rows = load_rows(context / filter_of(context.config, iteration) / "questions.parquet")
    kept_ids = {row["question_id"] for row in rows if row["kept"]}
    return [pooled for pooled in load_pools(context, "train") if pooled.id in kept_ids]


def judged_sets(context: Context, iteration: int) -> list[DrawnSet]:
    """The sets of which the filter computed p as the selector's stage computes it."""
    config = context.config
    if filter_of(config, iteration) != stage_of("filter", iteration):
        return []  # under an earlier reader
    if config.success.by == "samples" and Rule.of_filter(config) != Rule.of_training(config):
        return []
    return load_rows(context / stage_of("filter", iteration) / "sets.parquet", DrawnSet)
