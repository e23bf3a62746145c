"""The ONNX file of an encoder gives the hidden states and vectors of the encoder."""

import itertools

import numpy as np
import pytest
from support import tiny

from ark_jax import layout
from ark_jax.models.retriever import Retriever

pytest.importorskip("onnx", reason="pip install 'ark-jax[integrations]' onnxruntime")
pytest.importorskip("onnxruntime", reason="pip install 'ark-jax[integrations]' onnxruntime")

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


@pytest.mark.slow
def test_the_onnx_file_of_minilm_gives_its_vectors(real_models, tmp_path):
    retriever = Retriever.from_pretrained(real_models["retriever"])
    save_onnx(retriever, tmp_path)
    with tiny.DOCUMENTS.open(encoding="utf-8") as file:
        texts = [line[40:240] for line in itertools.islice(file, 16)]
    _, vectors = run(tmp_path / FILE, ids_and_mask(retriever, texts))
    np.testing.assert_allclose(vectors, retriever.encode(texts, kind="document"), atol=1e-5)
