"""The demo of STAR, with the real MiniLM."""

import json

import pytest
from support.demos import run_demo

from ark_jax.report.results import is_significant


@pytest.mark.slow
def test_the_demo_improves_on_the_untouched_retriever(real_models, tmp_path):
    """On questions of topics that it was not trained on, over all and by number of hops."""
    folder = run_demo("star", tmp_path)
    evaluated = json.loads((folder / "evaluate" / "metrics.json").read_text())
    tables = {"all": evaluated["table"], **evaluated["groups"]}
    for group in ("all", "1 hop", "2 hops"):
        values = {row["system"]: row["values"] for row in tables[group]}
        for metric in ("hit@1", "path_hit@1"):
            base, tuned = values["base"][metric], values["star"][metric]
            assert tuned["mean"] > base["mean"] + 0.2 and is_significant(tuned), (group, metric)
    assert "All questions" in (folder / "report.html").read_text(encoding="utf-8")
