"""Two towers: each kind of text by its own model, saved as a Router, and the same there."""

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from huggingface_hub import ModelCard
from jax.tree_util import tree_map
from safetensors.numpy import load_file, save_file
from support import tiny

from ark_jax import layout
from ark_jax.models.retriever import Retriever
from ark_jax.models.towers import DualEncoder

TEXTS = ["Who led the Tidal Board?", "", "Ünder the ﬁne board " * 40, "x"]
PROMPTS = {"query": "Find: ", "document": ""}


def write_bert(folder: Path, *, seed: int = 0, pooling: str = "mean", limit: int = 48) -> Path:
    path = tiny.write(folder, "bert", tokenizer="cls", weights=tiny.tensors("bert", seed))
    return tiny.sentence_transformer(path, pooling=pooling, max_seq_length=limit, prompts=PROMPTS)


@pytest.fixture(scope="module")
def bases(tmp_path_factory):
    """Folders of two models that differ in weights, pooling and limit."""
    folder = tmp_path_factory.mktemp("bases")
    return (
        write_bert(folder / "query"),
        write_bert(folder / "document", seed=1, pooling="cls", limit=60),
    )


def open_two(bases, **options) -> DualEncoder:
    query, document = (Retriever.from_pretrained(str(path), **options) for path in bases)
    return DualEncoder(query, document)


@pytest.fixture(scope="module")
def saved_once(bases, tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    with jax.set_mesh(layout.make_mesh((1, 1, 1))):
        open_two(bases).save_pretrained(folder)
    return folder


@pytest.fixture
def saved(saved_once, tmp_path, mesh):
    """A folder of two towers, the test's own."""
    return shutil.copytree(saved_once, tmp_path / "router")


def files(path: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(path)): file.read_bytes()
        for file in sorted(path.rglob("*"))
        if file.is_file()
    }


def edit(path: Path, **changes) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_each_kind_is_embedded_by_its_tower(bases, mesh):
    towers = open_two(bases)
    assert not towers.is_one
    for kind, base in zip(("query", "document"), bases, strict=True):
        alone = Retriever.from_pretrained(str(base)).encode(TEXTS, kind=kind)
        np.testing.assert_array_equal(towers.encode(TEXTS, kind=kind), alone)


def test_an_unknown_kind_of_text_is_refused(bases, mesh):
    with pytest.raises(ValueError, match="kind='passage': must be 'query' or 'document'"):
        open_two(bases).encode(TEXTS, kind="passage")


def test_an_ordinary_folder_is_opened_as_one_shared_tower(bases, tmp_path, mesh):
    towers = DualEncoder.from_pretrained(bases[0])
    assert towers.is_one and towers.query is towers.document
    towers.save_pretrained(tmp_path / "one")
    Retriever.from_pretrained(str(bases[0])).save_pretrained(tmp_path / "alone")
    assert files(tmp_path / "one") == files(tmp_path / "alone")


def test_saved_towers_are_loaded_unchanged(saved, bases, tmp_path, mesh):
    again = DualEncoder.from_pretrained(saved)
    assert (again.query.pooling, again.document.pooling) == ("mean", "cls")
    assert (again.query.max_length, again.document.max_length) == (48, 60)
    for kind in ("query", "document"):
        wanted = open_two(bases).encode(TEXTS, kind=kind)
        np.testing.assert_array_equal(again.encode(TEXTS, kind=kind), wanted)
    again.save_pretrained(tmp_path / "again")
    assert files(tmp_path / "again") == files(saved)


def test_unchanged_weights_are_saved_with_the_same_bytes(saved, bases):
    for kind, base in zip(("query", "document"), bases, strict=True):
        stored = (saved / f"{kind}_0_Transformer" / "model.safetensors").read_bytes()
        assert stored == (base / "model.safetensors").read_bytes()


