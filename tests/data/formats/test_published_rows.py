"""Rows as data sets are published: DPR's ctxs, FlashRAG, Search-R1, PopQA, TriviaQA."""

import csv
import json

import pytest

from ark_jax.data import readers
from ark_jax.data.formats.base import hashed_id
from ark_jax.data.records import BadInput

MILL = {"id": "11", "title": "Mill", "text": "The mill burned in 1802.", "score": "81.2"}
KILN = {"id": 12, "title": "Kiln", "text": "The kiln stood by the lake.", "score": "80.0"}
ASKED = {"question": "When did the mill burn?", "answers": ["1802", "in 1802"]}


def save(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_passages_of_a_row_are_its_pool(tmp_path):
    rows = [
        ASKED | {"ctxs": [MILL, KILN]},
        {"question": "Where?", "answers": ["lake"], "ctxs": [KILN]},
    ]
    corpus = readers.load(save(tmp_path / "nq.jsonl", rows))
    assert corpus.format == "dpr"
    assert [(d.id, d.title, d.text) for d in corpus.documents] == [
        ("11", "Mill", MILL["text"]),
        ("12", "Kiln", KILN["text"]),
    ]
    assert [q.documents for q in corpus.questions] == [("11", "12"), ("12",)]
    assert corpus.questions[0].answers == ("1802", "in 1802")
    (remark,) = corpus.remarks
    assert "scores are not read" in str(remark)


def test_a_passage_without_id_is_known_by_its_content(tmp_path):
    passage = {"title": "Mill", "text": MILL["text"]}
    (question,) = readers.load(save(tmp_path / "a.jsonl", [ASKED | {"ctxs": [passage]}])).questions
    assert question.documents == (hashed_id("Mill", MILL["text"]),)


def test_an_id_of_two_passages_is_refused(tmp_path):
    rows = [ASKED | {"ctxs": [MILL]}, {**ASKED, "question": "?", "ctxs": [KILN | {"id": "11"}]}]
    with pytest.raises(BadInput, match=r":2: ctxs: '11' has another text in an earlier row; give"):
        readers.load(save(tmp_path / "a.jsonl", rows))


@pytest.mark.parametrize(
    ("ctxs", "fault"),
    [
        ("x", "ctxs: is a string; write a list"),
        ([], "ctxs: is empty"),
        ([{"id": "1", "text": 5}], "ctxs: item 1: text is a number"),
    ],
)
def test_a_broken_passage_is_named(tmp_path, ctxs, fault):
    with pytest.raises(BadInput, match=f":1: {fault}"):
        readers.load(save(tmp_path / "a.jsonl", [ASKED | {"ctxs": ctxs}]))


def test_passages_named_by_id_lie_in_the_corpus(tmp_path):
    """DPR's psgs_w100.tsv beside rows whose ctxs are ids."""
    wiki = tmp_path / "psgs_w100.tsv"
    with wiki.open("w", newline="") as file:
        table = csv.writer(file, delimiter="\t")
        table.writerows(
            [("id", "text", "title"), ("11", 'A "mill" burned.', "Mill"), ("12", "b", "K")]
        )
    asked = save(tmp_path / "nq.jsonl", [ASKED | {"ctxs": [{"id": "11", "score": 1.5}]}])
    corpus, problems = readers.read(wiki, str(asked))
    assert not problems
    assert corpus.questions[0].documents == ("11",)
    assert corpus.texts["11"] == 'A "mill" burned.'


# A row of each data set -> its id, question and answers
PUBLISHED = {
    "flashrag": (
        {"id": "test_0", "question": "Who?", "golden_answers": ["Ann", "A."], "metadata": {"x": 1}},
        ("test_0", "Who?", ("Ann", "A.")),
    ),
    "popqa": (
        {"id": 42, "question": "Who?", "possible_answers": '["Ann", "A."]', "s_pop": 142},
        ("42", "Who?", ("Ann", "A.")),
    ),
    "triviaqa on the hub": (
        {
            "question": "Who?",
            "question_id": "tc_1",
            "answer": {"value": "Ann", "aliases": ["A.", "Ann"], "normalized_aliases": ["ann"]},
            "entity_pages": {"title": ["Ann"]},
        },
        ("tc_1", "Who?", ("Ann", "A.")),
    ),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_questions_of_a_data_set_are_read(tmp_path, name):
    row, wanted = PUBLISHED[name]
    documents = save(tmp_path / "documents.jsonl", [{"id": "d", "text": "Ann ran."}])
    corpus, problems = readers.read(documents, str(save(tmp_path / "q.jsonl", [row])))
    assert not problems
    (question,) = corpus.questions
    assert (question.id, question.question, question.answers) == wanted
    assert "is not read" in str(corpus.remarks)


def test_popqa_as_a_table_is_read(tmp_path):
    table = tmp_path / "popQA.tsv"
    with table.open("w", newline="") as file:
        rows = [("id", "question", "possible_answers"), ("7", "Who?", '["Ann", "A."]')]
        csv.writer(file, delimiter="\t").writerows(rows)
    corpus, problems = readers.read(save(tmp_path / "d.jsonl", [{"text": "Ann."}]), str(table))
    assert not problems
    assert corpus.questions[0].answers == ("Ann", "A.")


def test_triviaqa_as_one_object_is_read(tmp_path):
    answer = {"Value": "Ann", "Aliases": ["A."], "NormalizedAliases": ["ann"], "Type": "Wikipedia"}
    rows = [{"Answer": answer, "Question": "Who?", "QuestionId": "tc_1", "EntityPages": [{"T": 1}]}]
    path = tmp_path / "wikipedia-dev.json"
    path.write_text(json.dumps({"Data": rows, "Domain": "Wikipedia", "Version": 1.0}, indent=4))
    corpus, problems = readers.read(save(tmp_path / "d.jsonl", [{"text": "Ann."}]), str(path))
    assert not problems
    (question,) = corpus.questions
    assert (question.id, question.answers) == ("tc_1", ("Ann", "A."))


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        ({"question": "Who?", "golden_answers": "Ann"}, "golden_answers: is a string"),
        (
            {"question": "Who?", "possible_answers": '["Ann'},
            "possible_answers: begins like a list but is not one",
        ),
        (
            {"Question": "Who?", "QuestionId": "1", "Answer": {"Value": 3}},
            "Answer: item 1 is a num",
        ),
    ],
)
def test_a_broken_answer_is_named_as_its_file_names_it(tmp_path, row, fault):
    documents = save(tmp_path / "d.jsonl", [{"text": "Ann."}])
    _, problems = readers.read(documents, str(save(tmp_path / "q.jsonl", [row])))
    assert f"q.jsonl:1: {fault}" in str(problems[0])


def test_the_corpus_of_search_r1_is_read(tmp_path):
    rows = [
        {"id": "0", "contents": '"Mill"\nIt burned.\nIt was rebuilt.'},
        {"id": 1, "contents": "x"},
    ]
    corpus = readers.load(save(tmp_path / "wiki-18.jsonl", rows))
    assert [(d.id, d.title, d.text) for d in corpus.documents] == [
        ("0", "Mill", "It burned.\nIt was rebuilt."),
        ("1", "", "x"),
    ]
