"""The examples: gains and losses, answers, negatives and entities."""

import re

from support.report_pages import table_cells
from support.report_sample import render, sample


def test_gains_and_losses_are_shown_for_each_question():
    page = render(sample())
    gains, losses = page.split("<h3>Gains</h3>")[1].split("</section>")[0].split("<h3>Losses</h3>")
    plain = lambda part: " ".join(re.sub(r"<[^>]+>", " ", part).split())
    assert plain(gains) == (
        "Which? rank not listed → 2 Quay Gold passage On the quay . base ranks first In the fen. "
        "and answers: fen stage3 ranks first the gold passage and answers: the quay"
    )
    assert plain(losses) == (
        "When? rank 1 → 1,200 1784 Gold passage In 1784 . base ranks first No passage was found. "
        "stage3 ranks first In 1785. and answers: 1785"
    )
    assert "11 rose, 1,234 fell, 40 stayed" in page


def test_answers_negatives_and_entities_are_shown_in_tables():
    page = render(sample())
    assert table_cells(page, "Answers by system") == [
        ["question", "reference", "base", "stage3"],
        ["How?", "by boat", "By boat .", "no"],
    ]
    negative = table_cells(page, "Hard negatives of stage2")[1]
    assert negative == ["d#0001", "Short text.", "–", "–", "0.500", "–"]
    assert table_cells(page, "Entities by rank")[1] == ["node 0", "place", "seed", "0.30000"]
