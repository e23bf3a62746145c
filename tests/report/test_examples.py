"""The examples: all questions, and negatives."""

import json

from support.report_pages import table_cells
from support.report_sample import LONG, render, sample

from ark_jax.report.questions import Asked, question_section


def shown_questions(page: str) -> dict:
    """What the table of all questions is drawn from."""
    return json.loads(page.split('id="question-data">')[1].split("</script>")[0])


def test_every_question_has_its_ranks_its_change_and_its_passages():
    page = render(sample())
    shown = shown_questions(page)
    (which, *_), (when, *_) = shown["rows"][1], shown["rows"][0]
    assert (which, when) == ("Which?", "When?")  # 1 to 1,200 is the larger change
    assert shown["systems"] == ["base", "stage1", "stage3"] and shown["ranks"]
    assert shown["rows"][1][1:4] == [["Quay"], [None, 3, 2], 0.5]
    (base, found, answer), (last, (long, short), reply) = shown["rows"][1][4]
    assert (base, found, answer) == ("base", [[0, "In the fen."]], ["fen"])
    assert (last, short, reply) == ("stage3", [1, "", "Quay", ""], ["the ", "quay", ""])
    assert long[0] == 0 and len(long[1]) < 300
    assert "From base to stage3, 1 rose, 1 fell, 0 stayed" in page


def test_a_page_with_10000_questions_stays_small_and_keeps_every_rank():
    texts = [[(LONG, False)] * 4, [(LONG, True)] * 4]
    asked = [
        Asked(
            f"q{i}",
            f"{i}: Which of the keepers of the lamp left the quay last of all?",
            ["Ann"],
            {"base": 1 + i % 9, "stage3": 1},
            dict(zip(("base", "stage3"), texts, strict=True)),
            {"base": "the quay", "stage3": "Ann"},
        )
        for i in range(10_000)
    ]
    section = question_section(asked, ("base", "stage3"), "rank")
    assert len("".join(section.body)) < 3_000_000 and len(section.rows) == 10_000
    rows = shown_questions(section.body[1])["rows"]
    assert len(rows) == 10_000 and rows[0][4] and not rows[-1][4]
    first = {"id": "q0", "question": asked[0].question, "answers": ["Ann"], "change": "stayed"}
    answers = {"answer of base": "the quay", "answer of stage3": "Ann"}
    assert section.rows[0] == {**first, "base": 1.0, "stage3": 1.0, **answers}


def test_negatives_are_shown_in_tables():
    page = render(sample())
    negative = table_cells(page, "Hard negatives of stage2")[1]
    assert negative == ["d#0001", "Short text.", "–", "–", "0.500", "–"]
