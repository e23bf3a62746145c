"""An index of a vector for each token: what it returns, takes over and mends."""

import dataclasses
import functools
import shutil
from textwrap import wrap

import jax
import numpy as np
import pytest
from support import tiny
from support.brute_force import bm25, fuse
from support.paths import DATA

import ark_jax as ark
from ark_jax import layout
from ark_jax.data import readers
from ark_jax.data.records import Document
from ark_jax.demo import models as demo
from ark_jax.models.multi_vector import MultiVectorRetriever
from ark_jax.retrieval import codes, late, screen, vector_files
from ark_jax.retrieval.late import maxsim
from ark_jax.runtime import storage
from ark_jax.text.token_vectors import TokenVectors

SENTENCES = tiny.DOCUMENTS.read_text(encoding="utf-8").replace("\\n", " ").split(". ")
QUESTIONS = ["Who founded the Tidal Board?", "salt and tide"]


def documents(count: int = 5) -> list[Document]:
    """Documents of several chunks each."""
    texts = (". ".join(SENTENCES[9 * i + 1 : 9 * i + 5]) for i in range(count))
    return [Document(f"d/{i} é", "Straße", text) for i, text in enumerate(texts)]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Folders of two models with a vector for each token."""
    return tiny.multi_vector(tmp_path_factory.mktemp("modèles"), "a", "b")


@pytest.fixture(scope="module")
def built(models, tmp_path_factory):
    """A folder with an index of five documents; tests only read it."""
    folder = tmp_path_factory.mktemp("ïndex") / "潮"
    with jax.set_mesh(layout.make_mesh((1, 1, 1))):
        ark.Index.build(folder, models / "a", documents())
    return folder


@pytest.fixture(autouse=True)
def on_a_mesh(mesh):
    """Every test enters the same mesh, and leaves it."""


@pytest.fixture
def embedded(monkeypatch):
    """The passages that retrievers embed."""
    texts = []
    encode = MultiVectorRetriever.encode

    def record(self, batch, *, kind, **options):
        texts.extend(batch if kind == "document" else ())
        return encode(self, batch, kind=kind, **options)

    monkeypatch.setattr(MultiVectorRetriever, "encode", record)
    return texts


def passages(index: ark.Index) -> list[str]:
    return [chunk.passage for chunk in index.chunks]


def floats(index: ark.Index) -> np.ndarray:
    """The tokens' vectors that an index stores."""
    return codes.restore(index.vectors.values, index.manifest.made_with["width"])


def assert_same(index: ark.Index, other: ark.Index) -> None:
    """Equal chunks and tokens; vectors of other batches are equal up to rounding."""
    assert list(index.chunks) == list(other.chunks)
    assert index.manifest.made_with == other.manifest.made_with
    np.testing.assert_array_equal(index.vectors.offsets, other.vectors.offsets)
    differences = abs(floats(index) - floats(other)).max(1)
    # A component beside a threshold may have another code.
    assert np.mean(differences > 1e-5) <= (0.01 if "bits" in index.manifest.made_with else 0)


