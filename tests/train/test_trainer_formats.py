"""Rows for other trainers, by hand and as those trainers read them."""

import itertools
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import tiny
from support.trainer_examples import EXAMPLES, PASSAGES, QUESTIONS, WITHOUT, rows_in_form

from ark_jax.train import trainer_formats
from ark_jax.train.batches import Example


def test_sentence_transformers_rows_equal_examples_written_by_hand():
    assert rows_in_form("sentence-transformers") == [
        {
            "anchor": "who?",
            "positive": "Text\nB",
            "negative_1": "Text E",
            "negative_2": "Text C",
            "negative_3": "Text D",
        },
        {
            "anchor": "who?",
            "positive": "Text A",
            "negative_1": "Text E",
            "negative_2": "Text C",
            "negative_3": "Text D",
        },
        {
            "anchor": "ẅhere 🌊?",
            "positive": "Text C",
            "negative_1": "Text A",
            "negative_2": "Text\nB",
            "negative_3": "Text A",
        },
    ]
    # Its losses take columns by their order.
    assert list(rows_in_form("sentence-transformers")[0]) == [
        "anchor",
        "positive",
        "negative_1",
        "negative_2",
        "negative_3",
    ]
    assert rows_in_form("sentence-transformers", WITHOUT)[2:] == [
        {"anchor": "ẅhere 🌊?", "positive": "Text C"},
        {"anchor": "why?", "positive": "Text D"},
    ]


def test_flagembedding_rows_equal_examples_written_by_hand():
    assert rows_in_form("flagembedding") == [
        {
            "query": "who?",
            "pos": ["Text\nB", "Text A"],
            "neg": ["Text E", "Text C", "Text D"],
            "question_id": "q1",
            "pos_id": ["b", "a"],
            "neg_id": ["e", "c", "d"],
        },
        {
            "query": "ẅhere 🌊?",
            "pos": ["Text C"],
            "neg": ["Text A", "Text\nB"],
            "question_id": "q2",
            "pos_id": ["c"],
            "neg_id": ["a", "b"],
        },
    ]
    assert rows_in_form("flagembedding", WITHOUT)[2] == {
        "query": "why?",
        "pos": ["Text D"],
        "neg": [],
        "question_id": "q3",
        "pos_id": ["d"],
        "neg_id": [],
    }


def test_ms_swift_rows_equal_examples_written_by_hand():
    said = lambda text: [{"role": "user", "content": text}]
    rows = rows_in_form("ms-swift")
    assert [(row["question_id"], row["positive_id"]) for row in rows] == [
        ("q1", "b"),
        ("q1", "a"),
        ("q2", "c"),
        ("q3", "d"),
    ]
    assert rows[2] == {
        "messages": said("ẅhere 🌊?"),
        "positive_messages": [said("Text C")],
        "negative_messages": [said("Text A"), said("Text\nB")],
        "question_id": "q2",
        "positive_id": "c",
        "negative_id": ["a", "b"],
    }
    # Left out where there is none, as its manual has it.
    assert "negative_messages" not in rows[3] and not any(
        "negative_messages" in row for row in rows_in_form("ms-swift", WITHOUT)
    )


def test_an_unknown_trainer_is_named():
    with pytest.raises(
        ValueError,
        match="format 'tevatron': must be one of sentence-transformers, flagembedding, ms-swift",
    ):
        rows_in_form("tevatron")


CHUNKS = st.lists(st.sampled_from("abcde"), unique=True)


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from(list(QUESTIONS)), CHUNKS.filter(bool), CHUNKS)))
def test_every_format_holds_the_same_pairs(drawn):
    examples = [Example(q, "", tuple(p), tuple(n)) for q, p, n in drawn]
    anchors, flag, swift = (rows_in_form(form, examples) for form in trainer_formats.FORMATS)
    assert (
        len({tuple(row) for row in anchors}) <= 1
        and len({"neg" in row and bool(row["neg"]) for row in flag}) <= 1
    )
    text = lambda messages: messages[0]["content"]
    pairs = [
        (QUESTIONS[e.question], PASSAGES[p], {PASSAGES[n] for n in e.negatives})
        for e in examples
        for p in e.positives
    ]
    assert [
        (
            text(r["messages"]),
            text(r["positive_messages"][0]),
            set(map(text, r.get("negative_messages", ()))),
        )
        for r in swift
    ] == pairs
    if any(e.negatives for e in examples):
        pairs = [pair for pair in pairs if pair[2]]
    assert [
        (r["anchor"], r["positive"], {t for name, t in r.items() if name.startswith("negative_")})
        for r in anchors
    ] == pairs
    assert [(r["query"], pos, set(r["neg"])) for r in flag for pos in r["pos"]] == pairs
    for row in flag:
        assert [PASSAGES[id] for id in (*row["pos_id"], *row["neg_id"])] == row["pos"] + row["neg"]
        assert QUESTIONS[row["question_id"]] == row["query"]


