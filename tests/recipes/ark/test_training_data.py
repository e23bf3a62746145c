"""`ark-jax export --format`: each stage's examples as files for another trainer."""

import dataclasses
import functools
import itertools
import json
import re
from pathlib import Path

import pytest
from support.command_line import call_here
from support.trainer_examples import EXAMPLES, PASSAGES, QUESTIONS, WITHOUT, rows_in_form

from ark_jax.data.records import Chunk, Question
from ark_jax.data.spool import save_chunks
from ark_jax.pipeline import engine
from ark_jax.pipeline.tables import save_rows
from ark_jax.recipes.ark import config, train
from ark_jax.recipes.ark.recipe import stages
from ark_jax.recipes.core import models
from ark_jax.runtime.log import Metrics
from ark_jax.train import trainer_formats


@pytest.fixture
def workdir(tmp_path):
    """`workdir(until)` -> a config and a workdir in which the stages before `until` are done.

    Functions that only pretend to work have done them.
    """
    (tmp_path / "input.jsonl").write_text("")
    c = config.ark()
    c.train.stages = (1, 2, 3)
    c.data.path, c.retriever.path, c.generator.path = (
        str(tmp_path / "input.jsonl"),
        "nobody/retriever",
        "nobody/generator",
    )
    models.suit_device(c)  # as the command line does

    def run(name: str, context, folder: Path) -> dict:
        if name == "data":
            questions = [Question(id, text, ("x",), ("doc",)) for id, text in QUESTIONS.items()]
            save_rows(questions, folder / "questions_train.parquet")
            save_chunks([Chunk(id, "doc", 0, 0, 0, text) for id, text in PASSAGES.items()], folder)
        if name == "positives":
            assert context.config.score.positives
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
        def pretended(stage):
            work = lambda context, folder, **given: run(stage.name, context, folder)
            return functools.partial(work, **stage.arguments)

        every = [
            dataclasses.replace(stage, run=pretended(stage), alone=True) for stage in stages(c)
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
def test_the_training_data_of_each_stage_is_exported(form, workdir, capsys):
    c, folder = workdir("stage3")  # only what it builds on is needed, not the stage itself
    capsys.readouterr()
    train.write_training_files(context_of(c, folder), form, stages(c))
    said = capsys.readouterr().out.splitlines()
    files = {
        path.name: [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        for path in (folder / f"export-{form}").iterdir()
    }
    second = [
        dataclasses.replace(e, negatives=("a",) if e.question == "q3" else ()) for e in EXAMPLES
    ]
    assert files == {
        "stage1.jsonl": rows_in_form(form, WITHOUT),
        "stage2.jsonl": rows_in_form(form, second),
        "stage3.jsonl": rows_in_form(form),
    }
    assert [line.split(": ", 1)[1] for line in said] == {
        "sentence-transformers": [
            "4 rows of 3 questions, no hard negatives",
            "1 rows of 1 questions, 1 hard negatives each; 2 questions without a hard negative "
            "are left out, "
            "sentence-transformers has no place for them beside the others",
            "3 rows of 2 questions, up to 3 hard negatives each; those of 1 questions are repeated "
            "to fill the columns; 1 questions without a hard negative are left out, "
            "sentence-transformers has no place for them beside the others",
        ],
        "flagembedding": [
            "3 rows of 3 questions, no hard negatives",
            "1 rows of 1 questions, 1 hard negatives each; 2 questions without a hard negative "
            "are left out, "
            "flagembedding has no place for them beside the others",
            "2 rows of 2 questions, up to 3 hard negatives each; 1 questions without a hard "
            "negative are left out, "
            "flagembedding has no place for them beside the others",
        ],
        "ms-swift": [
            "4 rows of 3 questions, no hard negatives",
            "4 rows of 3 questions, up to 1 hard negatives each",
            "4 rows of 3 questions, up to 3 hard negatives each",
        ],
    }[form]
    train.write_training_files(context_of(c, folder), form, stages(c))  # again, over what is there
    assert sorted(path.name for path in (folder / f"export-{form}").iterdir()) == [
        "stage1.jsonl",
        "stage2.jsonl",
        "stage3.jsonl",
    ]


@pytest.mark.parametrize(
    ("until", "change", "message"),
    [
        (
            "data",
            {},
            "stage 1 is trained on what data makes, which is missing: run `ark-jax data` or "
            "`ark-jax run` first",
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
def test_exporting_before_a_required_stage_is_refused(until, change, message, workdir):
    c, folder = workdir(until)
    c.update_from_flattened_dict(change)
    with pytest.raises(engine.Interrupted, match=message):
        train.write_training_files(context_of(c, folder), "flagembedding", stages(c))
    assert not list(folder.glob("export*"))


def test_exporting_shares_to_files_of_positives_is_refused(workdir):
    c, folder = workdir("stage3")
    c.train.loss = "distil"
    with pytest.raises(ValueError, match=r"distil learns a share .* for which ms-swift files have"):
        train.write_training_files(context_of(c, folder), "ms-swift", stages(c))
    assert not list(folder.glob("export*"))


def test_the_export_command_writes_training_files_for_a_trainer(workdir, tmp_path):
    c, folder = workdir()
    (tmp_path / "config.py").write_text(f"""
from ark_jax.recipes.ark import config
def get_config():
    c = config.ark()
    c.train.stages = (1, 2, 3)
    c.data.path = {c.data.path!r}
    c.retriever.path, c.generator.path = "nobody/retriever", "nobody/generator"
    return c
""")
    flags = (f"--config={tmp_path / 'config.py'}", f"--workdir={folder}")
    call = lambda *words: call_here(
        [*words, *flags], tmp_path, {"ARK_CACHE": str(tmp_path / "cache")}
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
