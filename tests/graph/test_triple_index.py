"""An index of triples: exact, kept on disk, extended by what is new, resumed after a kill."""

import json
import os
import random
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from support import tiny
from support.paths import REPOSITORY

from ark_jax.graph.triple_index import TripleIndex
from ark_jax.graph.triple_retriever import TripleRetriever
from ark_jax.graph.triples import Triples, triple_texts
from ark_jax.models.towers import DualEncoder
from ark_jax.retrieval import vector_files

FACTS = [(f"Film {i}", "directed_by", f"Director {i % 7}") for i in range(40)]
MORE = [(f"Film {i}", "release_year", str(1900 + i)) for i in range(25)]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Folders of two models that differ in their weights."""
    return tiny.retrievers(tmp_path_factory.mktemp("models"), "a", "b")


@pytest.fixture
def towers(models, mesh):
    return DualEncoder.from_pretrained(models / "a")


@pytest.fixture
def embedded(monkeypatch):
    """The texts that towers embed."""
    texts = []
    encode = DualEncoder.encode

    def record(self, batch, *, kind, **options):
        texts.extend(batch if kind == "document" else ())
        return encode(self, batch, kind=kind, **options)

    monkeypatch.setattr(DualEncoder, "encode", record)
    return texts


def texts_of(graph: Triples) -> list[str]:
    return triple_texts(graph, np.arange(len(graph)))


def assert_exact(
    index: TripleIndex, towers: DualEncoder, graph: Triples, atol: float = 1e-6
) -> None:
    """Each triple's vector is that of its text."""
    wanted = towers.document.encode(texts_of(graph), kind="document")
    np.testing.assert_allclose(index.vectors[index.texts], wanted, rtol=0, atol=atol)


def test_search_equals_an_exhaustive_product(towers):
    graph = Triples.from_triples(FACTS)
    index = TripleIndex.open(None, towers, graph)
    queries = towers.encode(["Who directed Film 3?", "Director 2"], kind="query")
    rows, scores = index.search(queries, 5)
    products = queries.astype(float) @ np.array(index.vectors[index.texts], float).T
    np.testing.assert_array_equal(rows, np.argsort(-products, axis=1, kind="stable")[:, :5])
    np.testing.assert_allclose(scores, np.sort(products)[:, ::-1][:, :5], atol=1e-6)


def test_a_k_above_the_number_of_triples_returns_all(towers):
    index = TripleIndex.open(None, towers, Triples.from_triples(FACTS[:3]))
    rows, scores = index.search(towers.encode(["Film"], kind="query"), 20)
    assert sorted(rows[0]) == [0, 1, 2] and scores.shape == (1, 3)


def test_a_search_for_no_triples_is_refused(towers):
    index = TripleIndex.open(None, towers, Triples.from_triples(FACTS[:3]))
    with pytest.raises(ValueError, match="k=0: must be at least 1"):
        index.search(towers.encode(["Film"], kind="query"), 0)


def test_an_empty_graph_is_refused(towers, tmp_path):
    with pytest.raises(ValueError, match="the graph has no triple to search"):
        TripleIndex.open(tmp_path, towers, Triples.from_triples([]))


def test_an_unknown_dtype_is_refused(towers, tmp_path):
    with pytest.raises(ValueError, match="dtype is 'int8': give 'float32' or 'float16'"):
        TripleIndex.open(tmp_path, towers, Triples.from_triples(FACTS), dtype="int8")


def test_triples_with_equal_texts_share_one_vector(towers, embedded):
    """Two people of one name have the same job, and a third has another."""
    rows = [("m.1", "job", "m.9"), ("m.2", "job", "m.9"), ("m.3", "job", "m.8")]
    names = {"m.1": "Ann", "m.2": "Ann", "m.3": "Bo", "m.8": "judge", "m.9": "clerk"}
    graph = Triples.from_triples(rows, names)
    index = TripleIndex.open(None, towers, graph)
    assert sorted(embedded) == ["Ann | job | clerk", "Bo | job | judge"]
    assert len(index) == 3 and len(index.vectors) == 2
    queries = index.vectors[index.texts]  # a triple is nearest to itself
    for k in (1, 2, 3, 4):
        hits, scores = index.search(queries, k)
        for row in range(3):
            twins = [0, 1] if row < 2 else [2]
            rest = [r for r in range(3) if r not in twins]
            assert hits[row].tolist() == (twins + rest)[:k]
            assert scores[row].tolist() == sorted(scores[row], reverse=True)
    assert index.search(queries, 9)[0].shape == (3, 3)


def test_an_index_is_opened_without_embedding(towers, embedded, tmp_path):
    graph = Triples.from_triples(FACTS)
    first = TripleIndex.open(tmp_path / "index", towers, graph)
    assert len(embedded) == len(FACTS)
    again = TripleIndex.open(tmp_path / "index", towers, graph)
    assert len(embedded) == len(FACTS) and isinstance(again.vectors, np.memmap)
    np.testing.assert_array_equal(again.vectors, first.vectors)
    assert_exact(again, towers, graph)


