"""Damaged bytes and odd line ends are reported, and never crash."""

import csv
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.input_files import HOTPOT, LONG, MUSIQUE, SHEETS, plain, sound, write

from ark_jax.data import readers
from ark_jax.data.json_files import json_rows
from ark_jax.data.problems import Findings
from ark_jax.data.records import BadInput


def test_a_bad_byte_in_a_json_array_is_reported_by_line_and_row(tmp_path):
    bad = LONG.replace('"1"', '"2"').encode().replace(b"When", b"Wh\xe9n \xc3\xa9")
    write(tmp_path, {"f.json": b"[\n" + LONG.encode() + b"," + bad + b"]"})
    corpus, problems = readers.read(tmp_path / "f.json")
    assert [(p.line, p.field) for p in problems] == [(3, ""), (2, "input")]
    assert "byte 27 of line 3 (0xe9)" in problems[0].message and "in row 2" in problems[1].message
    assert [q.id for q in corpus.questions] == ["1"]


def test_carriage_returns_as_line_ends_are_refused(tmp_path):
    write(tmp_path, {"f": json.dumps(MUSIQUE) + "\r" + json.dumps(MUSIQUE)})
    with pytest.raises(BadInput, match="save it with line ends of Unix or Windows"):
        readers.load(tmp_path / "f")


FILES = [plain(), SHEETS, {"f": LONG}, {"f": json.dumps([HOTPOT, MUSIQUE])}]


@settings(max_examples=200, deadline=None)
@given(data=st.data(), files=st.sampled_from(FILES))
def test_damaged_bytes_are_reported_without_a_crash(tmp_path_factory, data, files):
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


PLAIN_TSV = 'id\ttext\nd1\t{}\nd2\tThe river froze.\nd3\tThe boy shouted "now"\n'


@pytest.mark.parametrize(
    "texts",
    [
        ['"Stop," said the miller.'],
        ['"It is late', 'The bell rang twice at dusk."'],  # which CSV would read as one cell
        ['"It is late', 'A fox crossed the ice.'],
    ],
)  # fmt: skip
def test_quotation_marks_in_an_unquoted_tsv_are_kept(tmp_path, texts):
    path = tmp_path / "documents.tsv"
    path.write_text(PLAIN_TSV.format("\ne\t".join(texts)))
    corpus, problems = readers.read(path)
    expected = [*texts, "The river froze.", 'The boy shouted "now"']
    assert [d.text for d in corpus.documents] == expected and not problems
    assert "1 lines hold a quote of speech" in corpus.remarks[0].message


@pytest.mark.parametrize("text", ['"It is\nlate"', '"The ""late"" bell"', '"a\tb"', '"one\n\ntwo"'])
def test_quotes_around_tsv_cells_are_removed(tmp_path, text):
    path = tmp_path / "documents.tsv"
    path.write_text(PLAIN_TSV.format(text))
    corpus, problems = readers.read(path)
    assert corpus.documents[0].text == text[1:-1].replace('""', '"') and not problems


@pytest.mark.parametrize(
    ("cell", "answers"),
    [
        ("['Paris', 'Paris, France']", ("Paris", "Paris, France")),
        ("""["It wasn't", 'a \\'b\\' \\u00e9']""", ("It wasn't", "a 'b' é")),
        ("['Paris'\n 'Paris, France']", ("Paris", "Paris, France")),  # an array of NumPy
        ('["Paris"]', ("Paris",)),
        ("[Kismet]", ("[Kismet]",)),
        ("['it'] said", None),
        ("[__import__('os').getcwd()]", ("[__import__('os').getcwd()]",)),
        ("['Paris', None]", None),
        ("['Paris", None),
        ("['\\x4']", None),
        ("['a', 'b" + " ['" * 5000, None),
    ],
)
def test_a_cell_with_a_python_list_is_parsed(tmp_path, cell, answers):
    path = tmp_path / "questions.csv"
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([["question", "answers", "context"], ["Where?", cell, "Paris."]])
    corpus, problems = readers.read(path)
    assert [q.answers for q in corpus.questions] == [answers] * (answers is not None)
    faults = [str(problem) for problem in problems]
    assert len(faults) == (answers is None)
    assert all("questions.csv:2: answers: begins like a list but is not one" in f for f in faults)


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
@pytest.mark.parametrize(
    ("text", "answers"),
    [
        ("['Paris', 'Paris, France']", ("Paris", "Paris, France")),
        ('["Paris"]', ("Paris",)),
        ("[1802]", ("[1802]",)),  # a number in brackets was meant as it is
        ("[sic] Pariss", ("[sic] Pariss",)),
        ("['Paris", None),
    ],
)
def test_a_string_with_a_python_list_is_parsed(tmp_path, suffix, text, answers):
    path = tmp_path / f"questions{suffix}"
    row = {"question": "Where?", "answer": text, "context": "Paris."}
    if suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist([row]), path)
    else:
        path.write_text(json.dumps(row))
    corpus, problems = readers.read(path)
    assert [q.answers for q in corpus.questions] == [answers] * (answers is not None)
    assert bool(problems) == (answers is None)
