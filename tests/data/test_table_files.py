"""Damaged bytes and odd line ends are reported, and never crash."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.input_files import HOTPOT, LONG, MUSIQUE, SHEETS, plain, sound, write

from ark_jax.data import readers
from ark_jax.data.json_files import json_rows
from ark_jax.data.problems import Findings
from ark_jax.data.records import BadInput


def test_a_bad_byte_in_an_array_is_named_by_line_and_by_row(tmp_path):
    bad = LONG.replace('"1"', '"2"').encode().replace(b"When", b"Wh\xe9n")
    write(tmp_path, {"f.json": b"[\n" + LONG.encode() + b"," + bad + b"]"})
    corpus, problems = readers.read(tmp_path / "f.json")
    assert [(p.line, p.field) for p in problems] == [(3, ""), (2, "input")]
    assert "byte 27 of line 3 (0xe9)" in problems[0].message and "in row 2" in problems[1].message
    assert [q.id for q in corpus.questions] == ["1"]


def test_line_ends_of_old_macs_are_told(tmp_path):
    write(tmp_path, {"f": json.dumps(MUSIQUE) + "\r" + json.dumps(MUSIQUE)})
    with pytest.raises(BadInput, match="save it with line ends of Unix or Windows"):
        readers.load(tmp_path / "f")


FILES = [plain(), SHEETS, {"f": LONG}, {"f": json.dumps([HOTPOT, MUSIQUE])}]


@settings(max_examples=200, deadline=None)
@given(data=st.data(), files=st.sampled_from(FILES))
def test_any_damage_to_bytes_is_a_problem_not_a_crash(tmp_path_factory, data, files):
    name = data.draw(st.sampled_from(sorted(files)))
    content = files[name].encode()
    start, end = sorted(data.draw(st.tuples(*[st.integers(0, len(content))] * 2)))
    damaged = content[:start] + data.draw(st.binary(max_size=4)) + content[end:]
    folder = write(tmp_path_factory.mktemp("damaged"), {**files, name: damaged})
    sound(folder / "f" if "f" in files else folder)


@pytest.mark.parametrize("array", [False, True])
def test_a_key_given_twice_is_named(tmp_path, array):
    rows = ['{"id": "a", "text": "The tide."}', '{"id": "b", "text": "x", "text": "y"}']
    path = tmp_path / "rows.json"
    path.write_text(f"[{', '.join(rows)}]" if array else "\n".join(rows))
    findings = Findings()
    assert [row.values["id"] for row in json_rows(path, findings)] == ["a"]
    assert "the key 'text' is given twice in an object" in str(findings.problems[0])