def test_only_new_triples_are_embedded(towers, embedded, tmp_path, capsys):
    """They sort between the old ones; one old triple is gone, and one has another id."""
    TripleIndex.open(tmp_path, towers, Triples.from_triples(FACTS))
    embedded.clear()
    graph = Triples.from_triples(FACTS[1:] + MORE)
    index = TripleIndex.open(tmp_path, towers, graph)
    assert sorted(embedded) == sorted(texts_of(Triples.from_triples(MORE)))
    assert "25 of 64 texts are new and are embedded" in capsys.readouterr().out
    assert_exact(index, towers, graph)
    fresh = TripleIndex.open(tmp_path / "fresh", towers, graph)
    np.testing.assert_allclose(index.vectors, fresh.vectors, rtol=0, atol=1e-6)
    embedded.clear()
    fewer = Triples.from_triples(FACTS[5:9])
    assert_exact(TripleIndex.open(tmp_path, towers, fewer), towers, fewer)
    assert embedded == []


@pytest.mark.parametrize("seed", [1, 2])
def test_a_changed_graph_answers_as_one_indexed_anew(seed, models, towers, embedded, tmp_path):
    """Facts are added, edited and deleted at random; those that stay are not embedded again."""
    draw, facts, known = random.Random(seed), list(FACTS), set()
    questions = [f"Who directed Film {i}?" for i in range(0, 60, 9)]
    for turn in range(4):
        facts = [x for x in facts if draw.random() > 0.1]
        edited = [(*x[:2], f"{x[2]} of {turn}") if draw.random() < 0.1 else x for x in facts]
        facts = edited + draw.sample(MORE, 5)
        draw.shuffle(facts)
        graph = Triples.from_triples(facts)
        updated = TripleRetriever(towers, graph, TripleIndex.open(tmp_path, towers, graph))
        new = set(texts_of(graph)) - known
        assert sorted(embedded) == sorted(new)
        anew = TripleRetriever(towers, graph, TripleIndex.open(None, towers, graph))
        rows, scores = updated.search_rows(questions, k=9)
        wanted, wanted_scores = anew.search_rows(questions, k=9)
        np.testing.assert_array_equal(rows, wanted)
        np.testing.assert_allclose(scores, wanted_scores, atol=1e-6)
        known = set(texts_of(graph))
        embedded.clear()


def test_changed_ids_with_the_same_names_are_not_embedded_again(towers, embedded, tmp_path):
    TripleIndex.open(tmp_path, towers, Triples.from_triples([("a", "of", "b")]))
    graph = Triples.from_triples([("z", "of", "y")], {"z": "a", "y": "b"})
    TripleIndex.open(tmp_path, towers, graph)
    assert embedded == ["a | of | b"]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"model": "b"}, "made with another model; all texts"),
        ({"by": "whole"}, "made with another relation text; all texts"),
        ({"dtype": "float16"}, "made with another dtype; all texts"),
    ],
)
def test_a_changed_model_or_setting_rebuilds_the_index(
    changed, message, models, towers, embedded, tmp_path, capsys
):
    graph = Triples.from_triples(FACTS)
    TripleIndex.open(tmp_path, towers, graph)
    embedded.clear()
    other = DualEncoder.from_pretrained(models / changed.pop("model", "a"))
    index = TripleIndex.open(tmp_path, other, graph, **changed)
    assert len(embedded) == len(FACTS) and message in capsys.readouterr().out
    if "by" not in changed:
        assert_exact(index, other, graph, atol=1e-3 if changed else 1e-6)
    assert index.vectors.dtype == changed.get("dtype", "float32")


def test_an_exported_copy_of_the_model_reuses_the_index(models, towers, embedded, tmp_path):
    graph = Triples.from_triples(FACTS)
    TripleIndex.open(tmp_path / "index", towers, graph)
    towers.save_pretrained(tmp_path / "export")
    TripleIndex.open(tmp_path / "index", DualEncoder.from_pretrained(tmp_path / "export"), graph)
    assert len(embedded) == len(FACTS)


def test_half_precision_scores_are_within_a_thousandth(towers, tmp_path):
    graph = Triples.from_triples(FACTS + MORE)
    half = TripleIndex.open(tmp_path, towers, graph, dtype="float16")
    whole = TripleIndex.open(None, towers, graph)
    queries = towers.encode(["Who directed Film 3?"], kind="query")
    np.testing.assert_allclose(half.search(queries, 9)[1], whole.search(queries, 9)[1], atol=1e-3)


