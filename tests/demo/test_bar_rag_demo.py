"""The demo of BAR-RAG, with the real MiniLM and SmolLM2."""

import json

import pytest
from support.demos import run_demo

from ark_jax.pipeline.manifest import read_manifest


@pytest.mark.slow
def test_the_reader_of_the_demo_beats_the_untuned_one(real_models, tmp_path):
    """Its questions are of documents that it was not trained on."""
    folder = run_demo("bar_rag", tmp_path)
    table = json.loads((folder / "evaluate" / "metrics.json").read_text())["table"]
    values = {row["system"]: row["values"]["answer_f1"]["mean"] for row in table}
    assert list(values) == ["untuned", "warm", "read-1"]
    assert values["read-1"] > max(3 * values["untuned"], 0.1)
    counts = {name: read_manifest(folder / name)["counts"] for name in ("filter-1", "read-1")}
    assert counts["filter-1"]["kept"] and counts["read-1"]["steps"] == 3
    assert (folder / "export" / "reading_prompt.json").is_file()
    assert "Ways to choose passages" in (folder / "report.html").read_text(encoding="utf-8")
