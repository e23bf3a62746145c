"""The export stage: the trained scorer as a folder, with a model card."""

from pathlib import Path

from ark_jax import __version__
from ark_jax.pipeline.manifest import read_manifest
from ark_jax.pipeline.stage import Context
from ark_jax.pipeline.tables import load_json
from ark_jax.recipes.common.export import base_names, copy_files, describe_card, settings_text
from ark_jax.recipes.common.table import as_markdown


def export_scorer(context: Context, folder: Path) -> dict:
    """Copies the trained scorer, and puts method and numbers into its card."""
    from ark_jax.graph.path_retriever import StepSettings
    from ark_jax.models.model_card import plain_line

    copy_files(context / "train" / "model", folder)
    StepSettings(context.config.paths.inverse, context.config.data.relations).write(folder)
    base, _ = base_names(context.config.retriever.path)
    description = _description(context, plain_line(base))
    describe_card(folder / "README.md", f"{base}, tuned with STAR", description)
    return {"head": context.config.train.head}


def _description(context: Context, base: str) -> str:
    """The card's part on method, data and metrics."""
    config = context.config
    counts = {stage: read_manifest(context / stage)["counts"] for stage in ("data", "paths")}
    evaluated = load_json(context / "evaluate" / "metrics.json")
    data, paths = counts["data"], counts["paths"]
    text = f"""Base model: {base}. Tuned by ark_jax {__version__} to walk relation paths (STAR)
from the topic of a question to its answers. It learned from {data["train_questions"]:,} questions
with {paths["train_different_paths"]:,} different paths, over a graph of {data["triples"]:,}
triples.

```python
import ark_jax as ark
paths = ark.PathRetriever.from_pretrained("path/to/this/folder", "GRAPH")
paths.search(["a question"], [["its topic"]])
```"""
    if evaluated["table"]:
        text += f"\n\nMeasured on {data['test_questions']:,} questions of other topics:\n\n"
        text += as_markdown(evaluated["table"], evaluated["metrics"])
    return f"{text}\n\n{settings_text(config, 'train')}"