def damage(kind: str, folder: Path) -> None:
    manifest = folder / "manifest.json"
    vectors = next(folder.glob("*/vectors.npy"))
    if kind == "manifest":
        manifest.write_text("{")
    elif kind == "no folder":
        manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"folder": "gone"}))
    elif kind == "short":
        os.truncate(vectors, vectors.stat().st_size // 2)
    elif kind == "bit":
        content = bytearray(vectors.read_bytes())
        content[-3] ^= 1
        vectors.write_bytes(content)
    else:
        next(folder.glob("*/keys.npy")).unlink()


@pytest.mark.parametrize("kind", ["manifest", "no folder", "short", "bit", "no keys"])
def test_a_damaged_index_is_rebuilt(kind, towers, embedded, tmp_path, capsys):
    graph = Triples.from_triples(FACTS)
    TripleIndex.open(tmp_path, towers, graph)
    embedded.clear()
    damage(kind, tmp_path)
    index = TripleIndex.open(tmp_path, towers, graph)
    assert len(embedded) == len(FACTS)
    assert f"index {tmp_path}: damaged (" in capsys.readouterr().out
    assert_exact(index, towers, graph)
    TripleIndex.open(tmp_path, towers, graph)
    assert len(embedded) == len(FACTS)


def test_an_interrupted_build_reuses_only_undamaged_blocks(
    towers, embedded, tmp_path, capsys, monkeypatch
):
    """A stop while the third of five blocks is embedded."""
    monkeypatch.setattr(vector_files, "BLOCK", 8)
    graph = Triples.from_triples(FACTS)
    encode = DualEncoder.encode

    def stop(self, batch, **options):
        if len(embedded) >= 16:
            raise KeyboardInterrupt
        return encode(self, batch, **options)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(DualEncoder, "encode", stop)
        TripleIndex.open(tmp_path, towers, graph)
    assert len(embedded) == 16
    first, second = sorted(tmp_path.glob("unfinished/*/*.npy"))
    content = bytearray(second.read_bytes())
    content[-3] ^= 1
    second.write_bytes(content)
    embedded.clear()
    index = TripleIndex.open(tmp_path, towers, graph)
    assert embedded == texts_of(graph)[8:]
    out = capsys.readouterr().out
    assert f"warning: {second} has been damaged" in out and "goes on after 1 of 5 blocks" in out
    assert not (tmp_path / "unfinished").exists() and not first.exists()
    whole = TripleIndex.open(tmp_path / "at once", towers, graph)
    np.testing.assert_array_equal(index.vectors, whole.vectors)


WORK = """
import sys
from ark_jax.retrieval import vector_files
from ark_jax.graph.triple_index import TripleIndex
from ark_jax.graph.triples import Triples
from ark_jax.models.towers import DualEncoder
vector_files.BLOCK = 4
towers = DualEncoder.from_pretrained(sys.argv[1])
graph = Triples.from_triples([(f"Film {i}", "directed_by", f"Director {i % 7}") for i in range(40)])
TripleIndex.open(sys.argv[2], towers, graph)
"""


def start(model: Path, index: Path, blocks: str = "unlimited") -> subprocess.Popen:
    """Runs `WORK` in a process whose files may have that many blocks of 1 KiB."""
    command = shlex.join([sys.executable, "-c", WORK, str(model), str(index)])
    return subprocess.Popen(
        ["bash", "-c", f"ulimit -f {blocks}; exec {command}"],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_killed_build_resumes(models, towers, tmp_path, capsys, monkeypatch):
    """With kill -9, as soon as two blocks are there."""
    index, graph = tmp_path / "index", Triples.from_triples(FACTS)
    process = start(models / "a", index)
    deadline = time.monotonic() + 120
    while len(list(index.glob("unfinished/*/*.npy"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert not (index / "manifest.json").exists()
    monkeypatch.setattr(vector_files, "BLOCK", 4)
    assert_exact(TripleIndex.open(index, towers, graph), towers, graph)
    assert "goes on after" in capsys.readouterr().out


def test_a_full_disk_keeps_the_finished_blocks(models, towers, tmp_path, embedded, monkeypatch):
    """No file may be larger than 2 KiB; each block is smaller, all vectors together are not."""
    index, graph = tmp_path / "index", Triples.from_triples(FACTS)
    process = start(models / "a", index, blocks="2")
    last = process.communicate()[1].strip().splitlines()[-1]
    assert process.returncode == 1 and last.startswith("OSError: [Errno 27] File too large: '")
    assert "vectors.npy" in last
    assert len(list(index.glob("unfinished/*/*.npy"))) == 10
    monkeypatch.setattr(vector_files, "BLOCK", 4)
    TripleIndex.open(index, towers, graph)
    assert embedded == [] and (index / "manifest.json").exists()


def test_two_concurrent_builds_make_one_index(models, tmp_path):
    processes = [start(models / "a", tmp_path / "index") for _ in range(2)]
    outputs = [process.communicate() for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    assert len(list((tmp_path / "index").glob("*/vectors.npy"))) == 1


def test_truncated_triples_are_reported(towers, capsys):
    graph = Triples.from_triples([("one of the clerks " * 40, "wrote", "x"), ("a", "wrote", "b")])
    TripleIndex.open(None, towers, graph)
    assert "1 triples are longer than 48 tokens and are cut there" in capsys.readouterr().out
