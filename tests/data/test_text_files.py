"""Damaged files of every format: one line with file, row and fix, and nothing is lost."""

import json

import pytest
from support.input_files import D, plain, write

from ark_jax.data import readers, text_files

WORDS = "The mill burned in 1802."
# format: file, and how a row with this id and text is written
FORMS = {
    "jsonl": (D, lambda id, text: json.dumps({"id": id, "text": text}, ensure_ascii=False)),
    "csv": ("documents.csv", lambda id, text: f"{id},{text}"),
    "tsv": ("documents.tsv", lambda id, text: f"{id}\t{text}"),
}
HEADS = {"jsonl": "", "csv": "id,text\n", "tsv": "id\ttext\n"}


def read(folder, form: str, content: bytes):
    write(folder, {FORMS[form][0]: HEADS[form].encode() + content})
    corpus, problems = readers.read(folder)
    return {d.id: d.text for d in corpus.documents}, problems


def rows(form: str, pairs) -> bytes:
    return b"".join(FORMS[form][1](*pair).encode() + b"\n" for pair in pairs)


@pytest.mark.parametrize("form", FORMS)
def test_byte_order_marks_and_windows_line_ends_are_removed(tmp_path, form):
    name, head = FORMS[form][0], HEADS[form].encode()
    content = b"\xef\xbb\xbf" + (head + rows(form, [("a", WORDS), ("b", "x")])).replace(
        b"\n", b"\r\n"
    )
    write(tmp_path, {name: content})
    corpus, problems = readers.read(tmp_path)
    assert not problems and [(d.id, d.text) for d in corpus.documents] == [("a", WORDS), ("b", "x")]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("fault", ["bad byte", "surrogate", "NUL", "duplicate id"])
def test_one_bad_row_is_one_problem(tmp_path, form, fault):
    good = [(f"g{i}", WORDS) for i in range(200)]
    bad = {
        "bad byte": rows(form, [("x", "cafe é")]).replace(b"cafe", b"caf\xe9"),
        "surrogate": rows(form, [("x", "half")]).replace(b"half", b"\xed\xa0\xbd"),
        "NUL": rows(form, [("x", "nul")]).replace(b"nul", b"\0"),
        "duplicate id": rows(form, [("g7", "again")]),
    }[fault]
    texts, problems = read(tmp_path, form, rows(form, good) + bad + rows(form, [("last", "x")]))
    assert texts == dict([*good, ("last", "x")])
    line = 201 + (form != "jsonl")
    assert {(p.file, p.line) for p in problems} == {(str(tmp_path / FORMS[form][0]), line)}
    assert problems.bad_rows == 1 and "; " in problems[0].message


@pytest.mark.parametrize("form", FORMS)
def test_empty_and_binary_files_are_reported(tmp_path, form):
    write(tmp_path, {FORMS[form][0]: b""})
    assert [p.message for p in readers.read(tmp_path)[1]] == [
        "is empty; fill it or give another file"
    ]
    write(tmp_path, {FORMS[form][0]: b"\x7fELF\0\0\0"})
    assert "is not text, or in" in readers.read(tmp_path)[1][0].message


def test_an_escaped_lone_surrogate_is_one_problem(tmp_path):
    write(tmp_path, plain('{"id": "a", "text": "x"}\n{"id": "b", "text": "\\ud83d"}'))
    corpus, problems = readers.read(tmp_path)
    assert [(p.line, p.field) for p in problems if p.file.endswith(D)] == [(2, "text")]
    assert [d.id for d in corpus.documents] == ["a"]


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_a_line_of_a_hundred_megabytes_is_read(tmp_path, form):
    long = "word " * 20_000_000
    texts, problems = read(tmp_path, form, rows(form, [("a", long), ("b", "x")]))
    assert not problems and len(texts["a"]) >= len(long) - 1 and texts["b"] == "x"


def test_a_line_without_end_is_one_problem(tmp_path, monkeypatch):
    monkeypatch.setattr(text_files, "LONGEST_LINE", 1 << 20)
    with (tmp_path / D).open("w") as file:
        file.write('{"id": "a", "text": "x"}\n{"id": "b", "text": "')
        for _ in range(2):
            file.write("y" * (1 << 20))
    corpus, problems = readers.read(tmp_path)
    assert [d.id for d in corpus.documents] == ["a"]
    assert len(problems) == 1 and "line 2 is longer than 1 million" in problems[0].message
