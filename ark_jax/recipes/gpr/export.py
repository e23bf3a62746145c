"""The export stage: the towers as a sentence-transformers folder, with a model card."""

from pathlib import Path

from ark_jax import __version__
from ark_jax.pipeline.manifest import read_manifest
from ark_jax.pipeline.stage import Context
from ark_jax.pipeline.tables import load_json
from ark_jax.recipes.common.export import base_names, copy_files, settings_text
from ark_jax.recipes.common.table import as_markdown

METHOD = "graded relevance of a graph's triples (GPR)"


def export_towers(context: Context, folder: Path) -> dict:
    """Copies the trained towers, and writes a card that holds their numbers."""
    from ark_jax.models import model_card

    copy_files(context / "train" / "model", folder)
    base, hub_name = base_names(context.config.retriever.path)
    card = model_card.render_card(
        folder,
        title=f"{base}, tuned with GPR",
        base=hub_name,
        about=_description(context, model_card.plain_line(base)),
    )
    (folder / "README.md").write_text(card, encoding="utf-8")
    return {"towers": context.config.train.towers}


def _description(context: Context, base: str) -> str:
    """The card's part on method, data and metrics."""
    counts = {stage: read_manifest(context / stage)["counts"] for stage in ("data", "questions")}
    evaluated = load_json(context / "evaluate" / "metrics.json")
    text = f"""Base model: {base}. Tuned by ark_jax {__version__} with {METHOD}
to fetch, for a question, triples that bear its answer: "head | relation | tail".
It learned from {counts["questions"]["questions"]:,} questions about masked entities of a graph of
{counts["data"]["triples"]:,} triples; no labelled question was used."""
    if evaluated["table"]:
        text += f"\n\nMeasured on {counts['data']['test_questions']:,} questions:\n\n"
        text += as_markdown(evaluated["table"], evaluated["metrics"])
    return f"{text}\n\n{settings_text(context.config, 'train')}"
