"""Folders of every kind that sentence-transformers opens: the same vectors and ranking in it,
before and after our export.

One table lists the folders: what each has besides a tiny BERT with mean pooling and Normalize.
"""

import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file
from support import tiny

from ark_jax.models.retriever import Retriever
from ark_jax.models.towers import DualEncoder

# As many and as long as the documents, so that one compiled program embeds both.
QUERIES = ["Who founded the Tidal Board?", "a wave", "", "snow " * 8, "all the clerks " * 12]
DOCUMENTS = [
    "The Tidal Board was founded in 1784 by the clerks of the harbour, who wrote of snow.",
    "x",
    "Find: both ends",
    "潮汐委员会 naïve Ünder ﬁne [SEP]",
    "one of the clerks " * 9,
]
TYPE = "sentence_transformers.models."
# The same modules by the names of version 6.
NEW_TYPES = {
    "Transformer": "sentence_transformers.base.modules.transformer.Transformer",
    "Pooling": "sentence_transformers.sentence_transformer.modules.pooling.Pooling",
    "Dense": "sentence_transformers.base.modules.dense.Dense",
    "Normalize": "sentence_transformers.base.modules.normalize.Normalize",
}
LEGACY = {"mean": "mean_tokens", "cls": "cls_token", "max": "max_tokens"} | {
    "mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "weightedmean": "weightedmean_tokens",
    "lasttoken": "lasttoken",
}
TANH, IDENTITY = ("torch.nn.modules.activation.Tanh", "torch.nn.modules.linear.Identity")
RELU, GELU = ("torch.nn.modules.activation.ReLU", "torch.nn.modules.activation.GELU")


@dataclasses.dataclass(frozen=True)
class Case:
    """A folder. Each field names one thing in which it may differ."""

    family: str = "bert"
    pooling: tuple[str, ...] = ("mean",)
    unit: bool = True  # has Normalize
    prompts: tuple[tuple[str, str], ...] = ()
    default: str | None = None  # default_prompt_name
    include_prompt: bool = True
    dense: tuple[tuple[int, bool, str], ...] = ()  # width, bias and activation
    residual: bool = False  # of all of them
    similarity: str | None = None
    width: int | None = None
    layout: str = "root"  # or 0_Transformer, new, legacy, bare, router
    dtype: str = "float32"
    files: int = 1
    limit: int | None = None
    lower: bool = False
    stray: bool = False  # another file of weights beside


ASK = (("query", "Find: "), ("document", "Read this: "))
CASES = {
    "plain": Case(),
    "roberta": Case("roberta"),
    "xlm-roberta": Case("xlm-roberta", ("cls",)),
    "distilbert": Case("distilbert", ("cls",)),
    "qwen3": Case("qwen3", ("lasttoken",), prompts=(("query", "Find: "),)),
    "qwen3, max": Case("qwen3", ("max",)),
    "llama": Case("llama", ("mean",)),
    "mistral": Case("mistral", ("weightedmean",), unit=False),  # as SGPT
    "max": Case(pooling=("max",)),
    "root of the length": Case(pooling=("mean_sqrt_len_tokens",), unit=False),
    "weighted mean": Case(pooling=("weightedmean",)),
    "last token of an encoder": Case(pooling=("lasttoken",)),
    "two poolings": Case(pooling=("cls", "mean")),
    "three poolings": Case(pooling=("max", "mean", "mean_sqrt_len_tokens"), unit=False),
    "poolings in another order": Case(pooling=("mean", "cls"), layout="new"),
    "no unit length": Case(unit=False),
    "dot": Case(unit=False, similarity="dot"),
    "dot of unit vectors": Case(similarity="dot"),
    "dot, cls, roberta": Case("roberta", ("cls",), unit=False, similarity="dot"),
    "dot, narrowed": Case(unit=False, similarity="dot", width=20),
    "dot of unit vectors, narrowed": Case(similarity="dot", width=20),
    "cosine named": Case(unit=False, similarity="cosine"),
    "prompts": Case(prompts=ASK),
    "default prompt": Case(prompts=(("web", "Represent: "),), default="web"),
    "prompts, none pooled": Case(prompts=ASK, include_prompt=False),
    "prompts, none pooled, cls": Case("roberta", ("cls",), prompts=ASK, include_prompt=False),
    "prompts, weighted, none pooled": Case(
        "qwen3", ("weightedmean", "lasttoken"), prompts=ASK, include_prompt=False
    ),
    "dense": Case(dense=((24, True, TANH),)),  # as LaBSE
    "dense without unit length": Case(dense=((24, True, TANH),), unit=False),  # as distiluse
    "two dense": Case(dense=((64, False, IDENTITY), (24, False, IDENTITY)), prompts=ASK),
    "two residuals": Case(dense=((24, True, TANH), (24, False, GELU)), residual=True),
    "dense over two poolings": Case(pooling=("cls", "max"), dense=((24, True, RELU),)),
    "dense, narrowed, dot": Case(
        dense=((24, False, GELU),), unit=False, width=10, similarity="dot"
    ),
    "narrowed": Case(width=20),
    "subfolder": Case(layout="0_Transformer"),
    "subfolder, shards": Case("xlm-roberta", layout="0_Transformer", files=3, unit=False),
    "names of version 6": Case(layout="new", dense=((24, True, TANH),)),
    "limit of an older family name": Case("roberta", layout="legacy", limit=20),
    "lower case": Case("roberta", lower=True, prompts=ASK, limit=30),
    "bare encoder": Case(layout="bare"),
    "bare decoder": Case("qwen3", layout="bare"),
    "router": Case(layout="router", prompts=ASK),
    "router, dot": Case(layout="router", unit=False, similarity="dot", dense=((24, True, TANH),)),
    "shards": Case(files=3),
    "bfloat16": Case(dtype="bfloat16"),
    "bfloat16, shards": Case("qwen3", ("lasttoken",), dtype="bfloat16", files=2),
    "a second weights file": Case(stray=True),
    "a second weights file beside shards": Case("qwen3", ("lasttoken",), files=2, stray=True),
}
TOKENIZERS = {"bert": "cls", "distilbert": "cls", "roberta": "both", "xlm-roberta": "both"}


