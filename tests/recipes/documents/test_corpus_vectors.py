"""A corpus is embedded once for each model, and nothing of a run depends on it."""

import collections
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from support.compare_workdirs import differences
from support.world import make_world, tiny_config

from ark_jax.models.retriever import Retriever
from ark_jax.pipeline import engine
from ark_jax.recipes.ark.recipe import stages
from ark_jax.recipes.core.models import load_retriever
from ark_jax.recipes.documents import choice, corpus
from ark_jax.recipes.documents.corpus import chunks_by_document
from ark_jax.runtime.log import Metrics

pytestmark = pytest.mark.usefixtures("mesh")


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return make_world(tmp_path_factory.mktemp("world"))


@pytest.fixture
def embedded(monkeypatch):
    """Retriever -> how often it embedded passages; counted by the folder it was read from."""
    counts, encode = collections.Counter(), Retriever.encode_batches

    def counted(self, texts, *, kind, **settings):
        counts[self.base.parent.name] += kind == "document" and len(texts) > 1
        return encode(self, texts, kind=kind, **settings)

    monkeypatch.setattr(Retriever, "encode_batches", counted)
    return counts


def searching_corpus(world):
    c = tiny_config(world)
    c.data.pool, c.data.candidates, c.train.stages = "corpus", 6, (1, 2)
    c.evaluate.read, c.train.epochs, c.train.save_every = 0, (1, 1, 1), 100
    return c


def context_of(c, workdir: Path) -> engine.Context:
    return engine.Context(c, workdir, Metrics(workdir / "metrics.jsonl"))


def run(c, workdir: Path, *, forget: bool = False) -> Path:
    for stage in stages(c):
        engine.run(stages(c), context_of(c, workdir), only=stage.name)
        if forget:
            shutil.rmtree(workdir / "vectors", ignore_errors=True)
    return workdir


def test_storing_vectors_saves_embeddings_without_changing_the_bytes(
    world, tmp_path, embedded, monkeypatch
):
    monkeypatch.setattr(choice, "ENOUGH", 2)
    c = searching_corpus(world)
    stored = run(c, tmp_path / "stored")
    graph = 1  # the entities, which are no passages
    assert embedded == {world.name: 1 + graph, "stage1": 1, "stage2": 1}
    found = (stored / corpus.FOLDER).glob("*.npy")
    assert {path.stem for path in found} == {"base", "stage1", "stage2"}
    embedded.clear()
    forgotten = run(c, tmp_path / "forgotten", forget=True)
    # Once more each for `choice`; base and stage1 have been embedded for the next mining as well.
    assert embedded == {world.name: 3 + graph, "stage1": 3, "stage2": 2}
    assert differences(stored, forgotten) == []


def passages_of(context) -> list[str]:
    return [chunk.passage for group in chunks_by_document(context).values() for chunk in group]


@pytest.fixture
def searched(world, tmp_path):
    """A run with the stage data alone."""
    c = searching_corpus(world)
    context = context_of(c, tmp_path / "w")
    engine.run(stages(c), context, only="data")
    return context


def encode(context, passages) -> tuple[np.ndarray, int]:
    vectors, cut = corpus.encode_passages(context, "base", passages, "embed chunks")
    return np.array(vectors), cut


@pytest.mark.parametrize("damage", ["a bit", "cut short", "no array", "no description", "false"])
def test_damaged_vectors_are_computed_again(searched, embedded, capsys, world, damage):
    passages = passages_of(searched)
    expected, cut = encode(searched, passages)
    retriever = load_retriever(searched, "base")
    options = {"batch_tokens": searched.config.retriever.batch_tokens}
    np.testing.assert_array_equal(expected, retriever.encode(passages, kind="document", **options))
    embedded.clear()
    assert cut > 0  # the tiny retriever reads 64 tokens, and a chunk has up to 80
    path = searched.workdir / "vectors" / "base.npy"
    data, about = bytearray(path.read_bytes()), path.with_suffix(".json")
    if damage == "a bit":
        data[-5] ^= 1
        path.write_bytes(data)
    elif damage == "cut short":
        path.write_bytes(data[:-100])
    elif damage == "no array":
        path.unlink()
    elif damage == "no description":
        about.write_text("[")
    else:
        about.write_text(json.dumps({"key": "another", "sha256": "", "cut": 0}))
    again, cut_again = encode(searched, passages)
    assert np.array_equal(again, expected) and cut_again == cut and embedded[world.name] == 1
    assert bytes(data) == path.read_bytes() or damage in ("a bit", "cut short")
    warned = "has been damaged: it is made again" in capsys.readouterr().out
    assert warned == (damage in ("a bit", "cut short"))
    assert np.array_equal(encode(searched, passages)[0], expected) and embedded[world.name] == 1


def test_stored_vectors_are_valid_only_for_their_passages_and_settings(searched, embedded, world):
    passages = passages_of(searched)
    encode(searched, passages)
    encode(searched, passages[::-1])
    assert embedded[world.name] == 2
    searched.config.retriever.batch_tokens = 128
    encode(searched, passages[::-1])
    assert embedded[world.name] == 3
    files = {path.name for path in (searched.workdir / "vectors").iterdir()}
    assert files == {"base.npy", "base.json"}


def test_a_run_over_the_documents_of_questions_stores_no_vectors(world, tmp_path):
    c = searching_corpus(world)
    c.data.pool = "documents"
    context = context_of(c, tmp_path / "w")
    for stage in ("data", "candidates"):
        engine.run(stages(c), context, only=stage)
    assert not (tmp_path / "w" / "vectors").exists()
