"""Questions from masked triples: what is asked, what is dropped and why, what stays the same."""

import collections
import json
import os
import subprocess
import sys
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import tiny
from support.llm_calls import KEY, completion
from support.llm_server import serving
from support.masked_questions import DEMO, context, live, questions, write
from support.paths import REPOSITORY

from ark_jax.graph.triples import Triples
from ark_jax.pipeline.stage import Context
from ark_jax.pipeline.tables import load_rows, save_rows
from ark_jax.recipes.gpr import data, recipe
from ark_jax.recipes.gpr.questions import draw_rows, writing_calls
from ark_jax.text.tokens import load_tokenizer
from ark_jax.text.word_boundaries import contains_words


def facts(run: Context) -> dict[int, tuple[str, str, str]]:
    graph = Triples.load(run.workdir / "data" / "graph")
    return dict(enumerate(graph))


@pytest.fixture(scope="module")
def demo() -> Triples:
    return Triples.read(DEMO / "graph.tsv", names=DEMO / "names.tsv")


# --- by rules -------------------------------------------------------------------------------------


def test_rules_ask_for_both_ends(tmp_path):
    run = context(tmp_path)
    counts = write(run)
    known = facts(run)
    asked = collections.Counter((*known[q["row"]], q["side"]) for q in questions(run))
    # The head x has no name to ask by. Lark's Father holds the name of the film, so it cannot be
    # known where Lark is asked for; the other way round nothing is given away.
    assert set(asked) == {
        ("k", "directed_by", "d", "head"),
        ("k", "directed_by", "d", "tail"),
        ("k", "has_genre", "c", "head"),
        ("k", "has_genre", "c", "tail"),
        ("l", "has_genre", "c", "head"),
        ("l", "has_genre", "c", "tail"),
        ("x", "has_genre", "c", "head"),
        ("l", "directed_by", "l2", "tail"),
    }
    assert set(asked.values()) == {1} and {q["source"] for q in questions(run)} == {"template"}
    assert counts["ends_asked_for"] == 10 and counts["questions"] == 8
    assert counts["ends_without_a_name_to_ask_by"] == counts["ends_without_a_question"] == 1
    assert counts["drop_reasons"] == {"the answer is in the question": 1}
    assert counts["calls"] == counts["quarantined"] == 0
    assert load_rows(tmp_path / "questions" / "quarantine.parquet") == []


def test_each_side_gets_the_requested_number_of_wordings(tmp_path):
    run = context(tmp_path, per_triple=3)
    write(run)
    texts = collections.defaultdict(set)
    for q in questions(run):
        texts[q["row"], q["side"]].add(q["text"])
    assert len(texts) == 8 and {len(x) for x in texts.values()} == {3}


WORD = st.text("ABab é-'东", min_size=1, max_size=6).filter(lambda x: x.strip())
NAME = st.lists(WORD, min_size=1, max_size=3).map(" ".join)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(NAME, st.sampled_from(["has genre", "born in", "spouse"]), NAME), min_size=1)
)
def test_every_question_contains_the_known_entity_but_not_the_answer(tmp_path_factory, triples):
    run = context(tmp_path_factory.mktemp("run"), Triples.from_triples(triples))
    try:
        write(run)
    except ValueError as error:
        assert "no question about" in str(error)
        return
    known = facts(run)
    for q in questions(run):
        head, _, tail = known[q["row"]]
        named, answer = (head, tail) if q["side"] == "tail" else (tail, head)
        assert named in q["text"]
        assert not contains_words(q["text"], answer)


def test_questions_do_not_contain_aliases_of_the_answer(tmp_path):
    graph = Triples.from_triples(
        [("a", "owner", "b")], names={"a": "The Bill", "b": "Dieterle"}, aliases={"b": ["Bill"]}
    )
    run = context(tmp_path, graph)
    counts = write(run)
    assert [q["side"] for q in questions(run)] == ["head"]
    assert counts["drop_reasons"] == {"the answer is in the question": 1}


