"""Questions made by leaving a name out of a sentence."""

import importlib.resources
import json
from collections import Counter

from support.llm_calls import changed_settings

from ark_jax.llm import cloze, complete
from ark_jax.llm.names import candidate_terms
from ark_jax.llm.question_pairs import parse_pairs
from ark_jax.text.word_boundaries import contains_words

SENTENCE = "Josiah Penhallow, a surveyor, founded the Board in the spring of that year."


def pairs_of(text: str, count: int = 9) -> list:
    return parse_pairs(cloze.write_cloze([text], count, Counter(candidate_terms(text))))


def test_a_cloze_question_omits_a_name_from_its_sentence():
    [pair] = pairs_of(SENTENCE)
    assert pair.answer == "Josiah Penhallow" and pair.evidence == (SENTENCE,)
    assert pair.question == (
        "Which name is left out here: …, a surveyor, founded the Board in the spring of that year?"
    )


def test_a_capital_at_the_start_of_a_sentence_is_not_a_name():
    rest = "the old woman went down to the brook and washed her linen there."
    for first in ("Now", "“Now", "Then I'll see how", "He said: “Well", "Now I know that"):
        assert pairs_of(f"{first} {rest}") == []
    assert [x.answer for x in pairs_of(f"Now Ada of the mill saw that {rest}")] == ["Now Ada"]
    # A name is one if it stands within a sentence too.
    assert [x.answer for x in pairs_of(f"Ada saw that {rest} Nobody saw Ada.")] == ["Ada"]
    assert pairs_of(f"Now {rest} He said: “Now.”") == []


def test_unsuitable_sentences_give_no_question():
    assert pairs_of("Ada built it.") == []  # too short
    assert pairs_of("nothing that has a name was ever seen by anybody on that shore.") == []
    assert pairs_of(SENTENCE[:-1]) == [] == pairs_of(SENTENCE[3:])  # cut at either end
    assert pairs_of(f"{SENTENCE[:-1]}{' and so on' * 20}.") == []  # too long
    twice = "Ada, whom nobody on the whole shore had seen, was the sister of Ada."
    assert pairs_of(twice) == []
    assert pairs_of("汉字没有空格所以没有名字。" * 5) == []


def test_every_passage_of_the_demo_gives_valid_pairs(tmp_path):
    """Every answer and sentence is in its passage, no answer in its question."""
    lines = importlib.resources.files("ark_jax.demo") / "documents.jsonl"
    documents = [json.loads(x) for x in lines.read_text(encoding="utf-8").splitlines()]
    ask = lambda item, about: complete.Call(item, "questions", ("p",), {"about": about, "count": 5})
    calls = [ask(f"questions/{d['id']}", [d["text"]]) for d in documents]
    calls.append(ask("two", [d["text"] for d in documents[:2]]))
    settings = changed_settings(backend="none")
    answers = complete.complete(calls, settings, tmp_path / "cache.jsonl", "x")
    assert parse_pairs(*answers.texts["two"]) == []  # rules cannot tell what joins two passages
    for d in documents:
        pairs = parse_pairs(*answers.texts[f"questions/{d['id']}"])
        assert len(pairs) == 5 and len({x.evidence for x in pairs}) == 5
        for pair in pairs:
            assert pair.answer in pair.evidence[0] and pair.evidence[0] in d["text"]
            assert not contains_words(pair.question, pair.answer)
