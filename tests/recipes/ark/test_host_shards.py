"""Stages whose host work is a map over shards: the same files by one process and by several."""

import json

import pytest
from support.host_stages import data_and_extract
from support.world import make_world, tiny_config

from ark_jax.graph.store import fold
from ark_jax.pipeline import parts
from ark_jax.pipeline.recipe import recipe_of
from ark_jax.pipeline.stage import Context
from ark_jax.pipeline.tables import load_rows
from ark_jax.recipes.ark.extract import extract, extracted_chunks
from ark_jax.recipes.documents.corpus import chunks_by_document, load_documents
from ark_jax.recipes.documents.ingest import ingest
from ark_jax.run import run_recipe
from ark_jax.runtime import map_shards, ray_shards
from ark_jax.runtime.log import Metrics


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return make_world(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="module")
def one_process(world, tmp_path_factory):
    return data_and_extract(world, tmp_path_factory.mktemp("whole"))


def small_shards(monkeypatch, processes):
    monkeypatch.setattr(map_shards, "SHARD_SIZE", 1000)
    monkeypatch.setattr(map_shards, "cores", lambda: processes)


def test_two_worker_processes_write_the_same_files_as_one(
    world, one_process, tmp_path, monkeypatch
):
    small_shards(monkeypatch, 2)
    assert data_and_extract(world, tmp_path) == one_process
    assert one_process[1]["extract"]["entities"] > 50


def test_a_killed_extraction_reuses_its_finished_shards(world, one_process, tmp_path, monkeypatch):
    small_shards(monkeypatch, 1)
    data_and_extract(world, tmp_path, wanted=("data",))
    stored = []

    def kill(path, write):
        if len(stored) == 12:
            raise KeyboardInterrupt
        stored.append(path.name)
        store(path, write)

    store = parts.store_part
    with monkeypatch.context() as patch:
        patch.setattr(parts, "store_part", kill)
        with pytest.raises(KeyboardInterrupt):
            data_and_extract(world, tmp_path, wanted=("extract",))
    assert {name.partition("-")[0] for name in stored} == {"terms", "facts"}
    again = []
    record = lambda path, write: (again.append(path.name), store(path, write))
    monkeypatch.setattr(parts, "store_part", record)
    files, _ = data_and_extract(world, tmp_path, wanted=("extract",))
    assert files == one_process[0]
    assert again and not set(again) & set(stored)


def test_a_run_uses_the_engine_of_its_config(world, tmp_path, monkeypatch):
    monkeypatch.setattr(map_shards, "FEW", 1)
    monkeypatch.delenv(ray_shards.ADDRESS, raising=False)
    c = tiny_config(world)
    c.data.engine = "ray"
    with pytest.raises(RuntimeError, match=r"\$RAY_ADDRESS names no cluster"):
        run_recipe(recipe_of(c), c, tmp_path, "data")
    assert map_shards._engine.get() == "local"


def test_openie_records_are_assigned_to_the_chunks_that_name_them(world, tmp_path):
    c = tiny_config(world)
    c.questions.source, c.graph.openie = "written", str(tmp_path / "openie.json")
    context = Context(c, tmp_path, Metrics(tmp_path / "metrics.jsonl"))
    for stage in ("data", "extract"):
        (context / stage).mkdir()
    ingest(context, context / "data")
    entries, expected = [], set()
    chunks, extracted = chunks_by_document(context), extracted_chunks(context)
    for document in load_documents(context):
        of_document = chunks[document.id]
        names = [" ".join(chunk.text.split()[1:5]) for chunk in of_document]
        entry = {"passage": document.text, "extracted_entities": names, "extracted_triples": []}
        entries.append(entry)
        for name in names:
            holders = [chunk.id for chunk in of_document if fold(name) in fold(chunk.text)]
            expected |= {(name, holders[0])} if holders[0] in extracted else set()
    (tmp_path / "openie.json").write_text(json.dumps({"docs": entries}))
    counts = extract(context, context / "extract")
    rows = load_rows(context / "extract" / "entities.parquet")
    assert {(row["name"], row["chunk"]) for row in rows} == expected and len(expected) > 20
    assert counts["calls"] == 0 and counts["entities"] == len(rows)