def test_a_graph_without_usable_names_is_refused(tmp_path):
    run = context(tmp_path, Triples.from_triples([("a", "r", "b")], names={"c": "Nobody"}))
    with pytest.raises(
        ValueError, match=r"no question about 1 triples.*2 times the other end.*data\.names"
    ):
        write(run)


def test_writing_questions_is_deterministic_for_any_block_size(tmp_path, demo, monkeypatch):
    first, second = context(tmp_path / "a", demo), context(tmp_path / "b", demo)
    write(first)
    write(second)
    table = lambda run: (run.workdir / "questions" / "questions.parquet").read_bytes()
    assert table(first) == table(second)
    monkeypatch.setattr("ark_jax.recipes.gpr.questions._QUESTIONS_AT_ONCE", 7)
    write(second)
    assert questions(first) == questions(second)


def test_a_new_triple_leaves_other_questions_unchanged(tmp_path, demo):
    more = Triples.from_triples(
        [*demo, ("abel-tarrant", "spouse", "dinah-rook")],
        names=dict(zip(demo.nodes.ids.to_pylist(), demo.nodes.names.to_pylist(), strict=True)),
    )
    texts = []
    for folder, graph in (("a", demo), ("b", more)):
        run = context(tmp_path / folder, graph)
        write(run)
        known = facts(run)
        texts.append({(*known[q["row"]], q["side"], q["text"]) for q in questions(run)})
    assert texts[0] < texts[1] and len(texts[1] - texts[0]) == 2


# --- the cap --------------------------------------------------------------------------------------


def relation_counts(graph: Triples, rows: np.ndarray) -> dict[str, int]:
    names = graph.relations.ids.to_pylist()
    return dict(collections.Counter(names[x] for x in graph.relation[rows].tolist()))


def test_capped_triples_are_drawn_evenly_over_relations(demo):
    rows = draw_rows(demo, 100, 0)
    assert len(set(rows.tolist())) == 100 and np.all(np.diff(rows) > 0)
    counts = relation_counts(demo, rows)
    assert len(counts) == 15 and counts["next_port_of_call"] == 6
    assert max(counts.values()) - min(counts.values()) <= 2
    assert not np.array_equal(rows, draw_rows(demo, 100, 1))
    assert np.array_equal(rows, draw_rows(demo, 100, 0))
    assert len(draw_rows(demo, 0, 0)) == len(draw_rows(demo, 9999, 0)) == len(demo)


@given(st.integers(1, 400))
def test_any_cap_is_met_exactly_and_evenly(demo, count):
    rows = draw_rows(demo, count, 3)
    assert len(rows) == min(count, len(demo))
    counts = relation_counts(demo, rows)
    sizes = relation_counts(demo, np.arange(len(demo)))
    # No relation with triples to spare has fewer than another one by more than one.
    spare = [counts.get(name, 0) for name, size in sizes.items() if counts.get(name, 0) < size]
    assert not spare or max(counts.values()) <= min(spare) + 1


def test_a_larger_cap_includes_the_triples_of_a_smaller_one(demo):
    assert set(draw_rows(demo, 60, 0).tolist()) <= set(draw_rows(demo, 150, 0).tolist())


# --- by a language model --------------------------------------------------------------------------


def replay(run: Context, replies: dict[str, list[str]], default: str = "") -> None:
    """Makes a run replay these replies by item; the other calls get the default."""
    path = run.workdir / "recording.jsonl"
    run.config.questions.replies = str(path)
    rows = []
    for call in writing_calls(run):
        for turn, text in enumerate(replies.get(call.item, [default])):
            rows.append({"item": call.item, "turn": turn, "reply": completion(text)})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def wordings(tail: list[str], head: list[str]) -> str:
    return json.dumps({"tail": tail, "head": head})


GENRE = wordings(["What sort of film is {entity}?", "genre of {entity}"], ["Name a {entity} film."])


