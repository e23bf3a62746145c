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
        "seconds": {"ark_jax": 0.5, "shipped": 1.0, "tuned": 0.25},
        "ours": "ark_jax",
        "clean": False,
    }
    assert list(speeds.table([row]))[-1] == (
        "| a/b | 500 ms * | shipped 1 s (2.00 x), tuned 250 ms (**0.50 x**) | `A=1 x.py y` |"
    )
