"""The choice stage ships the system that wins on questions that trained nothing."""

import pytest
from support.ranking import QUESTIONS

from ark_jax.data.records import Question
from ark_jax.pipeline.reads import change, empty_record
from ark_jax.pipeline.tables import load_json, save_rows
from ark_jax.recipes.ark import config
from ark_jax.recipes.ark.curriculum import systems
from ark_jax.recipes.ark.recipe import stages
from ark_jax.recipes.documents import choice, evaluate
from ark_jax.recipes.documents.retrieve import Systems
from ark_jax.retrieval.fusion import Fusion

ASKED = [
    Question("t0", "which lamp and tide?", ("lamp",), ("a",)),
    Question("t1", "which pilot?", ("pilot",), ("b",)),
    Question("t2", "which bell or wool?", ("wool",), ("b",)),
    Question("t3", "the tide?", ("again",), ("a",)),  # no chunk holds the answer
]


class Model:
    """A retriever that can be saved."""

    def save_pretrained(self, folder):
        folder.mkdir()
        (folder / "model").write_text("base")


@pytest.fixture
def choose(run, monkeypatch):
    """Chooses among the systems of a ranked corpus, whose questions are learned from but for some;
    returns what is stored."""
    run.c.evaluate.read = 0
    for name, work in (
        ("baselines", evaluate.measure_baselines),
        ("evaluate", lambda *x: evaluate.evaluate(*x, systems_of=systems)),
    ):
        (run.context / name).mkdir()
        work(run.context, run.context / name)
    monkeypatch.setattr(choice, "load_retriever", lambda *_: Model())
    monkeypatch.setattr(choice, "ENOUGH", 2)
    save_rows(ASKED, run.context / "data" / "questions_train.parquet", Question)

    def call(*learned: str) -> dict:
        folder = run.folder / f"chosen{len(learned)}"
        folder.mkdir()
        counts = choice.choose(
            run.context, folder, systems_of=systems, learned=lambda context: learned
        )
        stored = load_json(folder / choice.FILE)
        assert counts == {"questions": stored["questions"], "system": stored["system"]}
        assert (folder / "model").is_dir() == (stored["model"] == "base")
        return stored

    return call


def test_the_best_system_on_questions_that_trained_nothing_ships(choose):
    stored = choose("t1")
    assert stored["questions"] == 2  # t3 has no passage
    means = {row["system"]: row["values"]["ndcg@10"]["mean"] for row in stored["development"]}
    assert len(means) == 2 * len(("base", "stage1", "stage2", "stage3")) + 1
    assert means[stored["system"]] == max(means.values())
    assert choice.sentences(stored)[0].startswith(
        f"{stored['system']} ships: on 2 questions that trained nothing its nDCG@10 is"
    )
    assert stored["held_out"]["questions"] == len(QUESTIONS)


def test_bm25_ships_if_it_is_best(choose, monkeypatch):
    monkeypatch.setattr(choice, "clearly_best", lambda *_, default: "bm25")
    stored = choose("t1")
    assert stored["system"] == "bm25" and choice.candidate_of(stored).fusion.dense == 0
    said = choice.sentences(stored)
    assert said[1] == (
        "Nothing that was trained beats the untouched base or BM25: export and index are made of "
        "bm25."
    )
    assert set(stored["held_out"]["against"]) == {"base", "bm25+base"}


def test_without_such_questions_the_last_tuned_system_ships_unchosen(choose):
    stored = choose("t0", "t1", "t2")
    assert stored["system"] == "bm25+stage3" and stored["development"] == []
    assert choice.sentences(stored)[0].startswith(
        "bm25+stage3 ships, unchosen: every question with a known passage was trained on, so "
    )


def test_few_such_questions_choose_nothing(choose, monkeypatch):
    monkeypatch.setattr(choice, "ENOUGH", 3)
    stored = choose("t1")
    assert stored["questions"] == 2 and stored["development"] == []
    assert choice.sentences(stored)[0] == (
        "bm25+stage3 ships, unchosen: only 2 questions trained nothing, and fewer than 3 choose "
        "badly (have more questions)."
    )


