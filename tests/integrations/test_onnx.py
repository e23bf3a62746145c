"""The ONNX file of an encoder gives the hidden states and vectors of the encoder."""

import importlib.util
import itertools
import json
import re
import shutil
import sys

import jax
import numpy as np
import pytest
from support import tiny

import ark_jax as ark
from ark_jax import layout
from ark_jax.models.batching import little_padding
from ark_jax.models.multi_vector import open_retriever
from ark_jax.models.retriever import Retriever

pytest.importorskip("onnx", reason="pip install 'ark-jax[onnx]'")
pytest.importorskip("onnxruntime", reason="pip install 'ark-jax[onnx]'")

import onnx
import onnxruntime

from ark_jax.integrations.onnx import FILE, save_onnx

TEXTS = ["The tide rises.", "Salt", "The lamp office lit forty lamps, and a strike put them out."]
TOKENIZERS = {"bert": "cls", "distilbert": "cls", "roberta": "both", "xlm-roberta": "both"}


def ids_and_mask(retriever: Retriever, texts: list[str]) -> dict[str, np.ndarray]:
    """Inputs of the file, padded on the right with the tokenizer's own pad token."""
    retriever.tokenizer.padding_side = "right"
    out = retriever.tokenizer(texts, padding=True, truncation=True, max_length=retriever.max_length)
    return {name: np.array(out[name], np.int64) for name in ("input_ids", "attention_mask")}


def run(path, inputs):
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return session.run(["last_hidden_state", "sentence_embedding"], inputs)


@pytest.mark.parametrize(
    ("family", "pooling"),
    [*((family, "mean") for family in TOKENIZERS), ("bert", "cls"), ("roberta", "lasttoken")],
)
def test_the_onnx_file_gives_the_vectors_of_the_encoder(family, pooling, tmp_path):
    folder = tiny.write(tmp_path / "m", family, tokenizer=TOKENIZERS[family])
    tiny.sentence_transformer(folder, pooling=pooling, max_seq_length=48)
    retriever = Retriever.from_pretrained(folder, width=24)
    save_onnx(retriever, tmp_path / "out")
    inputs = ids_and_mask(retriever, TEXTS)
    hidden, vectors = run(tmp_path / "out" / FILE, inputs)
    mask = inputs["attention_mask"].astype(bool)
    arrays = map(layout.rows, (inputs["input_ids"].astype(np.int32), mask))
    ours = retriever.model(*arrays, retriever.cfg)
    np.testing.assert_allclose(hidden[mask], np.asarray(ours)[mask], atol=1e-5)
    np.testing.assert_allclose(vectors, retriever.encode(TEXTS, kind="document"), atol=1e-5)
    onnx.checker.check_model(tmp_path / "out" / FILE, full_check=True)
    again = Retriever.from_pretrained(tmp_path / "out")
    np.testing.assert_array_equal(
        again.encode(TEXTS, kind="query"), retriever.encode(TEXTS, kind="query")
    )


def test_large_onnx_weights_are_stored_in_a_separate_file(tmp_path, monkeypatch):
    monkeypatch.setattr("ark_jax.integrations.onnx.MOST_BYTES", 1000)
    tiny.retrievers(tmp_path, "m")
    retriever = Retriever.from_pretrained(tmp_path / "m")
    for _ in range(2):  # the second time in place of the first
        save_onnx(retriever, tmp_path / "out")
    size = (tmp_path / "out" / f"{FILE}_data").stat().st_size
    assert 1000 < size < 2 * (tmp_path / "out" / "model.safetensors").stat().st_size
    _, vectors = run(tmp_path / "out" / FILE, ids_and_mask(retriever, TEXTS))
    np.testing.assert_allclose(vectors, retriever.encode(TEXTS, kind="document"), atol=1e-5)


def test_the_onnx_command_writes_a_file(call, tmp_path, capsys):
    tiny.retrievers(tmp_path, "m")
    assert call("onnx", tmp_path / "m", f"--out={tmp_path / 'out'}") == 0
    assert capsys.readouterr().out == f"{tmp_path / 'out' / FILE}\n"
    assert (tmp_path / "out" / FILE).is_file()


def test_the_onnx_command_does_not_write_into_the_folder_of_the_model(call, tmp_path, capsys):
    tiny.retrievers(tmp_path, "m")
    assert call("onnx", tmp_path / "m", f"--out={tmp_path / 'm'}") == 1
    assert "the folder this model was read from; give another" in capsys.readouterr().err


def test_the_onnx_command_refuses_a_decoder(call, tmp_path, capsys):
    decoder = tiny.write(tmp_path / "decoder", "qwen3", tokenizer="end")
    assert call("onnx", decoder, f"--out={tmp_path / 'out'}") == 1
    assert "; ONNX is written of bert, roberta" in capsys.readouterr().err


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """The folder of a model with the files of both engines."""
    root = tiny.retrievers(tmp_path_factory.mktemp("exported"), "m")
    with jax.set_mesh(layout.make_mesh((1, 1, 1))):
        save_onnx(Retriever.from_pretrained(root / "m"), root / "out", int8=True)
    return root / "out"


