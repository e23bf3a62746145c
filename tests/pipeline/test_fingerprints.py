"""A digest changes with whatever decides a stage's output, and with nothing else."""

import json

import numpy as np
import pytest

from ark_jax.data import readers
from ark_jax.pipeline.fingerprints import input_digest, model_digest


def test_a_model_is_another_when_anything_that_decides_its_numbers_is(tmp_path):
    (tmp_path / "1_Pooling").mkdir()
    weights = np.random.default_rng(0).bytes(24 << 20)
    files = {
        "config.json": b"{}",
        "1_Pooling/config.json": b'{"mean": true}',
        "model.safetensors": weights,
    }
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    model_digest.cache_clear()
    seen = {model_digest(str(tmp_path))}

    def change(name: str, content: bytes) -> None:
        (tmp_path / name).write_bytes(content)
        model_digest.cache_clear()
        found = model_digest(str(tmp_path))
        assert found not in seen, name
        seen.add(found)

    change("1_Pooling/config.json", b'{"mean": fals}')  # as long as before
    change("chat_template.jinja", b"{{ messages }}")
    for layer in range(1, 24):  # a tensor of a MiB, wherever it lies
        at = layer << 20
        change("model.safetensors", weights[:at] + bytes(1 << 20) + weights[at + (1 << 20) :])
    (tmp_path / "README.md").write_text("words about it")
    model_digest.cache_clear()
    assert model_digest(str(tmp_path)) in seen


@pytest.fixture
def stories(tmp_path):
    for kind, text in (
        ("section-stories", "section,text\n1,Ada built it.\n"),
        ("questions", "question_id,cor_section,question,answer1\n1,1,Who?,Ada\n"),
    ):
        folder = tmp_path / kind / "val"
        folder.mkdir(parents=True)
        (folder / f"tale-{'story' if kind == 'section-stories' else 'questions'}.csv").write_text(
            text
        )
    return tmp_path


def digest(path) -> str:
    input_digest.cache_clear()
    return input_digest(str(path))


@pytest.mark.parametrize("given", [".", "questions/val", "section-stories/val"])
def test_a_split_is_its_stories_and_its_questions(given, stories):
    assert len(readers.load(stories / given).questions) == 1
    before = digest(stories / given)
    for path in sorted(stories.rglob("*.csv")):
        path.write_text(path.read_text().replace("Ada", "Eve"))
        after = digest(stories / given)
        assert after != before, path
        before = after


def test_what_lies_beside_the_input_is_none(tmp_path):
    """A workdir among the data, say, whose files change with every run."""
    (tmp_path / "documents.jsonl").write_text(
        json.dumps({"id": "d", "text": "Ada built it."}) + "\n"
    )
    (tmp_path / "questions.jsonl").write_text("")
    before = digest(tmp_path)
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "metrics.jsonl").write_text("{}\n")
    assert digest(tmp_path) == before
    (tmp_path / "questions.jsonl").write_text("\n")
    assert digest(tmp_path) != before
