"""Answer scores against LongBench's published ones, and the reader that gives the answers."""

import importlib.resources
import json
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import llm_server
from support.paths import DATA

from ark_jax.evaluate import answers
from ark_jax.llm import endpoint
from ark_jax.pipeline import engine
from ark_jax.pipeline.stage import setting
from ark_jax.recipes.ark import config
from ark_jax.recipes.ark.recipe import stages
from ark_jax.recipes.common import ask, reader
from ark_jax.runtime.log import Metrics, read_rows
from ark_jax.text import prompts

SUMMARIES = ("qmsum", "samsum")


@pytest.mark.parametrize(
    "name",
    ["narrativeqa", "qasper", "multifieldqa_en", "hotpotqa", "2wikimqa", "musique", *SUMMARIES],
)
def test_each_score_and_the_average_are_longbenchs(name):
    folder = DATA / "longbench_preds"
    if not folder.is_dir():
        pytest.skip(f"{folder} is absent: set ARK_DATA to compare with published scores")
    if name in SUMMARIES:
        pytest.importorskip(
            "rouge", reason="ROUGE-L needs the library: pip install 'ark-jax[evaluate]'"
        )
    rows = [
        json.loads(line)
        for line in (folder / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    published = json.loads((folder / "list_result.json").read_text())[name]
    found = [answers.longbench_score(name, row["pred"], row["answers"]) for row in rows]
    assert found == published
    assert round(100 * np.mean(found), 2) == json.loads((folder / "result.json").read_text())[name]


def test_of_an_answer_by_example_the_first_line_counts():
    rambling = "\nA boat.\nQuestion: Which boat?"
    assert answers.longbench_score("triviaqa", rambling, ["boat"]) == 1
    assert answers.longbench_score("hotpotqa", rambling, ["boat"]) == pytest.approx(0.4)
    with pytest.raises(KeyError):
        answers.longbench_score("vcsum", "", [])


@pytest.mark.parametrize(
    "given, references, f1, exact",
    [
        ("1802", ["1802"], 1, 1),
        ("The Long Staff!", ["a long staff"], 1, 1),
        ("in 1802", ["1802"], 2 / 3, 0),
        (
            "the mill burned down",
            ["The mill burned in 1802."],
            2 * (2 / 3) * (2 / 4) / (2 / 3 + 2 / 4),
            0,
        ),
        ("no", ["yes", "No."], 1, 1),
        ("Ada Lovelace", ["Ada", "Lovelace, Countess Ada"], 0.8, 0),  # two of two, two of three
        ("ada ada", ["Ada"], 2 / 3, 0),  # a word counts as often as it is there
        ("19,250", ["19250"], 1, 1),
        ("An another theory", ["another theory"], 1, 1),  # articles are whole words
        ("", ["1802"], 0, 0),
        ("the", ["1802"], 0, 0),
        ("1802", [], 0, 0),
        ("sixteen", ["1802"], 0, 0),
    ],
)
def test_answers_by_hand(given, references, f1, exact):
    assert answers.f1(given, references) == pytest.approx(f1)
    assert answers.exact_match(given, references) == exact


@pytest.mark.parametrize(
    "name, published",
    [
        ("narrativeqa", 26.63),
        ("qasper", 32.99),
        ("multifieldqa_en", 49.34),
        ("hotpotqa", 42.77),
        ("2wikimqa", 27.35),
        ("musique", 18.77),
    ],
)
def test_scores_are_those_that_longbench_published(name, published):
    folder = DATA / "longbench_preds"
    if not folder.is_dir():
        pytest.skip(f"{folder} is absent: set ARK_DATA to compare with published scores")
    rows = [
        json.loads(line)
        for line in (folder / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    expected = json.loads((folder / "list_result.json").read_text())[name]
    found = [answers.f1(row["pred"], row["answers"]) for row in rows]
    assert found == pytest.approx(expected, abs=1e-12)
    assert round(100 * np.mean(found), 2) == published


WORDS = st.lists(
    st.sampled_from(["the", "a", "boat,", "boat", "Boat", "lamp", "1802", "an?"]), max_size=6
).map(" ".join)


@settings(deadline=None)
@given(WORDS, st.lists(WORDS, min_size=1, max_size=3), WORDS)
def test_scores_keep_their_bounds(answer, references, other):
    score = answers.f1(answer, references)
    assert 0 <= score <= 1 and answers.exact_match(answer, references) in (0, 1)
    assert score <= answers.f1(answer, [*references, other])
    assert answers.f1(answer, [other]) == pytest.approx(answers.f1(other, [answer]))
    if answers.exact_match(answer, references) and answers.normalise(answer):
        assert score == 1


def test_rouge_l_by_hand():
    pytest.importorskip(
        "rouge", reason="ROUGE-L needs the library: pip install 'ark-jax[evaluate]'"
    )
    assert answers.rouge_l(
        "police killed the gunman", ["police kill the gunman", "no"]
    ) == pytest.approx(0.75)
    assert answers.rouge_l(
        "the gunman police killed", ["police killed the gunman"]
    ) == pytest.approx(0.5)  # in order
    assert [
        answers.rouge_l(*pair) for pair in (("", ["x"]), (" . ", ["x"]), ("x", [""]), ("x", []))
    ] == [0.0] * 4


def test_rouge_l_of_texts_without_a_full_stop():
    long = " ".join(f"word{i}" for i in range(900))
    assert answers.rouge_l(long, [long]) == pytest.approx(1.0)
    assert answers.rouge_l(long, [long.replace("word0 ", "")]) > 0.99


def test_without_the_library_rouge_l_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "rouge", None)
    with pytest.raises(RuntimeError, match=r"ark-jax\[evaluate\]"):
        answers.rouge_l("a", ["a"])


@pytest.mark.parametrize(
    "reply, answer",
    [
        ("1802", "1802"),
        ("\n  In 1802.  \nBecause", "In 1802."),
        ("<think>\nNot 1801?\n</think>\n\n1802\n", "1802"),
        ("", ""),
        ("<think> cut", ""),
        ("Not 1801?\n</think>\n\n1802", "1802"),
    ],
)
def test_the_answer_is_the_first_line_of_a_reply(reply, answer):
    assert answers.first_line(reply) == answer


def test_readers_prompts_are_packaged_by_kind_and_can_be_a_users(tmp_path):
    folder = importlib.resources.files("ark_jax.text") / "templates"
    kinds = [
        path.name.removeprefix("read_").removesuffix(".txt")
        for path in folder.iterdir()
        if path.name.startswith("read_")
    ]
    assert sorted(kinds) == ["article", "story"]
    texts = [prompts.load("read", kind) for kind in ("", *kinds)]
    assert len(set(texts)) == 3
    (tmp_path / "mine.txt").write_text("{passages} {question}\n")
    assert (
        answers.reader_prompt(
            prompts.load("read", str(tmp_path / "mine.txt")), "Who {passages}?", ["A {x}.", "B."]
        )
        == "A {x}.\n\nB. Who {passages}?"
    )
    (tmp_path / "mine.txt").write_text("{question}")
    with pytest.raises(ValueError, match=r"no slot \{passages\}"):
        prompts.load("read", str(tmp_path / "mine.txt"))
    (tmp_path / "mine.txt").write_text("\ufeff{passages} {question}\n", encoding="utf-8")
    assert prompts.load("read", str(tmp_path / "mine.txt")) == "{passages} {question}"
    with pytest.raises(
        ValueError, match=r"config\.prompts\.read: poem cannot be read \(No such file"
    ):
        prompts.load("read", "poem")


def world(tmp_path, **reader) -> engine.Context:
    c = config.ark()
    c.mesh = (1, 1, 1)
    c.evaluate.max_new_tokens = 6
    c.reader.update(reader)
    c.llm.backend, c.llm.retries = "openai", 1
    c.llm.key_env, c.llm.base_url, c.llm.model = (
        "ARK_OTHER_KEY",
        "http://127.0.0.1:9",
        "not this one",
    )
    return engine.Context(c, tmp_path, Metrics(tmp_path / "metrics.jsonl"))


def test_a_reader_at_an_endpoint_is_asked_each_prompt_once(tmp_path, monkeypatch):
    pytest.importorskip(
        "openai", reason="the live backend needs the openai client: pip install 'ark-jax[llm]'"
    )
    monkeypatch.setenv("ARK_TEST_KEY", "sk-of-the-reader")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(endpoint, "BACKOFF", 0.02)
    asked = ["Who?", "When?", "Who?", "Refused?"]
    with llm_server.serving(
        lambda messages: f"{messages[0]['content'][:-1]}ever\nsince",
        lambda conversation, attempt: "400" if "Refused" in conversation else None,
    ) as server:
        context = world(
            tmp_path,
            backend="openai",
            base_url=server.url,
            key_env="ARK_TEST_KEY",
            model="toy",
            price=(1.0, 2.0),
        )
        found, told = reader.answer_prompts(context, asked)
        assert found == {"Who?": "Whoever", "When?": "Whenever", "Refused?": ""}
        assert sorted(request.prompt for request in server.requests) == sorted(set(asked))
        body, headers = server.requests[0].body, server.requests[0].headers
        assert (body["model"], body["max_tokens"], body["temperature"]) == ("toy", 6, 0)
        assert headers["authorization"] == "Bearer sk-of-the-reader"
        assert told["unanswered"] == 1
        assert told["llm"]["cost"] == pytest.approx(
            (told["llm"]["input_tokens"] + 2 * told["llm"]["output_tokens"]) / 1e6
        )
        assert told["llm"]["cost"] > 0
        again = reader.answer_prompts(context, [*asked, "Where?"])
        assert again[0] == found | {"Where?": "Whereever"} and len(server.requests) == 4
        assert again[1]["llm"]["cached"] == 3
    kinds = [row["kind"] for row in read_rows(tmp_path / "llm" / "replies.jsonl")]
    assert kinds == ["read"] * 4


def test_what_fails_at_the_readers_endpoint_is_told_in_its_name(tmp_path, monkeypatch):
    pytest.importorskip(
        "openai", reason="the live backend needs the openai client: pip install 'ark-jax[llm]'"
    )
    monkeypatch.delenv("ARK_TEST_KEY", raising=False)
    with pytest.raises(
        RuntimeError,
        match=r"^reader\.backend=openai: set \$ARK_TEST_KEY .*, or config\.reader\.base_url",
    ):
        reader.answer_prompts(world(tmp_path, backend="openai", key_env="ARK_TEST_KEY"), ["Who?"])


class Lamplighter:
    """A generator of 64 positions, whose tokens are words."""

    max_length, told = 64, []

    def tokenizer(self, text: str, add_special_tokens: bool) -> dict:
        return {"input_ids": text.split()}

    def chat(self, turns: list[str]) -> str:
        return f"<s> {turns[0]} </s>"

    def generate(self, asked, *, done, **settings) -> None:
        self.told.append((list(asked), settings))
        for i, text in enumerate(asked):
            done(i, f" {text.split()[1]} it was ")


def test_a_local_reader_is_the_generator_and_reads_no_prompt_twice(tmp_path, monkeypatch):
    loaded = []
    monkeypatch.setattr(
        ask, "load_generator", lambda context, path: loaded.append(path) or Lamplighter()
    )
    asked, context = (
        ["Who keeps the lamp?", "When was it lit?", "Who keeps the lamp?"],
        world(tmp_path),
    )
    context.config.generator.path = "smol"
    found, told = reader.answer_prompts(context, asked)
    assert found == {asked[0]: "Who it was", asked[1]: "When it was"} and loaded == [""]
    [(given, settings)] = Lamplighter.told
    assert given == ["<s> Who keeps the lamp? </s>", "<s> When was it lit? </s>"]
    assert (settings["max_new_tokens"], settings["temperature"], settings["stop"]) == (
        6,
        0.0,
        ("\n",),
    )
    assert told["unanswered"] == 0 and (told["llm"]["requests"], told["llm"]["output_tokens"]) == (
        2,
        6,
    )
    assert reader.answer_prompts(context, asked)[0] == found and loaded == [
        ""
    ]  # what is known needs no model
    context.config.generator.dtype = "bfloat16"  # another model in effect
    reader.answer_prompts(context, asked)
    context.config.reader.path = "llama"
    reader.answer_prompts(context, asked)
    assert loaded == ["", "", "llama"]
    with pytest.raises(
        ValueError,
        match=r"1 of 1 prompts .* 64 that the model takes: .*evaluate\.max_new_tokens .*passages$",
    ):
        reader.answer_prompts(context, ["Who? " * 60])


def test_another_reader_makes_the_evaluation_stale_and_nothing_else(tmp_path):
    def prints(**changes) -> dict:
        c = world(tmp_path, **changes).config
        c.llm.backend, c.data.path = "none", str(tmp_path)
        c.retriever.path = c.generator.path = str(tmp_path)
        return {
            s.name: engine.fingerprint([[setting(c, x) for x in s.settings], s.external(c)])
            for s in stages(c)
        }

    before = prints()
    for changes in (
        {"backend": "openai"},
        {"temperature": 0.5},
        {"path": "somebody/else"},
        {"base_url": "http://x"},
    ):
        after = prints(**changes)
        assert [name for name in before if before[name] != after[name]] == ["evaluate"], changes
    assert prints(backend="openai") != prints(backend="openai", model="another")
    with pytest.raises(
        ValueError, match=r"config\.reader\.backend='none': must be openai, local or replay"
    ):
        prints(backend="none")
