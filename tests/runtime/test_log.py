"""Rows that survive a kill, metrics, durations and progress lines."""

import json
import os
import re
import subprocess
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.paths import REPOSITORY

from ark_jax.runtime import log
from ark_jax.runtime.shown import json_line, printable

ROWS = [["a prompt [1]", "x"], {"stage": "score", "seconds": 1.5}, ["潮汐\u2028\n", "\ud800"], {}]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(cut=st.integers(1, 200))
def test_a_row_cut_off_by_a_kill_does_not_affect_other_rows(cut, tmp_path):
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
def test_durations_are_written_in_seconds_minutes_or_hours(seconds, text):
    assert log.duration(seconds) == text


def test_progress_lines_show_rate_and_remaining_time(capsys, monkeypatch):
    """The first batch, which compiles, says nothing of the others; no estimate swings."""
    clock = iter([100.0, 105.0, 400.0, 410.0, 420.0, 521.0])
    monkeypatch.setattr(log.time, "monotonic", lambda: next(clock))
    with log.Progress("score", 150, "pairs", interval=10, done=30) as bar:
        bar.add(0)  # after five seconds: too early for a line
        bar.add(20)
        bar.add(20, note="2 failed")
        with log.quiet():
            bar.add(20)
            log.say("not to be seen")
        bar.add(1)  # a hundred times slower, though no longer estimate tells so at once
    assert capsys.readouterr().out.splitlines() == [
        "  score: 50/150 pairs",
        "  score: 70/150 pairs, 2.0/s, 40s left, 2 failed",
        "  score: 91/150 pairs, 0.3/s, 1m00s left",
    ]


def test_a_terminal_shows_one_moving_line_and_marks_by_colour_unless_it_has_none(
    capsys, monkeypatch
):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert log.highlight("goats") == "[goats]"  # not a terminal
    monkeypatch.setattr(log.sys.stdout, "isatty", lambda: True, raising=False)
    assert log.highlight("goats") == "\x1b[1;32mgoats\x1b[0m"
    monkeypatch.setenv("NO_COLOR", "1")
    assert log.highlight("goats") == "[goats]"
    monkeypatch.setenv("COLUMNS", "40")
    with log.Progress("score", 2, "pairs", interval=0) as bar:
        bar.add(note="a note that does not fit a terminal of so few columns")
        log.say("read")
    assert capsys.readouterr().out == (
        "\r\x1b[K  score: 1/2 pairs, a note that does no\r\x1b[Kread\n\r\x1b[K"
    )


@pytest.mark.parametrize("tty", [False, True])
def test_no_control_character_of_a_text_is_printed(capsys, monkeypatch, tty):
    """Whether a document, an id, a reply or a file name has it; and colours are ours alone."""
    monkeypatch.setattr(log.sys.stdout, "isatty", lambda: tty, raising=False)
    texts = [
        "a\x1b[2Jb",
        "\x1b]0;pwn\x07",
        "one\rtwo\x0b",
        "c\x9b31md",
        "\u202eevil",
        "\x1b[31mred",
    ]
    with log.Progress("read", 9, "files", interval=0) as bar:
        for text in texts:
            log.say(text)
            log.show(f"{text}\r\n")
            bar.add(note=text)
    log.show(f"{log.GREEN}green{log.PLAIN} שלום\u200f\t")
    out = capsys.readouterr().out
    rest = out.replace(log.GREEN, "").replace(log.PLAIN, "").replace("\r\x1b[K", "") if tty else out
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", rest.replace("\r\n", "\n"))
    assert "a\ufffd[2Jb" in rest and "one two" in rest and rest.endswith(" שלום\u200f\t")


def test_a_line_of_json_escapes_control_characters():
    row = {"text": "a\x1b\x9b\u202e\r\nשלום\u200f"}
    line = json_line(row)
    assert json.loads(line) == row and printable(line) == line and "שלום" in line


def shell(code: str, redirections: str, **environment: str) -> subprocess.CompletedProcess:
    """Runs Python code with streams that a shell redirects."""
    script = f'exec "$0" -c "$1" {redirections}'
    command = ["sh", "-c", script, sys.executable, f"from ark_jax.runtime import log\n{code}"]
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        encoding="utf-8",
        cwd=REPOSITORY,
        env=os.environ | environment,
    )


def test_closed_streams_do_not_redirect_library_output_into_files(tmp_path):
    code = f"""
import os
log.prepare_streams()
with log.Progress("score", 1, "pairs", interval=0) as bar, open({str(tmp_path / "file")!r}, "w"):
    os.write(1, b"a library's remark")
    os.write(2, b"a library's warning")
    bar.add(1)
log.say("done")
"""
    done = shell(code, "<&- >&- 2>&-")
    assert done.returncode == 0 and (tmp_path / "file").read_bytes() == b""


def test_characters_that_the_terminal_cannot_encode_are_escaped():
    code = "log.prepare_streams(); log.say('question ပင်လယ်: 潮')"
    done = shell(code, "", PYTHONIOENCODING="ascii")
    assert done.returncode == 0 and done.stdout.startswith("question \\u1015")


def test_log_lines_and_warnings_of_libraries_steer_no_terminal():
    code = """
import logging, warnings
log.prepare_streams()
name = "a\\x1b[2Jb\\x9b31m.txt"
for library in ("uvicorn.error", "transformers", "asyncio"):
    logging.getLogger(library).error("%s: cannot be read", name)
    try:
        raise ValueError(name)
    except ValueError:
        logging.getLogger(library).exception("in %s", name)
warnings.warn(name)
from transformers.utils import logging as of_transformers
of_transformers.get_logger("transformers.models").error("no %s", name)
"""
    said = shell(code, "").stderr
    assert said.count("a\ufffd[2Jb\ufffd31m.txt") == 11, said
    assert "\x1b" not in said and "\x9b" not in said


def test_a_failed_write_to_standard_output_is_named():
    done = shell("log.say('done')", "> /dev/full")
    assert "OSError: [Errno 28] No space left on device: 'standard output'" in done.stderr
