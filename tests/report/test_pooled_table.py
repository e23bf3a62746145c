"""The pooled table of a cross-validation: files, Markdown, HTML."""

import json

import pyarrow.parquet as pq

from ark_jax.pipeline.recipe import Pooled
from ark_jax.report import sweep_table
from ark_jax.report.page import render

BASE = {"mean": 0.5, "low": 0.25, "high": 0.75}
TESTED = {"difference": 0.25, "low": 0.125, "high": 0.5, "p": 0.01, "p_holm": 0.01}
BETTER = {"mean": 0.75, "low": 0.5, "high": 1.0, "against_base": TESTED}
POOLED = Pooled(
    rows=[
        {"run": run, "system": system, "question": run * 2, "mrr": 0.5}
        for run in ("a", "b", "c")
        for system in ("base", "<b>")
    ],
    metrics=("mrr", "answer_f1"),
    table=[
        {"system": "base", "values": {"mrr": BASE}},
        {"system": "<b>", "values": {"mrr": BETTER}},
    ],
    notes=("A note on <i>.",),
)


def test_markdown_has_intervals_marks_and_notes():
    text, _ = sweep_table.pooled_parts(POOLED)
    assert "| base | 0.500 [0.250, 0.750] | – |" in text
    assert r"| <b> | 0.750 [0.500, 1.000] \* | – |" in text and r"\* differs from base" in text
    assert "All 3 questions of 3 folds" in text and text.endswith("A note on <i>.")


def test_html_escapes_what_models_and_users_wrote():
    page = render("", "", [sweep_table.pooled_parts(POOLED)[1]])
    assert "&lt;b&gt;" in page and "<b>" not in page.replace("<figcaption><b>", "")
    assert "A note on &lt;i&gt;." in page and "+0.250*" in page


def test_pooled_files_are_saved_and_removed(tmp_path):
    folder = tmp_path / "pooled"
    sweep_table.save_pooled(POOLED, folder)
    assert pq.read_table(folder / "questions.parquet").to_pylist() == POOLED.rows
    saved = json.loads((folder / "metrics.json").read_text())
    assert (saved["metrics"], saved["table"]) == (["mrr", "answer_f1"], POOLED.table)
    sweep_table.save_pooled(None, folder)
    assert not folder.exists()
