"""What the report takes of long tables: the rows that it shows, as if all had been read."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ark_jax.pipeline.stage import Context
from ark_jax.pipeline.tables import save_rows
from ark_jax.recipes.ark import config, report
from ark_jax.runtime.log import Metrics

ROWS = [{"question": f"q{i % 4}", "chunk": f"c{i}", "cosine": i / 8} for i in range(10)]


@pytest.fixture
def context(tmp_path):
    for stage in ("mine2", "extract", "rewrite"):
        (tmp_path / stage).mkdir()
    return Context(config.ark(), tmp_path, Metrics(tmp_path / "metrics.jsonl"))


@pytest.mark.parametrize("rows", [ROWS, []], ids=len)
def test_rows_of_the_chosen_questions_are_read(tmp_path, rows):
    path = tmp_path / "rows.parquet"
    save_rows(rows, path)

    @given(st.lists(st.sampled_from(["q0", "q1", "q3", "q9"])))
    def check(questions):
        expected = [row for row in rows if row["question"] in questions]
        assert report.rows_with(path, "question", questions) == expected

    check()


def test_cosines_are_loaded_for_a_stage_without_negatives(context):
    save_rows(ROWS, context / "mine2" / "positives.parquet")
    save_rows([], context / "mine2" / "negatives.parquet")
    positive = [row["cosine"] for row in ROWS]
    assert report.load_cosines(context, "mine2") == {"positive": positive, "negative": []}


def test_the_first_quarantined_replies_are_shown(context):
    lost = [{"chunk": f"c{i}", "reason": "broken", "text": "("} for i in range(3)]
    save_rows(lost, context / "extract" / "quarantine.parquet")
    save_rows([], context / "rewrite" / "quarantine.parquet")
    shown = report.load_quarantined(context, {"extract": {}, "rewrite": {}}, limit=2)
    assert [(row["stage"], row["item"]) for row in shown] == [("extract", "c0"), ("extract", "c1")]