@pytest.mark.parametrize("bits", [1, 2, 8, 16, 32])
def test_rankings_equal_maxsim(bits, built, models, tmp_path, monkeypatch):
    index = ark.Index.open(built)
    if bits != 2:
        index = ark.Index.build(tmp_path / "i", models / "a", documents(), bits=bits)
    texts, k = passages(index), 7
    assert isinstance(index.vectors, TokenVectors) and len(index.vectors) == len(texts) > 20
    assert isinstance(index.vectors.values, np.memmap)
    width = index.manifest.made_with["width"]
    stored = {16: "float16", 32: "float32"}.get(bits, "uint32")
    assert index.vectors.values.dtype == stored == index.manifest.made_with["dtype"]
    assert index.vectors.values.shape[1] == (width if bits > 8 else bits * -(-width // 32))
    retriever = MultiVectorRetriever.from_pretrained(models / "a")
    queries, expected = (
        retriever.encode(texts, kind=kind)
        for texts, kind in ((QUESTIONS, "query"), (texts, "document"))
    )
    np.testing.assert_array_equal(index.vectors.offsets, expected.offsets)
    cosines = np.vecdot(floats(index), expected.values)
    assert cosines.mean() > {1: 0.75, 2: 0.9, 8: 0.999}.get(bits, 1 - 1e-6)
    scores = maxsim(queries, index.vectors)
    if bits > 8:
        np.testing.assert_allclose(scores, maxsim(queries, expected), atol=1e-3)
    by_words = bm25(QUESTIONS, texts, [range(len(texts))] * 2, 20)
    chunk_ids = [chunk.id for chunk in index.chunks]
    dense = index.search(QUESTIONS, k=k, by="dense")
    for i, (hits, hybrid) in enumerate(zip(dense, index.search(QUESTIONS, k=k), strict=True)):
        best = np.argsort(-scores[i], kind="stable")
        assert [hit.chunk for hit in hits] == [chunk_ids[j] for j in best[:k]]
        assert [hit.score for hit in hits] == pytest.approx(scores[i][best[:k]].tolist(), abs=2e-5)
        joined = fuse([by_words[i], best[:20].tolist()], k)
        assert [hit.chunk for hit in hybrid] == [chunk_ids[j] for j in joined]
    assert index.search(QUESTIONS, k=k, by="dense", vectors=queries) == dense
    monkeypatch.setattr(late, "SCREENED", len(texts) - 1)  # all but one are compared exactly
    found = index.search(QUESTIONS, k=4, by="dense")
    assert [[hit.chunk for hit in hits] for hits in found] == [
        [hit.chunk for hit in hits[:4]] for hits in dense
    ]


def test_an_index_of_floats_is_converted_without_embedding(
    built, models, tmp_path, embedded, capsys
):
    whole = ark.Index.build(tmp_path / "i", models / "a", documents(), bits=32)
    assert "bits" not in whole.manifest.made_with  # as every index was before there were codes
    more = Document("more", "", "Salt was boiled here.")
    assert ark.Index.open(tmp_path / "i").add([more]).vectors.values.dtype == np.float32
    embedded.clear()
    converted = ark.Index.build(tmp_path / "i", models / "a", documents())
    assert embedded == [] and "32 bits a component are converted to 2" in capsys.readouterr().out
    assert_same(converted, ark.Index.open(built))
    size = lambda index: index.vectors.values.nbytes
    assert size(whole) == 16 * size(converted)
    finer = ark.Index.build(tmp_path / "i", models / "a", documents(), bits=4)
    assert embedded == passages(finer)  # which two bits do not tell
    assert finer.add([more]).manifest.made_with["bits"] == 4


FORMS = [{"bits": 2}, {"bits": 32}, {"bits": 2, "pool": 2}]


@pytest.mark.parametrize("form", FORMS)
def test_only_changed_and_added_documents_are_embedded_again(
    form, models, tmp_path, embedded, monkeypatch
):
    monkeypatch.setattr(vector_files, "BLOCK", 12)  # so that old and new texts mix in blocks
    build = functools.partial(ark.Index.build, model=models / "a", **form)
    first = build(tmp_path / "i", corpus=documents(4))
    old, new = passages(first), documents()
    new[1] = dataclasses.replace(new[1], text=new[1].text + " A bell rang at noon. " * 3)
    new.insert(0, Document("new", "", "The lamp was lit. " * 4))
    del new[4]
    embedded.clear()
    second = build(tmp_path / "i", corpus=new)
    assert set(embedded) == set(passages(second)) - set(old) and embedded
    assert_same(second, build(tmp_path / "at once", corpus=new))
    embedded.clear()
    third = second.add([Document("more", "", "Salt was boiled here.")])
    assert embedded == ["Salt was boiled here."]
    whole = [*new, Document("more", "", "Salt was boiled here.")]
    assert_same(third, build(tmp_path / "whole", corpus=whole))


@pytest.mark.parametrize("form", FORMS)
def test_a_failed_build_resumes_after_its_last_block(form, models, tmp_path, monkeypatch, embedded):
    monkeypatch.setattr(vector_files, "BLOCK", 16)
    build = functools.partial(ark.Index.build, model=models / "a", corpus=documents(), **form)
    whole = build(tmp_path / "at once")
    embedded.clear()
    write, written = vector_files._write_block, []

    def fail_at_the_fourth(blocks, number, *rest):
        if len(written) == 3:
            raise KeyboardInterrupt
        write(blocks, number, *rest)
        written.append(number)

    monkeypatch.setattr(vector_files, "_write_block", fail_at_the_fourth)
    with pytest.raises(KeyboardInterrupt):
        build(tmp_path / "i")
    monkeypatch.setattr(vector_files, "_write_block", write)
    blocks = sorted((tmp_path / "i").glob("unfinished/*/*-*.npy"))
    assert len(blocks) == 3
    blocks[1].write_bytes(blocks[1].read_bytes()[:-5])  # only this one is made again
    embedded.clear()
    index = build(tmp_path / "i")
    assert embedded == passages(index)[4:8] + passages(index)[12:]
    assert_same(index, whole)
    assert not (tmp_path / "i" / "unfinished").exists()


def test_a_pooled_index_has_half_of_the_vectors(built, models, tmp_path, embedded, capsys):
    whole = ark.Index.open(built)
    build = functools.partial(ark.Index.build, tmp_path / "i", corpus=documents())
    index = build(models / "a", pool=2, bits=32)
    lengths = whole.vectors.lengths
    assert index.manifest.made_with["pool"] == 2 and lengths.min() > 2
    assert (index.vectors.lengths <= 1 + lengths // 2).all()
    assert index.vectors.lengths.sum() > lengths.sum() // 2
    queries = MultiVectorRetriever.from_pretrained(models / "a").encode(QUESTIONS, kind="query")
    near = maxsim(queries, index.vectors) - maxsim(queries, whole.vectors)
    assert abs(near).max() < 0.2
    other = index.with_model(models / "b")
    np.testing.assert_array_equal(other.vectors.lengths, index.vectors.lengths)
    embedded.clear()
    assert_same(build(models / "a"), whole)
    assert embedded == passages(whole) and "made with another" in capsys.readouterr().out
    with pytest.raises(ValueError, match="pool=0: must be at least 1"):
        build(models / "a", pool=0)
    with pytest.raises(ValueError, match="pool=2: this model has one vector"):
        build(models / "pooled" / "a", pool=2)


@pytest.mark.parametrize("name", ["vectors.npy", "offsets.npy"])
@pytest.mark.parametrize("missing", [True, False])
def test_a_damaged_file_is_named_and_rebuilt(name, missing, built, models, tmp_path, capsys):
    shutil.copytree(built, tmp_path / "i")
    (path,) = (tmp_path / "i").glob(f"index-*/vectors/{name}")
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.unlink() if missing else path.write_bytes(content)
    if missing:
        with pytest.raises(ValueError, match=f"vectors/{name} is missing"):
            ark.Index.open(tmp_path / "i")
    index = ark.Index.build(tmp_path / "i", models / "a", documents())
    assert f"vectors/{name} is {'missing' if missing else 'damaged'}" in capsys.readouterr().out
    assert_same(index, ark.Index.open(built))


def test_a_missing_or_different_model_is_reported(models, built, tmp_path):
    shutil.copytree(models / "a", tmp_path / "m")
    ark.Index.build(tmp_path / "i", tmp_path / "m", documents(2))
    shutil.move(tmp_path / "m", tmp_path / "moved")
    with pytest.raises(FileNotFoundError, match=r"model of the index .* is missing"):
        ark.Index.open(tmp_path / "i").search(QUESTIONS)
    assert ark.Index.open(tmp_path / "i", model=tmp_path / "moved").search(QUESTIONS)[0]
    for other in (models / "b", models / "pooled" / "a"):
        with pytest.raises(ValueError, match=r"is another model than the index"):
            ark.Index.open(tmp_path / "i", model=other).search(QUESTIONS)


@pytest.mark.parametrize("name", ["offsets.npy", "vectors.npy"])
def test_models_of_both_kinds_search_the_same_chunks(name, models, built, tmp_path, embedded):
    shutil.copytree(built, tmp_path / "i")
    index = ark.Index.open(tmp_path / "i")
    pooled = index.with_model(models / "pooled" / "a")
    assert isinstance(pooled.vectors, np.ndarray) and pooled.search(QUESTIONS)[0]
    assert embedded == []
    other = index.with_model(models / "b")
    assert embedded == passages(index)
    again = ark.Index.open(tmp_path / "i").with_model(models / "b")
    assert len(embedded) == len(index)
    assert_same(again, other)
    assert again.search(QUESTIONS) == other.search(QUESTIONS)
    (folder,) = (x.parent for x in (tmp_path / "i").glob("compared/*/*/offsets.npy"))
    path = folder / name
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)
    mended = ark.Index.open(tmp_path / "i").with_model(models / "b")
    assert len(embedded) == 2 * len(index)
    assert_same(mended, other)
    # An index of ordinary vectors becomes one of tokens, and the other way round.
    for model in (models / "pooled" / "a", models / "a"):
        changed = ark.Index.build(tmp_path / "i", model, documents())
    assert_same(changed, index)


@pytest.mark.slow
@pytest.mark.network
def test_the_screen_misses_hardly_any_of_the_ten_best_real_passages(monkeypatch):
    """MiniLM's tokens of story passages of some 50 tokens, of which first signs choose 400."""
    monkeypatch.setattr(screen, "WHOLE", 0)
    if not (DATA / "fairytaleqa").exists():
        pytest.skip("set ARK_DATA to a folder with fairytaleqa/")
    read = readers.load(DATA / "fairytaleqa" / "section-stories" / "val")
    passages = [text for story in read.documents for text in wrap(story.text, 200)]
    folder = demo.prepare(demo.DEMO["retriever"], storage.cache_folder())
    retriever = MultiVectorRetriever.from_pretrained(folder)
    texts = retriever.encode(passages[: 13 * late.SCREENED], kind="document")
    queries = retriever.encode([x.question for x in read.questions[::20]], kind="query")
    stored = TokenVectors(codes.pack(texts.values, 2), texts.offsets)
    best = np.argsort(-maxsim(queries, stored), axis=1, kind="stable")[:, :10]
    found, _ = late.nearest(queries, stored, 10)
    recall = np.mean([len(set(x) & set(y)) / 10 for x, y in zip(found, best, strict=True)])
    assert len(stored) == 13 * late.SCREENED and recall >= 0.99, recall
