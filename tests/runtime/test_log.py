"""Rows that survive a kill, metrics, durations and progress lines."""

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ark_jax.runtime import log

ROWS = [["a prompt [1]", "x"], {"stage": "score", "seconds": 1.5}, ["潮汐\u2028\n", "\ud800"], {}]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(cut=st.integers(1, 200))
def test_a_row_cut_off_by_a_kill_loses_no_other_row(cut, tmp_path):
    path = tmp_path / "rows.jsonl"
    path.unlink(missing_ok=True)
    for row in ROWS:
        log.append_row(row, path)
    assert list(log.read_rows(path)) == ROWS
    content = path.read_bytes()
    path.write_bytes(content[: -min(cut, len(content))])
    rows = list(log.read_rows(path))
    assert rows == ROWS[: len(rows)] and len(rows) >= path.read_bytes().count(b"\n")
    log.append_row("after", path)
    assert list(log.read_rows(path)) == [*rows, "after"]


def test_a_missing_file_has_no_rows(tmp_path):
    assert list(log.read_rows(tmp_path / "none.jsonl")) == []


def test_metrics_are_one_object_per_line(tmp_path):
    log.Metrics(tmp_path / "metrics.jsonl").write("score", seconds=2.5, scored=7)
    row = json.loads((tmp_path / "metrics.jsonl").read_text())
    assert row.pop("time") > 1.7e9 and row == {"stage": "score", "seconds": 2.5, "scored": 7}


@pytest.mark.parametrize(
    "seconds, text",
    [(0.4, "0s"), (59.6, "1m00s"), (75, "1m15s"), (3600, "1h00m"), (90000, "25h00m")],
)
def test_durations(seconds, text):
    assert log.duration(seconds) == text


def test_progress_shows_rate_and_time_left(capsys, monkeypatch):
    clock = iter([100.0, 105.0, 110.0, 120.0])
    monkeypatch.setattr(log.time, "monotonic", lambda: next(clock))
    with log.Progress("score", 100, "pairs", interval=10) as bar:
        bar.add(0)  # after five seconds: too early for a line
        bar.add(0)  # nothing done yet, and no division by it
        bar.add(40, note="2 failed")
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("  score: 0/100 pairs, 0.0/s")
    assert second == "  score: 40/100 pairs, 2.0/s, 30s left, 2 failed"