def dump(path: Path, value) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))


def write_transformer(folder: Path, case: Case, seed: int = 0) -> None:
    tokenizer = TOKENIZERS.get(case.family, "end")
    weights = tiny.tensors(case.family, seed)
    tiny.write(
        folder,
        case.family,
        tokenizer=tokenizer,
        files=case.files,
        dtype=case.dtype,
        weights=weights,
        changes={"dtype": case.dtype},
    )
    if case.stray:
        other = tiny.tensors(case.family, 9)
        save_file(other, folder / "model_old.safetensors", metadata={"format": "pt"})
    if case.limit or case.lower:
        family = case.family if case.layout == "legacy" else "bert"
        limits = {"max_seq_length": case.limit, "do_lower_case": case.lower}
        dump(folder / f"sentence_{family}_config.json", limits)


def write_chain(folder: Path, case: Case, prefix: str = "") -> list[tuple[str, str]]:
    """Writes the modules after Transformer; returns the kind and path of each."""
    size, modules = tiny.WIDTH, []
    place = lambda kind: f"{prefix}{len(modules) + 1}_{kind}"
    modes = {f"pooling_mode_{name}": mode in case.pooling for mode, name in LEGACY.items()}
    config = {"word_embedding_dimension": size, **modes}
    if case.layout == "new":
        modes = case.pooling[0] if len(case.pooling) == 1 else list(case.pooling)
        config = {"embedding_dimension": size, "pooling_mode": modes}
    dump(
        folder / place("Pooling") / "config.json", config | {"include_prompt": case.include_prompt}
    )
    modules.append(("Pooling", place("Pooling")))
    size *= len(case.pooling)
    random = np.random.default_rng(4)
    for width, bias, activation in case.dense:
        config = {"in_features": size, "out_features": width, "bias": bias}
        config |= {"use_residual": True} if case.residual else {}
        dump(folder / place("Dense") / "config.json", config | {"activation_function": activation})
        weights = {"linear.weight": random.standard_normal((width, size)) / size**0.5}
        weights |= {"linear.bias": random.standard_normal(width)} if bias else {}
        if case.residual and width != size:
            weights["residual.weight"] = random.standard_normal((width, size)) / size**0.5
        weights = {name: x.astype(np.float32) for name, x in weights.items()}
        save_file(weights, folder / place("Dense") / "model.safetensors", {"format": "pt"})
        modules.append(("Dense", place("Dense")))
        size = width
    if case.unit:
        (folder / place("Normalize")).mkdir()
        modules.append(("Normalize", place("Normalize")))
    return modules


