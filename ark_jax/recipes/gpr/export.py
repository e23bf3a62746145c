"""The export stage: the towers as a sentence-transformers folder, with a model card."""

import json
import shutil
from pathlib import Path

from ark_jax import __version__
from ark_jax.models import model_card
from ark_jax.pipeline.manifest import read_manifest
from ark_jax.pipeline.stage import Context
from ark_jax.pipeline.tables import load_json
from ark_jax.recipes.common.table import cell_text
from ark_jax.report.results import metric_heading

METHOD = "graded relevance of a graph's triples (GPR)"


def export_towers(context: Context, folder: Path) -> dict:
    """Copies the trained towers, and writes a card that holds their numbers."""
    for file in (context / "train" / "model").rglob("*"):
        if file.is_file():
            copy = folder / file.relative_to(context / "train" / "model")
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, copy)
    path = context.config.retriever.path
    local = Path(path).expanduser().exists()
    base = Path(path).name if local else path
    card = model_card.render_card(
        folder,
        title=f"{base}, tuned with GPR",
        base="" if local else path,
        about=_about(context, model_card.plain_line(base)),
    )
    (folder / "README.md").write_text(card, encoding="utf-8")
    return {"towers": context.config.train.towers}


def _about(context: Context, base: str) -> str:
    """The card's part on method, data and metrics."""
    counts = {stage: read_manifest(context / stage)["counts"] for stage in ("data", "questions")}
    evaluated = load_json(context / "evaluate" / "metrics.json")
    settings = json.dumps(context.config.train.to_dict(), default=list)
    text = f"""Base model: {base}. Tuned by ark_jax {__version__} with {METHOD}
to fetch, for a question, triples that bear its answer: "head | relation | tail".
It learned from {counts["questions"]["questions"]:,} questions about masked entities of a graph of
{counts["data"]["triples"]:,} triples; no labelled question was used."""
    if evaluated["table"]:
        text += f"\n\nMeasured on {counts['data']['test_questions']:,} questions:\n\n"
        text += _results(evaluated["table"], evaluated["metrics"])
    return f"{text}\n\nTraining settings: `{settings}`."


def _results(table: list[dict], columns: list[str]) -> str:
    lines = [["system", *map(metric_heading, columns)], ["---"] * (len(columns) + 1)]
    for row in table:
        lines.append([row["system"], *(cell_text(row["values"].get(m)) for m in columns)])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