def test_one_reply_per_relation_words_all_its_triples(tmp_path):
    run = context(tmp_path, per_triple=2)
    replay(
        run, {"questions/relation/has_genre": [GENRE], "questions/relation/directed_by": ["No."]}
    )
    counts = write(run)
    known = facts(run)
    texts = {(*known[q["row"]], q["side"], q["text"]): q["source"] for q in questions(run)}
    by_model = {key for key, source in texts.items() if source == "llm"}
    assert by_model == {
        ("k", "has_genre", "c", "tail", "What sort of film is Kismet?"),
        ("k", "has_genre", "c", "tail", "genre of Kismet"),
        ("k", "has_genre", "c", "head", "Name a Comedy film."),
        ("l", "has_genre", "c", "tail", "What sort of film is Lark?"),
        ("l", "has_genre", "c", "tail", "genre of Lark"),
        ("l", "has_genre", "c", "head", "Name a Comedy film."),
        ("x", "has_genre", "c", "head", "Name a Comedy film."),
    }
    # The other relation is worded by rules, and its reply is kept with the reason.
    assert {key[1] for key in texts.keys() - by_model} == {"directed_by"}
    (bad,) = load_rows(tmp_path / "questions" / "quarantine.parquet")
    assert bad["item"] == "questions/relation/directed_by" and bad["text"] == "No."
    assert "rules word it" in bad["reason"] and counts["quarantined"] == 1
    assert counts["calls"] == 2 and counts["llm"]["calls"] == 2


def test_the_prompt_about_a_relation_holds_facts_and_count(tmp_path):
    run = context(tmp_path, wordings=5)
    run.config.questions.replies = "x"
    calls = {call.item: call for call in writing_calls(run)}
    assert set(calls) == {"questions/relation/directed_by", "questions/relation/has_genre"}
    (prompt,) = calls["questions/relation/has_genre"].turns
    assert "Relation: has genre\n" in prompt and "Write 5 wordings" in prompt
    # Facts whose ends have names come first.
    *named, nameless = prompt.split("<facts>\n")[1].split("\n</facts>")[0].splitlines()
    assert set(named) == {"Kismet | has genre | Comedy", "Lark | has genre | Comedy"}
    assert nameless == "(without a name) | has genre | Comedy"
    run.config.questions.per_triple = 7
    assert "Write 7 wordings" in writing_calls(run)[0].turns[0]


def test_invalid_wordings_are_dropped_and_counted(tmp_path):
    run = context(tmp_path)
    bad = ["What is it?", "{entity} or {entity}?", "{entity}", "Like Kismet, what is {entity}?"]
    reply = wordings([*bad, "Which kind is {entity}?"], ["Which is {entity}?"])
    replay(run, {}, reply)
    counts = write(run)
    assert counts["dropped_wordings"] == {
        "{entity} is missing": 2,
        "{entity} comes 2 times": 2,
        "it is no question": 2,
        "it holds a name of a fact": 2,
    }
    assert {q["text"] for q in questions(run)} >= {"Which kind is Kismet?", "Which is Comedy?"}


def reply_to(call, *changes: tuple[int, str, str | None]) -> str:
    """A good reply to a prompt of triples, with other questions, or none, for some ends."""
    texts = {
        (x.number, x.side): f"Which {x.side} belongs to {x.known}?" for x in call.fields["asked"]
    }
    texts |= {(number, side): text for number, side, text in changes}
    rows = [
        {"triple": number, "ask": side, "question": text}
        for (number, side), text in texts.items()
        if text is not None
    ]
    return json.dumps({"questions": rows})


