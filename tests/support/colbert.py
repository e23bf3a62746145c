"""Tiny ColBERTs in each layout of their folders, and their vectors by numpy."""

import itertools
import json
import math
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file
from support import tiny
from tokenizers import Tokenizer

MASK, QUERY, DOCUMENT, MASK_TOKEN = 301, 302, 303, "[MASK]"
TANH = "torch.nn.modules.activation.Tanh"
MASK_TYPE = "multi_vector_encoder.modules.multi_vector_mask.MultiVectorMask"
DENSE = ("torch.nn.modules.linear.Identity", "pylate.models.Dense.Dense")
EPS = tiny.config("bert")["layer_norm_eps"]


def write(folder: Path, layout: str, *, width: int = 16, bias: bool = False, **settings) -> Path:
    """Writes a BERT in a layout, "pylate" or "colbert"; `settings` in the names of its file."""
    markers = ("[Q] ", "[D] ") if layout == "pylate" else ("[unused0]", "[unused1]")
    random = np.random.default_rng(5)
    dense = {"linear.weight": random.standard_normal((width, tiny.WIDTH)).astype("f") / 6}
    dense |= {"linear.bias": random.standard_normal(width).astype("f")} if bias else {}
    weights = tiny.tensors("bert") | (dense if layout == "colbert" else {})
    changes = {"architectures": ["HF_ColBERT"]} if layout == "colbert" else {}
    tiny.write(folder, "bert", tokenizer="cls", weights=weights, changes=changes)
    _add_tokens(folder, (MASK_TOKEN, *markers))
    if layout == "colbert":
        (folder / "artifact.metadata").write_text(json.dumps(settings))
        return folder
    _write_dense(folder / "1_Dense", dense, DENSE[0], use_residual=False)
    _write_modules(folder, {"": "sentence_transformers.models.Transformer", "1_Dense": DENSE[1]})
    # PyLate stores the limit of what it read last.
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 9}))
    named = dict(zip(("query_prefix", "document_prefix"), markers, strict=True))
    named |= {"query_length": 32, "document_length": 180}
    named |= {"model_type": "ColBERT", "similarity_fn_name": "MaxSim", "prompts": {}}
    settings = named | settings
    (folder / "config_sentence_transformers.json").write_text(json.dumps(settings))
    return folder


def write_encoder(
    folder: Path, *, limits: dict, mask: dict, dense: int = 1, normalize: str = "token_embeddings"
) -> Path:
    """Writes a BERT as a MultiVectorEncoder of sentence-transformers 6, with markers as prompts.

    Args:
        dense: its Dense modules: a plain one, a residual of two widths, one of one width.
    """
    folder = write(folder, "pylate")
    random, types = np.random.default_rng(6), {"": "base.modules.transformer.Transformer"}
    sizes = [tiny.WIDTH, 16, 24, 24][: dense + 1]
    for i, (before, width) in enumerate(itertools.pairwise(sizes), 1):
        names = ("linear.weight", "residual.weight") if i == 2 else ("linear.weight",)
        values = {x: random.standard_normal((width, before)).astype("f") / 5 for x in names}
        values["linear.bias"] = random.standard_normal(width).astype("f")
        tokens = {"module_input_name": "token_embeddings", "use_residual": i > 1}
        _write_dense(folder / f"{i}_Dense", values, TANH if i > 1 else DENSE[0], **tokens)
        types[f"{i}_Dense"] = "base.modules.dense.Dense"
    types |= {
        f"{dense + 1}_MultiVectorMask": MASK_TYPE,
        f"{dense + 2}_Normalize": "base.modules.normalize.Normalize",
    }
    _write_modules(folder, {at: f"sentence_transformers.{kind}" for at, kind in types.items()})
    for name, value in zip(list(types)[-2:], (mask, {"module_input_name": normalize}), strict=True):
        (folder / name).mkdir()
        (folder / name / "config.json").write_text(json.dumps(value))
    (folder / "sentence_bert_config.json").write_text(json.dumps(limits))
    named = {"model_type": "MultiVectorEncoder", "similarity_fn_name": "maxsim"}
    named["prompts"] = {"query": "[Q] ", "document": "[D] "}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(named))
    return folder


