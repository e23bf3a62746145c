"""What is measured, tested against the base, and said of it."""

import shutil

import pytest
from support.ranking import QUESTIONS, rank

from ark_jax.data.records import Chunk, Document, Question
from ark_jax.pipeline.tables import load_json, save_rows
from ark_jax.recipes.ark.curriculum import systems
from ark_jax.recipes.core.tables import as_text, best_system, tabulate
from ark_jax.recipes.documents import evaluate, retrieve
from ark_jax.recipes.documents.corpus import gold_passages
from ark_jax.report.results import metric_heading


def test_a_question_without_any_gold_passage_is_not_measured(run):
    """As trec_eval leaves out queries without judgements; where all are such, the table says zero
    and the run how many."""
    run.c.evaluate.read = 0
    nowhere = Question("q2", "which bell?", ("zinc",), ("b",))
    rank(run)
    for questions, mean in ((QUESTIONS, None), ([*QUESTIONS, nowhere], None), ([nowhere], 0.0)):
        save_rows(questions, run.folder / "w" / "data" / "questions_held_out.parquet")
        folder = run.folder / f"evaluated{len(questions)}"
        folder.mkdir()
        shutil.rmtree(run.folder / "w" / "baselines")
        (run.folder / "w" / "baselines").mkdir()
        baselines = run.folder / "w" / "baselines"
        retrieve.retrieve_baselines(run.context, baselines)
        counts = evaluate.evaluate(run.context, folder, systems_of=systems)
        assert counts.get("without_gold", 0) == (nowhere in questions)
        values = load_json(folder / "metrics.json")["table"][0]["values"]["recall@5"]
        assert values["mean"] == (
            1.0 if mean is None else mean
        )  # three chunks a document: all are among the first five


def rows(**values: list) -> list[dict]:
    """Questions of systems, with these values of nDCG@10 and (but of full) recall@5 of half as
    much."""
    return [
        {
            "system": name,
            "question": f"q{i}",
            "ndcg@10": x,
            "answer_f1": x if x is not None else i / 9,
            "recall@5": x if x is None else x / 2,
        }
        for name, column in values.items()
        for i, x in enumerate(column)
    ]


BASE = [0.1, 0.2, 0.3, 0.4, 0.5, 0.3, 0.2, 0.6]


COLUMNS = ("ndcg@10", "recall@5", "answer_f1")


def tabulated(**values):
    return tabulate(rows(base=BASE, **values), COLUMNS, draws=200, flips=5000, seed=3)


def test_differences_to_base_are_tested_and_corrected():
    table = tabulated(
        full=[None] * 8,
        stage1=[x + 0.1 for x in BASE],
        stage2=[x + 0.1 * (-1) ** i for i, x in enumerate(BASE)],
    )
    assert [row["system"] for row in table] == ["base", "full", "stage1", "stage2"]
    assert set(table[1]["values"]) == {
        "answer_f1"
    }  # without retrieval there is none of it to measure
    assert "against_base" not in table[0]["values"]["ndcg@10"]
    first, second = (row["values"]["ndcg@10"]["against_base"] for row in table[2:])
    assert first == pytest.approx(
        {"difference": 0.1, "low": 0.1, "high": 0.1, "p": 2 / 256, "p_holm": 4 / 256}
    )
    assert (second["difference"], second["p"], second["p_holm"]) == pytest.approx(
        (0, 1, 1), abs=1e-9
    )
    assert table[2]["values"]["answer_f1"]["against_base"]["p_holm"] == pytest.approx(
        3 * 2 / 256
    )  # full is a third comparison


NO_MARK = "  No difference from base has p < 0.05: paired randomisation test, two-sided"
MARK = (
    "  * differs from base, p < 0.05: paired randomisation test, two-sided, "
    "Holm-corrected over systems"
)


def text_table() -> list[str]:
    """The lines of a table where stage 1 alone differs from the base, and full has no value."""
    table = tabulated(
        full=[None] * 8,
        stage1=[x + 0.1 for x in BASE],
        stage2=[x + 0.05 * (i < 3) for i, x in enumerate(BASE)],
    )
    return as_text(table, COLUMNS).splitlines()


def test_the_text_table_has_a_line_for_each_system():
    lines = text_table()
    assert len(lines) == 6 and lines[0].split() == ["system", "nDCG@10", "recall@5", "answer", "F1"]
    assert [line.split()[0] for line in lines[1:5]] == ["base", "full", "stage1", "stage2"]
    assert lines[2].count("–") == 2


def test_the_text_table_marks_significant_differences():
    lines = text_table()
    assert [line.count("]*") for line in lines[1:5]] == [0, 0, 3, 0]
    assert lines[5] == MARK


