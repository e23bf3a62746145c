"""A ranked corpus of a few chunks."""

import collections
import types

import numpy as np
import pytest
from support.ranking import CHUNKS, DOCUMENTS, QUESTIONS

from ark_jax.data.spool import save_chunks
from ark_jax.pipeline import engine
from ark_jax.pipeline.tables import save_json, save_rows
from ark_jax.recipes.ark import config
from ark_jax.recipes.documents import corpus, retrieve
from ark_jax.recipes.documents.corpus import POOL_FILE
from ark_jax.runtime.log import Metrics


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A context whose retrievers tell texts apart by their first letters, each in its own way; what
    was embedded is counted."""
    (tmp_path / "w" / "data").mkdir(parents=True)
    save_rows(DOCUMENTS, tmp_path / "w" / "data" / "documents.parquet")
    save_rows(QUESTIONS, tmp_path / "w" / "data" / "questions_held_out.parquet")
    save_json({"pool": "documents"}, tmp_path / "w" / "data" / POOL_FILE)
    save_chunks([x for chunks in CHUNKS.values() for x in chunks], tmp_path / "w" / "data")
    embedded = collections.Counter()

    def encode(context, which, texts, kind, label=""):
        embedded[which, kind] += 1
        drawn = [np.random.default_rng([len(which), *t.encode()]).standard_normal(4) for t in texts]
        return np.array([x / np.linalg.norm(x) for x in drawn], np.float32)

    def encode_passages(context, which, texts, label):
        return encode(context, which, texts, "document"), 0

    monkeypatch.setattr(retrieve, "encode", encode)
    monkeypatch.setattr(corpus, "encode_passages", encode_passages)
    c = config.ark()
    c.train.stages = (1, 2, 3)
    context = engine.Context(c, tmp_path / "w", Metrics(tmp_path / "metrics.jsonl"))
    return types.SimpleNamespace(context=context, c=c, folder=tmp_path, embedded=embedded)