def write_case(folder: Path, case: Case) -> Path:
    """Writes the folder of a case."""
    folder.mkdir(parents=True, exist_ok=True)
    if case.layout == "router":
        structure, types = {}, {}
        for seed, kind in enumerate(("query", "document")):
            write_transformer(folder / f"{kind}_0_Transformer", case, seed)
            chain = write_chain(folder, case, f"{kind}_")
            chain = [("Transformer", f"{kind}_0_Transformer"), *chain]
            structure[kind] = [path for _, path in chain]
            types |= {path: TYPE + name for name, path in chain}
        parameters = {"default_route": "document", "allow_empty_key": True}
        dump(
            folder / "router_config.json",
            {"types": types, "structure": structure, "parameters": parameters},
        )
        modules = [("Router", "")]
    else:
        root = "0_Transformer" if case.layout == "0_Transformer" else ""
        write_transformer(folder / root, case)
        if case.layout == "bare":
            return folder
        modules = [("Transformer", root), *write_chain(folder, case)]
    types = NEW_TYPES if case.layout == "new" else {}
    rows = [
        {"idx": i, "name": str(i), "path": path, "type": types.get(kind, TYPE + kind)}
        for i, (kind, path) in enumerate(modules)
    ]
    dump(folder / "modules.json", rows)
    settings = {"prompts": dict(case.prompts), "default_prompt_name": case.default}
    settings |= {"similarity_fn_name": case.similarity} if case.similarity else {}
    settings |= {"truncate_dim": case.width} if case.width else {}
    dump(folder / "config_sentence_transformers.json", settings)
    return folder


def reference(folder: Path, *, unit: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """sentence-transformers' vectors of queries and documents, and the order of the documents."""
    library = pytest.importorskip("sentence_transformers", reason="the reference implementation")
    import torch

    model = library.SentenceTransformer(
        str(folder), device="cpu", model_kwargs={"dtype": torch.float32}
    )
    vectors = model.encode_query(QUERIES), model.encode_document(DOCUMENTS)
    order = np.argsort(-model.similarity(*vectors).numpy(), axis=1, kind="stable")
    if unit:
        vectors = [x / np.linalg.norm(x, axis=1, keepdims=True) for x in vectors]
    return *vectors, order


@pytest.mark.parametrize("name", CASES)
def test_vectors_and_ranking_are_those_of_sentence_transformers(name, tmp_path, mesh):
    case = CASES[name]
    folder = write_case(tmp_path / "base", case)
    is_cosine = case.similarity != "dot"
    kind = DualEncoder if case.layout == "router" else Retriever
    for place in (folder, tmp_path / "export"):
        retriever = kind.from_pretrained(place)
        ours = [
            retriever.encode(texts, kind=what)
            for texts, what in ((QUERIES, "query"), (DOCUMENTS, "document"))
        ]
        theirs = reference(place, unit=is_cosine)
        for mine, wanted in zip(ours, theirs[:2], strict=True):
            scale = 1 if is_cosine else np.abs(wanted).max()
            np.testing.assert_allclose(mine / scale, wanted / scale, rtol=0, atol=1e-5)
        order = np.argsort(-(ours[0] @ ours[1].T), axis=1, kind="stable")
        np.testing.assert_array_equal(order, theirs[2])
        if place == folder:
            retriever.save_pretrained(tmp_path / "export")
    check_export(tmp_path / "export", case)


def check_export(folder: Path, case: Case) -> None:
    """Normalize is neither added nor lost, and the settings stay."""
    if case.layout in ("bare", "router"):
        return
    kinds = [
        row["type"].rpartition(".")[2] for row in json.loads((folder / "modules.json").read_text())
    ]
    assert kinds == [
        "Transformer",
        "Pooling",
        *["Dense"] * len(case.dense),
        *["Normalize"] * case.unit,
    ]
    settings = json.loads((folder / "config_sentence_transformers.json").read_text())
    assert settings["prompts"] == dict(case.prompts)
    assert settings["default_prompt_name"] == case.default
    assert settings["similarity_fn_name"] == (case.similarity or "cosine")
    assert settings.get("truncate_dim") == case.width


def test_a_second_weights_file_is_named(tmp_path, capsys, mesh):
    folder = write_case(tmp_path, CASES["a second weights file"])
    (folder / "pytorch_model.bin").touch()
    Retriever.from_pretrained(folder)
    unread = "model_old.safetensors, pytorch_model.bin"
    line = f"{tmp_path}: model.safetensors is read, as by transformers, and not {unread}"
    assert line in capsys.readouterr().out


def test_weights_under_another_name_are_refused(tmp_path, mesh):
    folder = write_case(tmp_path, Case())
    for name in ("a", "b"):
        shutil.copyfile(folder / "model.safetensors", folder / f"{name}.safetensors")
    (folder / "model.safetensors").unlink()
    with pytest.raises(
        FileNotFoundError, match=r"nor its index but a\.safetensors, b\.safetensors"
    ):
        Retriever.from_pretrained(folder)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"activation_function": "custom.Swish"}, "activation_function must be one of torch's"),
        ({"module_input_name": "token_embeddings"}, "module_input_name must be sentence_embedding"),
    ],
)
def test_an_unsupported_field_of_dense_is_named(config, message, tmp_path, mesh):
    folder = write_case(tmp_path, CASES["dense"])
    place = folder / "2_Dense" / "config.json"
    dump(place, json.loads(place.read_text()) | config)
    with pytest.raises(ValueError, match=f"^{place}: {message}"):
        Retriever.from_pretrained(folder)