def test_the_columns_of_the_text_table_stand_under_their_headings():
    lines = text_table()
    ends = {line.index("]", 11) for line in lines[1:5] if "–" not in line}
    assert ends == {lines[0].index("nDCG@10") + len("nDCG@10") - 1}


def test_a_text_table_without_significant_differences_says_so():
    assert as_text(tabulated(stage1=BASE), COLUMNS).splitlines()[-1] == NO_MARK


def test_columns_are_aligned_even_with_long_values():
    """Log-likelihoods are negative, and their intervals longer than those of shares."""
    measured = rows(base=BASE, stage1=[x + 0.1 for x in BASE])
    for row in measured:
        row["answer_likelihood"] = 40 * (row["ndcg@10"] - 1)
    columns = ("answer_likelihood", "answer_f1")
    table = tabulate(measured, columns, draws=200, flips=5000, seed=3)
    gained = table[1]["values"]["answer_likelihood"]["against_base"]
    assert gained == pytest.approx(
        {"difference": 4, "low": 4, "high": 4, "p": 2 / 256, "p_holm": 2 / 256}
    )
    lines = as_text(table, columns).splitlines()
    assert "-27.000 [" in lines[1] and lines[2].count("]*") == 2
    assert lines[1].index("]") == lines[2].index("]") == lines[0].index("likelihood") + 9
    assert lines[1].rindex("]") == lines[2].rindex("]") == len(lines[0]) - 1


@pytest.mark.parametrize(
    "moved, says",
    [
        (
            [0.1] * 8,
            "Better than the base on the held-out questions: nDCG@10 +0.100 (p = 0.0078), "
            "recall@5 +0.050 (p = 0.0078)",
        ),
        (
            [-0.1] * 8,
            "Worse than the base on the held-out questions: nDCG@10 -0.100 (p = 0.0078), "
            "recall@5 -0.050 (p = 0.0078)",
        ),
        (
            [0.1] * 3 + [0] * 5,
            "No significant difference from the base on the held-out questions: nDCG@10 +0.038 "
            "(p = 0.25)",
        ),
        (
            [0] * 8,
            "No significant difference from the base on the held-out questions: nDCG@10 +0.000 "
            "(p = 1)",
        ),
    ],
)
def test_the_verdict_states_the_significance_of_differences(moved, says):
    table = tabulated(stage1=[x + y for x, y in zip(BASE, moved, strict=True)])
    verdict = evaluate.verdict(table, COLUMNS, ("stage1", "stage2"))
    assert verdict.startswith(says) and "(paired randomisation test, two-sided)." in verdict
    assert verdict.endswith("nDCG@10 fell at stage1.") == (moved[0] < 0)


def test_a_verdict_describes_gains_and_losses_of_the_last_stage():
    measured = rows(
        base=BASE, full=[None] * 8, stage1=[x - 0.1 for x in BASE], stage2=[x + 0.1 for x in BASE]
    )
    for row in measured:
        if row["system"] == "stage2":
            row["recall@5"] -= 0.2
    table = tabulate(measured, COLUMNS, draws=200, flips=5000, seed=3)
    verdict = evaluate.verdict(table, ("ndcg@10", "recall@5"), ("stage1", "stage2"))
    assert verdict.startswith(
        "Better and worse than the base on the held-out questions: nDCG@10 +0.100 (p = 0.016), "
        "recall@5 -0.150 (p = 0.016) (paired"
    )
    assert verdict.endswith("Holm-corrected over systems). nDCG@10 fell at stage1.")


def test_the_best_system_is_compared_with_base_and_bm25():
    measured = rows(
        base=BASE,
        full=[None] * 8,
        bm25=[x + 0.11 for x in BASE],
        stage1=[x + 0.1 + 0.04 * (i % 2) for i, x in enumerate(BASE)],
    )
    said = best_system(measured, "ndcg@10", against=("base", "bm25"), seed=3)
    assert said.startswith(
        "stage1 has the highest nDCG@10 on the held-out questions, 0.445: against base +0.120 ["
    )
    assert "against bm25 +0.010 [" in said and "], no significant difference (p = " in said
    assert said.count("no significant difference") == 1
    measured = [row for row in measured if row["system"] != "stage1"]
    said = best_system(measured, "ndcg@10", against=("base", "bm25"), seed=3)
    assert said.startswith("bm25 has the highest") and "against bm25" not in said


def test_of_equal_systems_the_first_is_named():
    same = rows(base=BASE, stage1=BASE)
    said = best_system(same, "ndcg@10", against=("base", "bm25"), seed=3)
    assert said == "base has the highest nDCG@10 on the held-out questions, 0.325."


