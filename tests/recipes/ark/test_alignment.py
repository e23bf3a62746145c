"""Alignment: scores, positives and the choice of questions, by hand."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import tiny

from ark_jax import LanguageModel, Retriever
from ark_jax.data.records import Chunk, Question
from ark_jax.recipes.ark import alignment
from ark_jax.recipes.ark.alignment import Weighing, load_templates

PAPER = Weighing(answers="max", normalise="none", forward=1.0, backward=0.3, retriever=1.0)


def weighing(**changes) -> Weighing:
    return Weighing(**{**vars(PAPER), **changes})


def scores(*rows: tuple) -> pa.Table:
    """Rows of (question, chunk, answer, forward, backward, retriever, chunk tokens)."""
    names = ("question", "chunk", "answer", "forward", "backward", "retriever", "chunk_tokens")
    filled = {"forward_tokens": 1, "backward_tokens": 1, "cut": False}
    return pa.Table.from_pylist(
        [{**dict(zip(names, row, strict=True)), **filled} for row in rows], schema=alignment.SCHEMA
    )


# Halves and quarters, so that float32 columns hold them exactly.
TABLE = scores(
    ("q", "a", 0, -2.0, -1.0, 0.5, 100),
    ("q", "a", 1, -1.0, -3.0, 0.5, 100),
    ("q", "b", 0, -4.0, -2.0, 0.25, 5),
    ("q", "b", 1, -6.0, -1.0, 0.25, 5),
    ("q", "c", 0, -3.0, -1.5, 1.0, 20),
    ("q", "c", 1, -3.0, -1.5, 1.0, 20),
    ("other", "a", 0, -8.0, -8.0, 0.0, 100),
)


def unified(table: pa.Table, **changes) -> dict[str, dict[str, float]]:
    """question -> chunk -> S."""
    out: dict[str, dict[str, float]] = {}
    for row in alignment.unify(table, weighing(**changes)).to_pylist():
        out.setdefault(row["question"], {})[row["chunk"]] = row["score"]
    return out


@pytest.mark.parametrize(
    "changes, expected",
    [
        # forward + 0.3 backward + cosine, each the best over the two answers
        ({}, {"a": -1.0 - 0.3 + 0.5, "b": -4.0 - 0.3 + 0.25, "c": -3.0 - 0.45 + 1.0}),
        (
            {"answers": "first"},
            {"a": -2.0 - 0.3 + 0.5, "b": -4.0 - 0.6 + 0.25, "c": -3.0 - 0.45 + 1.0},
        ),
        (
            {"answers": "mean"},
            {"a": -1.5 - 0.6 + 0.5, "b": -5.0 - 0.45 + 0.25, "c": -3.0 - 0.45 + 1.0},
        ),
        (
            {"answers": "first", "forward": 0.5, "backward": 2.0, "retriever": 4.0},
            {"a": -1.0 - 2.0 + 2.0, "b": -2.0 - 4.0 + 1.0, "c": -1.5 - 3.0 + 4.0},
        ),
        # minmax over a, b, c: forward -2 -4 -3, backward -1 -2 -1.5, cosine 0.5 0.25 1
        (
            {"answers": "first", "normalise": "minmax", "backward": 0.5},
            {"a": 1 + 0.5 + 1 / 3, "b": 0.0, "c": 0.5 + 0.25 + 1},
        ),
        # c has 20 tokens; generate_pos.py:580-585, score *= tokens / 10 if tokens < 10
        (
            {"answers": "first", "normalise": "minmax", "backward": 0.5, "short": 40},
            {"a": 1 + 0.5 + 1 / 3, "b": 0.0, "c": (0.5 + 0.25 + 1) * 20 / 40},
        ),
    ],
)
def test_alignment_scores_equal_values_computed_by_hand(changes, expected):
    scores = unified(TABLE, **changes)
    assert scores["q"] == pytest.approx(expected, abs=1e-6)
    assert list(scores) == ["q", "other"]


def test_min_max_gives_one_half_to_a_single_chunk():
    """Min-max over no spread has no answer; a half takes no side."""
    assert unified(TABLE, answers="first", normalise="minmax")["other"] == {
        "a": pytest.approx(0.5 + 0.15 + 0.5)
    }


def test_the_best_and_mean_scores_over_answers_are_stored():
    row = alignment.unify(TABLE, weighing(answers="first")).to_pylist()[0]
    assert row == {
        "question": "q",
        "chunk": "a",
        "score": pytest.approx(-1.8),
        "retriever": 0.5,
        "forward_max": -1.0,
        "forward_mean": -1.5,
        "backward_max": -1.0,
        "backward_mean": -2.0,
    }


@pytest.mark.parametrize("changes", [{"answers": "last"}, {"normalise": "zscore"}])
def test_an_unknown_weighing_is_refused(changes):
    ((field, value),) = changes.items()
    with pytest.raises(ValueError, match=f"score.{field}='{value}'"):
        alignment.unify(TABLE, weighing(**changes))


def test_the_best_chunks_are_selected_with_ties_in_order_of_id():
    scores = {"q": {"d#2": 1.0, "d#10": 1.0, "d#0": -1.0, "d#1": 2.0}, "r": {"d#0": 0.0}}
    rows = [
        {"question": q, "chunk": chunk, "score": score}
        for q, by_chunk in scores.items()
        for chunk, score in by_chunk.items()
    ]
    assert alignment.top_chunks(rows, 2) == {"q": ["d#1", "d#10"], "r": ["d#0"]}
    assert alignment.top_chunks(rows)["q"] == ["d#1", "d#10", "d#2", "d#0"]


@given(
    st.lists(
        st.tuples(st.sampled_from("rqs"), st.integers(0, 9), st.integers(-2, 2)), max_size=300
    ),
    st.sampled_from([None, 1, 3, 200]),
)
def test_the_best_chunks_equal_those_of_a_full_sort(ranked, count):
    rows = [{"question": q, "chunk": f"d#{i}", "score": x / 4} for q, i, x in ranked]
    plain: dict[str, list[str]] = {}
    for row in sorted(rows, key=lambda row: (row["question"], -row["score"], row["chunk"])):
        plain.setdefault(row["question"], []).append(row["chunk"])
    best = alignment.top_chunks(iter(rows), count)
    assert list(best.items()) == [(q, chunks[:count]) for q, chunks in plain.items()]


@given(
    st.lists(
        st.tuples(
            st.sampled_from("qrs"),
            st.sampled_from("abc"),
            st.integers(0, 2),
            *[st.integers(-40, 0).map(lambda x: x / 4)] * 3,
            st.just(9),
        ),
        min_size=1,
        max_size=30,
    ),
    st.sampled_from(["first", "max", "mean"]),
    st.sampled_from(["none", "minmax"]),
    st.sampled_from([1, 4, alignment.BLOCK]),
)
def test_unifying_in_blocks_equals_unifying_in_memory(rows, answers, normalise, block):
    """As if all rows were in memory: questions and chunks in the order of their first row."""
    table, chosen = scores(*rows), weighing(answers=answers, normalise=normalise)
    groups: dict[str, dict[str, list[dict]]] = {}
    for row in table.to_pylist():
        groups.setdefault(row["question"], {}).setdefault(row["chunk"], []).append(row)
    wanted = []
    for question, chunks in groups.items():
        values = alignment._weigh(chunks, chosen)
        for (chunk, raw), score in zip(chunks.items(), values.tolist(), strict=True):
            row = {"question": question, "chunk": chunk, "score": score}
            wanted.append(row | {"retriever": raw[0]["retriever"]} | alignment._summaries(raw))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(alignment, "BLOCK", block)
        unified = alignment.unify(table, chosen)
    assert unified.to_pylist() == wanted
    # The stored table has the columns and types of these rows.
    plain = pa.table({name: [row[name] for row in wanted] for name in wanted[0]})
    assert unified.schema == plain.schema


def test_the_questions_with_the_clearest_positives_are_kept():
    scores = {
        "clear": (-1, -3, -3),
        "tied": (-1, -1, -4),
        "near": (-1.0, -1.2, -1.5),
        "alone": (-9,),
    }
    rows = [
        {"question": q, "chunk": f"{q}#{i}", "score": x}
        for q, by_place in scores.items()
        for i, x in enumerate(by_place)
    ]
    one, two = alignment.top_chunks(rows, 1), alignment.top_chunks(rows, 2)
    assert alignment.keep_clearest(rows, one, 1.0) == one
    assert list(alignment.keep_clearest(rows, one, 0.75)) == ["alone", "clear", "near"]
    assert list(alignment.keep_clearest(rows, one, 0.5)) == ["alone", "clear"]
    assert list(alignment.keep_clearest(rows, two, 0.5)) == [
        "alone",
        "tied",
    ]  # -1 and -4, where clear has -3 and -3
    assert alignment.keep_clearest(rows, two, 0.01) == {"alone": ["alone#0"]}
    for keep in (0, -0.1, 1.1):
        with pytest.raises(ValueError, match=r"config\.score\.keep"):
            alignment.keep_clearest(rows, one, keep)


# --- negatives -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def byte_level_folder(tmp_path_factory):
    return tiny.write(tmp_path_factory.mktemp("decoder"), "qwen3", tokenizer="plain")


# A sentence each, repeated: up to three tokens a character in a byte-level vocabulary.
SCRIPTS = {
    "Burmese": "ရေတိုင်းတာရေးရုံးသည် နေ့စဉ် ဒီရေကို မှတ်တမ်းတင်ခဲ့သည်။ ",
    "Amharic": "የጽሕፈት ቤቱ ሠራተኞች በየቀኑ የውኃውን ከፍታ ይመዘግቡ ነበር። ",
    "Chinese": "測量局的職員每隔一刻鐘記錄一次潮位。",
    "Arabic": "كان موظفو المكتب يسجلون ارتفاع المد كل ربع ساعة. ",
    "emoji": "🌊⏱️📈👩🏽‍🔬🏴󠁧󠁢󠁳󠁣󠁴󠁿",
    "mixed": "tide 潮 ရေ ውኃ 🌊 مد — ",
}


def one_candidate(text: str, question: str, answer: str):
    """The arguments of `align` for one question with one chunk."""
    asking = Question("q1", question, (answer,), ("d",))
    return [asking], {"q1": [(Chunk("d#0", "d", 0, len(text), 9, text), 0.5)]}


@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize("limit", [200, 333])
def test_passages_of_any_script_are_cut_to_fit(byte_level_folder, mesh, script, limit):
    sentence = SCRIPTS[script]
    lm = LanguageModel.from_pretrained(byte_level_folder)
    lm = dataclasses.replace(lm, max_length=limit)
    templates = {"forward": "{passage} ? {question} = {answer}", "backward": "{passage} {question}"}
    fields = {"question": sentence[:12], "answer": sentence[:6]}
    questions, candidates = one_candidate(sentence * 20, **fields)
    table = alignment.align(
        lm, templates, questions, candidates, references=0, batch_tokens=0, label=""
    )
    row = table.to_pylist()[0]
    assert row["cut"] and np.isfinite([row["forward"], row["backward"]]).all()
    fitter = alignment._PassageFitter(lm, templates)
    passage = fitter.fit(sentence * 20, fields, "q1")
    longer = (sentence * 20)[: len(passage) + 8]
    assert fitter._prompt_tokens(passage, fields) <= limit < fitter._prompt_tokens(longer, fields)


def test_a_question_without_room_for_a_passage_is_named(byte_level_folder, mesh):
    lm = dataclasses.replace(LanguageModel.from_pretrained(byte_level_folder), max_length=40)
    questions, candidates = one_candidate("The tide.", SCRIPTS["Amharic"], "the tide")
    message = r"'q1', answer 0, chunk 'd#0': question, answer and prompt take \d+ of the 40 tokens"
    with pytest.raises(ValueError, match=message):
        alignment.align(
            lm, load_templates({}), questions, candidates, references=0, batch_tokens=0, label=""
        )


def test_a_non_finite_score_is_reported_with_question_and_chunk(byte_level_folder, mesh):
    lm = LanguageModel.from_pretrained(byte_level_folder)
    norm = lm.model.norm
    norm[...] = norm[...].at[3].set(jnp.nan)
    questions, candidates = one_candidate("The tide.", "What rose?", "the tide")
    with pytest.raises(ValueError, match=r"'q1', answer 0, chunk 'd#0'.*p\(answer\).* nan; a we"):
        alignment.align(
            lm, load_templates({}), questions, candidates, references=0, batch_tokens=0, label=""
        )
    for temperature in (0.0, 0.7):
        with pytest.raises(FloatingPointError, match=r"prompt 0: the logits of token 0 are NaN"):
            lm.generate(["The tide"], max_new_tokens=20, temperature=temperature)


def test_a_non_finite_vector_is_reported_with_its_text(tmp_path, mesh):
    retriever = Retriever.from_pretrained(tiny.write(tmp_path / "encoder", "bert", tokenizer="cls"))
    with_it, without = retriever.tokenize(["The harbour", "The tide"], kind="document")
    token = (set(with_it) - set(without)).pop()
    embed = retriever.model.embed
    embed[...] = embed[...].at[token].set(jnp.inf)
    with pytest.raises(FloatingPointError, match=r"document 1 \('The harbour'\): its vector holds"):
        retriever.encode(["The tide", "The harbour"], kind="document")