def _write_dense(place: Path, values: dict[str, np.ndarray], activation: str, **fields) -> None:
    place.mkdir(exist_ok=True)
    width, size = values["linear.weight"].shape
    sizes = {"in_features": size, "out_features": width, "bias": "linear.bias" in values}
    (place / "config.json").write_text(
        json.dumps(sizes | {"activation_function": activation} | fields)
    )
    save_file(values, place / "model.safetensors", {"format": "pt"})


def _write_modules(folder: Path, types: dict[str, str]) -> None:
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": kind}
        for i, (path, kind) in enumerate(types.items())
    ]
    (folder / "modules.json").write_text(json.dumps(modules))


def _add_tokens(folder: Path, tokens: tuple[str, ...]) -> None:
    """Gives the last rows of the vocabulary to these tokens."""
    path = folder / "tokenizer.json"
    state = json.loads(path.read_text())
    vocabulary = state["model"]["vocab"]
    kept = {word: i for word, i in vocabulary.items() if i < MASK}
    state["model"]["vocab"] = kept | {word: MASK + i for i, word in enumerate(tokens)}
    for i, word in enumerate(tokens):
        flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        state["added_tokens"].append({"id": MASK + i, "content": word, "special": True, **flags})
    path.write_text(json.dumps(state))
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"mask_token": MASK_TOKEN}))


def by_numpy(
    folder: Path,
    text: str,
    *,
    marker: int | None,
    length: int,
    filled: bool = False,
    seen: bool = False,
    skipped: tuple[str, ...] = (),
) -> np.ndarray:
    """The vectors of a text's tokens, `[t e]`, step by step as the papers and PyLate have them."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_truncation(length - (marker is not None))
    ids = tokenizer.encode(text).ids
    ids = ids if marker is None else [ids[0], marker, *ids[1:]]
    visible = np.arange(length if filled else len(ids)) < (length if seen else len(ids))
    ids = ids + [MASK] * (len(visible) - len(ids))
    weights = load_file(folder / "model.safetensors")
    x = _bert(weights, ids, visible)
    for place in sorted(folder.glob("*_Dense")) or [folder]:
        linear = load_file(place / "model.safetensors")
        y = x @ linear["linear.weight"].T + linear.get("linear.bias", 0)
        config = json.loads((place / "config.json").read_text())
        y = np.tanh(y) if config.get("activation_function") == TANH else y
        through = linear.get("residual.weight")
        x = y + (x if through is None else x @ through.T) if config.get("use_residual") else y
    x = x / np.linalg.norm(x, axis=1, keepdims=True)
    return x[[tokenizer.id_to_token(i) not in skipped for i in ids]]


def _bert(weights: dict[str, np.ndarray], ids: list[int], visible: np.ndarray) -> np.ndarray:
    """Hidden states `[t d]`; all tokens attend to those that are visible."""
    of = lambda name: weights[f"bert.{name}"].astype(np.float64)
    linear = lambda x, name: x @ of(f"{name}.weight").T + of(f"{name}.bias")

    def norm(x: np.ndarray, name: str) -> np.ndarray:
        x = x - x.mean(-1, keepdims=True)
        x = x / np.sqrt((x * x).mean(-1, keepdims=True) + EPS)
        return x * of(f"{name}.weight") + of(f"{name}.bias")

    part = "embeddings."
    x = of(f"{part}word_embeddings.weight")[ids]
    x = x + of(f"{part}position_embeddings.weight")[: len(ids)]
    x = norm(x + of(f"{part}token_type_embeddings.weight")[0], f"{part}LayerNorm")
    gelu = np.vectorize(lambda v: 0.5 * v * (1 + math.erf(v / math.sqrt(2))))
    for layer in range(tiny.LAYERS):
        at = f"encoder.layer.{layer}"
        q, k, v = (
            linear(x, f"{at}.attention.self.{name}").reshape(len(ids), tiny.HEADS, -1)
            for name in ("query", "key", "value")
        )
        scores = np.einsum("tnh,snh->nts", q, k) / math.sqrt(q.shape[-1])
        scores = np.exp(np.where(visible, scores, -np.inf))
        y = np.einsum("nts,snh->tnh", scores / scores.sum(-1, keepdims=True), v)
        y = linear(y.reshape(len(ids), -1), f"{at}.attention.output.dense")
        x = norm(x + y, f"{at}.attention.output.LayerNorm")
        y = linear(gelu(linear(x, f"{at}.intermediate.dense")), f"{at}.output.dense")
        x = norm(x + y, f"{at}.output.LayerNorm")
    return x
