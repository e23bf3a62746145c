"""Data and models in a bucket, which is a folder of this machine here."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from etils.epath import gpath
from support import bucket, tiny
from support import world as worlds

from ark_jax.runtime import storage

TEXTS = [f"The tide table of {year}" for year in range(1850, 1853)]


@pytest.fixture
def bucket_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("ARK_CACHE", str(tmp_path / "cache"))
    return bucket.serve(tmp_path / "gs", monkeypatch)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return worlds.make_world(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tiny.write(tmp_path_factory.mktemp("model") / "model", "bert", tokenizer="cls")
    tiny.sentence_transformer(folder, pooling="mean", max_seq_length=64)
    return folder


def test_data_are_read_from_a_bucket(bucket_folder, world):
    from ark_jax.data import readers
    from ark_jax.pipeline.fingerprints import input_digest

    corpus = bucket_folder / "b" / "corpus"
    shutil.copytree(world / "corpus", corpus)
    (corpus / "model.bin").write_bytes(b"not ours")
    assert readers.load("gs://b/corpus") == readers.load(world / "corpus")
    assert input_digest("gs://b/corpus") == input_digest(str(world / "corpus"))
    first_copy = storage.local_copy("gs://b/corpus")
    assert storage.local_copy("gs://b/corpus") == first_copy
    assert first_copy.name == "corpus" and not (first_copy / "model.bin").exists()
    with (corpus / "questions.jsonl").open("a") as file:
        file.write("{}\n")
    assert storage.local_copy("gs://b/corpus") != first_copy
    assert storage.local_copy("gs://b/corpus/questions.jsonl").read_text().endswith("{}\n")
    with pytest.raises(FileNotFoundError, match="gs://b/nothing: no such"):
        storage.local_copy("gs://b/nothing")


def test_models_are_read_from_and_saved_to_a_bucket(bucket_folder, model, mesh):
    from ark_jax import Retriever

    encode = lambda retriever: retriever.encode(TEXTS, kind="query")
    shutil.copytree(model, bucket_folder / "b" / "model")
    retriever = Retriever.from_pretrained("gs://b/model")
    vectors = encode(retriever)
    np.testing.assert_array_equal(vectors, encode(Retriever.from_pretrained(str(model))))
    retriever.save_pretrained("gs://b/out/tuned")
    saved = bucket_folder / "b" / "out" / "tuned" / "model.safetensors"
    assert saved.read_bytes() == (model / "model.safetensors").read_bytes()
    np.testing.assert_array_equal(encode(Retriever.from_pretrained("gs://b/out/tuned")), vectors)


def test_towers_are_read_from_and_saved_to_a_bucket(bucket_folder, model, mesh):
    from ark_jax import DualEncoder, Retriever

    towers = DualEncoder(*(Retriever.from_pretrained(str(model)) for _ in range(2)))
    towers.save_pretrained("gs://b/towers")
    opened = DualEncoder.from_pretrained("gs://b/towers")
    assert not opened.is_one
    for kind in ("query", "document"):
        weights = bucket_folder / "b" / "towers" / f"{kind}_0_Transformer" / "model.safetensors"
        assert weights.read_bytes() == (model / "model.safetensors").read_bytes()
        wanted = towers.encode(TEXTS, kind=kind)
        np.testing.assert_array_equal(opened.encode(TEXTS, kind=kind), wanted)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--store=gs://b/w",), "--store=gs://b/w: it needs locks, renames and memory maps"),
        (("--workdir=s3://b/w",), "s3://b/w: a workdir lies on a file system or in a folder of a"),
        (("--workdir=gs://b",), "gs://b: a workdir lies on a file system or in a folder of a"),
        (("--config.data.path=s3://b/corpus",), "s3fs"),  # the package for s3://, an optional one
    ],
)
def test_unsupported_uses_of_a_bucket_are_reported_in_one_line(flags, message, world, tmp_path):
    done = worlds.call(world, tmp_path / "w", "run", *flags)
    assert done.returncode == 1 and message in done.stderr and "Traceback" not in done.stderr


def test_operations_that_need_a_file_system_refuse_a_bucket(world, model, tmp_path, monkeypatch):
    import ark_jax as ark
    from ark_jax.comparison.comparison import compare
    from ark_jax.graph.triples import Triples

    monkeypatch.chdir(tmp_path)
    data, place = str(world / "corpus"), "gs://b/x"
    graph, triples = (
        ark.KnowledgeGraph.from_triples([("a", "of", "b")]),
        Triples.from_triples([("a", "of", "b")]),
    )
    for call in (
        lambda: ark.tune(model, data, workdir=place),
        lambda: ark.Index.build(place, model, data),
        lambda: ark.Index.open(place),
        lambda: compare([str(model)], data, folder=place),
        lambda: graph.save(place),
        lambda: ark.KnowledgeGraph.load(place),
        lambda: graph.to_graphml(place),
        lambda: graph.to_graphrag(place),
        lambda: ark.KnowledgeGraph.from_graphrag(place),
        lambda: triples.save(place),
        lambda: Triples.load(place),
    ):
        with pytest.raises(ValueError, match=r"gs://b/x: it needs locks, .* lie in a bucket"):
            call()
    assert not list(tmp_path.iterdir())


def test_the_cache_folder_follows_the_environment_without_a_home(tmp_path, monkeypatch):
    """As a container that runs as a user without an entry in passwd."""

    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(storage.Path, "home", homeless)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("ARK_CACHE", str(tmp_path))
    assert storage.cache_folder() == tmp_path
    monkeypatch.delenv("ARK_CACHE")
    with pytest.raises(RuntimeError, match="set ARK_CACHE to a folder"):
        storage.cache_folder()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert storage.cache_folder() == tmp_path / "ark_jax"


def test_a_bucket_name_cannot_escape_the_cache(bucket_folder, tmp_path):
    """A bucket has no folders, so ".." may be a part of a name."""
    (bucket_folder / "b" / "m").mkdir(parents=True)
    (bucket_folder / "x.json").write_text("{}")
    root = gpath.PosixGPath("gs://b/m")
    with pytest.raises(ValueError, match=r"gs://b/m/\.\./\.\./x\.json: its name leads out of"):
        storage._fill_cache(tmp_path / "cache" / "copy", root, [root / "../../x.json"])
    assert not list((tmp_path / "cache").rglob("*.json"))


def test_a_model_that_is_no_folder_and_out_of_reach_is_named(tmp_path, monkeypatch):
    """A misspelled folder such as work/exprt looks like a name on the hub."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(FileNotFoundError, match="work/exprt: no such folder, and no model of"):
        storage.hub_model("work/exprt", download=False)
