"""Rows are counted, and a fault of many rows is listed by examples."""

import json

import pytest
from support.input_files import DOCUMENT, QUESTION, D, Q, plain, write

from ark_jax.__main__ import _main
from ark_jax.data import readers
from ark_jax.data.problems import EXAMPLES, SYSTEMATIC
from ark_jax.data.records import BadInput


def folder_with(tmp_path, good: int, bad: int):
    documents = [json.dumps({"id": f"g{i}", "text": "Fine."}) for i in range(good)]
    documents += [json.dumps({"id": f"b{i}", "text": i}) for i in range(bad)]
    return write(tmp_path, {D: "\n".join(documents)})


@pytest.mark.parametrize("bad", [SYSTEMATIC, SYSTEMATIC + 1, 5000])
def test_a_systematic_fault_is_listed_by_examples_and_a_count(tmp_path, bad):
    _, problems = readers.read(folder_with(tmp_path, 1, bad))
    assert (problems.rows, problems.bad_rows, problems.total) == (bad + 1, bad, bad)
    assert sum(problem.rows for problem in problems) == bad
    if bad == SYSTEMATIC:
        assert len(problems) == bad
    else:
        assert [p.line for p in problems] == [*range(2, EXAMPLES + 2), 0]
        assert problems[-1].message == f"{bad - EXAMPLES:,} more rows have this fault; " + (
            "write a string"
        )
        with pytest.raises(BadInput, match=f"{bad:,} problem"):
            readers.load(tmp_path)


def test_a_systematic_fault_does_not_hide_other_faults(tmp_path):
    folder_with(tmp_path, 1, 30)
    with (tmp_path / D).open("a") as file:
        file.write('\n{"id": "last"}\n')
    _, problems = readers.read(tmp_path)
    assert (problems[-1].line, problems[-1].field) == (32, "text")


def test_bad_rows_within_the_tolerance_are_skipped(tmp_path, capsys):
    folder_with(tmp_path, 19, 1)
    asked = QUESTION.replace('["d"]', '["b0"]') + QUESTION.replace('"q"', '"r"').replace(
        '["d"]', '["g0"]'
    )
    write(tmp_path, {Q: asked})
    with pytest.raises(BadInput):
        readers.load(tmp_path, tolerate=0.04)
    corpus = readers.load(tmp_path, tolerate=0.05)
    assert len(corpus.documents) == 19 and [q.id for q in corpus.questions] == ["r"]
    remarks = "\n".join(map(str, corpus.remarks))
    assert "1 questions: ask documents that have problems; they are passed over" in remarks
    assert f"{tmp_path / D}:20: text: is a number; write a string" in remarks
    assert _main(["check", str(tmp_path)]) == 1
    out = capsys.readouterr().out
    assert "1 problem(s) in 1 of 22 rows" in out
    assert "--tolerate=0.0455 (config.data.tolerate)" in out
    assert _main(["check", str(tmp_path), "--tolerate=0.0455"]) == 0
    assert "1 problem(s), which --tolerate=0.0455 leaves out" in capsys.readouterr().out


def test_the_given_tolerance_is_written_to_the_config(tmp_path):
    folder_with(tmp_path, 19, 1)
    out = tmp_path / "c.py"
    assert _main(["init", str(tmp_path), f"--out={out}"]) == 1 and not out.exists()
    assert _main(["init", str(tmp_path), f"--out={out}", "--tolerate=0.1"]) == 0
    assert "c.data.tolerate = 0.1\n" in out.read_text()


def test_a_tolerance_above_one_is_refused(tmp_path, capsys):
    folder_with(tmp_path, 19, 1)
    assert _main(["check", str(tmp_path), "--tolerate=2"]) == 1
    assert "give a share from 0 to 1" in capsys.readouterr().err


def test_tolerance_is_not_suggested_if_most_rows_are_bad(tmp_path, capsys):
    folder_with(tmp_path, 1, 19)
    assert _main(["check", str(tmp_path)]) == 1
    out = capsys.readouterr().out
    assert "19 problem(s) in 19 of 20 rows: mend them" in out and "tolerate" not in out


@pytest.mark.parametrize("name", ["missing file", "cut off", "unknown"])
def test_a_fault_of_a_file_is_never_tolerated(tmp_path, name):
    files = {
        "missing file": {Q: QUESTION},
        "cut off": {"f": f"[{DOCUMENT}, {DOCUMENT[:9]}"},
        "unknown": {"f": '{"a": 1}'},
    }[name]
    write(tmp_path, files)
    with pytest.raises(BadInput):
        readers.load(tmp_path if Q in files else tmp_path / "f", tolerate=1.0)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("Ada\tEve\tUma\n" * 5097, "is TSV, not JSON; name the columns in its first line"),
        ("Ada,Eve\n" * 5097, "is CSV, not JSON; name the columns in its first line"),
        ("# Notes\n\nThe tide rose.\n" * 180, "is not JSON (it begins with '# Notes')"),
    ],
)
def test_a_file_that_is_not_json_is_reported_once(tmp_path, content, words):
    write(tmp_path, {**plain(content), "f": content})
    for path in (tmp_path / "f", tmp_path):
        _, problems = readers.read(path)
        assert len(problems) == 1 and words in problems[0].message