def test_dense_weights_of_another_width_are_named(tmp_path, mesh):
    folder = write_case(tmp_path, CASES["dense"])
    save_file({"linear.weight": np.ones((3, 5), np.float32)}, folder / "2_Dense/model.safetensors")
    with pytest.raises(
        ValueError, match=r"2_Dense: tensor linear.weight has shape \(3, 5\), the mod"
    ):
        Retriever.from_pretrained(folder)


def test_given_prompts_replace_those_that_a_folder_lacks(tmp_path, capsys, mesh):
    folder = write_case(tmp_path / "multilingual-e5-small", Case())
    said = (
        "names no prompts, and none is used; its authors use 'query: ' for queries and 'passage: '"
    )
    alone = Retriever.from_pretrained(folder)
    assert said in capsys.readouterr().out and not any(alone.prompts.values())
    given = {"query": "query: ", "document": "passage: "}
    retriever = Retriever.from_pretrained(folder, prompts=given)
    assert said not in capsys.readouterr().out
    np.testing.assert_allclose(
        retriever.encode(["a wave"], kind="document"),
        alone.encode(["passage: a wave"], kind="document"),
        atol=1e-6,
    )
    retriever.save_pretrained(tmp_path / "export")
    assert Retriever.from_pretrained(tmp_path / "export").prompts == given


@pytest.mark.parametrize("dtype", ["", "float32"])
def test_a_small_update_of_a_bfloat16_base_is_kept_where_asked(dtype, tmp_path, mesh):
    """At 2e-4, the types of the base lose a part of it."""
    folder = write_case(tmp_path / "base", CASES["bfloat16"])
    retriever = Retriever.from_pretrained(folder)
    before = np.asarray(retriever.model.blocks.q[...])
    retriever.model.blocks.q.set_value(retriever.model.blocks.q[...] + 2e-4)
    retriever.save_pretrained(tmp_path / "export", dtype=dtype)
    moved = np.asarray(Retriever.from_pretrained(tmp_path / "export").model.blocks.q[...]) - before
    assert (np.mean(np.abs(moved - 2e-4) < 1e-7) > 0.9) == (dtype == "float32")
    card = (tmp_path / "export" / "README.md").read_text()
    assert f"| weights | {dtype or 'bfloat16'} |" in card
    name = json.loads((tmp_path / "export" / "config.json").read_text())["dtype"]
    assert name == (dtype or "bfloat16")


def test_weights_of_torch_are_converted_once_or_refused_in_a_line(tmp_path, monkeypatch, mesh):
    folder = write_case(tmp_path / "base", Case())
    wanted = Retriever.from_pretrained(folder).encode(QUERIES, kind="query")
    monkeypatch.setenv("ARK_CACHE", str(tmp_path / "cache"))
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x02cos\nsystem\nX\x04\x00\x00\x00true\x85R.")
    weights = folder / "model.safetensors"
    stored = weights.rename(folder / "kept")
    with pytest.raises(
        ValueError, match=r"pytorch_model\.bin.*(a pickle, which is not|does not read)"
    ):
        Retriever.from_pretrained(folder)
    torch = pytest.importorskip("torch", reason="the format's own loader")
    from safetensors.torch import load_file

    torch.save(load_file(stored), folder / "pytorch_model.bin")
    for _ in range(2):
        vectors = Retriever.from_pretrained(folder).encode(QUERIES, kind="query")
        np.testing.assert_array_equal(vectors, wanted)
    assert len(list((tmp_path / "cache").rglob("*.safetensors"))) == 1
