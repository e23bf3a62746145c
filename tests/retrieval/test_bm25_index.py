"""BM25 on disk against bm25s, which holds all in memory."""

import functools
import gc
import subprocess
import sys
import tempfile
import tracemalloc

import bm25s
import numpy as np
import pytest
import Stemmer
from hypothesis import given, settings
from hypothesis import strategies as st
from support import shard_work

from ark_jax.retrieval import bm25_index
from ark_jax.retrieval.bm25_index import best_texts, count_bm25, open_bm25, stems, write_bm25
from ark_jax.runtime import map_shards

WORDS = ("tide", "tides", "lamp", "the", "Salz", "straße", "潮位", "pilot's", "of", "1811")
TEXTS = st.lists(st.lists(st.sampled_from(WORDS), max_size=9).map(" ".join), max_size=14)


def reference_scores(query: str, texts: list[str], tokenizer: str) -> np.ndarray:
    """What bm25s scores alone; for "english" the words are its own, too."""
    options = {"stopwords": "en", "stemmer": Stemmer.Stemmer("english"), "show_progress": False}
    own = functools.partial(bm25s.tokenize, return_ids=False, **options)
    tokenize = own if tokenizer == "english" else stems
    reference = bm25s.BM25(method="lucene", k1=1.5, b=0.75, backend="numpy")
    reference.index(tokenize(texts), show_progress=False)
    words = tokenize([query])[0]
    return reference.get_scores(words) if words else np.zeros(len(texts))


@settings(deadline=None, max_examples=30)
@given(
    TEXTS,
    st.lists(st.sampled_from(WORDS), max_size=5).map(" ".join),
    st.integers(1, 16),
    st.integers(1, 9),
    st.sampled_from(bm25_index.TOKENIZERS),
)
def test_scores_match_the_library_bm25s(tmp_path_factory, texts, query, k, block, tokenizer):
    folder = tmp_path_factory.mktemp("words")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(map_shards, "cores", lambda: 1)
        patch.setattr(bm25_index, "BLOCK", block)  # texts of several blocks share words, and
        patch.setattr(bm25_index, "ENTRIES", 4)  # words are written a few at a time
        write_bm25(folder, iter(texts), tokenizer)
    ((positions, scores),) = mapped = open_bm25(folder, len(texts), tokenizer).search([query], k)
    (counted,) = count_bm25(texts, tokenizer).search([query], k, [list(range(len(texts)))])
    assert mapped[0].pairs() == counted.pairs()
    if any(stems(texts, tokenizer)):
        wanted = reference_scores(query, texts, tokenizer)[positions]
        np.testing.assert_array_equal(scores, wanted)
    else:
        assert not len(scores)


@settings(deadline=None, max_examples=30)
@given(
    seed=st.integers(0, 2**32),
    k=st.integers(1, 12),
    sample=st.integers(1, 500),
    words=st.sampled_from([9, 90]),  # texts of nine words have many equal scores
    on_disk=st.booleans(),
    compiled=st.booleans(),  # by numba, where it is installed
)
def test_the_best_texts_equal_those_of_a_full_scan(seed, k, sample, words, on_disk, compiled):
    rng = np.random.default_rng(seed)
    draw = lambda size: [f"w{number}" for number in rng.zipf(1.3, size) % words]
    texts = [" ".join(draw(rng.integers(1, 20))) for _ in range(400)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bm25_index, "SAMPLE", sample)
        patch.setattr(bm25_index, "COMPILED", 0 if compiled else 1 << 40)
        patch.setattr(bm25_index, "IN_MEMORY", 399 if on_disk else 400)
        index = count_bm25(texts)
        for query in (draw(rng.integers(1, 7)) for _ in range(20)):
            positions, scores = index.best(query, k)
            in_full = index.scores(query)
            np.testing.assert_array_equal(positions, best_texts(in_full, k))
            np.testing.assert_array_equal(scores, in_full[positions])


def test_a_large_collection_leaves_no_temporary_files(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(bm25_index, "IN_MEMORY", 3)
    index = count_bm25(["the tide", "a lamp", "salt", "wool and lamps"])
    assert not list(tmp_path.iterdir())
    assert index.best(["lamp"], 4)[0].tolist() == [1, 3]


@pytest.mark.parametrize("block", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_two_processes_write_the_same_files_as_one_despite_a_kill(tmp_path, monkeypatch, block):
    texts = [" ".join(f"w{i * j % 17}" for j in range(i % 5)) for i in range(30)]
    monkeypatch.setattr(bm25_index, "BLOCK", block)
    files = []
    for cores, read in ((1, texts), (2, shard_work.with_a_kill(texts, 8 * block))):
        monkeypatch.setattr(map_shards, "cores", lambda cores=cores: cores)
        write_bm25(tmp_path / str(cores), read)
        paths = (tmp_path / str(cores)).iterdir()
        files.append({path.name: path.read_bytes() for path in paths})
    assert files[0] == files[1] and len(files[0]) == 4


@pytest.fixture
def frequent_collection():
    """Collects garbage as often as by default, so that a peak of memory is not garbage."""
    threshold = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    yield
    gc.set_threshold(*threshold)


@pytest.mark.usefixtures("frequent_collection")
def test_writing_the_index_does_not_hold_the_entries_in_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(map_shards, "cores", lambda: 1)
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


def test_the_files_do_not_depend_on_the_hash_seed(tmp_path):
    """Words get their numbers by a set of strings, whose order differs between processes."""
    code = (
        "import sys; from pathlib import Path; from ark_jax.retrieval import bm25_index;"
        "from ark_jax.runtime import map_shards;"
        "bm25_index.BLOCK, map_shards.cores = 1, lambda: 2;"
        "texts = ['salt lamp tide pilot bell wool', 'wool tide harbour', '', 'lamp', 'salt'];"
        "bm25_index.write_bm25(Path(sys.argv[1]), texts)"
    )
    contents = []
    for seed in ("1", "2"):
        folder = tmp_path / seed
        environment = {"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)}
        done = subprocess.run(
            [sys.executable, "-c", code, folder], env=environment, check=True, capture_output=True
        )
        assert not done.stderr  # Python would warn of what workers leave behind
        contents.append({path.name: path.read_bytes() for path in folder.iterdir()})
    assert contents[0] == contents[1] and len(contents[0]) == 4
