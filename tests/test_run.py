"""`ark.tune`: the recipe from Python."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from support import world
from support.paths import REPOSITORY

import ark_jax as ark
from ark_jax import config as configs
from ark_jax.data.records import BadInput, Document
from ark_jax.models.retriever import Retriever
from ark_jax.pipeline import engine
from ark_jax.pipeline.stage import Context
from ark_jax.recipes.ark.recipe import stages
from ark_jax.run import Result
from ark_jax.runtime.log import Metrics

# In a process like a user's: this one has eight devices, whose threads round differently.
TUNE = """
import json, sys
from pathlib import Path
sys.path[:0] = [{tests!r}]
from support import world
import ark_jax as ark
root = Path({root!r})
rows = lambda name: [json.loads(x) for x in (root / "corpus" / name).read_text().splitlines()]
given = [rows("documents.jsonl"), rows("questions.jsonl")]
if {elsewhere}:
    given = [root / "corpus", root / "elsewhere.jsonl"]
options = dict(workdir={workdir!r}, config=world.tiny_config(root), replace={elsewhere})
print(ark.tune(root / "retriever", *given, **options))
"""


def tune(root: Path, workdir: Path, *, elsewhere: bool) -> str:
    """What `ark.tune` prints. The input comes as lists, or as paths with questions elsewhere."""
    tests = str(REPOSITORY / "tests")
    code = TUNE.format(tests=tests, root=str(root), workdir=str(workdir), elsewhere=elsewhere)
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=600,
        env=world.environment(root),
        cwd=REPOSITORY,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def outputs_but_the_card(workdir: Path) -> dict:
    """What every stage produced; the model's card names the file of the data, which lists lack."""
    outputs = world.outputs(workdir)
    assert outputs["export"].pop("README.md")
    return outputs


@pytest.mark.slow
def test_a_run_from_python_gives_the_bytes_of_the_command_line(tmp_path, mesh):
    root = world.make_world(tmp_path)
    done = world.call(root, tmp_path / "typed")
    assert done.returncode == 0, done.stderr
    out = tune(root, tmp_path / "called", elsewhere=False)
    expected = outputs_but_the_card(tmp_path / "typed")
    assert outputs_but_the_card(tmp_path / "called") == expected

    result = Result(tmp_path / "called")
    assert out.endswith(f"{result}\n") and result.table[0]["system"] == "base"
    assert Retriever.from_pretrained(result.export).digest("query") == result.retriever.digest(
        "query"
    )
    assert "<html" in result.report.read_text()

    assert "nothing to do" in tune(root, tmp_path / "called", elsewhere=False)
    # The same input by other ways is other files, so the data stage reads them, and nothing else.
    questions = root / "corpus" / "questions.jsonl"
    (root / "elsewhere.jsonl").write_text(questions.read_text())
    out = tune(root, tmp_path / "called", elsewhere=True)
    assert "[1/" in out and "[2/" not in out
    assert outputs_but_the_card(tmp_path / "called") == expected


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train.bacth": 3}, r"config.train has no field 'bacth'; did you mean 'batch'"),
        ({"train.batch": "many"}, r"config: train.batch='many': .*int"),
        ({"train.batch": 0}, r"train.batch=0: must be an integer, at least"),
        (configs.gpr(), r"its recipe is 'gpr', not 'ark'; leave recipe out"),
    ],
    ids=["unknown field", "not an integer", "below the minimum", "another recipe"],
)
def test_an_invalid_config_of_tune_is_refused(changes, message, tmp_path):
    rows = [{"id": "d", "text": "The lamp burns."}]
    with pytest.raises(ValueError, match=message):
        ark.tune("m", rows, [], workdir=tmp_path / "w", recipe="ark", config=changes)


def test_a_recipe_that_does_not_exist_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"recipe='gtr': must be ark, gpr, star, bar_rag"):
        ark.tune("m", [], workdir=tmp_path / "w", recipe="gtr")


def test_a_document_that_is_not_of_strings_is_refused(tmp_path):
    rows = [{"id": "d", "text": "The lamp burns."}, {"id": Path("d")}]
    with pytest.raises(ValueError, match=r"documents, row 2: .*Path.* give dicts of strings"):
        ark.tune("m", rows, workdir=tmp_path / "w")


def test_a_bad_row_of_a_given_list_is_named(tmp_path):
    root = world.make_world(tmp_path)
    rows = [Document("tide", "", "The tide rises."), {"id": "salt", "text": 7}]
    with pytest.raises(BadInput, match=r"input/documents.jsonl:2: text: is a number"):
        ark.tune(
            root / "retriever", rows, [], workdir=tmp_path / "w", config=world.tiny_config(root)
        )
    lines = (tmp_path / "w" / "input" / "documents.jsonl").read_text().splitlines()
    assert json.loads(lines[0])["text"] == "The tide rises."


def test_replacing_finished_stages_needs_an_argument(tmp_path, mesh):
    root = world.make_world(tmp_path)
    c, workdir = world.tiny_config(root), tmp_path / "w"
    context = Context(c, workdir, Metrics(workdir / "metrics.jsonl"))
    for stage in ("data", "candidates"):
        engine.run(stages(c), context, only=stage)
    before = world.outputs(workdir)
    changed = world.tiny_config(root)
    changed.data.chunk_overlap = 9
    call = lambda **options: ark.tune(
        root / "retriever", root / "corpus", workdir=workdir, config=changed, **options
    )
    with pytest.raises(ValueError) as raised:
        call()
    assert str(raised.value) == (
        "config.data.chunk_overlap was 8, is 9: this would replace 2 finished stages of "
        f"{workdir} (data, candidates); call it with replace=True if that is meant, or give "
        "another workdir"
    )
    assert world.outputs(workdir) == before
    (root / "corpus" / "documents.jsonl").write_text("no JSON")  # ends the run at its first stage
    with pytest.raises(BadInput):
        call(replace=True)


def test_the_config_of_the_caller_is_not_changed(tmp_path):
    c = configs.ark()
    c.generator.path = "m"
    before = c.to_dict()
    with pytest.raises(BadInput, match="nowhere: does not exist"):
        ark.tune("m", "nowhere", workdir=tmp_path / "w", config=c)
    assert c.to_dict() == before
