"""Columns with any names are fields if the user says which."""

import csv
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.input_files import write

from ark_jax.data import readers
from ark_jax.data.problems import Reading

ROWS = [
    {"Prompt": "Where was it bought?", "The Response": "Kiel", "Passage": "It came from Kiel."},
    {"Prompt": "Who lost it?", "The Response": "Dora", "Passage": "Dora lost it."},
]
COLUMNS = "question=Prompt, answers=the response ,context=Passage"


def table(path, rows, delimiter=","):
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0].keys(), delimiter=delimiter)
        writer.writeheader()
        writer.writerows(rows)


WRITERS = {
    "a.csv": table,
    "a.tsv": lambda path, rows: table(path, rows, "\t"),
    "a": lambda path, rows: table(path, rows, ";"),  # known as a table by its columns
    "a.parquet": lambda path, rows: pq.write_table(pa.Table.from_pylist(rows), path),
    "a.jsonl": lambda path, rows: path.write_text("\n".join(map(json.dumps, rows))),
    "a.json": lambda path, rows: path.write_text(json.dumps(rows)),
}


@pytest.mark.parametrize("name", WRITERS)
def test_named_columns_are_read_as_fields(tmp_path, name):
    path = tmp_path / name
    WRITERS[name](path, ROWS)
    corpus, problems = readers.read(path, reading=Reading(columns=COLUMNS))
    assert not problems and corpus.format == "squad"
    assert [d.text for d in corpus.documents] == [row["Passage"] for row in ROWS]
    assert [(q.question, q.answers) for q in corpus.questions] == [
        (row["Prompt"], (row["The Response"],)) for row in ROWS
    ]


@pytest.mark.parametrize("name", ["a.csv", "a.parquet", "a.jsonl"])
def test_a_file_without_known_columns_is_refused_with_the_flag(tmp_path, name):
    path = tmp_path / name
    WRITERS[name](path, ROWS)
    (problem,) = readers.read(path)[1]
    assert "'--columns=question=" in problem.message and "data.columns" in problem.message
    assert all(column.lower() in problem.message.lower() for column in ROWS[0])


def test_a_named_column_replaces_the_column_named_like_its_field(tmp_path):
    WRITERS["a.jsonl"](tmp_path / "a", [{"text": "no", "body": "nor this", "Body": "Tide."}])
    corpus, problems = readers.read(tmp_path / "a", reading=Reading(columns="text=Body"))
    assert [d.text for d in corpus.documents] == ["Tide."] and not problems


def test_a_quoted_column_name_may_contain_a_comma():
    assert Reading(columns='"text=Body, long",id=n').by_field == {"text": "Body, long", "id": "n"}


def test_named_columns_may_occur_in_only_one_of_the_files(tmp_path):
    write(tmp_path, {"documents.csv": "key,Body\nd,Dora lost it.\n"})
    write(tmp_path, {"asked.jsonl": '{"id": "q", "Prompt": "Who?", "answers": ["Dora"]}\n'})
    reading = Reading(columns="question=Prompt,id=key,text=Body")
    corpus, problems = readers.read(tmp_path, str(tmp_path / "asked.jsonl"), reading)
    assert not problems and [d.id for d in corpus.documents] == ["d"]
    assert [q.question for q in corpus.questions] == ["Who?"]


@pytest.mark.parametrize("name", ["a.csv", "a.parquet", "a.jsonl"])
def test_a_named_column_missing_from_every_row_is_reported(tmp_path, name):
    WRITERS[name](tmp_path / name, [{"Body": "Tide.", "Head": "T"}])
    _, problems = readers.read(tmp_path / name, reading=Reading(columns="text=Body,title=Haed"))
    assert [problem.message for problem in problems] == [
        "no row has the column 'Haed' of --columns (config.data.columns); name one of Body, Head"
    ]


@pytest.mark.parametrize("name", ["questions.csv", "questions.parquet"])
def test_a_column_missing_from_questions_is_reported_once_with_the_flag(tmp_path, name):
    write(tmp_path, {"documents.csv": "id,text\nd,Dora lost it.\n"})
    rows = [{"Prompt": "Who?", "answers": f"Dora {i}"} for i in range(30)]
    WRITERS[name.replace("questions", "a")](tmp_path / name, rows)
    messages = [p.message for p in readers.read(tmp_path)[1] if p.field == "question"]
    (message,) = messages
    assert "the column is missing; " in message and "--columns=question=COLUMN" in message
    assert "there are prompt, answers" in message.lower()


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ("Prompt=question", "'Prompt=question' is not FIELD=COLUMN with one of the fields id,"),
        ("question", "'question' is not FIELD=COLUMN"),
        ("question=", "'question=' is not FIELD=COLUMN"),
        ("text=Body,text=Head", "'text=Head' gives a field or a column twice"),
        ("text=Body,title=Body", "'title=Body' gives a field or a column twice"),
    ],
)
def test_invalid_column_flags_are_refused(columns, words):
    with pytest.raises(ValueError, match="--columns") as raised:
        Reading(columns=columns)
    assert words in str(raised.value)
