"""Training data for other trainers: the rows by hand, in what those trainers read with, and from a workdir by the command."""  # noqa: E501

import dataclasses
import itertools
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import tiny

from ark_jax.data.records import Chunk, Question
from ark_jax.pipeline import engine
from ark_jax.pipeline.tables import save_rows
from ark_jax.recipes.ark import config, training_data
from ark_jax.recipes.ark.recipe import stages
from ark_jax.recipes.common.corpus import save_chunks
from ark_jax.runtime.log import Metrics
from ark_jax.train import trainer_formats
from ark_jax.train.batches import Example

QUESTIONS = {"q1": "who?", "q2": "ẅhere 🌊?", "q3": "why?"}
PASSAGES = {"a": "Text A", "b": "Text\nB", "c": "Text C", "d": "Text D", "e": "Text E"}
EXAMPLES = [
    Example("q1", "", ("b", "a"), ("e", "c", "d")),
    Example("q2", "", ("c",), ("a", "b")),
    Example("q3", "", ("d",), ()),
]
WITHOUT = [dataclasses.replace(e, negatives=()) for e in EXAMPLES]


def made(form: str, examples=EXAMPLES) -> list[dict]:
    return list(trainer_formats.format_rows(form, examples, QUESTIONS, PASSAGES))


def test_sentence_transformers_by_hand():
    assert made("sentence-transformers") == [
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
    assert list(made("sentence-transformers")[0]) == [
        "anchor",
        "positive",
        "negative_1",
        "negative_2",
        "negative_3",
    ]
    assert made("sentence-transformers", WITHOUT)[2:] == [
        {"anchor": "ẅhere 🌊?", "positive": "Text C"},
        {"anchor": "why?", "positive": "Text D"},
    ]


def test_flagembedding_by_hand():
    assert made("flagembedding") == [
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
    assert made("flagembedding", WITHOUT)[2] == {
        "query": "why?",
        "pos": ["Text D"],
        "neg": [],
        "question_id": "q3",
        "pos_id": ["d"],
        "neg_id": [],
    }


def test_ms_swift_by_hand():
    said = lambda text: [{"role": "user", "content": text}]
    rows = made("ms-swift")
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
        "negative_messages" in row for row in made("ms-swift", WITHOUT)
    )


def test_an_unknown_trainer_is_named():
    with pytest.raises(
        ValueError,
        match="format 'tevatron': must be one of sentence-transformers, flagembedding, ms-swift",
    ):
        made("tevatron")


CHUNKS = st.lists(st.sampled_from("abcde"), unique=True)


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from(list(QUESTIONS)), CHUNKS.filter(bool), CHUNKS)))
def test_every_format_holds_the_same_pairs(drawn):
    examples = [Example(q, "", tuple(p), tuple(n)) for q, p, n in drawn]
    anchors, flag, swift = (made(form, examples) for form in trainer_formats.FORMATS)
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


