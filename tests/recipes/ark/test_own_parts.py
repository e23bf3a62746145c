"""A miner, a loss and a reader of the user's own, as the recipe's README shows them."""

import re
import subprocess
import sys

import jax.numpy as jnp
import numpy as np
import pytest
from support import world
from support.paths import REPOSITORY

from ark_jax.estimate import plan
from ark_jax.pipeline.stage import Context
from ark_jax.pipeline.status import examine
from ark_jax.pipeline.tables import load_json, load_rows
from ark_jax.recipes.ark import recipe, train
from ark_jax.recipes.ark.recipe import RECIPE, stages
from ark_jax.recipes.documents.corpus import Passages, stored_chunks
from ark_jax.retrieval.mining import MiningTask, own_candidates
from ark_jax.runtime.log import Metrics

README = REPOSITORY / "ark_jax" / "recipes" / "ark" / "README.md"
FIELDS = {
    "mine.by": "my_parts:random_negatives",
    "train.loss": "my_parts:margin_loss",
    "reader.backend": "my_reader:first_sentence",
}


def example() -> str:
    """The file that the README shows."""
    (text,) = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    return text


@pytest.fixture
def own_world(tmp_path, monkeypatch):
    """A world whose folder holds the README's functions in two files."""
    root = world.make_world(tmp_path)
    for name in ("my_parts", "my_reader"):
        (root / f"{name}.py").write_text(example())
    monkeypatch.chdir(root)
    monkeypatch.setattr(sys, "path", [*sys.path, str(root)])
    yield root
    for name in ("my_parts", "my_reader"):
        sys.modules.pop(name, None)


def own_config(root):
    c = world.tiny_config(root)
    c.train.stages, c.train.epochs = (1, 2), (1, 1, 0)
    c.update_from_flattened_dict(FIELDS)
    return c


def run(root) -> subprocess.CompletedProcess:
    """As the console script does, which does not search the working folder (-P)."""
    flags = [f"--config.{field}={path}" for field, path in FIELDS.items()]
    flags += ["--config.train.stages=(1,2)", "--config.train.epochs=(1,1,0)"]
    words = world.command(root, root / "w", "run", *flags)
    assert words[1:3] == ["-m", "ark_jax"]
    return subprocess.run(
        [words[0], "-P", *words[1:]],
        capture_output=True,
        text=True,
        cwd=root,
        env=world.environment(root) | {"PYTHONPATH": str(REPOSITORY)},
        timeout=600,
    )


def due(root) -> list[str]:
    """The stages that a run would make again."""
    statuses = examine(stages(own_config(root)), own_config(root), root / "w")
    return [status.stage for status in statuses if status.state != "done"]


@pytest.mark.slow
def test_a_run_uses_the_functions_of_the_user(own_world):
    done = run(own_world)
    assert done.returncode == 0, done.stderr
    w = own_world / "w"
    mined = load_rows(w / "mine2" / "negatives.parquet")
    manifest = load_json(w / "mine2" / "manifest.json")
    assert mined and manifest["external"].keys() == {"function mine.by"}
    # The hinge of .2 bounds this loss; InfoNCE of unit vectors at .05 would begin far above.
    counts = load_json(w / "stage1" / "manifest.json")["counts"]
    assert 0 < counts["first_loss"] <= 2.2
    context = Context(own_config(own_world), w, Metrics(w / "metrics.jsonl"))
    passages = Passages(stored_chunks(context))
    answers = load_rows(w / "evaluate" / "questions.parquet")
    assert any(row["answer"] for row in answers)
    for row in answers:
        assert row["answer"] == passages[row["ranked"][0]].partition(".")[0].strip()

    reader = own_world / "my_reader.py"
    reader.write_text(reader.read_text().replace('partition(".")[0]', 'partition(".")[2]'))
    assert due(own_world) == ["evaluate", "choice", "export", "report"]
    done = run(own_world)
    assert done.returncode == 0, done.stderr
    assert re.findall(r"\] (\w+)", done.stdout) == ["evaluate", "choice", "export", "report"]
    assert "the function of config.reader.backend changed" in done.stdout

    parts = own_world / "my_parts.py"
    parts.write_text(parts.read_text().replace("0.2 + nearest", "0.25 + nearest"))
    behind = ["stage1", "mine2", "stage2", "evaluate", "choice", "export", "report"]
    assert due(own_world) == behind


def test_user_functions_are_checked_before_a_run_and_a_plan(own_world):
    c = own_config(own_world)
    recipe.check_all(c)
    for field, path, message in [
        ("mine.by", "my_parts:margin_loss", "is called with \\(task\\)"),
        ("train.loss", "my_parts:random_negatives", "queries, passages, positive, negative, temp"),
        ("reader.backend", "my_reader:nothing", "defines no 'nothing'"),
        ("mine.by", "ranodm", "must be auto, rewritten, question, bm25, random or module:function"),
    ]:
        wrong = own_config(own_world)
        wrong.update_from_flattened_dict({field: path})
        for look in (recipe.check_all, lambda c: plan.estimate(RECIPE, c)):
            with pytest.raises(ValueError, match=rf"config\.{field}='{path}': .*{message}"):
                look(wrong)


def test_a_loss_that_returns_an_array_is_refused(own_world, mesh):
    (own_world / "my_parts.py").write_text("def rows(q, p, a, b, *, temperature): return q[:, 0]\n")
    c = own_config(own_world)
    c.train.loss = "my_parts:rows"
    vectors = jnp.eye(8)
    with pytest.raises(ValueError, match=r"returned an array of shape \(8,\).* return its mean"):
        train.load_loss(c)(vectors, vectors, vectors, vectors, temperature=1.0)


@pytest.mark.parametrize(
    "mined, message",
    [
        ([1], "question id -> indices"),
        ({}, "lacks question 'q'"),
        ({"q": [0, 3]}, "returned 3, which is not an index of its pool"),
        ({"q": ["c1"]}, "returned 'c1', which is not an index of its pool"),
        ({"q": [1, 1]}, "returned index 1 twice"),
    ],
)
def test_invalid_results_of_a_miner_are_refused(mined, message):
    task = MiningTask({"q": "who?"}, {"q": [0, 1]}, list("abcd"), {}, np.eye(4), top=2)
    assert own_candidates(lambda task: {"q": np.array([1, 0, 7])}, task) == {"q": [1, 0]}
    with pytest.raises(ValueError, match=message):
        own_candidates(lambda task: mined, task)
