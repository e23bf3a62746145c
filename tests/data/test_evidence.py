"""Gold chunks: evidence passages cut by chunk borders, and answers as whole words in any script."""

import pytest

from ark_jax.data import evidence
from ark_jax.data.evidence import count_absent_answers
from ark_jax.data.records import Chunk, Question


def chunk(id: str, document: str, start: int, end: int) -> Chunk:
    return Chunk(id, document, start, end, 1, "")


# Chunks of twelve characters of which each shares four with the next.
TEXTS = {"d": "0123456789abcdefghijklmnopqrst", "e": "nothing here"}
CHUNKS = [
    chunk("d0", "d", 0, 12),
    chunk("d1", "d", 8, 20),
    chunk("d2", "d", 16, 28),
    chunk("d3", "d", 24, 30),
    chunk("e0", "e", 0, 12),
]


@pytest.mark.parametrize(
    ("passage", "gold"),
    [
        ("1234", ["d0"]),
        ("89ab", ["d0", "d1"]),  # inside the overlap
        ("abcd", ["d0", "d1"]),  # two of four in d0: just half
        ("bcde", ["d1"]),  # one of four in d0
        ("456789abcdef", ["d0", "d1"]),  # eight of twelve in either
        # A long passage: each chunk that lies in it by half of the chunk.
        ("0123456789abcdefghijklmnopqrst", ["d0", "d1", "d2", "d3"]),
        ("efghijklmnopqrst", ["d1", "d2", "d3"]),  # d1: six of its twelve
    ],
)
def test_gold_chunks_hold_at_least_half_of_the_evidence(passage, gold):
    assert evidence.gold_chunks([passage], TEXTS, CHUNKS) == [gold]


def test_evidence_that_no_document_contains_has_no_gold_chunk():
    assert evidence.gold_chunks(["1802"], TEXTS, CHUNKS) == []


def test_each_passage_of_the_evidence_has_its_own_gold_chunks():
    gold = evidence.gold_chunks(["1234", "1802", "opqr"], TEXTS, CHUNKS)
    assert gold == [["d0"], ["d2", "d3"]]


def test_evidence_in_several_documents_has_gold_chunks_in_each():
    texts = TEXTS | {"e": "01234"}
    assert evidence.gold_chunks(["1234"], texts, CHUNKS) == [["d0", "e0"]]


def test_every_occurrence_of_evidence_has_gold_chunks():
    texts = {"d": "14" + "x" * 24 + "14", "e": ""}
    assert evidence.gold_chunks(["14"], texts, CHUNKS) == [["d0", "d2", "d3"]]


def test_evidence_across_a_gap_between_chunks_belongs_to_both():
    chunks = [chunk("d0", "d", 0, 10), chunk("d1", "d", 11, 21)]
    # Four of nine characters are in either chunk; the tenth is in none.
    gold = evidence.gold_chunks(["6789Xbcde"], {"d": "0123456789Xbcdefghijkl"}, chunks)
    assert gold == [["d0", "d1"]]


def test_an_empty_chunk_is_never_gold():
    assert evidence.gold_chunks(["14"], {"d": "14"}, [chunk("d0", "d", 1, 1)]) == []


@pytest.mark.parametrize(
    "answers, text, contained",
    [
        (["1802"], "It burned in 1802.", True),
        (["The Long  Staff"], "he took the\nlong staff, and left", True),
        (["no"], "a note", False),  # whole words only
        (["staff long"], "the long staff", False),
        (["long staff"], "long, staff", False),  # what stands between counts
        (["St. Ives"], "at st.ives", True),
        (["Caf\u00e9"], "the cafe\u0301 closed", True),  # composed or not
        (["cafe"], "the caf\u00e9 closed", False),
        (["\u6771\u4eac"], "\u5728 \u6771\u4eac", True),
        (
            ["\u6771\u4eac\u5854"],
            "\u4ed6\u559c\u6b61\u6771\u4eac\u5854\u3002",
            True,
        ),  # no blanks between words
        (["\u6771\u5854"], "\u6771\u4eac\u5854", False),
        (["$5"], "it cost $5!", True),
        (["", " ", "zinc"], "a tin", False),  # an empty answer is nowhere
        ([], "a tin", False),
        (["gold", "tin"], "a tin", True),  # one is enough
    ],
)
def test_answer_chunks_contain_the_answer_as_whole_words(answers, text, contained):
    chunks = [
        Chunk("c0", "d", 0, 9, 1, "other"),
        Chunk("c1", "d", 9, 20, 1, text),
        Chunk("c2", "d", 20, 40, 1, f"so: {text}"),
    ]
    assert evidence.answer_chunks(answers, chunks) == ([["c1", "c2"]] if contained else [])


def test_answers_missing_from_the_documents_are_counted():
    documents = {"d": "The Tide rose.", "e": "Nothing."}
    question_on = lambda id, answers, documents: Question(id, "?", answers, documents)
    questions = [
        question_on("found", ("none", "the tide"), ("e", "d")),
        question_on("elsewhere", ("the tide",), ("e",)),
        question_on("nowhere", ("the moon",), ("d", "e", "absent")),
        question_on("unanswered", (), ("d",)),
        question_on("anywhere", ("the tide",), ()),
    ]
    assert count_absent_answers(questions, documents) == (2, 3)


def test_whole_documents_are_the_passages_of_a_judged_question():
    chunks = {"d": [Chunk("d#0", "d", 0, 1, 1, "x"), Chunk("d#1", "d", 1, 2, 1, "y")]}
    asked = [
        Question("judged", "?", (), ("d", "empty")),
        Question("marked", "?", (), ("d",)),
        Question("answered", "?", ("x",), ("d",)),
    ]
    passages = {"judged": [], "marked": [["d#1"]], "answered": []}
    completed = evidence.with_documents(passages, asked, chunks)
    assert completed == {"judged": [["d#0", "d#1"]], "marked": [["d#1"]], "answered": []}
    assert passages["judged"] == []


@pytest.mark.parametrize(
    ("asked", "documents", "rule", "left_out"),
    [
        ("The  mill burned.", (), "auto", True),
        ("the mill burned. It was late.", ("e",), "auto", True),
        ("The mill", (), "auto", False),  # it shares an id by chance
        ("The mill burned.", ("q",), "auto", False),
        ("The mill", ("q",), "leave_out", True),
        ("The mill burned.", (), "keep", False),
    ],
)
def test_the_document_that_is_the_question_is_left_out(asked, documents, rule, left_out):
    question = Question("q", asked, (), documents)
    chunks = {"q": [Chunk("q#0", "q", 0, 16, 3, "The mill burned.")], "e": []}
    own = evidence.own_chunks([question], chunks, rule)
    assert own == ({"q": {"q#0"}} if left_out else {})
    assert bool(evidence.left_out(own)) == left_out


def test_a_relevant_document_without_text_is_needed():
    chunks = {"d": [Chunk("d#0", "d", 0, 1, 1, "x")]}
    asked = [Question("q", "?", (), ("d", "gone")), Question("r", "?", ("x",), ("d", "gone"))]
    gold, _ = evidence.needed_passages(asked, chunks, {"d": "x"})
    assert gold == {"q": [["d#0"], []], "r": [["d#0"]]}