def as_dataset(rows: list[dict], folder: Path):
    datasets = pytest.importorskip(
        "datasets", reason="pip install datasets to read the JSONL as trainers do"
    )
    (folder / "rows.jsonl").write_text(
        "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8"
    )
    return datasets.load_dataset(
        "json",
        data_files=str(folder / "rows.jsonl"),
        split="train",
        cache_dir=str(folder / "cache"),
    )


@pytest.mark.parametrize("examples", [EXAMPLES, WITHOUT], ids=["hard", "in batch"])
def test_sentence_transformers_trains_on_our_rows(examples, tmp_path):
    library = pytest.importorskip(
        "sentence_transformers", reason="the reference trainer; extra [reference] is not installed"
    )
    pytest.importorskip("accelerate", reason="sentence-transformers trains with it")
    path = tiny.sentence_transformer(
        tiny.write(tmp_path / "model", "bert", tokenizer="cls"), pooling="mean", max_seq_length=32
    )
    model = library.SentenceTransformer(str(path), device="cpu")
    rows = as_dataset(rows_in_form("sentence-transformers", examples), tmp_path)
    assert rows.column_names == [
        "anchor",
        "positive",
        *([f"negative_{i}" for i in (1, 2, 3)] if examples is EXAMPLES else []),
    ]
    seen, loss = [], library.sentence_transformer.losses.MultipleNegativesRankingLoss(model)
    loss.register_forward_pre_hook(lambda module, arguments: seen.append(len(list(arguments[0]))))
    settings = library.SentenceTransformerTrainingArguments(
        str(tmp_path / "out"),
        max_steps=1,
        per_device_train_batch_size=2,
        report_to=[],
        save_strategy="no",
        use_cpu=True,
        logging_steps=1,
        disable_tqdm=True,
        batch_sampler="no_duplicates",
    )
    trainer = library.SentenceTransformerTrainer(model, settings, train_dataset=rows, loss=loss)
    trainer.train()
    assert set(seen) == {len(rows.column_names)}
    losses = [row["loss"] for row in trainer.state.log_history if "loss" in row]
    assert len(losses) == 1 and 0 < losses[0] < 100


@pytest.mark.parametrize(("examples", "group"), [(EXAMPLES, 5), (WITHOUT, 1)])
def test_flagembedding_can_form_its_groups_from_our_rows(examples, group, tmp_path):
    """Its rule, from FlagEmbedding/abc/finetune/embedder/AbsDataset.py.

    A group is a positive and train_group_size - 1 negatives, which are repeated if they are fewer,
    but one there must be. Columns that it does not know are not touched; those that it reads
    besides must not be ours.
    """
    rows = as_dataset(rows_in_form("flagembedding", examples), tmp_path)
    assert not set(rows.column_names) & {"prompt", "type", "batch_size", "pos_scores", "neg_scores"}
    for row in rows:
        assert isinstance(row["query"], str) and row["pos"] and isinstance(row["neg"], list)
        assert group == 1 or row["neg"]
        taken = [row["pos"][0], *itertools.islice(itertools.cycle(row["neg"]), group - 1)]
        assert len(taken) == group and all(isinstance(text, str) for text in taken)


@pytest.mark.parametrize("examples", [EXAMPLES, WITHOUT], ids=["hard", "in batch"])
def test_ms_swift_finds_its_columns_in_our_rows(examples, tmp_path):
    """Its rules, from swift/dataset/preprocessor/core.py and from its manual.

    The manual's page is that on embedding training, of release 3.11.
    """
    rows = as_dataset(rows_in_form("ms-swift", examples), tmp_path)
    standard = {
        prefix + name
        for prefix in ("", "rejected_", "positive_", "negative_")
        for name in ("messages", "images", "videos", "audios", "tools", "objects")
    }
    read = standard | {
        "rejected_response",
        "label",
        "channel",
        "margin",
        "loss_scale",
        "system",
        "solution",
    }
    wanted = {"messages", "positive_messages", "negative_messages"} - (
        {"negative_messages"} if examples is WITHOUT else set()
    )
    assert set(rows.column_names) & read == wanted
    for row in rows:
        assert len(row["positive_messages"]) == 1  # exactly one, the manual says
        for message in itertools.chain(
            row["messages"], *row["positive_messages"], *(row.get("negative_messages") or [])
        ):
            assert (
                message["role"] == "user"
                and isinstance(message["content"], str)
                and set(message) == {"role", "content"}
            )