def test_questions_about_several_triples_are_parsed_from_one_reply(tmp_path):
    run = context(tmp_path, by="triples", triples_per_prompt=3)
    run.config.questions.replies = "x"
    first, second = writing_calls(run)
    assert first.item == "questions/triples/0" and "write 1 question(s)" in first.turns[0]
    assert "1. Kismet | directed by | William Dieterle (ask for: head and tail)" in first.turns[0]
    assert "2. (without a name) | has genre | Comedy (ask for: head)" in second.turns[0]
    leak = (1, "tail", "Did William Dieterle direct Kismet?")
    unnamed, missing = (2, "tail", "What genre is it?"), (3, "head", None)
    replies = {
        first.item: [reply_to(first, leak, unnamed, missing, (9, "tail", "What is Kismet?"))],
        second.item: ["Sorry."],
    }
    replay(run, replies)
    counts = write(run)
    known = facts(run)
    written = {(*known[q["row"]], q["side"], q["text"]) for q in questions(run)}
    assert written == {
        ("k", "directed_by", "d", "head", "Which head belongs to William Dieterle?"),
        ("k", "has_genre", "c", "head", "Which head belongs to Comedy?"),
        ("l", "directed_by", "l2", "tail", "Which tail belongs to Lark?"),
    }
    assert {q["source"] for q in questions(run)} == {"llm"}
    assert counts["drop_reasons"] == {
        "the answer is in the question": 2,
        "the known entity is not named": 1,
        "no such end was asked for": 1,
    }
    assert counts["ends_without_a_question"] == 3 + 3 and counts["ends_asked_for"] == 10
    assert counts["ends_without_a_name_to_ask_by"] == 1
    (bad,) = load_rows(tmp_path / "questions" / "quarantine.parquet")
    assert bad["item"] == second.item and "could be read" in bad["reason"]


def test_a_corrected_reply_adds_to_the_first(tmp_path):
    run = context(tmp_path, by="triples", triples_per_prompt=9)
    run.config.questions.replies = "x"
    (call,) = writing_calls(run)
    ends = [(asked.number, asked.side, None) for asked in call.fields["asked"]]
    replay(run, {call.item: [reply_to(call, *ends[:3]), reply_to(call, *ends[3:])]})
    counts = write(run)
    assert counts["questions"] == len(ends) and counts["ends_without_a_question"] == 1
    assert counts["llm"]["asked_again"] == 1


BAD_REPLIES = ["", "Of course!", "{}", '{"questions": [{"triple": 7, "ask": "tail"}]}', "[1, 2]"]


@pytest.mark.parametrize("by", ["triples", "relations"])
@pytest.mark.parametrize("text", BAD_REPLIES)
def test_useless_replies_fall_back_to_rules_or_are_refused(tmp_path, by, text):
    run = context(tmp_path, by=by)
    replay(run, {}, text)
    if by == "triples":  # nothing stands in for what the model was to write
        with pytest.raises(ValueError, match=r"no question about 5 triples.*1 replies of no use"):
            write(run)
    else:
        counts = write(run)
        assert counts["quarantined"] == 2 and counts["questions"] == 8
        assert {q["source"] for q in questions(run)} == {"template"}


def test_a_missing_recording_is_refused(tmp_path):
    run = context(tmp_path)
    run.config.questions.replies = str(tmp_path / "absent.jsonl")
    with pytest.raises(FileNotFoundError, match="no such file"):
        write(run)


# --- a live endpoint ------------------------------------------------------------------------------

SCRIPT = """
import sys
from pathlib import Path
sys.path.insert(0, "tests")
from support.masked_questions import live, write
write(live(Path(sys.argv[1]), sys.argv[2]))
"""


def answer_triples(messages) -> str:
    """A question for every end in the prompt; at first one fact is forgotten."""
    rows = []
    for line in messages[0]["content"].split("<facts>\n")[1].splitlines():
        if "(ask for: " not in line:
            continue
        number, rest = line.split(". ", 1)
        fact, ends = rest.removesuffix(")").split(" (ask for: ")
        head, _, tail = fact.split(" | ")
        for side in ends.split(" and "):
            known = tail if side == "head" else head
            rows.append({"triple": int(number), "ask": side, "question": f"What of {known}?"})
    return json.dumps({"questions": [x for x in rows if len(messages) > 1 or x["triple"] != 2]})


