"""Stages whose host work is a map over shards: the same files by one process and by several."""

import pytest
from support.world import make_world, tiny_config

from ark_jax.pipeline import engine, shard_parts
from ark_jax.recipes.ark.extract import extract
from ark_jax.recipes.common.ingest import ingest
from ark_jax.runtime import map_shards
from ark_jax.runtime.log import Metrics


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return make_world(tmp_path_factory.mktemp("world"))


def data_and_extract(world, workdir, *, wanted=("data", "extract")):
    """The files of both stages, and what they count."""
    c = tiny_config(world)
    c.questions.source, c.data.chunking, c.data.chunk_tokens = "written", "sentences", 0
    context = engine.Context(c, workdir, Metrics(workdir / "metrics.jsonl"))
    counts = {}
    for stage, run in (("data", ingest), ("extract", extract)):
        if stage in wanted:
            (context / stage).mkdir(parents=True, exist_ok=True)
            counts[stage] = run(context, context / stage)
    files = {
        path.relative_to(workdir): path.read_bytes()
        for path in sorted(workdir.rglob("*"))
        if path.is_file()
    }
    return files, counts


@pytest.fixture(scope="module")
def whole(world, tmp_path_factory):
    return data_and_extract(world, tmp_path_factory.mktemp("whole"))


def small_shards(monkeypatch, processes):
    monkeypatch.setattr(map_shards, "SHARD_SIZE", 1000)
    monkeypatch.setattr(map_shards, "_cores", lambda: processes)


def test_two_processes_write_the_files_of_one(world, whole, tmp_path, monkeypatch):
    small_shards(monkeypatch, 2)
    assert data_and_extract(world, tmp_path) == whole
    assert whole[1]["extract"]["entities"] > 50


def test_a_killed_extraction_goes_on_with_its_shards(world, whole, tmp_path, monkeypatch):
    small_shards(monkeypatch, 1)
    data_and_extract(world, tmp_path, wanted=("data",))
    stored = []

    def kill(path, write):
        if len(stored) == 12:
            raise KeyboardInterrupt
        stored.append(path.name)
        store(path, write)

    store = shard_parts.store_part
    with monkeypatch.context() as patch:
        patch.setattr(shard_parts, "store_part", kill)
        with pytest.raises(KeyboardInterrupt):
            data_and_extract(world, tmp_path, wanted=("extract",))
    assert {name.partition("-")[0] for name in stored} == {"terms", "facts"}
    again = []
    record = lambda path, write: (again.append(path.name), store(path, write))
    monkeypatch.setattr(shard_parts, "store_part", record)
    files, _ = data_and_extract(world, tmp_path, wanted=("extract",))
    assert files == whole[0]
    assert again and not set(again) & set(stored)
