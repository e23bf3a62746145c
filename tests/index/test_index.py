"""An index of a corpus: what it returns, what it takes over, and what may go wrong."""

import dataclasses
import importlib.util
import itertools
import json
import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pyarrow as pa
import pytest
from support import pairs, tiny
from support.brute_force import bm25, fuse
from support.paths import REPOSITORY

import ark_jax as ark
from ark_jax import layout
from ark_jax.data.records import Document, with_title
from ark_jax.index import build
from ark_jax.index import folder as folders
from ark_jax.index import index as indices
from ark_jax.index.index import Hit
from ark_jax.models.multi_vector import MultiVectorRetriever
from ark_jax.models.retriever import Retriever
from ark_jax.pipeline.fingerprints import fingerprint
from ark_jax.retrieval import vector_files
from ark_jax.retrieval.chunks import ChunkRules
from ark_jax.retrieval.fusion import Fusion

SENTENCES = tiny.DOCUMENTS.read_text(encoding="utf-8").replace("\\n", " ").split(". ")
QUESTIONS = ["Who founded the Tidal Board?", "salt and tide", "Wer ließ die Glocke gießen?"]


def documents(count: int = 6, words: str = "") -> list[Document]:
    """Documents of several chunks each, with titles in several scripts."""
    titles = ("The Tidal Board", "Straße", "潮位", "", "Ünter > x", "a#0001")
    texts = (". ".join(SENTENCES[9 * i + 1 : 9 * i + 5]) for i in range(count))
    return [
        Document(f"d/{i} é", titles[i % len(titles)], f"{text}. {words}", (), f'{{"number": {i}}}')
        for i, text in enumerate(texts)
    ]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Folders of two models that differ in their weights."""
    return tiny.retrievers(tmp_path_factory.mktemp("modèles"), "a", "b")


@pytest.fixture(scope="module")
def built(models, tmp_path_factory):
    """A folder with an index of six documents; tests only read it."""
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
    for cls in (Retriever, MultiVectorRetriever):

        def record(self, batch, *, kind, encode=cls.encode, **options):
            texts.extend(batch if kind == "document" else ())
            return encode(self, batch, kind=kind, **options)

        monkeypatch.setattr(cls, "encode", record)
    return texts


def passages(index: ark.Index) -> list[str]:
    return [chunk.passage for chunk in index.chunks]


def assert_same(index: ark.Index, other: ark.Index) -> None:
    """Equal chunks and words; vectors of other batches are equal up to rounding."""
    assert list(index.chunks) == list(other.chunks)
    values = [getattr(x.vectors, "values", x.vectors) for x in (index, other)]
    np.testing.assert_allclose(*values, atol=1e-5)
    words = (f"words/{name}" for name in ("texts.npy", "scores.npy", "words.json"))
    for name in ("chunks.arrow", "documents.arrow", *words):
        files = [x.folder / x.manifest.folder / name for x in (index, other)]
        assert files[0].read_bytes() == files[1].read_bytes(), name


def test_rankings_equal_a_brute_force_search(built, models):
    index, retriever = ark.Index.open(built), Retriever.from_pretrained(models / "a")
    texts, k = passages(index), 7
    assert len(index) == len(texts) > 20
    queries = retriever.encode(QUESTIONS, kind="query")
    cosines = queries @ retriever.encode(texts, kind="document").T
    by_words = bm25(QUESTIONS, texts, [range(len(texts))] * 3, 20)
    chunk_ids = [chunk.id for chunk in index.chunks]
    for i, hits in enumerate(index.search(QUESTIONS, k=k, by="dense")):
        best = np.argsort(-cosines[i])[:k]
        assert [hit.score for hit in hits] == pytest.approx(cosines[i][best].tolist(), abs=1e-5)
        assert [hit.chunk for hit in hits] == [chunk_ids[j] for j in best]
    for i, hits in enumerate(index.search(QUESTIONS, k=k, by="bm25")):
        assert [hit.chunk for hit in hits] == [chunk_ids[j] for j in by_words[i][:k]]
    for i, hits in enumerate(index.search(QUESTIONS, k=k)):
        joined = fuse([by_words[i], np.argsort(-cosines[i])[:20].tolist()], k)
        assert [hit.chunk for hit in hits] == [chunk_ids[j] for j in joined]
        assert all(hit.score >= later.score > 0 for hit, later in itertools.pairwise(hits))


def test_a_hit_has_its_document_and_position(built):
    texts = {document.id: document for document in documents()}
    (hits,) = ark.Index.open(built).search(QUESTIONS[:1], k=5, by="bm25")
    assert len(hits) == 5
    for hit in hits:
        document = texts[hit.document]
        assert isinstance(hit, Hit) and document.text[hit.start : hit.end] == hit.text
        assert hit.title == document.title


def test_the_fusion_is_stored_with_the_index(built, models, tmp_path):
    fusion = Fusion(constant=3, bm25=5.0, dense=0.01, depth=30)
    index = ark.Index.build(tmp_path / "i", models / "a", documents(), fusion=fusion)
    assert ark.Index.open(tmp_path / "i").manifest.fusion == fusion
    words, both = (index.search(QUESTIONS[:1], k=4, by=by)[0] for by in ("bm25", "hybrid"))
    assert [hit.chunk for hit in both] == [hit.chunk for hit in words]
    assert both[0].score >= 5 / 4


@pytest.mark.parametrize("kind", ["classifier", "decoder"])
def test_a_stored_reranker_orders_what_a_search_finds(
    kind, models, tmp_path, embedded, monkeypatch
):
    write = pairs.write_yes_no if kind == "decoder" else pairs.write_classifier
    folder = write(tmp_path / "r", *["bert"] * (kind != "decoder"))
    monkeypatch.setattr(indices, "RERANKED", 7)
    first = ark.Index.build(tmp_path / "i", models / "a", documents())
    count = len(embedded)
    index = ark.Index.build(tmp_path / "i", models / "a", documents(), reranker=folder)
    assert len(embedded) == count and index.manifest.reranker == str(folder)
    scorer = ark.CrossEncoder.from_pretrained(folder)
    for by in ("hybrid", "dense", "bm25"):
        plain = index.search(QUESTIONS, k=7, by=by, rerank=False)
        assert plain == first.search(QUESTIONS, k=7, by=by)
        for question, hits, given in zip(
            QUESTIONS, index.search(QUESTIONS, k=3, by=by), plain, strict=True
        ):
            logits = scorer.score([(question, with_title(x.title, x.text)) for x in given])
            best = np.argsort(-logits, kind="stable")[:3]
            assert [x.chunk for x in hits] == [given[i].chunk for i in best]
            assert [x.score for x in hits] == pytest.approx(logits[best].tolist(), abs=1e-5)
    assert index.add(documents(1, "more")).manifest.reranker == str(folder)
    shutil.move(folder, tmp_path / "elsewhere")
    with pytest.raises(FileNotFoundError, match=r"the reranker of the index .* search with --"):
        ark.Index.open(tmp_path / "i").search(QUESTIONS)


def test_a_retriever_is_refused_as_the_reranker(models, tmp_path):
    with pytest.raises(ValueError, match=r"reranker='.*' scores no pairs of texts; give a "):
        ark.Index.build(tmp_path / "i", models / "a", documents(), reranker=models / "b")
    assert not (tmp_path / "i").exists()


def test_half_precision_takes_half_the_space(built, models, tmp_path):
    index = ark.Index.build(tmp_path / "i", models / "a", documents(), bits=16)
    whole = ark.Index.open(built)
    assert index.vectors.dtype == np.float16 and index.vectors.nbytes * 2 == whole.vectors.nbytes
    np.testing.assert_allclose(index.vectors, whole.vectors, atol=1e-3)


@pytest.mark.parametrize(
    ("bits", "message"),
    [(3, "bits=3: must be one of 1, 2, 4, 8, 16, 32"), (2, "bits=2: this model has one vector")],
)
def test_an_unsuitable_precision_is_refused(bits, message, models, tmp_path):
    with pytest.raises(ValueError, match=message):
        ark.Index.build(tmp_path / "j", models / "a", documents(), bits=bits)


def test_only_changed_documents_are_embedded_again(models, tmp_path, embedded):
    blank = Document("blank", "no text", " \n ")
    first = ark.Index.build(tmp_path / "i", models / "a", [blank, *documents()])
    old, new = passages(first), [*documents()[:3], blank, *documents()[3:]]
    new[1] = dataclasses.replace(new[1], text=new[1].text + " A bell rang at noon. " * 3)
    del new[4]
    new.insert(0, Document("new", "", "The lamp was lit. " * 4))
    embedded.clear()
    second = ark.Index.build(tmp_path / "i", models / "a", new)
    assert set(embedded) == set(passages(second)) - set(old) and 0 < len(embedded) < 8
    assert second.manifest.documents == 7
    assert_same(second, ark.Index.build(tmp_path / "at once", models / "a", new))
    assert first.search(QUESTIONS[:1], by="bm25")  # what is open stays open
    assert len(list((tmp_path / "i").glob("index-*"))) == 1


@pytest.mark.parametrize("seed", [1, 2])
def test_a_changed_corpus_answers_as_one_indexed_anew(seed, models, tmp_path, embedded):
    """Documents are added, edited and deleted at random; passages that stay are kept."""
    draw, corpus, known = random.Random(seed), documents(), set()
    for turn in range(3):
        corpus = [x for x in corpus if draw.random() > 0.2]
        edits = [
            f"{x.text} In {turn} a bell rang." if draw.random() < 0.3 else x.text for x in corpus
        ]
        corpus = [dataclasses.replace(x, text=text) for x, text in zip(corpus, edits, strict=True)]
        text = ". ".join(draw.sample(SENTENCES, 5))
        corpus.insert(draw.randrange(len(corpus) + 1), Document(f"new {turn}", "", text))
        index = ark.Index.build(tmp_path / "i", models / "a", corpus)
        assert set(embedded) == set(passages(index)) - known
        known = set(passages(index))
        anew = ark.Index.build(tmp_path / f"anew {turn}", models / "a", corpus)
        assert_same(index, anew)
        found = [[[x.chunk for x in hits] for hits in y.search(QUESTIONS)] for y in (index, anew)]
        assert found[0] == found[1]
        embedded.clear()


def test_unchanged_documents_are_not_cut_again(models, tmp_path, monkeypatch):
    ark.Index.build(tmp_path / "i", models / "a", documents())
    cut = []
    from ark_jax.index import build

    cut_documents = build.cut_documents

    def record(documents, *args):
        return cut_documents((cut.append(x.id) or x for x in documents), *args)

    monkeypatch.setattr(build, "cut_documents", record)
    new = documents()
    new[2] = dataclasses.replace(new[2], title="another")
    ark.Index.build(tmp_path / "i", models / "a", new)
    assert cut == [new[2].id]


def test_documents_can_be_added_to_an_index(models, tmp_path, embedded):
    index = ark.Index.build(tmp_path / "i", models / "a", documents(3))
    embedded.clear()
    changed = Document(documents()[1].id, "", "Only this is left of it.")
    index = index.add([*documents()[3:], changed])
    assert sorted(set(embedded)) == sorted(
        {x.passage for x in index.chunks if x.document not in ("d/0 é", "d/2 é")}
    )
    whole = [documents()[0], changed, *documents()[2:]]
    assert_same(index, ark.Index.build(tmp_path / "at once", models / "a", whole))


def test_building_again_from_unchanged_files_does_nothing(models, tmp_path, capsys, monkeypatch):
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    (corpus / "tide.txt").write_text("The tide rose. " * 30)
    folder = tmp_path / "i"
    ark.Index.build(folder, models / "a", corpus)
    files = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.name != "lock"}
    with monkeypatch.context() as patch:
        patch.setattr(Retriever, "from_pretrained", None)
        ark.Index.build(folder, models / "a", corpus)
    assert "nothing has changed" in capsys.readouterr().out
    assert {p: p.stat().st_mtime_ns for p in folder.rglob("*") if p.name != "lock"} == files
    (corpus / "salt.txt").write_text("Salt was boiled here.")
    assert "salt.txt" in {x.document for x in ark.Index.build(folder, models / "a", corpus).chunks}


def test_given_chunks_are_indexed_unchanged(models, tmp_path):
    rows = [
        {"id": f"c{i}", "document": f"d{i % 2}", "text": f"chunk {i} of the tide"} for i in range(5)
    ]
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "chunks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    index = ark.Index.build(tmp_path / "i", models / "a", tmp_path / "c")
    assert {x.id: x.text for x in index.chunks} == {row["id"]: row["text"] for row in rows}


def test_another_model_rebuilds_the_index(models, tmp_path, embedded, capsys):
    ark.Index.build(tmp_path / "i", models / "a", documents(2))
    embedded.clear()
    index = ark.Index.build(tmp_path / "i", models / "b", documents(2))
    assert embedded == passages(index)
    assert "made with another model; all chunks are embedded again" in capsys.readouterr().out
    assert_same(index, ark.Index.build(tmp_path / "at once", models / "b", documents(2)))


def test_a_second_model_embeds_the_chunks_once(models, built, tmp_path, embedded):
    shutil.copytree(built, tmp_path / "i")
    index = ark.Index.open(tmp_path / "i")
    other = index.with_model(models / "b")
    assert len(embedded) == len(index)
    again = ark.Index.open(tmp_path / "i").with_model(models / "b")
    assert len(embedded) == len(index)
    np.testing.assert_array_equal(again.vectors, other.vectors)
    whole = ark.Index.build(tmp_path / "b", models / "b", documents())
    for by in ("dense", "hybrid"):
        hits, wanted = (x.search(QUESTIONS, k=3, by=by) for x in (other, whole))
        assert [[h.chunk for h in x] for x in hits] == [[h.chunk for h in x] for x in wanted]
    assert [h.chunk for h in index.search(QUESTIONS, by="dense")[0]] != [
        h.chunk for h in other.search(QUESTIONS, by="dense")[0]
    ]


def test_a_missing_or_different_model_is_reported(models, tmp_path):
    shutil.copytree(models / "a", tmp_path / "m")
    ark.Index.build(tmp_path / "i", tmp_path / "m", documents(2))
    shutil.move(tmp_path / "m", tmp_path / "moved")
    index = ark.Index.open(tmp_path / "i")
    with pytest.raises(FileNotFoundError, match=r"model of the index .* is missing .*--model=FOLD"):
        index.search(QUESTIONS)
    assert index.search(QUESTIONS, by="bm25")[0]  # needs no model
    assert ark.Index.open(tmp_path / "i", model=tmp_path / "moved").search(QUESTIONS)[0]
    with pytest.raises(ValueError, match=r"b is another model than the index .* was made with"):
        ark.Index.open(tmp_path / "i", model=models / "b").search(QUESTIONS)


@pytest.mark.parametrize("texts", [[], ["", " \n "]])
def test_a_corpus_without_text_is_refused_and_keeps_the_index(texts, models, built, tmp_path):
    shutil.copytree(built, tmp_path / "i")
    empty = [Document(str(i), "title", text) for i, text in enumerate(texts)]
    with pytest.raises(ValueError, match="no document holds any text, so there is nothing"):
        ark.Index.build(tmp_path / "i", models / "a", empty)
    assert len(ark.Index.open(tmp_path / "i")) == len(ark.Index.open(built))


@pytest.mark.parametrize(
    ("questions", "options", "message"),
    [
        (QUESTIONS, {"by": "words"}, "by='words': must be hybrid, dense, bm25"),
        (QUESTIONS, {"k": 0}, "k=0: must be at least 1"),
        ("Who?", {}, "is one text; give a list"),
    ],
)
def test_invalid_arguments_of_a_search_are_refused(built, questions, options, message):
    with pytest.raises(ValueError, match=message):
        ark.Index.open(built).search(questions, **options)


def test_an_index_of_documents_with_the_same_id_is_refused(models, tmp_path):
    with pytest.raises(ValueError, match="document 'd/0 é' occurs twice"):
        ark.Index.build(tmp_path / "i", models / "a", documents(1) * 2)


def test_an_absent_index_cannot_be_opened(tmp_path):
    with pytest.raises(FileNotFoundError, match="no index; `ark-jax index MODEL CORPUS"):
        ark.Index.open(tmp_path / "nowhere")


def test_an_index_is_not_built_in_a_folder_with_other_files(models, tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(ValueError, match=r"holds thesis\.tex and no index"):
        ark.Index.build(tmp_path, models / "a", documents(1))
    assert (tmp_path / "thesis.tex").is_file()


def test_an_index_is_built_where_a_full_disk_cut_off_its_first_manifest(models, tmp_path):
    (tmp_path / "manifest.json.new").write_text('{"mod')
    assert len(ark.Index.build(tmp_path, models / "a", documents(2)))
    assert not (tmp_path / "manifest.json.new").exists()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("vectors/vectors.npy", "vectors/vectors.npy is damaged"),
        ("words/scores.npy", "words/scores.npy is missing"),
        ("../manifest.json", "manifest.json is damaged"),
    ],
)
def test_a_damaged_file_is_named_and_rebuilt(name, message, built, models, tmp_path, capsys):
    shutil.copytree(built, tmp_path / "i")
    (files,) = (tmp_path / "i").glob("index-*")
    if "missing" in message:
        (files / name).unlink()
    else:
        (files / name).write_bytes((files / name).read_bytes()[:-9])
    with pytest.raises(ValueError, match=message):
        ark.Index.open(tmp_path / "i")
    index = ark.Index.build(tmp_path / "i", models / "a", documents())
    assert message in capsys.readouterr().out
    assert_same(index, ark.Index.open(built))
    assert len(list((tmp_path / "i").glob("index-*"))) == 1


def test_a_flipped_bit_is_detected_when_building_again(built, models, tmp_path, capsys):
    shutil.copytree(built, tmp_path / "i")
    (path,) = (tmp_path / "i").glob("index-*/vectors/vectors.npy")
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)
    index = ark.Index.build(tmp_path / "i", models / "a", documents())
    assert "vectors/vectors.npy is damaged; it is made again" in capsys.readouterr().out
    assert_same(index, ark.Index.open(built))


@pytest.mark.parametrize("small", [0, folders.SMALL], ids=["large", "small"])
@pytest.mark.parametrize("kind", ["texts", "tokens"])
def test_damage_is_named_and_never_ends_a_search(kind, small, built, models, tmp_path, monkeypatch):
    """As of files that are too large to be read whenever an index is opened, and of small ones."""
    monkeypatch.setattr(folders, "SMALL", small)
    if kind == "tokens":
        model = tiny.multi_vector(tmp_path, "m") / "m"
        built = ark.Index.build(tmp_path / "t", model, documents()).folder
    draw = random.Random(kind)
    vectors = ark.Index.open(built).embed(QUESTIONS, "query")
    refused = 0
    for number in range(40):
        folder = shutil.copytree(built, tmp_path / str(number))
        (files,) = folder.glob("index-*")
        path = draw.choice(sorted(x for x in files.rglob("*") if x.is_file()))
        content = bytearray(path.read_bytes())
        place = draw.randrange(min(len(content), draw.choice([256, len(content)])))
        if number % 5:
            content[place] ^= 1 << draw.randrange(8)
        else:
            del content[place:]
        path.write_bytes(content)
        manifest = folders.read_manifest(folder)
        name = str(path.relative_to(files))
        assert folders.damage_of(manifest, folder, verify=True) == f"{name} is damaged"
        try:
            index = ark.Index.open(folder)
            for by in indices.BY:
                index.search(QUESTIONS, by=by, vectors=vectors)
        except ValueError as error:
            assert re.search("damaged|not finite", str(error))
            refused += 1
        shutil.rmtree(folder)
    assert refused == 40 if small else refused >= 8  # truncated files are never opened


def test_another_prompt_of_questions_is_refused(models, tmp_path):
    model = shutil.copytree(models / "a", tmp_path / "model")
    index = ark.Index.build(tmp_path / "i", model, documents(1))
    prompts = {"prompts": {"query": "Find: "}}
    path = model / "config_sentence_transformers.json"
    path.write_text(json.dumps(prompts))
    with pytest.raises(ValueError, match="embeds questions otherwise than when the index"):
        ark.Index.open(tmp_path / "i").search(QUESTIONS)
    again = ark.Index.build(tmp_path / "i", model, documents(1))
    np.testing.assert_array_equal(again.vectors, index.vectors)
    assert again.search(QUESTIONS)


def test_an_index_keeps_the_tokenizer_that_it_was_made_with(models, tmp_path):
    folder, corpus = tmp_path / "i", [Document("c", "", "Vitamin C prevents scurvy.")]
    found = lambda index: [hit.document for hit in index.search(["C"], by="bm25")[0]]

    def set_tokenizer(**tokenizer):
        path = folder / folders.MANIFEST_FILE
        row = json.loads(path.read_text())
        del row["digest"], row["tokenizer"]
        row |= tokenizer
        path.write_text(json.dumps(row | {"digest": fingerprint(row)}))

    settings = build.Settings(str(models / "a"), ChunkRules(), 0, Fusion(), tokenizer="english")
    build.build(folder, settings, corpus)
    set_tokenizer()  # as version 0.4 wrote it
    assert not found(ark.Index.open(folder))
    index = ark.Index.open(folder).add([Document("d", "", "Vitamin C.")])
    assert index.manifest.tokenizer == "english" and not found(index)
    index = ark.Index.build(folder, models / "a", corpus)
    assert index.manifest.tokenizer == "multilingual" and found(index) == ["c"]
    set_tokenizer(tokenizer="elvish")
    with pytest.raises(ValueError, match="tokenizer 'elvish' is none of english, multilingual"):
        ark.Index.open(folder)


def test_an_index_being_changed_is_locked_for_other_builds(built, models, tmp_path):
    shutil.copytree(built, tmp_path / "i")
    with folders.locked(tmp_path / "i"):
        with pytest.raises(RuntimeError, match="another program is changing this index; wait"):
            ark.Index.build(tmp_path / "i", models / "a", documents(2))
        assert ark.Index.open(tmp_path / "i").search(QUESTIONS)[0]  # a reader needs no lock


WORK = """
import sys
import ark_jax as ark
from ark_jax.data.records import Document
from ark_jax.retrieval import vector_files
vector_files.BLOCK = 4
texts = [f"Lamp {i} was lit by the {i} keepers of the {i} towers. " * 3 for i in range(12)]
rows = [Document(f"d{i}", "", text) for i, text in enumerate(texts)]
ark.Index.build(sys.argv[2], sys.argv[1], rows)
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


