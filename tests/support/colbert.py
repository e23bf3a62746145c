"""Tiny ColBERTs in the layouts of PyLate and of ColBERT v2, and their vectors by numpy."""

import json
import math
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file
from support import tiny
from tokenizers import Tokenizer

MASK, QUERY, DOCUMENT, MASK_TOKEN = 301, 302, 303, "[MASK]"
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
    place = folder / "1_Dense"
    place.mkdir()
    sizes = {"in_features": tiny.WIDTH, "out_features": width, "bias": bias}
    sizes |= {"activation_function": DENSE[0], "use_residual": False}
    (place / "config.json").write_text(json.dumps(sizes))
    save_file(dense, place / "model.safetensors", {"format": "pt"})
    types = {"": "sentence_transformers.models.Transformer", "1_Dense": DENSE[1]}
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": kind}
        for i, (path, kind) in enumerate(types.items())
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    # PyLate stores the limit of what it read last.
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 9}))
    named = dict(zip(("query_prefix", "document_prefix"), markers, strict=True))
    named |= {"query_length": 32, "document_length": 180}
    named |= {"model_type": "ColBERT", "similarity_fn_name": "MaxSim", "prompts": {}}
    settings = named | settings
    (folder / "config_sentence_transformers.json").write_text(json.dumps(settings))
    return folder


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
    dense = folder / "1_Dense" / "model.safetensors"
    linear = load_file(dense) if dense.is_file() else weights
    x = _bert(weights, ids, visible) @ linear["linear.weight"].T + linear.get("linear.bias", 0)
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
