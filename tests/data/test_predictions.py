"""Rankings and answers of other systems, in the forms that files have."""

import gzip
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ark_jax.data.predictions import read_answers, read_rankings
from ark_jax.data.records import BadInput

WANTED = {"q1": {"d2": 2.5, "d1": 1.0}, "7": {"d3": -1.0}}
TREC = "q1 Q0 d1 9 1.0 mine\nq1\tQ0\td2\t3\t2.5\tmine\n\n7 Q0 d3 1 -1 mine\n"
LONG = [
    {"query_id": question, "doc_id": document, "score": score}
    for question, scores in WANTED.items()
    for document, score in scores.items()
]


def lines(rows) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.trec", TREC),
        ("long.jsonl", lines(LONG)),
        ("map.json", json.dumps(WANTED)),
        ("maps.jsonl", lines({"id": q, "results": scores} for q, scores in WANTED.items())),
        (
            "objects.json",
            json.dumps(
                [
                    {
                        "question_id": 7 if q == "7" else q,
                        "ranking": [{"id": d, "score": s} for d, s in scores.items()],
                    }
                    for q, scores in WANTED.items()
                ]
            ),
        ),
    ],
)
def test_rankings_are_the_same_in_each_form(name, text, tmp_path):
    (tmp_path / name).write_text(text)
    assert read_rankings(tmp_path / name) == WANTED
    with gzip.open(tmp_path / f"packed_{name}.gz", "wt") as file:
        file.write(text)
    if name != "map.json":  # which only its suffix tells from a row
        assert read_rankings(tmp_path / f"packed_{name}.gz") == WANTED


def test_rankings_of_parquet(tmp_path):
    pq.write_table(pa.Table.from_pylist(LONG), tmp_path / "long.parquet")
    assert read_rankings(tmp_path / "long.parquet") == WANTED
    rows = [{"id": i, "ranking": [f"d{i}", "d3"]} for i in (1, 2)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "lists.parquet")
    ranked = {q: list(scores) for q, scores in read_rankings(tmp_path / "lists.parquet").items()}
    assert ranked == {"1": ["d1", "d3"], "2": ["d2", "d3"]}


def test_ids_without_scores_keep_their_order_and_ranks_stand_for_scores(tmp_path):
    (tmp_path / "a.jsonl").write_text(lines([{"id": "q", "ranking": ["x", "y"]}]))
    scores = read_rankings(tmp_path / "a.jsonl")["q"]
    assert scores["x"] > scores["y"]
    rows = [{"qid": "q", "docno": d, "rank": r} for r, d in enumerate("yx")]
    (tmp_path / "b.jsonl").write_text(lines(rows))
    scores = read_rankings(tmp_path / "b.jsonl")["q"]
    assert scores["y"] > scores["x"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.jsonl", lines([{"id": "q1", "prediction": "Ann\nJo"}, {"id": "q2", "answer": "4"}])),
        ("b.jsonl", lines([{"id": "q1", "answers": ["Ann", "Jo"]}, {"id": "q2", "pred": 4}])),
        ("c.json", json.dumps({"q1": ["Ann", "Jo"], "q2": "4"}, indent=1)),
        (
            "rog.jsonl",
            lines(
                {"id": q, "question": "who?", "prediction": a, "ground_truth": ["Z"], "input": "x"}
                for q, a in (("q1", ["Ann", "Jo"]), ("q2", "4"))
            ),
        ),
    ],
)
def test_answers_are_the_same_in_each_form(name, text, tmp_path):
    (tmp_path / name).write_text(text)
    assert read_answers(tmp_path / name) == {"q1": "Ann\nJo", "q2": "4"}


def test_a_null_is_an_empty_answer(tmp_path):
    rows = [{"id": "q1", "answer": None}, {"id": "q2", "answer": "4"}]
    (tmp_path / "a.jsonl").write_text(lines(rows))
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    for name in ("a.jsonl", "a.parquet"):
        assert read_answers(tmp_path / name) == {"q1": "", "q2": "4"}


def test_one_of_several_systems_is_named(tmp_path):
    (tmp_path / "a.trec").write_text(TREC + "q1 Q0 d9 1 4 theirs\n")
    with pytest.raises(BadInput, match=r"systems 'mine', 'theirs'; name one .* run:a.trec#NAME"):
        read_rankings(tmp_path / "a.trec")
    assert read_rankings(tmp_path / "a.trec", "theirs") == {"q1": {"d9": 4.0}}
    assert read_rankings(tmp_path / "a.trec", "mine") == WANTED
    with pytest.raises(BadInput, match="holds the systems 'mine', 'theirs'"):
        read_rankings(tmp_path / "a.trec", "ours")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("q Q0 d 1 2 x\nq Q0 d 2 1 x\n", "f:2: 'd' comes twice for the question 'q'; list"),
        ("q Q0 d 1 high x\n", "f:1: score: is 'high'; write a number"),
        ("q Q0 d 1 nan x\n", "f:1: score: is 'nan'"),
        ("q Q0 d 1 2 x\nq 0 d 1\n", r"f:2: 4 field\(s\); write question, Q0, document"),
        ("", "f: is empty"),
        (lines([{"id": "q", "ranking": ["d", "d"]}]), "f:1: 'd' comes twice"),
        (lines([{"id": "q", "ranking": ["d"]}] * 2), "f:2: question: repeats 'q' of line 1"),
        (lines([{"id": "q", "ranking": "d"}]), "f:1: ranking: is a string; list the ids"),
        (lines([{"id": "q", "results": [{"id": "d", "score": 1}, "e"]}]), "1 of 2 lack a score"),
        (lines([{"id": "q", "results": [{"text": "d"}]}]), "f:1: document_id: is missing"),
        (lines([{"ranking": ["d"]}]), "f:1: question_id: is missing; name the id one of"),
        (lines([{"id": "q", "ranking": ["d", None]}]), "f:1: document_id: is null"),
    ],
)
def test_faults_of_rankings_name_file_and_line(text, message, tmp_path):
    (tmp_path / "f").write_text(text)
    with pytest.raises(BadInput, match=message):
        read_rankings(tmp_path / "f")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (lines([{"id": "q", "answer": "a"}] * 2), "f:2: question: repeats 'q' of line 1"),
        (lines([{"id": "q", "reply": "a"}]), "f:1: prediction: is missing; name the answer one of"),
        (lines([{"id": "q", "answer": {"text": "a"}}]), "f:1: answer: holds an object"),
        ('{"id": "q"\n', "f:1: "),
    ],
)
def test_faults_of_answers_name_file_and_line(text, message, tmp_path):
    (tmp_path / "f").write_text(text)
    with pytest.raises(BadInput, match=message):
        read_answers(tmp_path / "f")


def test_an_empty_object_is_no_map(tmp_path):
    (tmp_path / "a.json").write_text("{}")
    with pytest.raises(BadInput, match=r"a.json:1: question_id: is missing"):
        read_rankings(tmp_path / "a.json")


@pytest.mark.parametrize("name", ["gone.trec", "gone.parquet", "gone.jsonl"])
def test_an_absent_file_is_named(name, tmp_path):
    with pytest.raises(BadInput, match=f"{name}: does not exist"):
        read_rankings(tmp_path / name)
