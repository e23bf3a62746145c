"""A comparison as text, as JSON, and as files: a page, the table, and a row per question."""

from pathlib import Path

from ark_jax.comparison.comparison import CLUSTER, SEED, Comparison
from ark_jax.comparison.rankings import WORDS
from ark_jax.pipeline.tables import save_json, save_rows
from ark_jax.recipes.core.tables import as_text, best_system
from ark_jax.report import sections
from ark_jax.report.page import render
from ark_jax.report.questions import question_section
from ark_jax.report.results import by_group, results


def text_of(comparison: Comparison) -> str:
    """The table for a terminal, after a table for each type of question."""
    lines = []
    for name, table in comparison.groups.items():
        lines += [f"  {name}", as_text(table, comparison.metrics, comparison.reference)]
    if comparison.groups:
        lines.append("  all questions")
    lines.append(as_text(comparison.table, comparison.metrics, comparison.reference))
    return "\n".join([*lines, *(f"  {remark}" for remark in comparison.remarks)]) + "\n"


def json_of(comparison: Comparison) -> dict:
    """The comparison as JSON values, without the rows of questions."""
    return {
        "reference": comparison.reference,
        "metrics": comparison.metrics,
        "table": comparison.table,
        "groups": comparison.groups,
        "remarks": comparison.remarks,
        "about": comparison.about,
    }


def save(comparison: Comparison, folder: Path) -> Path:
    """Writes metrics.json, questions.parquet and report.html; returns the path of the page."""
    save_json(json_of(comparison), folder / "metrics.json")
    save_rows(comparison.rows, folder / "questions.parquet")
    page = folder / "report.html"
    page.write_text(_page(comparison), encoding="utf-8")
    return page


def _page(comparison: Comparison) -> str:
    """The HTML page of a comparison."""
    verdict = best_system(
        comparison.rows,
        comparison.metrics[0],
        against=(comparison.reference, WORDS),
        seed=SEED,
        cluster=CLUSTER,
        questions="the questions of the test set",
    )
    remarks = [[f"Remark {i}", remark] for i, remark in enumerate(comparison.remarks, 1)]
    parts = [
        results(
            comparison.table,
            comparison.metrics,
            comparison.reference,
            "the questions of the test set",
        ),
        sections.facts([*comparison.about.items(), *remarks]),
    ]
    if comparison.asked:
        names = list(comparison.asked[0].values)
        shown = question_section(
            comparison.asked, (names[0], names[-1]), "rank of the first needed passage"
        )
        parts.insert(1, shown)
    if comparison.groups:
        groups = by_group(comparison.groups, comparison.metrics, "By type of question", "types")
        parts.insert(1, groups)
    return render("Retrievers compared", [verdict], parts)