def test_the_share_of_questions_that_chooses_is_large_enough_or_zero():
    shares = {n: choice.share_that_chooses(n) for n in (0, 33, 34, 133, 300, 399, 5000)}
    assert shares == {0: 0, 33: 0, 34: 0.3, 133: 0.3, 300: 0.14, 399: 0.11, 5000: 0.1}
    assert all(n * share >= choice.ENOUGH for n, share in shares.items() if share)


def test_only_a_system_above_the_default_by_more_than_a_standard_error_is_chosen():
    rows = lambda **values: [
        {"system": name, choice.METRIC: value} for name, of in values.items() for value in of
    ]
    chosen = lambda values: choice.clearly_best(rows(**values), values, default="last")
    last = [0.5, 0.5, 0.5, 0.5]
    # Gains of 0.1 in the mean, with standard errors of 0.058 and 0.129.
    assert chosen({"bm25": [0.5, 0.7, 0.7, 0.5], "last": last}) == "bm25"
    assert chosen({"bm25": [0.5, 0.5, 1.0, 0.4], "last": last}) == "last"
    assert chosen({"bm25": last, "base": last, "last": last}) == "last"
    assert chosen({"bm25": [0.7] * 4, "base": [0.7] * 4, "last": last}) == "bm25"


def test_of_equal_systems_bm25_then_the_base_ships():
    known = choice.candidates(Systems(config.ark().evaluate, ("s",)), Fusion())
    assert list(known) == ["bm25", "base", "bm25+base", "s", "bm25+s"]
    assert [known[x].model for x in known] == ["base", "base", "base", "s", "s"]


def against(difference: float, p: float = 0.5) -> dict:
    return {"difference": difference, "low": -0.1, "high": 0.1, "p": p, "p_holm": p}


def test_the_sentences_warn_of_a_chosen_system_below_its_base():
    chosen = {
        "system": "stage3",
        "model": "stage3",
        "questions": 9,
        "development": [
            {"system": name, "values": {"ndcg@10": {"mean": mean}}}
            for name, mean in (("base", 0.5), ("bm25", 0.4), ("stage3", 0.6))
        ],
        "held_out": {
            "questions": 3,
            "mean": 0.587,
            "against": {"base": against(-0.123), "bm25": against(0.01, 0.03)},
        },
    }
    first, numbers, last = choice.sentences(chosen)
    assert first == (
        "stage3 ships: on 9 questions that trained nothing its nDCG@10 is 0.600 (base 0.500, bm25 "
        "0.400), the highest of 3 systems."
    )
    assert "against base -0.123 [-0.100, 0.100], no significant difference (p = 0.5)" in numbers
    assert numbers.endswith("against bm25 +0.010 [-0.100, 0.100] (p = 0.03).")
    assert last.startswith("There it is below base: ") and last.endswith("keep base.")
    chosen["held_out"]["against"]["base"] = against(0.1)
    assert len(choice.sentences(chosen)) == 2  # bm25 is the nearest, and significantly below


def test_the_sentences_name_an_untrained_system_that_training_does_not_beat():
    chosen = {"system": "bm25+s", "model": "s", "questions": 0, "share": 0.1, "development": []}
    differences = {"base": against(0.109, 0.001), "bm25+base": against(0.016, 0.12)}
    chosen["held_out"] = {"questions": 60, "mean": 0.674, "against": differences}
    assert choice.sentences(chosen)[-1] == (
        "It gains nothing significant over bm25+base, which needs no training."
    )
    assert "gains nothing" not in choice.sentences(chosen | {"model": "base"})[-1]


def test_an_export_that_read_no_choice_is_stale():
    """As a run of an earlier version has left it."""
    c = config.ark()
    c.retriever.path = c.generator.path = "a-name/that-is-not-fetched"
    (export,) = (stage for stage in stages(c) if stage.name == "export")
    assert "chosen_by" in change(empty_record({}), export.arguments, c, {})
    assert not change(empty_record(export.arguments), export.arguments, c, {})
