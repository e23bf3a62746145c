"""Rows that a reader answers: what it reads, what is asked again, rerankers, turns, the judge."""

import dataclasses
import json
import re

import numpy as np
import pytest
from support import llm_server, pairs, tiny

from ark_jax.comparison import answering
from ark_jax.comparison.answering import Answering
from ark_jax.comparison.comparison import compare
from ark_jax.comparison.imported import choose_metrics
from ark_jax.comparison.rankings import parse_systems
from ark_jax.index.index import Index
from ark_jax.index.writer import Writer
from ark_jax.models.pairs import CrossEncoder

FACTS = {
    "tide": ("Who founded the Tidal Board?", "Josiah Penhallow", "founded the Tidal Board in 1784"),
    "salt": ("What worked the pumps of the Salt Company?", "Horses", "worked the pumps"),
    "bell": ("When was the bell of the church cast?", "1811", "was when the bell was cast"),
    "lamp": ("Who lit the lamp of the tower?", "Ann", "lit the lamp of the tower"),
}
OTHER = "Nobody knows how the tower of the church was built, and of what. "
SYSTEMS = ("reader:alone", "reader:steps", "reader:oracle", "reader:document")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A retriever, a pair scorer, a decoder, and questions whose documents have two passages."""
    root = tiny.retrievers(tmp_path_factory.mktemp("answering"), "a")
    pairs.write_classifier(root / "scorer", "bert")
    tiny.write(root / "lm", "llama", tokenizer="plain", changes={"max_position_embeddings": 400})
    documents = [
        {"id": name, "text": f"{OTHER * 2}{answer} {rest}."}
        for name, (_, answer, rest) in FACTS.items()
    ]
    rows = [
        {
            "id": f"q-{name}",
            "question": question,
            "answers": [answer],
            "documents": [name],
            "evidence": [f"{answer} {rest}."],
        }
        for name, (question, answer, rest) in FACTS.items()
    ]
    for name, lines in (("documents", documents), ("questions", rows)):
        (root / "data").mkdir(exist_ok=True)
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (root / "data" / f"{name}.jsonl").write_text(text)
    return root


@pytest.fixture(autouse=True)
def environment(mesh, monkeypatch, tmp_path):
    monkeypatch.setenv("ARK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


def model(messages) -> str:
    """Answers from passages alone, but for the bell; it reasons about the salt."""
    prompt = messages[-1]["content"]
    question = re.search(r"Question: (.*)", prompt)[1]
    name, answer = next((n, a) for n, (q, a, _) in FACTS.items() if question.startswith(q))
    if "Answer 1:" in prompt:
        known = {n: f"Answer {n}: <answer>{answer}<" in prompt for n in (1, 2)}
        choice = "1" if known[1] else "2" if known[2] else "tie"
        return json.dumps(dict.fromkeys(("faithfulness", "conciseness", "overall"), choice))
    if "second search" in prompt:
        return f"What must be found is who {FACTS['salt'][2]}."
    if "step by step" in prompt:
        right = answer if name == "salt" else "nothing"
        return f"<think>So it is {right}.</think><answer>{right}</answer>"
    reads = answer in prompt.replace(question, "") or name == "bell"
    return f"{answer}\nand more" if reads else "nobody"


def run(place, systems, tmp_path, **options):
    names = {"a": str(place / "a"), "scorer": str(place / "scorer")}
    words = [re.sub(r"\b(a|scorer)\b(?!:)", lambda x: names[x[0]], word) for word in systems]
    options = {"folder": tmp_path / "index", "scope": "documents"} | options
    return compare(words, place / "data", **options)


def means(comparison, metric: str) -> dict[str, float]:
    return {x["system"]: x["values"][metric]["mean"] for x in comparison.table}


def test_every_row_is_answered_and_nothing_is_asked_twice(place, tmp_path):
    pytest.importorskip("openai", reason="the live backend needs pip install 'ark-jax[llm]'")
    (tmp_path / "said.json").write_text(json.dumps({"q-tide": "Josiah Penhallow", "q-bell": "no"}))
    systems = ("bm25", "a", *SYSTEMS, f"answers:{tmp_path}/said.json")
    with llm_server.serving(model) as server:
        writers = [Writer.endpoint(server.url, x, tmp_path / "replies.jsonl") for x in "mj"]
        given = {"answering": Answering(writers[0], 1, writers[1])}
        first = run(place, systems, tmp_path, **given)
        asked = [request.body["model"] for request in server.requests]
        assert run(place, systems, tmp_path, **given) == first
        assert len(server.requests) == len(asked)
        # As after a kill: the replies that are on disk are not asked for again.
        lines = (tmp_path / "replies.jsonl").read_text().splitlines(keepends=True)
        (tmp_path / "replies.jsonl").write_text("".join(lines[:-3]) + lines[-3][:40])
        assert run(place, systems, tmp_path, **given) == first
        assert len(server.requests) == len(asked) + 3
    hits = {
        "reader:alone": 0.25,  # the bell
        "reader:steps": 0.25,  # the salt
        "reader:oracle": 1.0,
        "reader:document": 1.0,
        "said": 0.25,
    }
    assert means(first, "exact_match").items() >= hits.items()
    values = {x["system"]: x["values"] for x in first.table}
    assert {"recall@5", "exact_match"} <= values["bm25"].keys()
    assert "recall@5" not in values["reader:oracle"] and "recall@5" not in values["said"]
    assert "against_base" in values["reader:oracle"]["answer_f1"]
    # The first passage of a row is read, and no other.
    index = Index.open(tmp_path / "index")
    texts = {chunk.id: chunk.text for chunk in index.chunks}
    for row in (row for row in first.rows if row["system"] in ("bm25", "a")):
        _, answer, _ = FACTS[row["question"].removeprefix("q-")]
        knows = answer in texts[row["ranked"][0]] or answer == "1811"
        assert row["answer"] == (answer if knows else "nobody")
    # The judge prefers right answers, and equal answers are as good.
    right = means(first, "exact_match")
    expected = {x: 0.5 + (right[x] - right["bm25"]) / 2 for x in ("bm25", "a", "reader:oracle")}
    assert means(first, "judge_overall").items() >= expected.items()
    assert asked.count("j") and any(
        "judges answers against those of bm25" in x for x in first.remarks
    )


def test_a_local_reader_reads_what_fits_and_scores_the_references(place, tmp_path, monkeypatch):
    systems = ("a", "reader:alone", "reader:document", "reader:steps")
    metrics = ["recall@5", "exact_match", "answer_likelihood"]
    writer = Writer.local(str(place / "lm"), tmp_path / "replies.jsonl")
    monkeypatch.setattr(answering, "MAX_NEW_TOKENS", 20)
    options = {"metrics": metrics, "answering": Answering(writer, 9)}
    first, again = (run(place, systems, tmp_path, **options) for _ in range(2))
    assert again == first
    rows = (tmp_path / "replies.jsonl").read_text().splitlines()
    assert len(rows) == len({json.loads(row)["key"] for row in rows})
    likelihoods = means_of(first, "answer_likelihood")
    assert likelihoods.keys() == {"a", "reader:alone", "reader:document"}
    assert all(-20 < x < 0 for x in likelihoods.values())
    short = dataclasses.replace(writer, lm=dataclasses.replace(writer.lm, max_length=150))
    options = {"metrics": metrics[:2], "answering": Answering(short, 1)}
    cut = run(place, ("a", "reader:document"), tmp_path, **options)
    told = "reader:document: what is read for 4 of 4 questions is cut to what fits"
    assert told in cut.remarks


def means_of(comparison, metric: str) -> dict[str, float]:
    """`means` of the systems that have a value."""
    rows = (x for x in comparison.table if metric in x["values"])
    return {x["system"]: x["values"][metric]["mean"] for x in rows}


def test_rerankers_order_what_any_system_finds(place, tmp_path):
    plain = run(place, ("a", "bm25", "a+bm25"), tmp_path, scope="corpus")
    ranked = lambda of, name: [x["ranked"] for x in of.rows if x["system"] == name]
    lines = [
        json.dumps({"id": x["question"], "ranking": x["ranked"][::-1]}) + "\n"
        for x in plain.rows
        if x["system"] == "a"
    ]
    (tmp_path / "other.jsonl").write_text("".join(lines))
    systems = [f"{x}+rerank:scorer" for x in ("a", "bm25", "a+bm25", f"run:{tmp_path}/other.jsonl")]
    found = run(place, ("a", *systems), tmp_path, scope="corpus")
    chunks = {chunk.id: chunk for chunk in Index.open(tmp_path / "index").chunks}
    score = CrossEncoder.from_pretrained(place / "scorer").score
    for name in ("a", "bm25", "a+bm25"):
        for (question, *_), ids, best in zip(
            FACTS.values(), ranked(plain, name), ranked(found, f"{name}+rerank:scorer"), strict=True
        ):
            scores = score([(question, chunks[id].passage) for id in ids])
            assert best == [ids[i] for i in np.argsort(-scores, kind="stable")]
    assert ranked(found, "a") == ranked(plain, "a")
    pairs_of = zip(ranked(found, "other+rerank:scorer"), ranked(plain, "a"), strict=True)
    assert all(sorted(a) == sorted(b) for a, b in pairs_of)


def test_a_second_turn_searches_for_what_the_model_asks(place, tmp_path):
    pytest.importorskip("openai", reason="the live backend needs pip install 'ark-jax[llm]'")
    with llm_server.serving(model) as server:
        writer = Writer.endpoint(server.url, "m", tmp_path / "replies.jsonl")
        options = {"scope": "corpus", "metrics": ["recall@1"], "answering": Answering(writer)}
        found = run(place, ("a", "bm25", "bm25+turns", "a+hyde+turns"), tmp_path, **options)
        prompts = [request.prompt for request in server.requests]
    ranked = {(x["system"], x["question"]): x["ranked"] for x in found.rows}
    chunks = {chunk.id: chunk for chunk in Index.open(tmp_path / "index").chunks}
    salt = next(id for id, chunk in chunks.items() if "Horses" in chunk.text)
    for name, (question, *_) in FACTS.items():
        one, two = (ranked[x, f"q-{name}"] for x in ("bm25", "bm25+turns"))
        assert salt in two and {*one[:5]} <= {*two}
        asked = [x for x in prompts if "second search" in x and question in x]
        assert any(chunks[one[0]].passage in x for x in asked)
    assert "answer" not in found.rows[0]  # no metric asks for one


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["a", "bm25+rerank:"], "names no system"),
        (["a", "run:f.trec+rerank:"], "names no system"),
        (["a", "answers:f.json+rerank:s"], "names no system"),
        (["a", "run:f.trec+turns"], "names no system"),
        (["a", "reader:alone+rerank:s"], "names no system"),
        (["a", "reader:all"], "names no system"),
        (["reader:oracle"], "name a retriever too"),
    ],
)
def test_words_that_name_no_row_are_refused(words, message):
    with pytest.raises(ValueError, match=message):
        parse_systems(words)


@pytest.mark.parametrize(
    ("systems", "metrics", "message"),
    [
        (["a", "reader:alone"], [], "reader:alone needs a language model; name it with --reader"),
        (["a", "a+turns"], [], r"\+turns needs a language model"),
        (["a"], ["answer_f1"], "answer_f1 measures answers; add answers:FILE"),
        (["a"], ["answer_likelihood"], "measures answers; add answers:FILE"),
    ],
)
def test_a_metric_or_row_without_its_model_is_refused(systems, metrics, message, place, tmp_path):
    with pytest.raises(ValueError, match=message):
        run(place, systems, tmp_path, metrics=metrics)


def test_a_reader_without_a_metric_of_answers_is_refused(place, tmp_path):
    writer = Writer.endpoint("http://localhost:1/v1", "m", tmp_path / "replies.jsonl")
    options = {"metrics": ["recall@1"], "answering": Answering(writer)}
    with pytest.raises(ValueError, match="add one that measures answers: answer_f1"):
        run(place, ("a",), tmp_path, **options)
    judging = Answering(writer, judge=writer)
    systems = parse_systems(["a", "reader:alone"])
    assert choose_metrics(["mrr"], systems, judging) == (("mrr",), ("judge_overall",))
