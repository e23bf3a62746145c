"""The last lines of a run."""

import types

from ark_jax.pipeline.tables import save_json, save_rows
from ark_jax.recipes.core import report


def table(**means):
    return [{"system": name, "values": {"mrr": {"mean": mean}}} for name, mean in means.items()]


def test_a_run_ends_with_the_best_system_one_question_and_a_command(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for stage, means in (("baselines", {"base": 0.4, "bm25": 0.9}), ("evaluate", {"tuned": 0.7})):
        (tmp_path / stage).mkdir()
        save_json({"metrics": ["mrr"], "table": table(**means)}, tmp_path / stage / "metrics.json")
    found = {
        "base": ("a cow", "\x1b[31mthe lamp", "a boat"),
        "tuned": ("a cow", "two  Goats graze", "no boat"),
    }
    rows = [
        {"system": system, "question": f"q{i}", "mrr": float(i), "text": text}
        for system, texts in found.items()
        for i, text in enumerate(texts)
    ]
    save_rows(rows, tmp_path / "evaluate" / "questions.parquet")
    asked = [
        types.SimpleNamespace(id=f"q{i}", question=f"Which {i}?", answers=[answer])
        for i, answer in enumerate(("cow", "goats", "boat"))
    ]
    lines = report.ending(
        types.SimpleNamespace(workdir=tmp_path),
        "mrr",
        lambda context: asked,
        lambda context: lambda row: row["text"],
        lambda context, question: f'search {context.workdir}/export "{question}"',
    )
    assert lines == [
        "  system     MRR",
        "  bm25     0.900  [best]",
        "  tuned    0.700",
        "  base     0.400",
        "one question: Which 1? (goats)",
        "  before (base): \ufffd[31mthe lamp",
        "  after (tuned): two [Goats] graze",
        'search export "Which 1?"',
    ]
