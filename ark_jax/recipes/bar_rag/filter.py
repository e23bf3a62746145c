"""The filter stages: questions of which a set of passages can decide whether they are answered."""

import functools
from pathlib import Path

from ark_jax.pipeline.stage import Context
from ark_jax.pipeline.tables import load_rows, save_json, save_rows
from ark_jax.recipes.bar_rag.pool import PoolVectors, load_pools
from ark_jax.recipes.bar_rag.readers import reader_before, stage_of
from ark_jax.recipes.bar_rag.selectors import drawn_rows, selector_before
from ark_jax.recipes.bar_rag.success import SUCCESS_SETTINGS, Success
from ark_jax.recipes.bar_rag.updates import StepRows, mean, stage_seed
from ark_jax.recipes.common.reader import questions_to_answer
from ark_jax.recipes.common.reader_training import PooledQuestion
from ark_jax.runtime.log import say
from ark_jax.select import zone

FILTER_SETTINGS = (
    *(f"filter.{name}" for name in ("questions", "sets", "low", "high", "variance", "chance")),
    "select.passages",
    "select.rank",
    *SUCCESS_SETTINGS,
)
SHARD = 32  # questions between two saves


def filter_questions(context: Context, folder: Path, *, iteration: int) -> dict:
    """Draws sets of every training question and stores which questions are kept, and why not.

    Raises:
        ValueError: none is kept; the message shows the histogram of p and what to change.
    """
    config, stage = context.config, stage_of("filter", iteration)
    questions = _questions(context)
    selector, vectors = selector_before(context, iteration), PoolVectors(context)
    success = Success(context, reader_before(iteration))
    steps = StepRows(folder / "sets.parquet")
    for shard, start in enumerate(range(0, len(questions), SHARD)):
        part = questions[start : start + SHARD]
        drawn = functools.partial(
            drawn_rows,
            selector,
            vectors,
            part,
            success,
            k=config.select.passages,
            draws=config.filter.sets,
            seed=stage_seed(config, stage),
            label=f"{stage}, questions {start + 1:,} to {start + len(part):,} of "
            f"{len(questions):,}",
        )
        steps.of(shard, drawn)
    rows = steps.stored
    p: dict[str, list[float]] = {pooled.id: [] for pooled in questions}
    for row in rows:
        p[row["question_id"]].append(row["p"])
    settings = zone.Zone(
        low=config.filter.low,
        high=config.filter.high,
        variance=config.filter.variance,
        chance=config.filter.chance,
    )
    answers = config.success.answers if config.success.by == "samples" else None
    verdicts = {id: zone.judge(values, settings, answers=answers) for id, values in p.items()}
    try:
        zone.check_kept(list(verdicts.values()), settings)
    except ValueError as error:
        raise ValueError(f"config.filter: {error}") from None
    save_rows(
        [
            {
                "question_id": id,
                "mean": verdict.mean,
                "variance": verdict.variance,
                "chance": verdict.chance_variance,
                "kept": not verdict.problem,
                "reason": verdict.problem,
            }
            for id, verdict in verdicts.items()
        ],
        folder / "questions.parquet",
    )
    histogram = zone.histogram([row["p"] for row in rows]).tolist()
    counts = zone.counts(list(verdicts.values()))
    save_json({"p": histogram} | counts, folder / "histogram.json")
    say(f"  p of sets nearest to 0, .1, … 1: {', '.join(f'{count:,}' for count in histogram)}")
    steps.join()
    distinct = {(row["question_id"], tuple(row["chunk_ids"])) for row in rows}
    return {
        "questions": len(questions),
        **{name.replace(" ", "_"): count for name, count in counts.items()},
        "mean_p": mean([row["p"] for row in rows]),
        "sets_computed": len(distinct),
        "sets_remembered": len(rows) - len(distinct),
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
    rows = load_rows(context / stage_of("filter", iteration) / "questions.parquet")
    kept = {row["question_id"] for row in rows if row["kept"]}
    return [pooled for pooled in load_pools(context, "train") if pooled.id in kept]
