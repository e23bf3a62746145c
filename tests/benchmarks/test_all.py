"""The table of speeds: what it holds, and how a row reads."""

import re
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
import all as speeds


def test_every_script_that_reports_a_peer_is_in_the_table():
    scripts = {
        path.name
        for path in speeds.HERE.glob("*.py")
        if re.search(r"from timing import .*\breport\b", path.read_text(encoding="utf-8"))
    }
    assert scripts == {speeds._parts(command)[-2] for command in speeds.COMMANDS}


def test_a_row_names_all_contenders_and_marks_what_is_slower_or_disturbed():
    row = {
        "command": "A=1 x.py y",
        "machine": "a processor",
        "day": "2026-11-28",
        "work": "a|b",
        "seconds": {"ark_jax": 0.5, "ark_jax, half": 1, "shipped": 1, "tuned": 0.25, "rough": 0.1},
        "ours": "ark_jax",
        "clean": False,
        "roof": 0.5,
        "apart": ["rough"],
    }
    assert list(speeds.table([row]))[-1] == (
        "| a/b | 500 ms * | 50% | shipped 1 s (2.00 x) | tuned 250 ms (**0.50 x**) "
        "| ark_jax, half 1 s (2.00 x), rough 100 ms (**0.20 x**) | `A=1 x.py y` |"
    )


def test_what_a_script_reports_is_kept_when_it_fails_or_takes_too_long(
    monkeypatch, capfd, tmp_path
):
    script = tmp_path / "x.py"
    script.write_text(
        "import sys, time, timing\n"
        "timings = {name: timing.Timing([2.0], True) for name in ('ark_jax', 'peer')}\n"
        "timing.report('a', 'b', 1, timings, least=1.0)\n"
        "time.sleep(float(sys.argv[1]))\n"
        "sys.exit(3)\n"
    )
    monkeypatch.setattr(speeds, "HERE", tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    monkeypatch.setattr(speeds, "LIMIT", 30)
    for seconds, end in ((0, "ended with 3"), (100, "was stopped after 0 minutes, its limit")):
        (row,) = speeds.measure(f"x.py {seconds}")
        assert row["work"] == "a" and row["roof"] == 0.5
        assert f"x.py {seconds} {end}: 1 rows" in capfd.readouterr().out
        monkeypatch.setattr(speeds, "LIMIT", 3)
