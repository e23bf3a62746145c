"""`ark-jax export --format=NAME`: what each stage is trained on, as JSONL for another trainer."""

import json
import os
from collections.abc import Sequence
from pathlib import Path

from ark_jax.pipeline.stage import Context, Interrupted, Stage
from ark_jax.pipeline.status import examine
from ark_jax.recipes.ark.curriculum import is_distilling, stage_name, training_inputs
from ark_jax.recipes.ark.train import load_examples
from ark_jax.runtime.log import say
from ark_jax.train import trainer_formats


def write_training_files(context: Context, format: str, stages: Sequence[Stage]) -> None:
    """Writes `DIR/export-FORMAT/STAGE.jsonl` for each training stage, and runs no stage.

    Raises:
        ValueError: the config learns shares, which no format has a place for.
        Interrupted: what a stage is trained on is not up to date; then nothing is written.
    """
    if is_distilling(context.config):
        raise ValueError(
            f"config.train.loss=distil learns a share of each scored chunk, for which {format} "
            "files have no place; name config.train.loss=info_nce for files of positives"
        )
    _check_inputs(context, stages)
    folder = context.workdir / f"export-{format}"
    folder.mkdir(exist_ok=True)
    for stage in context.config.train.stages:
        examples, questions, passages = load_examples(context, stage)
        path = folder / f"{stage_name(stage)}.jsonl"
        rows = trainer_formats.format_rows(format, examples, questions, passages)
        count = _write_lines(path, rows)
        say(f"  {path}: {count:,} rows{_summary(format, examples)}")


def _check_inputs(context: Context, stages: Sequence[Stage]) -> None:
    read = {name for stage in context.config.train.stages for name in training_inputs(stage)}
    examined = examine(stages, context.config, context.workdir, verify=read)
    statuses = {status.stage: status for status in examined}
    for stage in context.config.train.stages:
        for name in training_inputs(stage):
            status = statuses[name]
            if status.state != "done":
                why = f" ({status.why})" if status.why else ""
                raise Interrupted(
                    f"stage {stage} is trained on what {name} makes, which is {status.state}{why}: "
                    f"run `ark-jax {name}` or `ark-jax run` first, with the same --config and "
                    "--workdir"
                )


def _write_lines(path: Path, rows) -> int:
    """Writes rows as JSON lines, whole or not at all, and returns how many there are."""
    count = 0
    with path.with_suffix(".new").open("w", encoding="utf-8") as file:
        for row in rows:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
            count += 1
        file.flush()
        os.fsync(file.fileno())
    path.with_suffix(".new").replace(path)
    return count


def _summary(format: str, examples: Sequence) -> str:
    """How many questions a file holds, and what becomes of those with fewer hard negatives."""
    usable = trainer_formats.usable_examples(format, examples)
    longest = max((len(example.negatives) for example in usable), default=0)
    shorter = sum(len(example.negatives) < longest for example in usable)
    up_to = "up to " if shorter else ""
    negatives = f"{up_to}{longest} hard negatives each" if longest else "no hard negatives"
    summary = f" of {len(usable):,} questions, {negatives}"
    if shorter and format == "sentence-transformers":
        summary += f"; those of {shorter:,} questions are repeated to fill the columns"
    if dropped := len(examples) - len(usable):
        summary += (
            f"; {dropped:,} questions without a hard negative are left out, {format} has no place "
            "for them beside the others"
        )
    return summary
