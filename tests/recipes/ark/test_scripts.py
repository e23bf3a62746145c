"""Whole runs on corpora of scripts of which a tokenizer knows few words."""

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from support import tiny, world
from support.paths import REPOSITORY

from ark_jax import Retriever
from ark_jax.models.hf import read_json

CORPORA = REPOSITORY / "tests" / "support" / "scripts"
HELD_OUT = "bridge"
# A chunk of so many word pieces is longer than the scorer reads, and leaves a document several.
CHUNK_TOKENS = {
    "amharic": 32,
    "arabic": 190,
    "burmese": 14,
    "chinese": 110,
    "emoji": 25,
    "mixed": 110,
}
WINDOW = 200  # tokens that the scorer reads


def write_model(folder: Path, family: str, tokenizer: Path, changes: dict) -> Path:
    """A tiny model of random weights, with the tokenizer of a real one."""
    vocabulary = read_json(tokenizer / "config.json")["vocab_size"]
    weights = tiny.tensors(family)
    for name, values in weights.items():
        if values.shape == (tiny.VOCAB, tiny.WIDTH):
            rows = np.random.default_rng(3).standard_normal((vocabulary, tiny.WIDTH))
            weights[name] = (0.1 * rows).astype(np.float32)
    tiny.write(folder, family, weights=weights, changes={"vocab_size": vocabulary} | changes)
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        shutil.copy(tokenizer / name, folder)
    return folder


@pytest.fixture(scope="module")
def models(tmp_path_factory, real_models):
    root = tmp_path_factory.mktemp("models")
    retriever = write_model(root / "retriever", "bert", Path(real_models["retriever"]), {})
    tiny.sentence_transformer(retriever, pooling="mean", max_seq_length=64)
    window = {"max_position_embeddings": WINDOW}
    write_model(root / "generator", "llama", Path(real_models["generator"]), window)
    return root


def read_rows(path: Path) -> list[dict]:
    return list(map(json.loads, path.read_text(encoding="utf-8").splitlines()))


@pytest.mark.slow
@pytest.mark.network
@pytest.mark.parametrize("script", CHUNK_TOKENS)
def test_a_run_on_any_script_scores_every_question(script, models, mesh, tmp_path):
    flags = {
        "data.path": CORPORA / script,
        "data.held_out_documents": f"('{HELD_OUT}',)",
        "data.chunk_tokens": CHUNK_TOKENS[script],
        "data.chunk_overlap": 4,
    }
    arguments = [f"--config.{name}={value}" for name, value in flags.items()]
    done = world.call(models, tmp_path, "run", *arguments)
    assert done.returncode == 0, done.stdout + done.stderr

    questions = read_rows(CORPORA / script / "questions.jsonl")
    training = {row["id"] for row in questions if row["documents"] != [HELD_OUT]}
    scores = pq.read_table(tmp_path / "score" / "scores.parquet").to_pandas()
    assert set(scores["question"]) == training and len(training) == 6
    assert np.isfinite(scores[["forward", "backward", "retriever"]].to_numpy()).all()
    assert scores["cut"].any()
    measured = pq.read_table(tmp_path / "evaluate" / "questions.parquet").to_pandas()
    assert set(measured["question"]) == {row["id"] for row in questions} - training
    assert set(measured["system"]) == {"base", "stage1", "stage2", "stage3"}
    assert measured["answer"].notna().all()

    texts = [row["text"] for row in read_rows(CORPORA / script / "documents.jsonl")]
    vectors = Retriever.from_pretrained(tmp_path / "export").encode(texts, kind="document")
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-5)
