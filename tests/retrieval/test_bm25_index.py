"""BM25 on disk against bm25s, which holds all in memory."""

import tracemalloc

import bm25s
import numpy as np
import pytest
import Stemmer
from hypothesis import given, settings
from hypothesis import strategies as st

from ark_jax.retrieval import bm25_index
from ark_jax.retrieval.bm25 import bm25
from ark_jax.retrieval.bm25_index import BM25Index, write_bm25

WORDS = ("tide", "tides", "lamp", "the", "Salz", "straße", "潮位", "pilot's", "of", "1811")
TEXTS = st.lists(st.lists(st.sampled_from(WORDS), max_size=9).map(" ".join), max_size=14)


def reference_scores(query: str, texts: list[str]) -> np.ndarray:
    """What bm25s scores by itself."""
    options = {"stopwords": "en", "stemmer": Stemmer.Stemmer("english"), "show_progress": False}
    reference = bm25s.BM25(method="lucene", k1=1.5, b=0.75, backend="numpy")
    reference.index(bm25s.tokenize(texts, return_ids=False, **options), show_progress=False)
    words = bm25s.tokenize([query], return_ids=False, **options)[0]
    return reference.get_scores(words) if words else np.zeros(len(texts))


@settings(deadline=None, max_examples=60)
@given(TEXTS, st.lists(st.sampled_from(WORDS), max_size=5).map(" ".join), st.integers(1, 16))
def test_the_scores_are_those_of_bm25s(tmp_path_factory, texts, query, k):
    folder = tmp_path_factory.mktemp("words")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bm25_index, "BLOCK", 3)  # texts of several blocks share words, and
        patch.setattr(bm25_index, "ENTRIES", 4)  # words are written a few at a time
        write_bm25(folder, iter(texts))
    ((positions, scores),) = BM25Index(folder, len(texts)).search([query], k)
    assert [positions.tolist()] == bm25([query], texts, [range(len(texts))], k)
    if any(text for text in texts if bm25([text], [text], [[0]], 1)[0]):
        np.testing.assert_array_equal(scores, reference_scores(query, texts)[positions])
    else:
        assert not len(scores)


def test_memory_does_not_hold_the_entries(tmp_path, monkeypatch):
    monkeypatch.setattr(bm25_index, "BLOCK", 50)
    monkeypatch.setattr(bm25_index, "ENTRIES", 2000)
    numbers = np.random.default_rng(0).integers(1000, size=(4000, 40))
    texts = (" ".join(f"w{number}" for number in row) for row in numbers)
    write_bm25(tmp_path / "warm", ["a lamp"])  # imports
    tracemalloc.start()
    write_bm25(tmp_path / "words", texts)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    entries = len(np.load(tmp_path / "words" / "texts.npy"))
    assert entries > 150_000 and peak < 8 * entries


def test_the_files_are_the_same_in_every_process(tmp_path):
    """Words get their numbers by a set of strings, whose order differs between processes."""
    import subprocess
    import sys

    code = (
        "import sys; from pathlib import Path; from ark_jax.retrieval.bm25_index import write_bm25;"
        "write_bm25(Path(sys.argv[1]), ['salt lamp tide pilot bell wool', 'wool tide harbour'])"
    )
    contents = []
    for seed in ("1", "2"):
        folder = tmp_path / seed
        environment = {"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)}
        subprocess.run([sys.executable, "-c", code, folder], env=environment, check=True)
        contents.append({path.name: path.read_bytes() for path in folder.iterdir()})
    assert contents[0] == contents[1] and len(contents[0]) == 4
