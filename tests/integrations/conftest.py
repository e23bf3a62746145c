"""An index of a tiny retriever, which adapters pass on."""

import jax
import pytest
from support import tiny

import ark_jax as ark
from ark_jax import __main__, layout
from ark_jax.data.records import Document, metadata_json
from ark_jax.retrieval.chunks import ChunkRules

TEXTS = {
    "tide": "Josiah Penhallow founded the Tidal Board in 1784. It measured every tide.",
    "salt": "The Pellin Salt Company boiled brine. Horses worked its pumps, day and night.",
    "glocke": "Die Glocke der Kirche wurde 1811 gegossen. Sie läutet bei Sturm.",
    "lamp": "The lamp office lit forty lamps. A strike put them out in the winter of 1893.",
}
METADATA = {
    "tide": {"year": 1784, "lang": "en", "tags": ["sea", "board"]},
    "salt": {"year": 1790, "lang": "en", "tags": ["sea"]},
    "glocke": {"year": 1811, "lang": "de"},
    "lamp": {"lang": "it's"},
}


@pytest.fixture(autouse=True)
def on_a_mesh(mesh):
    """Every test enters the same mesh, and leaves it."""


@pytest.fixture(scope="package")
def place(tmp_path_factory):
    """A folder with the retriever `model` and the index `index`."""
    root = tiny.retrievers(tmp_path_factory.mktemp("place"), "model")
    documents = [
        Document(id, id.title(), text, metadata=metadata_json(METADATA[id]))
        for id, text in TEXTS.items()
    ]
    with jax.set_mesh(layout.make_mesh((1, 1, 1))):
        rules = ChunkRules(tokens=24)
        ark.Index.build(root / "index", root / "model", documents, rules=rules)
    return root


@pytest.fixture
def retriever(place):
    return ark.Retriever.from_pretrained(place / "model")


@pytest.fixture
def index(place):
    opened = ark.Index.open(place / "index")
    assert len(opened) > len(TEXTS)
    return opened


@pytest.fixture
def call(monkeypatch, tmp_path):
    """A command line, in an environment of its own."""
    for name in ("JAX_COMPILATION_CACHE_DIR", "TRANSFORMERS_VERBOSITY"):
        monkeypatch.setenv(name, "")
    monkeypatch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    monkeypatch.setenv("ARK_CACHE", str(tmp_path / "cache"))
    return lambda *words: __main__._main(list(map(str, words)))
