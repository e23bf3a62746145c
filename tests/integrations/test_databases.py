"""Vectors of an index in FAISS, USearch, LanceDB and Qdrant, opened again by their own clients."""

import dataclasses
import functools
import json
import re
import sys
from collections.abc import Callable

import numpy as np
import pytest

from ark_jax import integrations
from ark_jax.retrieval import dense

REASON = "pip install 'ark-jax[integrations]'"
QUESTIONS = ["Who founded the Tidal Board?", "Wann wurde die Glocke gegossen?", "brine"]


def open_file(name: str, path) -> Callable[[np.ndarray, int], tuple[np.ndarray, np.ndarray]]:
    """What searches a file of FAISS or USearch: questions, k -> scores and rows `[q k]`."""
    if name == "faiss":
        import faiss

        return faiss.read_index(str(path)).search
    from usearch.index import Index

    graph = Index.restore(str(path))
    found = lambda questions, k: graph.search(questions, k)
    return lambda *asked: (1 - found(*asked).distances, found(*asked).keys)


@pytest.mark.parametrize("name, many", [("faiss", 1 << 30), ("faiss", 1), ("usearch", 0)])
def test_a_file_gives_the_results_of_the_index(name, many, index, retriever, tmp_path, monkeypatch):
    pytest.importorskip(name, reason=REASON)
    adapter, path = integrations.load(name), tmp_path / "new" / "vectors"
    monkeypatch.setattr(adapter, "PARTED_VECTORS", many, raising=False)
    adapter.write(index, str(path))
    asked = retriever.encode(QUESTIONS, kind="query")
    scores, rows = open_file(name, path)(asked, 3)
    for i, hits in enumerate(index.search(QUESTIONS, k=3, by="dense")):
        assert [index.chunks[int(row)].id for row in rows[i]] == [hit.chunk for hit in hits]
        expected = [hit.score for hit in hits]
        assert scores[i].tolist() == pytest.approx(expected, abs=1e-5 if name == "faiss" else 2e-3)


@pytest.mark.parametrize("name", ["faiss", "usearch"])
def test_the_recall_of_an_approximate_search_is_said(name, index, tmp_path, monkeypatch, capsys):
    pytest.importorskip(name, reason=REASON)
    adapter, rng = integrations.load(name), np.random.default_rng(0)
    monkeypatch.setattr(adapter, "PARTED_VECTORS", 1000, raising=False)
    topics = rng.standard_normal((60, 32), np.float32)
    vectors = topics[rng.integers(60, size=6000)] + rng.standard_normal((6000, 32), np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    adapter.write(dataclasses.replace(index, vectors=vectors), str(tmp_path / "vectors"))
    said, effort = re.search(r": ([01][.]\d+), with \w+=(\d+)\n", capsys.readouterr().out).groups()
    assert float(said) >= integrations.RECALL and int(effort) < 77  # lists
    asked = vectors[::60] + rng.standard_normal((100, 32), np.float32) * np.float32(0.1)
    _, rows = open_file(name, tmp_path / "vectors")(asked, 10)
    wanted = np.argsort(-(asked @ vectors.T), axis=1)[:, :10]
    recall = np.mean([np.isin(*pair).mean() for pair in zip(rows, wanted, strict=True)])
    assert recall == pytest.approx(float(said), abs=0.02)


@pytest.fixture(params=["lancedb", "qdrant"])
def database(request):
    module = {"lancedb": "lancedb", "qdrant": "qdrant_client"}[request.param]
    pytest.importorskip(module, reason=REASON)
    return integrations.load(request.param)


@pytest.mark.parametrize("by", ["dense", "hybrid"])
def test_a_search_in_a_database_gives_the_results_of_the_index(by, database, index, tmp_path):
    url = str(tmp_path / "database")
    database.write(index, url)
    nearest = functools.partial(database.nearest, url, index.manifest.folder)
    from_database = dataclasses.replace(index, nearest=nearest).search(QUESTIONS, k=3, by=by)
    for hits, expected in zip(from_database, index.search(QUESTIONS, k=3, by=by), strict=True):
        assert len(hits) == 3
        assert [hit.chunk for hit in hits] == [hit.chunk for hit in expected]
        scores = [hit.score for hit in expected]
        assert [hit.score for hit in hits] == pytest.approx(scores, abs=1e-5)


def test_a_database_holds_passages_and_vectors(database, index, tmp_path):
    url, name = str(tmp_path / "database"), index.manifest.folder
    for _ in range(2):  # the second time there is nothing to do
        database.write(index, url)
    if database.__name__.endswith("lancedb"):
        import lancedb

        rows = sorted(
            lancedb.connect(url).open_table(name).to_arrow().to_pylist(), key=lambda x: x["row"]
        )
        vectors = [row["vector"] for row in rows]
    else:
        from qdrant_client import QdrantClient

        client = QdrantClient(path=url)
        points = client.scroll(name, limit=100, with_vectors=True)[0]
        client.close()
        rows, vectors = [x.payload for x in points], [x.vector for x in points]
    assert [row["text"] for row in rows] == [chunk.text for chunk in index.chunks]
    assert [row["document"] for row in rows] == [chunk.document for chunk in index.chunks]
    np.testing.assert_allclose(vectors, index.vectors, atol=1e-6)


def test_the_command_line_writes_to_a_database_and_searches_there(
    database, place, call, tmp_path, monkeypatch, capsys
):
    corpus = tmp_path / "documents.csv"
    corpus.write_text("text\nJosiah Penhallow founded the Tidal Board.\nSalt is boiled brine.\n")
    name = database.__name__.rpartition(".")[2]
    url = ("--url", tmp_path / "database")
    index_words = ("index", place / "model", corpus, "--out", tmp_path / "i")
    search_words = ("search", tmp_path / "i", QUESTIONS[0], "--json")
    assert call(*index_words) == 0 and call(*search_words) == 0
    expected = capsys.readouterr().out.splitlines()[-1]
    assert call(*search_words, "--from", name, *url) == 1
    assert f"`ark-jax index --to={name}` writes it" in capsys.readouterr().err
    assert call(*index_words, "--to", name, *url) == 0
    with monkeypatch.context() as patch:
        patch.setattr(dense, "top_k", None)
        assert call(*search_words, "--from", name, *url) == 0
    last_line = capsys.readouterr().out.splitlines()[-1]
    assert json.loads(last_line)["passages"] == json.loads(expected)["passages"]


def test_incomplete_database_flags_and_missing_clients_are_refused(call, capsys, monkeypatch):
    assert call("search", "i", "q", "--from=qdrant") == 1
    assert "--from=NAME and --url=PLACE go together" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "lancedb", None)
    monkeypatch.delitem(sys.modules, "ark_jax.integrations.lancedb", raising=False)
    assert call("index", "m", "c", "--out=i", "--to=lancedb", "--url=u") == 1
    assert capsys.readouterr().err == (
        "error: lancedb needs the package lancedb: pip install 'ark-jax[integrations]'\n"
    )