@pytest.mark.slow
@pytest.mark.parametrize("vectors", ["one", "tokens"])
def test_a_killed_build_resumes(vectors, models, tmp_path, embedded, capsys, monkeypatch):
    """With kill -9, as soon as two blocks are there."""
    model = models / "a" if vectors == "one" else tiny.multi_vector(tmp_path, "m") / "m"
    process = start(model, tmp_path / "i")
    deadline = time.monotonic() + 240
    while len(list(tmp_path.glob("i/unfinished/*/*-*.npy"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert not (tmp_path / "i" / "manifest.json").exists()
    monkeypatch.setattr(vector_files, "BLOCK", 4)
    monkeypatch.setattr(sys, "argv", ["", str(model), str(tmp_path / "i")])
    exec(compile(WORK, "work", "exec"), {})
    assert "goes on after" in capsys.readouterr().out
    index = ark.Index.open(tmp_path / "i")
    assert 0 < len(embedded) <= len(index) - (8 if vectors == "one" else 2)
    monkeypatch.setattr(sys, "argv", ["", str(model), str(tmp_path / "at once")])
    exec(compile(WORK, "work", "exec"), {})
    assert_same(index, ark.Index.open(tmp_path / "at once"))
    assert not (tmp_path / "i" / "unfinished").exists()


@pytest.mark.slow
def test_a_full_disk_leaves_the_index_unchanged(models, tmp_path):
    folder = tmp_path / "i"
    before = ark.Index.build(folder, models / "a", documents(1))
    process = start(models / "a", folder, blocks="2")
    last = process.communicate()[1].strip().splitlines()[-1]
    assert process.returncode == 1 and "File too large" in last, last
    assert_same(ark.Index.open(folder), before)


def test_rows_dataframes_and_paths_give_the_index_of_documents(models, tmp_path):
    given = [Document(x.id, x.title, x.text.strip()) for x in documents(2)]
    rows = [dataclasses.asdict(x) for x in given]
    rows = [{name: row[name] for name in ("id", "title", "text")} for row in rows]
    lines = [json.dumps(row) + "\n" for row in rows]
    (tmp_path / "1.jsonl").write_text(lines[0])
    (tmp_path / "2.jsonl").write_text(lines[1])
    frame = pa.table({name: [row[name] for row in rows] for name in rows[0]})
    corpora = {"rows": rows, "frame": frame, "paths": sorted(tmp_path.glob("*.jsonl"))}
    if importlib.util.find_spec("pandas"):
        corpora["pandas"] = frame.to_pandas()
    expected = ark.Index.build(tmp_path / "index", models / "a", given)
    for name, corpus in corpora.items():
        assert_same(ark.Index.build(tmp_path / name, models / "a", corpus), expected)


@pytest.mark.parametrize(
    ("corpus", "message"),
    [
        ([{"id": "a", "text": 7}], r"documents.jsonl:1: text: is a number"),
        ([{"id": Path("a")}], r"documents, row 1: .*give dicts of strings"),
        ({"a": "text"}, r"rows: dict; give a path, a list or a dataframe"),
        (7, r"rows: int; give a path"),
    ],
)
def test_a_corpus_of_the_wrong_kind_is_named_in_one_line(corpus, message, models, tmp_path):
    with pytest.raises(ValueError, match=message):
        ark.Index.build(tmp_path / "i", models / "a", corpus)


def test_public_objects_show_themselves_in_one_line(built, models):
    index = ark.Index.open(built)
    retriever = index.retriever
    graph = ark.Triples.from_triples([("a", "r", "b")])
    towers = ark.DualEncoder(retriever, retriever)
    network = ark.KnowledgeGraph.from_triples([("a", "r", "b")])
    shown = [repr(x) for x in (index, retriever, graph, towers, network, index.manifest)]
    assert all(len(text) < 200 and "\n" not in text for text in shown[:-1]), shown
    assert shown[1].startswith("Retriever(base=") and "width=" in shown[1]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ([None], r"questions: None is no string; give strings"),
        ("a", r"questions: 'a' is one text; give a list"),
        (None, r"questions is NoneType; give a list"),
    ],
)
def test_what_is_no_list_of_questions_is_named_in_one_line(wrong, message, built):
    with pytest.raises(ValueError, match=message):
        ark.Index.open(built).search(wrong, by="bm25")
