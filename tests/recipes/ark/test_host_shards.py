"""Stages whose host work is a map over shards: the same files by one process and by several."""

import pytest
from support.host_stages import data_and_extract
from support.world import make_world, tiny_config

from ark_jax.pipeline import shard_parts
from ark_jax.pipeline.recipe import recipe_of
from ark_jax.run import run_recipe
from ark_jax.runtime import map_shards, ray_shards


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return make_world(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="module")
def one_process(world, tmp_path_factory):
    return data_and_extract(world, tmp_path_factory.mktemp("whole"))


def small_shards(monkeypatch, processes):
    monkeypatch.setattr(map_shards, "SHARD_SIZE", 1000)
    monkeypatch.setattr(map_shards, "_cores", lambda: processes)


def test_two_processes_write_the_files_of_one(world, one_process, tmp_path, monkeypatch):
    small_shards(monkeypatch, 2)
    assert data_and_extract(world, tmp_path) == one_process
    assert one_process[1]["extract"]["entities"] > 50


def test_a_killed_extraction_goes_on_with_its_shards(world, one_process, tmp_path, monkeypatch):
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
    assert files == one_process[0]
    assert again and not set(again) & set(stored)


def test_a_run_asks_the_engine_of_its_config(world, tmp_path, monkeypatch):
    monkeypatch.setattr(map_shards, "FEW", 1)
    monkeypatch.delenv(ray_shards.ADDRESS, raising=False)
    c = tiny_config(world)
    c.data.engine = "ray"
    with pytest.raises(RuntimeError, match=r"\$RAY_ADDRESS names no cluster"):
        run_recipe(recipe_of(c), c, tmp_path, "data")
    assert map_shards._engine.get() == "local"
