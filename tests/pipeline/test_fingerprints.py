"""A digest changes with whatever decides a stage's output, and with nothing else."""

import json
import os

import numpy as np
import pytest

from ark_jax.data import readers
from ark_jax.models import hf
from ark_jax.pipeline import fingerprints
from ark_jax.pipeline.fingerprints import input_digest, model_digest


def test_the_model_digest_changes_with_every_file_that_affects_results(tmp_path):
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
        digest = model_digest(str(tmp_path))
        assert digest not in seen, name
        seen.add(digest)

    change("1_Pooling/config.json", b'{"mean": fals}')  # as long as before
    change("chat_template.jinja", b"{{ messages }}")
    for layer in range(1, 24):  # a tensor of a MiB, wherever it lies
        offset = layer << 20
        change(
            "model.safetensors", weights[:offset] + bytes(1 << 20) + weights[offset + (1 << 20) :]
        )
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


@pytest.mark.parametrize("questions", [".", "questions/val", "section-stories/val"])
def test_the_digest_of_a_split_covers_its_stories_and_questions(questions, stories):
    assert len(readers.load(stories / questions).questions) == 1
    before = digest(stories / questions)
    for path in sorted(stories.rglob("*.csv")):
        path.write_text(path.read_text().replace("Ada", "Eve"))
        after = digest(stories / questions)
        assert after != before, path
        before = after


def test_files_next_to_the_input_do_not_change_its_digest(tmp_path):
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


def hub_cache(root, model: str, commits: dict[str, str]) -> None:
    """What the hub's client leaves: revision -> commit, each with a config."""
    folder = root / f"models--{model.replace('/', '--')}"
    (folder / "refs").mkdir(parents=True)
    for revision, commit in commits.items():
        (folder / "refs" / revision).write_text(commit)
        (folder / "snapshots" / commit).mkdir(parents=True)
        (folder / "snapshots" / commit / "config.json").write_text(f'{{"of": "{commit}"}}')


def test_the_digest_of_a_hub_model_is_its_commit(tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    main, tagged = "1" * 40, "2" * 40
    hub_cache(tmp_path, "me/mine", {"main": main, "v2": tagged})
    model_digest.cache_clear()
    assert model_digest("me/mine") == f"me/mine, commit {main}"
    assert model_digest("me/mine@v2") == f"me/mine@v2, commit {tagged}"
    assert model_digest(f"me/mine@{tagged}") == f"me/mine@{tagged}, commit {tagged}"
    assert model_digest("me/other") == "me/other" and model_digest("me") == "me"
    assert hf.read_config(hf.resolve("me/mine@v2")) == {"of": tagged}
    with pytest.raises(FileNotFoundError, match="no hub name of the form owner/model"):
        hf.resolve("a/b/c")


def test_large_weights_are_hashed_completely_and_cached(tmp_path, monkeypatch):
    monkeypatch.setenv("ARK_CACHE", str(tmp_path / "cache"))
    weights = tmp_path / "model" / "model.safetensors"
    weights.parent.mkdir()
    content = bytearray(fingerprints.LARGE + 5)
    weights.write_bytes(content)

    def digest() -> str:
        model_digest.cache_clear()
        return model_digest(str(weights.parent))

    first = digest()
    with monkeypatch.context() as patched:
        patched.setattr(fingerprints, "file_digest", None)  # so that hashing again would fail
        assert digest() == first
    for position in (0, fingerprints.LARGE // 2 + 12345, len(content) - 1):
        content[position] ^= 1
        weights.write_bytes(content)
        assert digest() != first
        content[position] ^= 1
    weights.write_bytes(content)
    (tmp_path / "cache" / "digests").rename(tmp_path / "elsewhere")
    (tmp_path / "cache" / "digests").write_text("no folder")
    assert digest() == first


@pytest.mark.parametrize("size", [100, fingerprints.LARGE])
def test_a_change_is_detected_despite_a_restored_modification_time(size, tmp_path, monkeypatch):
    monkeypatch.setenv("ARK_CACHE", str(tmp_path / "cache"))
    weights = tmp_path / "model" / "model.safetensors"
    weights.parent.mkdir()
    weights.write_bytes(bytes(size))
    before = weights.stat()
    model_digest.cache_clear()
    first = model_digest(str(weights.parent))
    with weights.open("r+b") as file:  # the same inode
        file.write(b"x")
    os.utime(weights, ns=(before.st_atime_ns, before.st_mtime_ns))
    model_digest.cache_clear()
    assert model_digest(str(weights.parent)) != first


@pytest.mark.parametrize("content", ["", "7", "[]", "\0", '["x"]'])
def test_a_damaged_digest_cache_is_rewritten(content, tmp_path, monkeypatch):
    monkeypatch.setenv("ARK_CACHE", str(tmp_path / "cache"))
    weights = tmp_path / "model" / "model.safetensors"
    weights.parent.mkdir()
    weights.write_bytes(bytes(fingerprints.LARGE))
    model_digest.cache_clear()
    first = model_digest(str(weights.parent))
    (note,) = (tmp_path / "cache" / "digests").iterdir()
    good = note.read_text()
    note.write_text(content)
    model_digest.cache_clear()
    assert model_digest(str(weights.parent)) == first and note.read_text() == good
