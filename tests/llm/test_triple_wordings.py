"""Wordings by grammar: golden examples of real relation names, and what holds of any name."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ark_jax.llm.triple_wordings import PLACEHOLDER, word_relation

# Relation, a question for the tail, a question for the head. The first nine are MetaQA's; those of
# PathQuestion and of WebQSP's paths (the last part of their names) follow.
GOLDEN = [
    ("directed by", "Who directed X?", "What has X directed?"),
    ("written by", "Who wrote X?", "What was written by X?"),
    ("starred actors", "Who are the starred actors of X?", "Whose starred actors include X?"),
    ("release year", "In what year was the release of X?", "What has X as its release year?"),
    ("in language", "In what language is X?", "What is in the language X?"),
    ("has tags", "What tags does X have?", "What has X among its tags?"),
    ("has genre", "What is the genre of X?", "What has the genre X?"),
    ("has imdb votes", "What are X's imdb votes?", "What has the imdb votes X?"),
    ("has imdb rating", "What is the imdb rating of X?", "Whose imdb rating is X?"),
    ("cause of death", "What is X's cause of death?", "Whose cause of death is X?"),
    ("children", "Who are X's children?", "X is one of the children of what?"),
    ("gender", "What is the gender of X?", "Whose gender is X?"),
    ("institution", "Which institution does X have?", "What has X as its institution?"),
    ("nationality", "What is X's nationality?", "Whose nationality is X?"),
    ("parents", "Who are the parents of X?", "Whose parents include X?"),
    ("place of birth", "Where was X born?", "Who was born in X?"),
    ("spouse", "Who is X's spouse?", "X is the spouse of whom or what?"),
    ("spouse_s", "Who is X's spouse?", "Whose spouse is X?"),
    ("containedby", "By whom was X contained?", "What was contained by X?"),
    ("contains", "What does X contain?", "What contains X?"),
    ("languages spoken", "Which languages are spoken in X?", "Whose languages spoken include X?"),
    ("countries spoken in", "In which countries is X spoken?", "What is spoken in X?"),
    ("awards won", "What awards has X won?", "Who won X?"),
    ("works written", "What works has X written?", "Who wrote X?"),
    (
        "olympics participated in",
        "In which olympics has X participated?",
        "Who or what participated in X?",
    ),
    ("executive produced by", "Who executive produced X?", "What was executive produced by X?"),
    ("named after", "After whom or what was X named?", "What was named after X?"),
    ("born in", "Where was X born?", "Who or what was born in X?"),
    ("is part of", "What is X a part of?", "What is a part of X?"),
    ("capital of", "What is X the capital of?", "What is the capital of X?"),
    ("works for", "What does X work for?", "Who or what works for X?"),
    ("studies", "What does X study?", "Who or what studies X?"),
    ("influenced", "What has X influenced?", "Who influenced X?"),
    ("birthPlace", "Where was X born?", "Who was born in X?"),
    ("首都", 'What is the "首都" of X?', 'For what is X the "首都"?'),
]


@pytest.mark.parametrize("relation, tail, head", GOLDEN)
def test_wordings_of_real_relations_equal_the_golden_ones(relation, tail, head):
    wordings = word_relation(relation)
    assert tail in [text.replace(PLACEHOLDER, "X") for text in wordings.tail]
    assert head in [text.replace(PLACEHOLDER, "X") for text in wordings.head]


WORDS = "has is by in of born directed spouse film films people year contains here s the spoken"
NAMES = st.lists(st.sampled_from(WORDS.split()), min_size=1, max_size=7).map(" ".join)


@given(st.one_of(st.text(min_size=1, max_size=40), NAMES))
def test_each_wording_holds_the_placeholder_once(relation):
    wordings = word_relation(relation)
    for texts in (wordings.head, wordings.tail):
        assert len(texts) >= 3 and len(set(texts)) == len(texts)
        for text in texts:
            assert text.count(PLACEHOLDER) == 1 and text.endswith("?")
            assert text == text[:1].upper() + text[1:] and "\0" not in text
    assert wordings == word_relation(relation)
