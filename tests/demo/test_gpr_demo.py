"""The demo of GPR, with the real MiniLM."""

import json

import pytest
from support.demos import run_demo

from ark_jax.report.results import is_significant


@pytest.mark.slow
def test_the_demo_improves_on_the_untouched_retriever(real_models, tmp_path):
    """On questions of one hop, and with chains on those of two; nobody trained on a question."""
    folder = run_demo("gpr", tmp_path)
    groups = json.loads((folder / "evaluate" / "metrics.json").read_text())["groups"]
    tables = {
        name: {row["system"]: row["values"] for row in table} for name, table in groups.items()
    }
    for group, metric, gain in (
        ("1 hop", "answer_triple@1", 0.2),
        ("2 hops", "answer_triple@10", 0.3),
    ):
        base, tuned = (tables[group][system][metric] for system in ("base", "gpr, 3 hops"))
        assert tuned["mean"] > base["mean"] + gain and is_significant(tuned)
    assert "All questions" in (folder / "report.html").read_text(encoding="utf-8")