# --- what the trainers read with -------------------------------------------------------------------------------------  # noqa: E501


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
def test_sentence_transformers_trains_on_it(examples, tmp_path):
    library = pytest.importorskip(
        "sentence_transformers", reason="the reference trainer; extra [reference] is not installed"
    )
    pytest.importorskip("accelerate", reason="sentence-transformers trains with it")
    path = tiny.sentence_transformer(
        tiny.write(tmp_path / "model", "bert", tokenizer="cls"), pooling="mean", max_seq_length=32
    )
    model = library.SentenceTransformer(str(path), device="cpu")
    rows = as_dataset(made("sentence-transformers", examples), tmp_path)
    assert rows.column_names == [
        "anchor",
        "positive",
        *([f"negative_{i}" for i in (1, 2, 3)] if examples is EXAMPLES else []),
    ]
    seen, loss = [], library.sentence_transformer.losses.MultipleNegativesRankingLoss(model)
    loss.register_forward_pre_hook(lambda module, given: seen.append(len(list(given[0]))))
    told = library.SentenceTransformerTrainingArguments(
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
    trainer = library.SentenceTransformerTrainer(model, told, train_dataset=rows, loss=loss)
    trainer.train()
    assert set(seen) == {len(rows.column_names)}
    losses = [row["loss"] for row in trainer.state.log_history if "loss" in row]
    assert len(losses) == 1 and 0 < losses[0] < 100


@pytest.mark.parametrize(("examples", "group"), [(EXAMPLES, 5), (WITHOUT, 1)])
def test_flagembedding_takes_its_groups_from_it(examples, group, tmp_path):
    """Its rule, from FlagEmbedding/abc/finetune/embedder/AbsDataset.py: a positive, and train_group_size - 1 negatives, repeated
    where there are fewer; one at least. Columns it knows nothing of are not touched, those it reads must not be ours."""  # noqa: E501
    rows = as_dataset(made("flagembedding", examples), tmp_path)
    assert not set(rows.column_names) & {"prompt", "type", "batch_size", "pos_scores", "neg_scores"}
    for row in rows:
        assert isinstance(row["query"], str) and row["pos"] and isinstance(row["neg"], list)
        assert group == 1 or row["neg"]
        taken = [row["pos"][0], *itertools.islice(itertools.cycle(row["neg"]), group - 1)]
        assert len(taken) == group and all(isinstance(text, str) for text in taken)


@pytest.mark.parametrize("examples", [EXAMPLES, WITHOUT], ids=["hard", "in batch"])
def test_ms_swift_finds_its_columns(examples, tmp_path):
    """Its rules, from swift/dataset/preprocessor/core.py and the manual's page on embedding training of release 3.11."""  # noqa: E501
    rows = as_dataset(made("ms-swift", examples), tmp_path)
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


# --- the command -----------------------------------------------------------------------------------------------------  # noqa: E501


@pytest.fixture
def workdir(tmp_path):
    """`workdir(until)` -> a config and a workdir in which the stages before `until` are done, by functions that only pretend."""  # noqa: E501
    (tmp_path / "input.jsonl").write_text("")
    c = config.ark()
    c.data.path, c.retriever.path, c.generator.path = (
        str(tmp_path / "input.jsonl"),
        "nobody/retriever",
        "nobody/generator",
    )

    def run(name: str, context, folder: Path) -> dict:
        if name == "data":
            asked = [Question(id, text, ("x",), ("doc",)) for id, text in QUESTIONS.items()]
            save_rows(asked, folder / "questions_train.parquet")
            save_chunks([Chunk(id, "doc", 0, 0, 0, text) for id, text in PASSAGES.items()], folder)
        if name == "positives":
            save_rows(
                [
                    {"question": e.question, "chunk": chunk, "score": -float(i), "positive": True}
                    for e in EXAMPLES
                    for i, chunk in enumerate(e.positives)
                ],
                folder / "positives.parquet",
            )
        if name == "mine3":
            save_rows(
                [
                    {"question": e.question, "chunk": chunk, "mined_by": 0.5, "cosine": 0.5}
                    for e in EXAMPLES
                    for chunk in e.negatives
                ],
                folder / "negatives.parquet",
            )
        if name == "mine2":
            save_rows(
                [{"question": "q3", "chunk": "a", "mined_by": 0.5, "cosine": 0.5}],
                folder / "negatives.parquet",
            )
        return {}

    def make(until: str = "") -> tuple:
        every = [
            dataclasses.replace(
                stage, run=lambda *given, name=stage.name: run(name, *given), alone=True
            )
            for stage in stages(c)
        ]
        done = itertools.takewhile(lambda stage: stage.name != until, every)
        engine.run(
            list(done), engine.Context(c, tmp_path / "run", Metrics(tmp_path / "metrics.jsonl"))
        )
        return c, tmp_path / "run"

    return make


def context_of(c, workdir: Path) -> engine.Context:
    return engine.Context(c, workdir, Metrics(workdir / "metrics.jsonl"))


@pytest.mark.parametrize("form", trainer_formats.FORMATS)
def test_each_stage_has_a_file_of_what_it_is_trained_on(form, workdir, capsys):
    c, folder = workdir("stage3")  # only what it builds on is needed, not the stage itself
    capsys.readouterr()
    training_data.write_training_files(context_of(c, folder), form, stages(c))
    said = capsys.readouterr().out.splitlines()
    found = {
        path.name: [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        for path in (folder / f"export-{form}").iterdir()
    }
    second = [
        dataclasses.replace(e, negatives=("a",) if e.question == "q3" else ()) for e in EXAMPLES
    ]
    assert found == {
        "stage1.jsonl": made(form, WITHOUT),
        "stage2.jsonl": made(form, second),
        "stage3.jsonl": made(form),
    }
    assert [line.split(": ", 1)[1] for line in said] == {
        "sentence-transformers": [
            "4 rows of 3 questions, no hard negatives",
            "1 rows of 1 questions, 1 hard negatives each; 2 questions without a hard negative are left out, "  # noqa: E501
            "sentence-transformers has no place for them beside the others",
            "3 rows of 2 questions, up to 3 hard negatives each; those of 1 questions are repeated to fill the columns; "  # noqa: E501
            "1 questions without a hard negative are left out, sentence-transformers has no place for them beside the others",  # noqa: E501
        ],
        "flagembedding": [
            "3 rows of 3 questions, no hard negatives",
            "1 rows of 1 questions, 1 hard negatives each; 2 questions without a hard negative are left out, "  # noqa: E501
            "flagembedding has no place for them beside the others",
            "2 rows of 2 questions, up to 3 hard negatives each; 1 questions without a hard negative are left out, "  # noqa: E501
            "flagembedding has no place for them beside the others",
        ],
        "ms-swift": [
            "4 rows of 3 questions, no hard negatives",
            "4 rows of 3 questions, up to 1 hard negatives each",
            "4 rows of 3 questions, up to 3 hard negatives each",
        ],
    }[form]
    training_data.write_training_files(
        context_of(c, folder), form, stages(c)
    )  # again, over what is there
    assert sorted(path.name for path in (folder / f"export-{form}").iterdir()) == [
        "stage1.jsonl",
        "stage2.jsonl",
        "stage3.jsonl",
    ]


@pytest.mark.parametrize(
    ("until", "change", "told"),
    [
        (
            "data",
            {},
            "stage 1 is trained on what data makes, which is missing: run `ark-jax data` or `ark-jax run` first",  # noqa: E501
        ),
        (
            "mine3",
            {},
            "stage 3 is trained on what mine3 makes, which is missing: run `ark-jax mine3` or",
        ),
        (
            "stage3",
            {"score.positives": 3},
            r"positives makes, which is stale \(config.score.positives was 2, is 3\): run ",
        ),
    ],
)
def test_what_is_not_there_yet_is_named_and_nothing_is_written(until, change, told, workdir):
    c, folder = workdir(until)
    c.update_from_flattened_dict(change)
    with pytest.raises(engine.Interrupted, match=told):
        training_data.write_training_files(context_of(c, folder), "flagembedding", stages(c))
    assert not list(folder.glob("export*"))


def test_the_command_writes_beside_the_exported_model(workdir, tmp_path):
    c, folder = workdir()
    (tmp_path / "config.py").write_text(f"""
from ark_jax.recipes.ark import config
def get_config():
    c = config.ark()
    c.data.path, c.retriever.path, c.generator.path = {c.data.path!r}, "nobody/retriever", "nobody/generator"
    return c
""")  # noqa: E501
    call = lambda *args: subprocess.run(
        [
            sys.executable,
            "-m",
            "ark_jax",
            *args,
            f"--config={tmp_path / 'config.py'}",
            f"--workdir={folder}",
        ],
        capture_output=True,
        text=True,
        env={**os.environ, "ARK_CACHE": str(tmp_path / "cache")},
        timeout=300,
    )
    done = call("export", "--format=ms-swift")
    assert done.returncode == 0, done.stderr
    assert (
        len((folder / "export-ms-swift" / "stage3.jsonl").read_text(encoding="utf-8").splitlines())
        == 4
    )
    assert "up to date" in call("export").stdout  # the stage of this name, which it leaves alone
    bad = call("export", "--format=tevatron")
    assert bad.returncode == 1 and re.fullmatch(
        r"error: bad flag: .*sentence-transformers.*", bad.stderr.strip()
    ), bad.stderr
    assert "bad flag" in call("run", "--format=ms-swift").stderr