def test_an_endpoint_is_asked_again_for_missing_questions(tmp_path, monkeypatch):
    monkeypatch.setenv("ARK_TEST_KEY", KEY)
    with serving(reply=answer_triples) as server:
        run = live(tmp_path, server.url)
        counts = write(run)
    remarks = [x.prompt for x in server.requests if len(x.body["messages"]) == 3]
    assert len(remarks) == counts["llm"]["asked_again"] == counts["calls"] == 61
    assert all("Questions are missing: 1 for the " in text for text in remarks)
    assert all("No " not in text and "of fact 2" in text for text in remarks)
    assert counts["ends_without_a_name_to_ask_by"] == 4
    assert counts["questions"] + counts["ends_without_a_question"] == 2 * 363 - 4
    assert counts["drop_reasons"] == {
        "the answer is in the question": counts["ends_without_a_question"]
    }
    assert not counts["quarantined"]


@pytest.mark.slow
def test_a_killed_run_asks_only_for_the_missing_replies(tmp_path, monkeypatch):
    monkeypatch.setenv("ARK_TEST_KEY", KEY)
    tables = {}
    for name in ("whole", "killed"):
        with serving(reply=answer_triples, latency=0.05) as server:
            if name == "killed":
                command = [sys.executable, "-c", SCRIPT, str(tmp_path / name), server.url]
                environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
                with subprocess.Popen(command, cwd=REPOSITORY, env=environment) as process:
                    while len(server.delivered) < 40:
                        assert process.poll() is None
                        time.sleep(0.02)
                    process.kill()
                asked = len(server.requests)
                assert asked < 122
            run = live(tmp_path / name, server.url)
            counts = write(run)
            tables[name] = (run.workdir / "questions" / "questions.parquet").read_bytes()
            if name == "killed":
                assert counts["llm"]["cached"] >= 40 - 2 and counts["llm"]["requests"] == 122
                # What was on its way when the run was killed is asked for once more.
                assert len(server.requests) <= 122 + run.config.llm.concurrency
    assert tables["whole"] == tables["killed"]


# --- the plan -------------------------------------------------------------------------------------


def test_the_plan_estimates_calls_and_tokens_in_advance(tmp_path, monkeypatch):
    monkeypatch.setenv("ARK_TEST_KEY", KEY)
    with serving(reply=answer_triples) as server:
        run = with_retriever(live(tmp_path, server.url), tmp_path)
        run.config.llm.price = (1.0, 2.0)
        before = planned_calls(run)
        assert not server.requests
        write(run)
        after = planned_calls(run)
    prompts = [call.turns[0] for call in writing_calls(run)]
    assert (before.total, before.items, after.items) == (61, 61, 0)
    tokenizer = load_tokenizer(run.config.retriever.path)
    tokens = sum(len(ids) for ids in tokenizer(prompts, add_special_tokens=False)["input_ids"])
    assert before.items * before.read == pytest.approx(tokens)
    ends = sum(len(call.fields["asked"]) for call in writing_calls(run))
    rate = tokens / sum(map(len, prompts))
    assert before.items * before.written == pytest.approx(ends * recipe.QUESTION_CHARACTERS * rate)
    assert before.cost == pytest.approx(61 * (before.read + 2 * before.written) / 1e6)


def test_the_planned_calls_depend_on_how_questions_are_written(tmp_path):
    run = with_retriever(live(tmp_path, "http://127.0.0.1:1/v1", by="relations"), tmp_path)
    assert planned_calls(run).items == 15
    run.config.llm.backend = "none"
    assert all(x.kind != "ask" for x in recipe.forecast(run, set()).work)


def with_retriever(run: Context, folder) -> Context:
    """The run with a tiny retriever, whose tokenizer a plan counts by, and no test."""
    save_rows([], run.workdir / "data" / data.TEST_FILE, data.TestQuestion)
    run.config.retriever.path = str(tiny.write(folder / "retriever", "bert", tokenizer="cls"))
    return run


def planned_calls(run: Context):
    (calls,) = (x for x in recipe.forecast(run, set()).work if x.kind == "ask")
    return calls
