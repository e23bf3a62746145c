"""The export stage: the tuned retriever and, if one was trained, the reranker, with model cards."""

from pathlib import Path

from ark_jax import __version__
from ark_jax.pipeline.manifest import read_manifest
from ark_jax.pipeline.stage import Context
from ark_jax.pipeline.tables import load_json
from ark_jax.recipes.ark.curriculum import RERANKER, systems, trained_stages
from ark_jax.recipes.common.choose_fusion import chosen_fusion
from ark_jax.recipes.common.export import (
    base_names,
    copy_files,
    describe_card,
    export_retriever,
    settings_text,
)
from ark_jax.recipes.common.table import as_markdown

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
