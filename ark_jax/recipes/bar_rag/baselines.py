"""The baselines stage: the untuned reader, the warm one and one's own on what is retrieved."""

from pathlib import Path

from ark_jax.pipeline import own_functions
from ark_jax.pipeline.stage import Context
from ark_jax.pipeline.tables import load_rows, save_rows
from ark_jax.recipes.bar_rag.measures import measure_reader, measured_questions
from ark_jax.recipes.bar_rag.readers import OWN, UNTUNED, WARM

FILE = "sets.parquet"


def measure_baselines(context: Context, folder: Path) -> dict:
    """Stores the rows of these readers, which all arms of a study share."""
    questions = measured_questions(context)
    if questions:
        rows = measure_reader(context, UNTUNED, folder)
        if context.config.warm.steps:
            rows += measure_reader(context, WARM, folder)
        else:  # the same reader
            rows += [row | {"system": WARM} for row in rows]
        if own_functions.is_own(context.config.reader.backend):
            # It comes first: a sweep compares the last reader of the table.
            rows = measure_reader(context, OWN, folder) + rows
        save_rows(rows, folder / FILE)
    return {"questions": len(questions)}


def load_baselines(context: Context) -> list[dict]:
    """The rows of these readers; none if there is no held-out question."""
    path = context / "baselines" / FILE
    return load_rows(path) if path.is_file() else []
