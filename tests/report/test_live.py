"""The page on a run that works now, and what `status` says of it."""

import json
import os
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from support.report_pages import table_cells

from ark_jax.pipeline.stage import Stage
from ark_jax.pipeline.status import current_stage, watch
from ark_jax.report import live
from ark_jax.runtime import log


class Config(dict):
    """A config without fields."""


STAGES = [Stage("data", lambda context, folder: {}), Stage("train", lambda context, folder: {})]


@pytest.fixture
def training(tmp_path):
    """The workdir of a run that has made 4 of 60 steps of its stage `train`."""
    with log.keep_journal(tmp_path):
        log.say("[2/2] train", stage="train")
        partial = tmp_path / ".partial" / "train"
        partial.mkdir(parents=True)
        for step in range(1, 5):
            row = {"step": step, "loss": 1 / step, "learning_rate": 1e-5}
            log.append_row(row, partial / "curve.jsonl")
        with log.Progress("train", 60, "steps", interval=0.0) as bar:
            bar.add(1)
            bar._first = (bar._first[0] - 30, 1)  # the others took ten seconds each
            bar.add(3, "loss 0.25 </pre><script>alert(1)</script>")
        yield tmp_path


def get(address: str, **headers: str) -> tuple[str, dict]:
    with urllib.request.urlopen(urllib.request.Request(address, headers=headers)) as reply:
        return reply.read().decode(), dict(reply.headers)


def files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*"))


def test_the_page_shows_stages_curve_and_log_and_only_reads(training):
    before = files(training)
    with live.serving(
        training, lambda journal: watch(STAGES, Config(), training, journal=journal)
    ) as address:
        page, headers = get(address)
        assert headers["refresh"] == str(live.SECONDS) and address.startswith("http://127.0.0.1:")
        with pytest.raises(urllib.error.HTTPError, match="421"):
            get(address, Host="elsewhere.example")
        for path in ("report.html", "../config.json", "log.jsonl"):
            with pytest.raises(urllib.error.HTTPError, match="404"):
                get(address + path)
    _, data, train = table_cells(page, "Stages of the run")
    assert data == ["data", "missing", "", "–"]
    assert train[:2] == ["train", "running"] and train[2].startswith("step 4 of 60, 9m")
    assert "Loss of train" in page and "[2/2] train" in page
    assert "&lt;/pre&gt;" in page and "<script>alert" not in page
    assert files(training) == before


def test_a_run_that_ended_or_was_killed_is_not_running(training):
    assert current_stage(*log.read_journal(training))[0] == "train"
    journal = training / log.JOURNAL
    first, *rows = journal.read_text().splitlines()
    killed = json.loads(first) | {"pid": 2**22 + os.getpid()}  # above the largest number
    journal.write_text("\n".join([json.dumps(killed), *rows]) + "\n")
    assert current_stage(*log.read_journal(training)) == ("", "")
    elsewhere = json.loads(first) | {"host": "elsewhere"}
    journal.write_text("\n".join([json.dumps(elsewhere), *rows]) + "\n")
    assert current_stage(*log.read_journal(training))[0] == "train"
    silent = json.loads(rows[-1]) | {"time": time.time() - 600}
    journal.write_text("\n".join([json.dumps(elsewhere), *rows[:-1], json.dumps(silent)]) + "\n")
    assert current_stage(*log.read_journal(training)) == ("", "")


def test_the_journal_ends_with_the_run(tmp_path):
    with log.keep_journal(tmp_path):
        log.say("[1/2] data", stage="data")
        assert log.read_journal(tmp_path)[0]
    assert not log.read_journal(tmp_path)[0]
    log.say("afterwards")
    assert len(log.read_journal(tmp_path)[1]) == 3