def test_gold_passages_are_marked_ones_or_those_with_an_answer(run):
    documents = [Document("a", "", "the tide. the lamp. the tide again.")]
    save_rows(documents, run.context / "data" / "documents.parquet")
    chunks = {
        "a": [
            Chunk("a#0", "a", 0, 9, 2, "the tide."),
            Chunk("a#1", "a", 10, 19, 2, "the lamp."),
            Chunk("a#2", "a", 20, 35, 3, "the tide again."),
        ]
    }
    asked = [
        Question("marked", "what?", ("Tide",), ("a",), ("the lamp.",)),
        Question("unmarked", "what?", ("TIDE",), ("a",)),
        Question("nowhere", "what?", ("tid",), ("a",)),
    ]
    gold, unmarked = gold_passages(run.context, asked, chunks)
    assert (
        gold == {"marked": [["a#1"]], "unmarked": [["a#0", "a#2"]], "nowhere": []} and unmarked == 2
    )
    run.c.evaluate.gold = "answers"
    gold, unmarked = gold_passages(run.context, asked, chunks)
    assert (
        gold == {"marked": [["a#0", "a#2"]], "unmarked": [["a#0", "a#2"]], "nowhere": []}
        and unmarked == 2
    )


@pytest.mark.parametrize(
    "metric, shown",
    [
        ("ndcg@10", "nDCG@10"),
        ("mrr", "MRR"),
        ("map@5", "MAP@5"),
        ("hit@3", "hit rate@3"),
        ("recall@5", "recall@5"),
        ("precision@1", "precision@1"),
        ("answer_f1", "answer F1"),
    ],
)
def test_metrics_are_shown_by_their_usual_names(metric, shown):
    assert metric_heading(metric) == shown


def test_any_system_can_be_the_base():
    table = tabulate(
        rows(base=BASE, stage1=[x + 0.1 for x in BASE]),
        COLUMNS,
        draws=200,
        flips=5000,
        seed=3,
        base="stage1",
    )
    values = [row["values"]["ndcg@10"] for row in table]
    assert values[0]["against_base"]["difference"] == pytest.approx(-0.1)
    assert "against_base" not in values[1]
    assert "* differs from stage1, p < 0.05" in as_text(table, COLUMNS, "stage1")


def test_questions_of_a_document_count_as_one():
    """Eight questions of one document that all gain are no proof."""
    gained = rows(base=BASE, stage1=[x + 0.1 for x in BASE])
    for row in gained:
        row["document"] = "a" if row["question"] != "q7" else "b"
    settings = {"draws": 200, "flips": 5000, "seed": 3}
    tested = tabulate(gained, COLUMNS, cluster="document", **settings)[1]["values"]["ndcg@10"]
    assert tested["against_base"]["p"] == 0.5  # of four ways to sign two documents
    alone = tabulate(gained, COLUMNS, **settings)[1]["values"]["ndcg@10"]
    assert alone["against_base"]["p"] == 2 / 256


def test_a_hybrid_is_also_tested_against_bm25():
    """Better than the base by more than chance, but worse than BM25 alone."""
    scores = rows(
        base=BASE,
        bm25=[x + 0.3 for x in BASE],
        good=[x + 0.4 for x in BASE],
        bad=[x + 0.2 for x in BASE],
    )
    settings = {"draws": 200, "flips": 5000, "seed": 3}
    table = tabulate(scores, COLUMNS, parts={"good": "bm25", "bad": "bm25"}, **settings)
    alone = tabulate(scores, COLUMNS, **settings)
    for row, before in zip(table, alone, strict=True):
        for metric, value in row["values"].items():
            against = value.pop("against_part", None)
            assert value == before["values"][metric]  # nothing else moves
            assert (against is not None) == (row["system"] in ("good", "bad"))
            if against:
                value["against_part"] = against
    good, bad = (row["values"]["ndcg@10"]["against_part"] for row in table[2:])
    assert good["part"] == bad["part"] == "bm25"
    assert (good["difference"], bad["difference"]) == pytest.approx((0.1, -0.1))
    assert good["p"] == 2 / 256 and good["p_holm"] == 4 / 256
    lines = as_text(table, COLUMNS).splitlines()
    assert [line.count("]*") for line in lines[1:5]] == [0, 3, 3, 0]
    assert lines[-2].startswith("  good against bm25: nDCG@10 +0.100 (p = 0.016), recall@5 +0.05")
    assert lines[-1].startswith("  bad against bm25: nDCG@10 -0.100 (p = 0.016)")
