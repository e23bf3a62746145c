"""The export stage: the tuned retriever and, if one was trained, the reranker, with model cards."""

from pathlib import Path

from ark_jax import __version__
from ark_jax.data.row_files import SUFFIXES
from ark_jax.pipeline.manifest import read_manifest
from ark_jax.pipeline.stage import Context
from ark_jax.pipeline.tables import load_json
from ark_jax.recipes.ark.curriculum import RERANKER, systems, trained_stages
from ark_jax.recipes.common.choose_fusion import chosen_fusion
from ark_jax.recipes.common.corpus import load_questions
from ark_jax.recipes.common.evaluate import MODEL_CARD_METRICS, verdict
from ark_jax.recipes.common.export import base_names, copy_files, describe_card, settings_text
from ark_jax.recipes.common.table import as_markdown
from ark_jax.recipes.common.written_from import note_on_test
from ark_jax.report.results import against_parts, metric_heading
from ark_jax.retrieval.fusion import FUSION_FILE, Fusion, save_fusion

SEARCHED = {  # by `evaluate.scope`
    "document": "the chunks of its own documents",
    "held_out": "the chunks of all held-out questions' documents",
    "corpus": "the whole corpus",
}
METHOD = "ARK: answer-centric contrastive learning (ARK, ACL 2026)"


def export(context: Context, folder: Path) -> dict:
    """Exports the last tuned retriever, and the reranker into the folder `reranker`."""
    config = context.config
    compared = systems(config)
    curriculum = trained_stages(config)
    counts = export_retriever(
        context,
        folder,
        system=compared.last,
        fusion=chosen_fusion(context, compared),
        examples=read_manifest(context / "positives")["counts"]["questions"],
        curriculum=curriculum,
        method=METHOD,
    )
    if compared.reranker:
        copy_files(context / compared.reranker / "model", folder / RERANKER)
        _describe_reranker(context, folder / RERANKER / "README.md", compared.last)
        counts["reranker"] = compared.reranker
    return counts


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


def index_words(config, workdir: Path) -> list[str]:
    """The words of `ark-jax index` that make the documents of a run searchable by its export."""
    tokens = config.data.chunk_tokens
    length = [f"--chunk-tokens={tokens}"] if tokens else []
    return [str(workdir / "export"), config.data.path, f"--out={workdir / 'index'}", *length]


def _describe_reranker(context: Context, card: Path, system: str) -> None:
    """Puts method and numbers into the reranker's card."""
    from ark_jax.models.model_card import plain_line

    config = context.config
    base = plain_line(base_names(config.reranker.path)[0])
    lists = read_manifest(context / RERANKER)["counts"]["lists"]
    evaluated = load_json(context / "evaluate" / "metrics.json")
    rows = [row for row in evaluated["table"] if row["system"] in (system, f"{system} + reranker")]
    questions = read_manifest(context / "evaluate")["counts"]["questions"]
    about = f"""Begins as {base}. Tuned by ark_jax {__version__} to score passages as a language
model does: by how well they explain the answer (ARK's alignment scores), on {lists:,} questions.
Measured on {questions:,} held-out questions (mean and 95 % bootstrap interval), where it puts in
order what {system} retrieves:

{as_markdown(rows, evaluated["metrics"])}

{settings_text(config, "train", "reranker")}"""
    describe_card(card, f"{base}, a reranker tuned with ARK", about)


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
