"""The export stage: the tuned retriever as a sentence-transformers folder, with a model card."""

import json
import shutil
from pathlib import Path

from ark_jax import __version__
from ark_jax.data.row_files import SUFFIXES
from ark_jax.pipeline.manifest import read_manifest
from ark_jax.pipeline.stage import Context
from ark_jax.pipeline.tables import load_json
from ark_jax.recipes.common.corpus import load_questions
from ark_jax.recipes.common.evaluate import MODEL_CARD_METRICS, verdict
from ark_jax.recipes.common.table import as_markdown
from ark_jax.recipes.common.written_from import note_on_test
from ark_jax.report.results import against_parts, metric_heading
from ark_jax.retrieval.fusion import FUSION_FILE, Fusion, save_fusion

SEARCHED = {  # by `evaluate.scope`
    "document": "the chunks of its own documents",
    "held_out": "the chunks of all held-out questions' documents",
    "corpus": "the whole corpus",
}


def export_retriever(
    context: Context,
    folder: Path,
    *,
    system: str,
    fusion: Fusion,
    examples: int,
    curriculum: tuple[str, ...],
    method: str,
) -> dict:
    """Copies a tuned system's model and writes a card that holds its numbers.

    Args:
        system: the stage whose model is exported.
        fusion: how it is joined with BM25.
        examples: how many questions it was trained on.
        curriculum: as in `evaluate.verdict`.
        method: the method's short name and how the card describes it, "NAME: DESCRIPTION".
    """
    from ark_jax.models import model_card

    name, _, description = method.partition(": ")
    copy_files(context / system / "model", folder)
    save_fusion(fusion, folder)
    evaluated = load_json(context / "evaluate" / "metrics.json")
    base, hub_name = base_names(context.config.retriever.path)
    values = next(row["values"] for row in evaluated["table"] if row["system"] == system)
    text = model_card.render_card(
        folder,
        title=f"{base}, tuned with {name}",
        base=hub_name,
        about=_description(
            context, model_card.plain_line(base), examples, evaluated, curriculum, description
        ),
        results=_hub_results(context, values),
    )
    (folder / "README.md").write_text(text, encoding="utf-8")
    return {"model": system}


def base_names(path: str) -> tuple[str, str]:
    """What a model is called, and its hub name; a local folder has none."""
    local = Path(path).expanduser().exists()
    return (Path(path).name, "") if local else (path, path)


def copy_files(source: Path, target: Path) -> None:
    """Copies a folder."""
    # `shutil.copytree` would hide a full disk in an error of its own.
    for file in source.rglob("*"):
        if file.is_file():
            copy = target / file.relative_to(source)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, copy)


def settings_text(config, *sections: str) -> str:
    """The settings of training, as a card's last line."""
    values = {name: value for section in sections for name, value in config[section].items()}
    return f"Training settings: `{json.dumps(values, default=list)}`."


def describe_card(card: Path, title: str, description: str) -> None:
    """Gives the card of a pair scorer another title, and a text in front of how it is opened."""
    from ark_jax.models.model_card import plain_line

    front, _, body = card.read_text(encoding="utf-8").partition("\n# ")
    _, _, body = body.partition("\n")
    card.write_text(f"{front}\n# {plain_line(title)}\n\n{description}\n{body}", encoding="utf-8")


def _hub_results(context: Context, values: dict) -> list:
    """The metrics as the hub's evaluation results; data of one's own have no type there."""
    from huggingface_hub import EvalResult

    questions = read_manifest(context / "evaluate")["counts"]["questions"]
    return [
        EvalResult(
            task_type="information-retrieval",
            task_name="Information Retrieval",
            dataset_type="unknown",
            dataset_name=f"{_data_name(context)}, {questions:,} held-out questions",
            metric_type=metric,
            metric_name=metric_heading(metric),
            metric_value=round(values[metric]["mean"], 4),
        )
        for metric in MODEL_CARD_METRICS
        if metric in values
    ]


def _description(
    context: Context,
    base: str,
    examples: int,
    evaluated: dict,
    curriculum: tuple[str, ...],
    description: str,
) -> str:
    """The card's part on method, data and metrics."""
    from ark_jax.models.model_card import plain_line

    counts = read_manifest(context / "data")["counts"]
    table, columns = evaluated["table"], evaluated["metrics"]
    trained, measured = (load_questions(context, part) for part in ("train", "held_out"))
    names = [{id for x in part for id in x.documents} for part in (trained, measured)]
    unseen = counts["split_by"] == "document" and names[0].isdisjoint(names[1])
    documents = "over documents it never saw" if unseen else "that may share passages with those"
    data = plain_line(_data_name(context))
    against = (f"{line}." for line in against_parts(table, columns))
    sentences = [verdict(table, columns, curriculum), *against, note_on_test(context)]
    return f"""Base model: {base}. Tuned by ark_jax {__version__} with {description} on
{examples:,} of the {len(trained):,} training questions of the data set {data};
measured on {len(measured):,} held-out questions {documents} (mean and 95 %
bootstrap interval):

{as_markdown(table, columns)}

{" ".join(filter(None, sentences))}

{_how_measured(context, counts["pool"])}

To search documents of your own by this model and BM25, joined as `{FUSION_FILE}` says:

```bash
ark-jax index path/to/this/folder DOCUMENTS --out=INDEX && ark-jax search INDEX "QUESTION"
```

{settings_text(context.config, "train")}"""


def _data_name(context: Context) -> str:
    """The last part of the path of the data; a file goes without its ending."""
    path = Path(context.config.data.path)
    return path.stem if path.suffix in SUFFIXES else path.name or path.resolve().name


def _how_measured(context: Context, pool: str) -> str:
    """What counts as relevant, and what a question searches."""
    evaluated, settings = read_manifest(context / "evaluate")["counts"], context.config.evaluate
    unmarked, questions = evaluated["without_marked_evidence"], evaluated["questions"]
    by_answer = "chunks that contain an answer, of which one is needed"
    if settings.gold == "answers" or unmarked == questions:
        relevant = f"Relevant are {by_answer}, or else the documents of the question."
    else:
        relevant = (
            "Relevant are the chunks that hold marked evidence; a marked section counts once, "
            "however many chunks hold it."
        )
        if unmarked:
            relevant += f" For {unmarked:,} questions without it, they are {by_answer}."
    scope = {"corpus": "corpus", "documents": "document"}[pool]
    scope = scope if settings.scope == "auto" else settings.scope
    return f"{relevant} Each question searches {SEARCHED[scope]}."
