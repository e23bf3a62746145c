"""Replies without a model: every graph and rewrite can be read as a model's."""

import importlib.resources
import json
from collections import Counter

import pytest
from support.llm_calls import changed_settings

from ark_jax.data.records import Question
from ark_jax.graph.extract import parse_reply as parse_records
from ark_jax.llm import complete, rule_based
from ark_jax.recipes.ark import extract
from ark_jax.text.word_boundaries import contains_words

EMBEDDED = importlib.resources.files("ark_jax.demo")
DOCUMENTS = [
    json.loads(line)
    for line in (EMBEDDED / "documents.jsonl").read_text(encoding="utf-8").splitlines()
]


def rule_based_answers(calls, folder) -> complete.Completions:
    return complete.complete(calls, changed_settings(backend="none"), folder / "cache.jsonl", "x")


def test_rule_based_extractions_can_be_parsed(tmp_path):
    frequency = Counter(word for d in DOCUMENTS for word in rule_based.candidate_terms(d["text"]))
    calls = [
        complete.Call(f"extract/{d['id']}", "extract", (d["text"],), {"passage": d["text"]})
        for d in DOCUMENTS
    ]
    answers = rule_based_answers(calls, tmp_path)
    assert len(DOCUMENTS) > 10
    for d in DOCUMENTS:
        entities, relations, lost = parse_records(answers.texts[f"extract/{d['id']}"][0], d["id"])
        assert len(entities) > 20 and len(relations) > 20 and lost == []
        known = {entity.name for entity in entities}
        assert {r.source for r in relations} | {r.target for r in relations} <= known
        assert all(name in " ".join(d["text"].split()) for name in known)
        terms = {e.name for e in entities if e.type == "term"}
        assert terms and all(
            frequency[t] <= 2 and (frequency[t] == 2 or d["text"].count(t) > 1) for t in terms
        )


def rewriting_call(question: Question, names: list[str]) -> complete.Call:
    values = {"question": question.question, "names": names, "count": 10}
    return complete.Call("rewrite/q", "rewrite", ("p",), values)


def test_rule_based_rewritten_questions_can_be_parsed(tmp_path):
    names = ["Long Staff", "Barnaby Quill", "Marrowgate"]
    question = Question("q", "Who read the {post}?", ("Ada",), ("d",))
    answers = rule_based_answers([rewriting_call(question, names)], tmp_path)
    questions = extract.parse_questions(*answers.texts["rewrite/q"])
    assert extract.rewrite_remark(questions, question, 10) is None and len(questions) == 10
    assert all("ho read the {post}" in q and any(name in q for name in names) for q in questions)


def test_rule_based_calls_send_no_request_and_keep_no_file(tmp_path):
    question = Question("q", "Who read the {post}?", ("Ada",), ("d",))
    answers = rule_based_answers([rewriting_call(question, ["Long Staff"])], tmp_path)
    assert answers.drifted == [] and not list(tmp_path.iterdir())
    assert answers.usage.calls == 1 and answers.usage.requests == 0


def test_rules_find_names_in_cyrillic_and_accented_text():
    russian = "Наташа любила Болконского. Болконский оставил Наташу в гостиной."
    french = "Émile Zola écrivit Germinal."
    for text, names in (
        (russian, {"Наташа", "Болконского", "Наташу"}),
        (french, {"Émile Zola", "Germinal"}),
    ):
        entities, relations, _ = parse_records(
            rule_based.extract_graph(text, Counter(rule_based.candidate_terms(text))), "c"
        )
        assert names <= {entity.name for entity in entities} and relations


@pytest.mark.parametrize(
    "names, answers, woven",
    [
        (["Ada Quill", "Marrowgate"], ["Quill"], {"Marrowgate"}),  # a name that holds the answer
        (["Ada", "Marrowgate"], ["Ada  Quill"], {"Marrowgate"}),  # a name that the answer holds
        (["ADA", "Marrowgate"], ["no", "ada"], {"Marrowgate"}),
        (["Adamant Rock"], ["Ada"], {"Adamant Rock"}),  # a part of a word gives nothing away
        (["Ada"], ["Ada"], {"other matters"}),
        (["Ada"], [], {"Ada"}),
    ],
)
def test_a_rewritten_question_uses_no_name_that_reveals_the_answer(names, answers, woven):
    reply = rule_based.rewrite_question("Who rowed?", names, 10, answers)
    questions = json.loads(reply)["questions"]
    assert {n for n in (*names, "other matters") if any(n in q for q in questions)} == woven


def test_no_rewritten_question_of_the_demo_contains_its_answer():
    """Each question gets the names of its whole document, its answer's among them."""
    rows = (EMBEDDED / "questions.jsonl").read_text(encoding="utf-8").splitlines()
    names = {
        d["id"]: [
            x.name for x in parse_records(rule_based.extract_graph(d["text"], Counter()), "")[0]
        ]
        for d in DOCUMENTS
    }
    exposed = [0, 0]
    for row in map(json.loads, rows):
        near = [n for document in row["documents"] for n in names[document]]
        for i, answers in enumerate(((), row["answers"])):
            reply = rule_based.rewrite_question(row["question"], near, 40, answers)
            exposed[i] += sum(
                contains_words(text, answer) and not contains_words(row["question"], answer)
                for text in json.loads(reply)["questions"]
                for answer in row["answers"]
            )
    assert exposed[0] >= 20 and exposed[1] == 0
