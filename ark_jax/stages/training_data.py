"""`ark-jax export --format=...`: what each stage is trained on, as JSONL for another trainer. It runs no stage."""

import json
import os

from ark_jax import pipeline
from ark_jax.data import exports
from ark_jax.log import say
from ark_jax.pipeline import Context
from ark_jax.stages import curriculum, stages


def write(context: Context, form: str) -> None:
    """Fills `DIR/export-FORM` with one file for each stage of the config, from the very examples that it is trained on.

    Raises:
        Interrupted: what a stage is trained on is not up to date; nothing is written then.
    """
    found = {status.stage: status for status in pipeline.examine(stages(context.config), context.config, context.workdir)}
    for stage in context.config.train.stages:
        for name in curriculum.needed(stage):
            if found[name].state != "done":
                why = f" ({found[name].why})" if found[name].why else ""
                raise pipeline.Interrupted(f"stage {stage} is trained on what {name} makes, which is {found[name].state}{why}: "
                                           f"run `ark-jax {name}` or `ark-jax run` first, with the same --config and --workdir")
    folder = context.workdir / f"export-{form}"
    folder.mkdir(exist_ok=True)
    for stage in context.config.train.stages:
        examples, questions, passages = curriculum.examples_of(context, stage)
        path, lines = folder / f"stage{stage}.jsonl", 0
        with path.with_suffix(".new").open("w", encoding="utf-8") as file:
            for row in exports.rows(form, examples, questions, passages):
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
                lines += 1
            file.flush()
            os.fsync(file.fileno())
        path.with_suffix(".new").replace(path)
        say(f"  {path}: {lines:,} rows{_told(form, examples)}")


def _told(form: str, examples) -> str:
    """How many questions a file holds, and what the format made of those with fewer hard negatives."""
    kept = exports.trainable(form, examples)
    most = max((len(e.negatives) for e in kept), default=0)
    few, left = sum(len(e.negatives) < most for e in kept), len(examples) - len(kept)
    hard = f"{'up to ' if few else ''}{most} hard negatives each" if most else "no hard negatives"
    told = f" of {len(kept):,} questions, {hard}"
    if few and form == "sentence-transformers":
        told += f"; those of {few:,} questions are repeated to fill the columns"
    if left:
        told += f"; {left:,} questions without a hard negative are left out, {form} has no place for them beside the others"
    return told
