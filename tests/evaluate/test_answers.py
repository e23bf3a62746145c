"""Scores of answers, by hand and as LongBench publishes them."""

import importlib.resources
import json
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.paths import DATA

from ark_jax.evaluate import answers
from ark_jax.text import prompts

SUMMARIES = ("qmsum", "samsum")


@pytest.mark.parametrize(
    "name",
    ["narrativeqa", "qasper", "multifieldqa_en", "hotpotqa", "2wikimqa", "musique", *SUMMARIES],
)
def test_scores_and_averages_match_longbench(name):
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
    scores = [answers.longbench_score(name, row["pred"], row["answers"]) for row in rows]
    assert scores == published
    assert round(100 * np.mean(scores), 2) == json.loads((folder / "result.json").read_text())[name]


def test_only_few_shot_tasks_score_the_first_line():
    rambling = "\nA boat.\nQuestion: Which boat?"
    assert answers.longbench_score("triviaqa", rambling, ["boat"]) == 1
    # Of "boat question which boat", one of four words is in the answer: F1 = 2/5.
    assert answers.longbench_score("hotpotqa", rambling, ["boat"]) == pytest.approx(0.4)


def test_an_unknown_longbench_task_is_refused():
    with pytest.raises(KeyError):
        answers.longbench_score("vcsum", "", [])


@pytest.mark.parametrize(
    "answer, references, f1, exact",
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
def test_f1_and_exact_match_equal_values_computed_by_hand(answer, references, f1, exact):
    assert answers.f1(answer, references) == pytest.approx(f1)
    assert answers.exact_match(answer, references) == exact


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
def test_f1_matches_the_published_scores_of_longbench(name, published):
    folder = DATA / "longbench_preds"
    if not folder.is_dir():
        pytest.skip(f"{folder} is absent: set ARK_DATA to compare with published scores")
    rows = [
        json.loads(line)
        for line in (folder / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    expected = json.loads((folder / "list_result.json").read_text())[name]
    scores = [answers.f1(row["pred"], row["answers"]) for row in rows]
    assert scores == pytest.approx(expected, abs=1e-12)
    assert round(100 * np.mean(scores), 2) == published


WORDS = st.lists(
    st.sampled_from(["the", "a", "boat,", "boat", "Boat", "lamp", "1802", "an?"]), max_size=6
).map(" ".join)


@settings(deadline=None)
@given(WORDS, st.lists(WORDS, min_size=1, max_size=3), WORDS)
def test_f1_and_exact_match_stay_within_their_bounds(answer, references, other):
    score = answers.f1(answer, references)
    assert 0 <= score <= 1 and answers.exact_match(answer, references) in (0, 1)
    assert score <= answers.f1(answer, [*references, other])
    assert answers.f1(answer, [other]) == pytest.approx(answers.f1(other, [answer]))
    if answers.exact_match(answer, references) and answers.normalise(answer):
        assert score == 1


def test_rouge_l_equals_values_computed_by_hand():
    pytest.importorskip(
        "rouge", reason="ROUGE-L needs the library: pip install 'ark-jax[evaluate]'"
    )
    # Three of four words are common, in the same order, in both texts: F1 = 3/4.
    references = ["police kill the gunman", "no"]
    assert answers.rouge_l("police killed the gunman", references) == pytest.approx(0.75)
    # All words are common, but only two stand in the same order: F1 = 2/4.
    swapped = answers.rouge_l("the gunman police killed", ["police killed the gunman"])
    assert swapped == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("answer", "references"), [("", ["x"]), (" . ", ["x"]), ("x", [""]), ("x", [])]
)
def test_rouge_l_of_an_empty_text_is_zero(answer, references):
    pytest.importorskip(
        "rouge", reason="ROUGE-L needs the library: pip install 'ark-jax[evaluate]'"
    )
    assert answers.rouge_l(answer, references) == 0.0


def test_rouge_l_scores_long_texts_without_a_full_stop():
    long = " ".join(f"word{i}" for i in range(900))
    assert answers.rouge_l(long, [long]) == pytest.approx(1.0)
    assert answers.rouge_l(long, [long.replace("word0 ", "")]) > 0.99


def test_a_missing_rouge_library_is_reported_with_the_install_command(monkeypatch):
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


def test_every_kind_of_reading_prompt_is_packaged():
    folder = importlib.resources.files("ark_jax.text") / "templates"
    names = [path.name for path in folder.iterdir() if path.name.startswith("read_")]
    kinds = [name.removeprefix("read_").removesuffix(".txt") for name in names]
    datasets = ["multihop", "narrativeqa", "qasper"]  # LongBench's
    assert sorted(kinds) == sorted(["ark", "article", "plain", "story", *datasets])
    texts = [prompts.load_template("read", kind) for kind in ("", *kinds)]
    assert len(set(texts)) == 8


def test_a_users_reading_prompt_is_read_without_byte_order_mark_and_line_break(tmp_path):
    (tmp_path / "mine.txt").write_text("\ufeff{passages} {question}\n", encoding="utf-8")
    assert prompts.load_template("read", str(tmp_path / "mine.txt")) == "{passages} {question}"


def test_a_users_reading_prompt_without_passages_is_refused(tmp_path):
    (tmp_path / "mine.txt").write_text("{question}")
    with pytest.raises(ValueError, match=r"no slot \{passages\}"):
        prompts.load_template("read", str(tmp_path / "mine.txt"))


def test_an_unknown_kind_of_reading_prompt_is_refused():
    message = r"config\.prompts\.read: poem cannot be read \(No such file"
    with pytest.raises(ValueError, match=message):
        prompts.load_template("read", "poem")