def test_a_saved_router_has_the_files_of_sentence_transformers(saved):
    read = lambda name: json.loads((saved / name).read_text())
    prefix = "sentence_transformers.models"
    assert [(m["path"], m["type"]) for m in read("modules.json")] == [("", f"{prefix}.Router")]
    router = read("router_config.json")
    parts = ("0_Transformer", "1_Pooling", "2_Normalize")
    assert router["structure"] == {
        kind: [f"{kind}_{part}" for part in parts] for kind in ("query", "document")
    }
    assert router["types"] == {
        f"{kind}_{part}": f"{prefix}.{part[2:]}" for kind in ("query", "document") for part in parts
    }
    assert router["parameters"] == {"default_route": "document", "allow_empty_key": True}
    settings = read("config_sentence_transformers.json")
    assert settings["prompts"] == PROMPTS and settings["similarity_fn_name"] == "cosine"
    for kind, limit in (("query", 48), ("document", 60)):
        model = saved / f"{kind}_0_Transformer"
        names = {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
        assert names | {"sentence_bert_config.json"} == {path.name for path in model.iterdir()}
        assert read(f"{kind}_0_Transformer/sentence_bert_config.json")["max_seq_length"] == limit


def test_sentence_transformers_gives_the_same_vectors(saved, bases, mesh):
    library = pytest.importorskip("sentence_transformers", reason="the reference implementation")
    reference = library.SentenceTransformer(str(saved), device="cpu")
    for kind, encode in (
        ("query", reference.encode_query),
        ("document", reference.encode_document),
    ):
        ours = open_two(bases).encode(TEXTS, kind=kind)
        np.testing.assert_allclose(encode(TEXTS, batch_size=2), ours, rtol=0, atol=1e-5)


def test_a_router_that_sentence_transformers_saves_is_read(bases, tmp_path, mesh):
    """As routes of their own, with shared modules behind the Router, and with one shared route."""
    library = pytest.importorskip("sentence_transformers", reason="the reference implementation")
    modules = pytest.importorskip("sentence_transformers.sentence_transformer.modules")
    opened = [library.SentenceTransformer(str(base), device="cpu") for base in bases]
    query, document = (list(model.children()) for model in opened)
    join = modules.Router.for_query_document
    apart = [join(query, document)]
    shared = [join(query[:1], document[:1]), *query[1:]]
    for name, chain in {"apart": apart, "shared": shared, "one": [join(query, query)]}.items():
        model = library.SentenceTransformer(modules=chain, device="cpu", prompts=PROMPTS)
        model.save(str(tmp_path / name))
        towers = DualEncoder.from_pretrained(tmp_path / name)
        assert towers.is_one == (name == "one")
        for kind, encode in (("query", model.encode_query), ("document", model.encode_document)):
            ours = towers.encode(TEXTS, kind=kind)
            np.testing.assert_allclose(ours, encode(TEXTS, batch_size=2), rtol=0, atol=1e-5)


OPEN = """
import json, sys
import numpy as np
import sentence_transformers
assert sentence_transformers.__version__.startswith("5.1."), sentence_transformers.__version__
model = sentence_transformers.SentenceTransformer(sys.argv[2], device="cpu")
for kind in ("query", "document"):
    vectors = getattr(model, "encode_" + kind)(json.loads(sys.argv[1]), batch_size=2)
    np.save(f"{sys.argv[2]}/{kind}.npy", vectors)
"""


@pytest.mark.slow
@pytest.mark.network
def test_sentence_transformers_5_1_gives_the_same_vectors(saved, bases, old_libraries, mesh):
    done = subprocess.run(
        [sys.executable, "-c", OPEN, json.dumps(TEXTS), str(saved)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(old_libraries)},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for kind in ("query", "document"):
        ours = open_two(bases).encode(TEXTS, kind=kind)
        np.testing.assert_allclose(np.load(saved / f"{kind}.npy"), ours, rtol=0, atol=1e-5)


@pytest.mark.slow
@pytest.mark.network
def test_two_different_minilm_towers_match_sentence_transformers(real_models, tmp_path, mesh):
    """One tower is perturbed, so that the towers' vectors differ."""
    query = Retriever.from_pretrained(real_models["retriever"])
    key = np.random.default_rng(0)
    noise = lambda x: x + np.asarray(key.normal(scale=0.02, size=x.shape), x.dtype)
    document = dataclasses.replace(query, model=tree_map(noise, query.model))
    towers = DualEncoder(query, document)
    towers.save_pretrained(tmp_path)
    library = pytest.importorskip("sentence_transformers", reason="the reference implementation")
    reference = library.SentenceTransformer(str(tmp_path), device="cpu")
    theirs = [reference.encode_query(TEXTS), reference.encode_document(TEXTS)]
    ours = [towers.encode(TEXTS, kind=kind) for kind in ("query", "document")]
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5)
    assert np.abs(ours[0] - ours[1]).max() > 0.01
    reopened = DualEncoder.from_pretrained(tmp_path)
    np.testing.assert_array_equal(reopened.encode(TEXTS, kind="document"), ours[1])


def test_towers_give_the_same_vectors_on_a_mesh(saved, bases):
    with jax_mesh((1, 1, 1)):
        wanted = open_two(bases).encode(TEXTS, kind="document")
    with jax_mesh((2, 2, 2)):
        vectors = DualEncoder.from_pretrained(saved).encode(TEXTS, kind="document")
    np.testing.assert_allclose(vectors, wanted, rtol=0, atol=1e-5)


def jax_mesh(shape):
    import jax

    return jax.set_mesh(layout.make_mesh(shape))


def test_towers_of_two_widths_are_refused(bases, mesh):
    query = Retriever.from_pretrained(str(bases[0]), width=20)
    document = Retriever.from_pretrained(str(bases[1]))
    with pytest.raises(ValueError, match=r"of 20 components, .* of 32; give both the width 20"):
        DualEncoder(query, document)


def test_a_reduced_width_is_saved_and_restored(bases, tmp_path, mesh):
    towers = open_two(bases, width=20)
    towers.save_pretrained(tmp_path / "cut")
    again = DualEncoder.from_pretrained(tmp_path / "cut")
    assert (again.query.width, again.document.width) == (20, 20)
    vectors = again.encode(TEXTS, kind="query")
    np.testing.assert_array_equal(vectors, towers.encode(TEXTS, kind="query"))
    settings = json.loads((tmp_path / "cut" / "config_sentence_transformers.json").read_text())
    assert settings["truncate_dim"] == 20


def test_saving_into_a_towers_source_folder_is_refused(saved, bases, mesh):
    before = files(saved)
    opened = DualEncoder.from_pretrained(saved)
    swapped = DualEncoder(opened.document, opened.query)
    for towers in (opened, swapped):
        with pytest.raises(ValueError, match="tower was read from; give another"):
            towers.save_pretrained(saved)
    with pytest.raises(ValueError, match="the query tower was read from; give another"):
        open_two(bases).save_pretrained(bases[0])
    assert files(saved) == before and not (bases[0] / "router_config.json").exists()


def test_the_model_card_describes_both_towers(saved):
    text = ModelCard.load(saved / "README.md").text
    for row in (
        "| | query | document |\n|---|---|---|",
        "| pooling | mean, then unit length | cls, then unit length |",
        "| prompt | `Find: ` |  |",
    ):
        assert row in text
    assert "encode_query(" in text and "ark.DualEncoder.from_pretrained" in text


def test_opening_a_router_as_a_retriever_names_the_right_class(saved, mesh):
    with pytest.raises(ValueError, match=r"modules.json: a Router, .*ark_jax.DualEncoder"):
        Retriever.from_pretrained(str(saved))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("router_config.json", "{", r"router_config.json: not JSON"),
        ("router_config.json", "{}", "no types or no structure of modules"),
        ("router_config.json", '{"types": {}, "structure": {}}', "no route 'query' but none"),
        (
            "router_config.json",
            '{"types": {"a": "sentence_transformers.Transformer"},'
            ' "structure": {"query": ["a"], "image": ["a"]}}',
            "no route 'document' but 'query', 'image'",
        ),
        (
            "router_config.json",
            '{"types": {"a": "sentence_transformers.Transformer"},'
            ' "structure": {"query": ["b"], "document": ["a"]}}',
            "no types or no structure of modules",
        ),
        (
            "router_config.json",
            '{"types": {"../a": "sentence_transformers.Transformer"},'
            ' "structure": {"query": ["../a"], "document": ["../a"]}}',
            "lies outside its folder",
        ),
        (
            "router_config.json",
            '{"types": {"a": "x.StaticEmbedding"},'
            ' "structure": {"query": ["a"], "document": ["a"]}}',
            "module x.StaticEmbedding is not implemented",
        ),
        (
            "router_config.json",
            '{"types": {"a": "sentence_transformers.Transformer"},'
            ' "structure": {"query": ["a"], "document": ["a"]}}',
            "the route 'query' has no Pooling",
        ),
        (
            "modules.json",
            '[{"type": "sentence_transformers.Transformer", "path": ""},'
            ' {"type": "sentence_transformers.Router", "path": "1_Router"}]',
            "a Router after another module is not implemented",
        ),
    ],
)
def test_a_broken_router_file_is_named(name, content, message, saved, mesh):
    (saved / name).write_text(content)
    with pytest.raises(ValueError, match=f"^{saved}/.*{message}"):
        DualEncoder.from_pretrained(saved)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("router_config.json", "no router_config.json, which modules.json names; fetch it too"),
        (
            "document_1_Pooling/config.json",
            "no document_1_Pooling/config.json, which router_config.json names; fetch it too",
        ),
        ("query_0_Transformer/config.json", "no config.json"),
    ],
)
def test_a_missing_file_is_named(name, message, saved, mesh):
    (saved / name).unlink()
    with pytest.raises(FileNotFoundError, match=message):
        DualEncoder.from_pretrained(saved)


def test_changed_weights_of_a_tower_are_read(saved, bases, mesh):
    """What a trainer of sentence-transformers leaves there is what is used."""
    path = saved / "document_0_Transformer" / "model.safetensors"
    tensors = {name: x * 1.01 if x.dtype.kind == "f" else x for name, x in load_file(path).items()}
    save_file(tensors, path, metadata={"format": "pt"})
    towers = DualEncoder.from_pretrained(saved)
    before = open_two(bases)
    np.testing.assert_array_equal(
        towers.encode(TEXTS, kind="query"), before.encode(TEXTS, kind="query")
    )
    changed = towers.encode(TEXTS, kind="document") - before.encode(TEXTS, kind="document")
    assert np.abs(changed).max() > 1e-3


def test_the_prompts_of_a_router_are_read_from_its_settings(saved, mesh):
    edit(saved / "config_sentence_transformers.json", prompts={"query": "Q: ", "passage": "P: "})
    towers = DualEncoder.from_pretrained(saved)
    for kind, prompt in (("query", "Q: "), ("document", "P: ")):
        tower = towers.tower(kind)
        wanted = [tower.tokenizer(f"{prompt}x")["input_ids"]]
        assert tower.tokenize(["x"], kind=kind).tolist() == wanted
