"""The baselines stage: the untuned reader and the warm one on what the retriever finds."""

from pathlib import Path

from ark_jax.pipeline.stage import Context
from ark_jax.pipeline.tables import load_rows, save_rows
from ark_jax.recipes.bar_rag.measures import measure_reader, measured_questions
from ark_jax.recipes.bar_rag.readers import UNTUNED, WARM

FILE = "sets.parquet"


def measure_baselines(context: Context, folder: Path) -> dict:
    """Stores the rows of both readers, which all arms of a study share."""
    questions = measured_questions(context)
    if questions:
        rows = measure_reader(context, UNTUNED, folder)
        if context.config.warm.steps:
            rows += measure_reader(context, WARM, folder)
        else:  # the same reader
            rows += [row | {"system": WARM} for row in rows]
        save_rows(rows, folder / FILE)
    return {"questions": len(questions)}


def load_baselines(context: Context) -> list[dict]:
    """The rows of both readers; none if there is no held-out question."""
    path = context / "baselines" / FILE
    return load_rows(path) if path.is_file() else []