@pytest.mark.parametrize("pooling", ["mean", "cls", "lasttoken"])
def test_an_engine_gives_the_vectors_of_its_file(pooling, tmp_path):
    folder = tiny.write(tmp_path / "m", "bert", tokenizer="cls")
    tiny.sentence_transformer(folder, pooling=pooling, max_seq_length=48)
    own = Retriever.from_pretrained(folder, prompts={"query": "ask: "})
    save_onnx(own, tmp_path / "out", int8=True)
    own = Retriever.from_pretrained(tmp_path / "out")
    texts = [*TEXTS * 20, TEXTS[2] * 40]  # batches of several lengths; the last is truncated
    engines = {"onnx": 1e-5, "openvino": 0.02, "onnx-int8": 0.1}
    if not importlib.util.find_spec("openvino"):
        engines.pop("openvino")
    for engine, most in engines.items():
        opened = open_retriever(tmp_path / "out", engine=engine)
        for kind in ("query", "document"):
            x, y = (model.encode(texts, kind=kind) for model in (opened, own))
            assert np.abs(x - y).max() < most
            if engine != "openvino":  # where the processor has bfloat16
                assert (opened.digest(kind) == own.digest(kind)) == (engine == "onnx")
        raw = own.form.raw  # as a server asks for
        ids = own.tokenize(texts, kind="query")
        x, y = (
            model.encode_tokens(ids, little_padding(own.model, own.cfg), raw)
            for model in (opened, own)
        )
        np.testing.assert_allclose(x, y, atol=5 * most)
    assert np.abs(x - y).max() > 1e-4  # of int8


def test_a_file_of_other_weights_has_a_digest_of_its_own(exported, tmp_path):
    tiny.retrievers(tmp_path, "a", "b")
    save_onnx(Retriever.from_pretrained(tmp_path / "b"), tmp_path / "out")
    shutil.copytree(tmp_path / "out" / "onnx", tmp_path / "a" / "onnx")
    opened = open_retriever(tmp_path / "a", engine="onnx")
    assert opened.digest("query") != Retriever.from_pretrained(tmp_path / "a").digest("query")


def test_an_index_is_searched_by_the_engine_that_made_it(exported, tmp_path, call, capsys):
    rows = [{"id": str(i), "text": text} for i, text in enumerate(TEXTS)]
    (tmp_path / "d.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = (exported, tmp_path / "d.jsonl")
    for engine, other in (("onnx", "jax"), ("jax", "onnx"), ("onnx-int8", "jax")):
        place = tmp_path / engine
        assert call("index", *words, f"--out={place}", f"--engine={engine}") == 0
        index = ark.Index.open(place)
        assert index.manifest.engine == engine
        vectors = open_retriever(exported, engine=engine).encode(TEXTS, kind="document")
        np.testing.assert_allclose(index.vectors, vectors, atol=1e-6)
        asked = open_retriever(exported, engine=engine).encode(["salt"], kind="query")[0]
        best = index.search(["salt"], by="dense")[0][0].score
        assert best == pytest.approx((vectors @ asked).max(), abs=1e-5)
        assert len(index.add([{"id": "new", "text": "A new bell."}])) == 4
        capsys.readouterr()
        assert call("search", place, "salt", f"--engine={engine}", "--json") == 0
        assert json.loads(capsys.readouterr().out)["passages"]
        code = call("search", place, "salt", f"--engine={other}", "--json")
        assert code == (engine == "onnx-int8")
    assert "made with --engine=onnx-int8, and --engine=jax gives" in capsys.readouterr().err


def test_the_onnx_command_says_what_int8_costs(call, tmp_path, capsys):
    tiny.retrievers(tmp_path, "m")
    (tmp_path / "t").mkdir()
    for name, rows in (
        ("documents", [{"id": str(i), "text": text} for i, text in enumerate(TEXTS)]),
        ("questions", [{"id": "q", "question": "Salt?", "documents": ["1"], "answers": ["Salt"]}]),
    ):
        (tmp_path / "t" / f"{name}.jsonl").write_text("".join(json.dumps(x) + "\n" for x in rows))
    out = tmp_path / "out"
    assert call("onnx", tmp_path / "m", f"--out={out}", f"--data={tmp_path / 't'}") == 0
    shown = capsys.readouterr().out
    assert "nDCG@10" in shown and "\n  int8 " in shown
    difference = float(re.search(r"a cosine .* passage: ([0-9.]+)", shown)[1])
    assert 0 < difference < 0.1


def test_an_engine_says_what_is_missing(exported, tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="'tvm': must be jax, onnx, onnx-int8, openvino"):
        open_retriever(exported, engine="tvm")
    tiny.retrievers(tmp_path, "m")
    with pytest.raises(FileNotFoundError, match=r"ark-jax onnx .*m --out=DIR --int8` writes"):
        open_retriever(tmp_path / "m", engine="onnx-int8")
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(RuntimeError, match=r"onnxruntime: pip install 'ark-jax\[onnx\]'"):
        open_retriever(exported, engine="onnx")
    with pytest.raises(RuntimeError, match=r"int8 needs the package onnxruntime: pip install"):
        save_onnx(Retriever.from_pretrained(exported), tmp_path / "out", int8=True)


@pytest.mark.slow
def test_the_onnx_file_of_minilm_gives_its_vectors(real_models, tmp_path):
    retriever = Retriever.from_pretrained(real_models["retriever"])
    save_onnx(retriever, tmp_path)
    with tiny.DOCUMENTS.open(encoding="utf-8") as file:
        texts = [line[40:240] for line in itertools.islice(file, 16)]
    _, vectors = run(tmp_path / FILE, ids_and_mask(retriever, texts))
    np.testing.assert_allclose(vectors, retriever.encode(texts, kind="document"), atol=1e-5)
