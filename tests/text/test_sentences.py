"""Chunks that end where sentences end."""

import importlib.resources
import itertools
import json
import re
import unicodedata

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from support.paths import DATA
from tokenizers import models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from ark_jax.data import readers
from ark_jax.text.sentences import WINDOW, sentence_chunks
from ark_jax.text.tokens import token_chunks, token_offsets

TEXTS = importlib.resources.files("ark_jax.demo").joinpath("documents.jsonl").read_text("utf-8")
SAMPLE = [json.loads(line)["text"] for line in TEXTS.splitlines()]


def train_tokenizer(pre_tokenizer, normalizer=None) -> PreTrainedTokenizerFast:
    raw = tokenizers.Tokenizer(models.BPE(unk_token="[UNK]"))
    raw.pre_tokenizer = pre_tokenizer
    if normalizer:
        raw.normalizer = normalizer
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=["[UNK]"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    raw.train_from_iterator(SAMPLE[:2], trainer)
    return PreTrainedTokenizerFast(tokenizer_object=raw)


# Tokens of bytes hold the space before a word, and have none for a character alone; the other
# tokenizer knows no white space and gives control characters no token.
BYTES = train_tokenizer(pre_tokenizers.ByteLevel(add_prefix_space=False))
LETTERS = train_tokenizer(pre_tokenizers.BertPreTokenizer(), normalizers.BertNormalizer())
PIECES = ["One. ", "Two words! ", "a\n", "\n\n", "- item\n", "\t", "Mr. X said: “So. It is.” "]
PIECES += [
    "今天天气很好。",
    "吾輩は猫である",
    "သည်။ ",
    "ነው። ",
    "सच है। ",
    "สวัสดี",
    "한국어 문장. ",
    "🙂👨‍👩‍👧",
    "é",
    "\x00",
]
WRITTEN = st.text(max_size=60) | st.lists(st.sampled_from(PIECES), max_size=60).map("".join)


def texts_of(text: str, spans) -> list[str]:
    return [text[span.start : span.end] for span in spans]


def shared_tokens(offsets, start: int, end: int) -> int:
    return sum(first < end and start < last for first, last in offsets)


def is_inside_word(text: str, place: int) -> bool:
    """Whether the place divides a word of a script that writes spaces."""
    around = text[max(place - 1, 0) : place + 1]
    return len(around) == 2 and re.fullmatch(
        r"[^\W\u0e00-\u0eff\u1000-\u109f\u3040-\u9fff]{2}", around
    )


def begins_sentence_or_line(text: str, place: int) -> bool:
    before = text[:place].rstrip()
    ends_sentence = re.search(r"[.!?。！？።။।…][\"'”’»)\]]*$", before)
    return not before or "\n" in text[len(before) : place] or ends_sentence is not None


@pytest.mark.parametrize("tokenizer", [BYTES, LETTERS], ids=["bytes", "letters"])
@settings(deadline=None, max_examples=150)
@given(text=WRITTEN, size=st.integers(1, 40), data=st.data())
def test_chunks_are_in_order_and_hold_every_character(tokenizer, text, size, data):
    overlap = data.draw(st.integers(0, size - 1))
    breaks = data.draw(st.lists(st.integers(0, len(text)), max_size=4))
    spans = sentence_chunks(text, tokenizer, size=size, overlap=overlap, breaks=breaks)
    offsets = token_offsets(text, tokenizer)
    for span, chunk in zip(spans, texts_of(text, spans), strict=True):
        assert chunk and chunk == chunk.strip()
        assert span.tokens == shared_tokens(offsets, span.start, span.end)
        assert 0 < span.tokens <= size or is_cluster(chunk)
    for before, after in itertools.pairwise(spans):
        assert before.start < after.start and before.end < after.end, "a chunk that adds nothing"
        if after.start < before.end:
            assert shared_tokens(offsets, after.start, before.end) <= overlap
    covered = {i for span in spans for i in range(span.start, span.end)}
    with_token = {i for first, last in offsets for i in range(first, last)}
    assert [i for i in with_token - covered if not text[i].isspace()] == []


def is_cluster(chunk: str) -> bool:
    """Whether the chunk is one character with its marks or joined emoji.

    Control characters, which have no token, do not count.
    """
    rest = "".join(c for c in chunk if unicodedata.category(c) != "Cc")[1:]
    return all(unicodedata.category(c)[0] == "M" for c in rest) or "\u200d" in chunk


@settings(deadline=None, max_examples=150)
@given(
    st.lists(
        st.sampled_from(["cat", "A dog", "e.g. this", "so", "(or", "not)", "end.", "Yes!", "\n"]),
        max_size=80,
    ),
    st.integers(6, 40),
)
def test_no_chunk_begins_inside_a_word(words, size):
    text = " ".join(words)
    spans = sentence_chunks(text, BYTES, size=size, overlap=size // 4)
    assert not any(is_inside_word(text, span.start) for span in spans)


def test_the_overlap_repeats_whole_sentences():
    text = " ".join(f"Number {i} came." for i in range(10))
    one = shared_tokens(token_offsets(text, BYTES), 15, 30)
    spans = sentence_chunks(text, BYTES, size=3 * one + 2, overlap=2 * one - 1)
    assert texts_of(text, spans)[:2] == [
        "Number 0 came. Number 1 came. Number 2 came.",
        "Number 2 came. Number 3 came. Number 4 came.",
    ]
    without = sentence_chunks(text, BYTES, size=3 * one + 2, overlap=one - 1)
    assert " ".join(texts_of(text, without)) == text, "a part of a sentence is repeated"


def test_chunks_can_hold_a_number_of_sentences():
    """A sentence longer than a chunk is cut, and its parts are not chunks of their own words."""
    text = "One came. Two came. Three came. " + "and " * 60 + "it ended. Four came."
    cut = lambda n, size: texts_of(
        text, sentence_chunks(text, BYTES, size=size, overlap=9, sentences=n)
    )
    ends = [f"{'and ' * 60}it ended.", "Four came."]
    assert cut(1, 200) == ["One came.", "Two came.", "Three came.", *ends]
    assert cut(2, 200) == ["One came. Two came.", f"Three came. {ends[0]}", ends[1]]
    short = cut(1, 30)
    assert short[:3] == ["One came.", "Two came.", "Three came."] and short[-1] == "Four came."
    assert 3 < len(short) < 12 and " ".join(short) == text


@pytest.mark.parametrize(
    "sentences",
    [
        "Dr. Smith paid 3.14 dollars, e.g. for tea. |He left.",
        "He was in the U.S. in spring. |“I saw. I ran,” he said. |Then?",
        "Buy\n|- some milk\n|- some bread\n|1. one egg",
        "No full stop\n \t\n|nor here\f|but a page",
        "A line that\nwraps. |Another.",
        "今天天气很好！|他说：“你好。我走了。”|是吗？",
        "吾輩は猫である。|名前はまだ無い。",
        "မင်္ဂလာပါ။ |ကျွန်တော် မောင်ပါ။",
        "ሰላም ነው። |እንዴት ነህ፧ |ደህና ነኝ።",
        "مرحبا. |كيف حالك؟ |أنا بخير!",
        "यह एक वाक्य है। |यह दूसरा है।",
    ],
)
def test_chunks_of_every_size_begin_at_sentences(sentences):
    sentences = sentences.split("|")
    text, starts = "".join(sentences), {0, *itertools.accumulate(map(len, sentences[:-1]))}
    offsets, ends = token_offsets(text, BYTES), [*sorted(starts)[1:], len(text)]
    longest = max(
        shared_tokens(offsets, *bounds) for bounds in zip(sorted(starts), ends, strict=True)
    )
    sizes = range(longest, len(offsets))
    chunks = [sentence_chunks(text, BYTES, size=size, overlap=0) for size in sizes]
    assert {span.start for spans in chunks for span in spans} == starts


def test_abbreviations_follow_the_language():
    text = "Er aß Brot usw. und ging. Dann kam er heim."
    size = len(token_offsets("Er aß Brot usw. und ging.", BYTES))
    german = sentence_chunks(text, BYTES, size=size, overlap=0, language="de")
    assert texts_of(text, german) == ["Er aß Brot usw. und ging.", "Dann kam er heim."]
    english = sentence_chunks(text, BYTES, size=size - 2, overlap=0)
    assert texts_of(text, english)[0] == "Er aß Brot usw."


def test_an_unknown_language_is_cut_like_english():
    text = "Er aß Brot usw. und ging. Dann kam er heim."
    english = sentence_chunks(text, BYTES, size=24, overlap=0)
    assert sentence_chunks(text, BYTES, size=24, overlap=0, language="no such") == english


def test_a_long_sentence_is_cut_at_the_sentences_that_it_quotes():
    quoted = "“We went home. We slept there. Mr. Fox came. We ate him,” they said."
    chunks = texts_of(quoted, sentence_chunks(quoted, BYTES, size=14, overlap=0))
    assert all(begins_sentence_or_line(quoted, quoted.index(chunk)) for chunk in chunks)
    assert len(chunks) > 2 and not any(chunk.startswith("Fox") for chunk in chunks)


def test_lines_without_full_stops_are_cut_at_line_breaks():
    table = "\n".join(f"key{i} = value{i}" for i in range(40))
    chunks = texts_of(table, sentence_chunks(table, BYTES, size=40, overlap=5))
    assert len(chunks) > 1 and all(chunk.startswith("key") for chunk in chunks)


def test_text_without_spaces_is_cut_between_whole_characters():
    thai = "สวัสดีครับผมชื่อสมชายวันนี้อากาศดี" * 5
    chunks = texts_of(thai, sentence_chunks(thai, BYTES, size=30, overlap=0))
    assert "".join(chunks) == thai and len(chunks) > 10
    assert not any(unicodedata.category(chunk[0]).startswith("M") for chunk in chunks)


def test_text_without_full_stops_is_cut_between_words():
    korean = "한국어 문장은 띄어쓰기가 있다 " * 20
    chunks = texts_of(korean, sentence_chunks(korean, BYTES, size=40, overlap=0))
    assert len(chunks) > 1 and {chunk.split()[0] for chunk in chunks} <= set(korean.split())


def test_headings_begin_chunks_and_never_end_them():
    section = "It was a long day. " * 6
    text = f"{section}\nThe sea\n{section}\nA. B. Land\nHere\n{section}"
    headings = [text.index("The sea"), text.index("A. B. Land"), text.index("Here")]
    tokens = shared_tokens(token_offsets(text, BYTES), 0, len(section))
    size = tokens + tokens // 2
    spans = sentence_chunks(text, BYTES, size=size, overlap=tokens // 3, breaks=headings)
    assert [span.start for span in spans] == [0, headings[0], headings[1]]
    for size in range(tokens // 2, 3 * tokens, 5):
        spans = sentence_chunks(text, BYTES, size=size, overlap=4, breaks=headings)
        for chunk in texts_of(text, spans):
            assert not chunk.endswith(("The sea", "A. B. Land", "Here"))


def test_the_last_two_chunks_have_similar_sizes():
    text = " ".join(f"Sentence {'abcdefghijk'[i]} is here." for i in range(11))
    tokens = len(token_offsets(text, BYTES))
    *_, before, last = sentence_chunks(text, BYTES, size=tokens * 10 // 11 + 1, overlap=0)
    assert last.tokens / before.tokens > 0.8 and before.end < last.start


@pytest.mark.parametrize("tokenizer", [BYTES, LETTERS], ids=["bytes", "letters"])
@pytest.mark.parametrize(
    "text",
    [
        *("", " ", "\n" * 100_000, " " * 100_000, "\x00", "a", "." * 9_999, "?! " * 9_999),
        *("x" * 100_000, "x\n" * 9_999, "“" * 9_999, "x" + " \n" * 50_000 + "y", "(a. " * 9_999),
    ],
    ids=lambda text: f"{text[:3]!r} {len(text)}",
)
def test_unusual_texts_are_covered_by_chunks_within_the_size(tokenizer, text):
    spans = sentence_chunks(text, tokenizer, size=64, overlap=8)
    covered = "".join(texts_of(text, sentence_chunks(text, tokenizer, size=64, overlap=0)))
    assert all(0 < span.tokens <= 64 for span in spans) or text == "\x00"
    expected = "" if text == "\x00" and not spans else text
    assert "".join(covered.split()) == "".join(expected.split())


def test_sentences_longer_than_a_window_are_kept_whole():
    for stop in (". ", "。"):
        text = stop.join(
            ["word " * (WINDOW // 3) + "x", "Short", "word " * WINDOW + "y", "Short", "Last"]
        )
        tokens = len(token_offsets(text, BYTES))
        spans = sentence_chunks(text, BYTES, size=tokens, overlap=0)
        assert texts_of(text, spans) == [text]
        starts = {s.start for s in sentence_chunks(text, BYTES, size=tokens - 1, overlap=0)}
        assert all(text[:start].rstrip().endswith(stop.strip()) for start in starts - {0})


@pytest.mark.parametrize("overlap", [-1, 4, 5])
def test_an_overlap_outside_its_bounds_is_refused(overlap):
    with pytest.raises(ValueError, match=f"overlap {overlap} must be at least 0 and below"):
        sentence_chunks("a text", BYTES, size=4, overlap=overlap)


def real_texts(name: str) -> list[str]:
    path = DATA / name
    if not path.is_dir():
        pytest.skip(f"{path} is absent: set ARK_DATA to cut real texts")
    if name == "fairytaleqa":
        stories = readers.load(path / "section-stories" / "val")
        return [document.text for document in stories.documents]
    return [(path / "mock_data.txt").read_text(encoding="utf-8")]


@pytest.mark.parametrize(("name", "chunks"), [("fairytaleqa", 500), ("christmas_carol", 400)])
@pytest.mark.parametrize("tokenizer", [BYTES, LETTERS], ids=["bytes", "letters"])
def test_nearly_all_chunks_of_real_texts_begin_at_a_sentence(tokenizer, name, chunks):
    begins = {sentence_chunks: [], token_chunks: []}
    for (cut, places), text in itertools.product(begins.items(), real_texts(name)):
        for span in cut(text, tokenizer, size=160, overlap=16):
            assert cut is token_chunks or span.tokens <= 160
            inside = bool(is_inside_word(text, span.start))
            places.append((inside, begins_sentence_or_line(text, span.start)))
    inside, sentences = (sum(column) for column in zip(*begins[sentence_chunks], strict=True))
    assert inside == 0 and sentences > 0.98 * len(begins[sentence_chunks]) > 0.98 * chunks
    inside, sentences = (sum(column) for column in zip(*begins[token_chunks], strict=True))
    assert inside > 0 and sentences < 0.3 * len(begins[token_chunks]), "nothing was to be gained"
