"""The demo of STAR, with the real MiniLM."""

import json
import os
import subprocess
import sys

import pytest
from support.paths import REPOSITORY

from ark_jax.report.results import is_significant


@pytest.mark.slow
def test_the_demo_improves_on_the_untouched_retriever(real_models, tmp_path):
    """On questions of topics that it was not trained on, over all and by number of hops."""
    done = subprocess.run(
        [sys.executable, "-m", "ark_jax", "demo", "--recipe=star"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    folder = tmp_path / "ark_demo_star"
    evaluated = json.loads((folder / "evaluate" / "metrics.json").read_text())
    tables = {"all": evaluated["table"], **evaluated["groups"]}
    for group in ("all", "1 hop", "2 hops"):
        values = {row["system"]: row["values"] for row in tables[group]}
        for metric in ("hit@1", "path_hit@1"):
            base, tuned = values["base"][metric], values["star"][metric]
            assert tuned["mean"] > base["mean"] + 0.2 and is_significant(tuned), (group, metric)
    assert "Questions and their paths" in (folder / "report.html").read_text(encoding="utf-8")
