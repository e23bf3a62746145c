"""Terms of scripts without blanks, and of emoji."""

from collections import Counter

import pytest

from ark_jax.graph.extract import parse_reply
from ark_jax.llm import rule_based
from ark_jax.llm.names import contained_terms, unspaced_terms


def test_terms_do_not_split_letters_from_their_marks():
    assert unspaced_terms("灯塔高。") == ["灯塔", "灯塔高", "塔高"]
    assert unspaced_terms("The 灯 of 1862, ©™ café ስለነበር") == []
    # Marks stay with their letter, and joined emoji together.
    assert unspaced_terms("ရေး သား") == []
    assert unspaced_terms("ရေးသား") == ["ရေးသား"]
    assert unspaced_terms("👩🏽‍🔬🏴󠁧󠁢󠁳󠁣󠁴󠁿") == ["👩🏽‍🔬", "👩🏽‍🔬🏴󠁧󠁢󠁳󠁣󠁴󠁿", "🏴󠁧󠁢󠁳󠁣󠁴󠁿"]
    assert unspaced_terms("🇪🇹 🏔️") == ["🇪🇹", "🏔️"]


def test_a_part_that_never_occurs_alone_is_not_a_term():
    assert contained_terms({"青石湾": 2, "青石": 2, "石湾": 3, "light": 2, "lighthouse": 2}) == {
        "青石"
    }


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("青石湾的灯塔很高。渔民看见灯塔。青石湾有雾。", {"青石湾", "灯塔"}),
        ("แมวกินปลา แมวนอน หมากินปลา", {"แมว", "กินปลา"}),
        ("🗼💡. 🚢➡️🗼. 💡🚢.", {"🗼", "💡", "🚢"}),
    ],
)
def test_repeated_terms_become_a_graph(text, names):
    frequency = Counter(rule_based.candidate_terms(text))
    entities, relations, lost = parse_reply(rule_based.extract_graph(text, frequency), "c")
    assert names <= {entity.name for entity in entities} and relations and lost == []


def test_a_sentence_ends_at_the_full_stop_of_its_script():
    text = "灯塔很高。灯塔有雾！渔民看见灯塔。"
    frequency = Counter(rule_based.candidate_terms(text))
    entities, _, _ = parse_reply(rule_based.extract_graph(text, frequency), "c")
    assert [entity.description for entity in entities if entity.name == "灯塔"] == ["灯塔很高。"]
