"""A retriever in numpy for the few texts of one question: neither jax nor transformers starts."""

import concurrent.futures
import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float, Int

from ark_jax.text.token_rows import check_list

if TYPE_CHECKING:
    from ark_jax.models.retriever import Retriever

KINDS = ("query", "document")
POOLINGS = ("cls", "mean")
_TYPES = ("F32", "F16")  # of weights, which numpy knows
_FREE = ("remat", "attention")  # fields of a Config that do not change vectors


def describe(retriever: "Retriever") -> dict | None:
    """What `NumpyRetriever` needs to embed texts as an open retriever does, as JSON.

    None if it cannot: the model is no encoder with BERT's layers, its vectors need more than a
    pooling, or those of an ONNX file are not those of the weights.
    """
    from ark_jax.models import encoder, hf
    from ark_jax.models.pooling import VectorForm
    from ark_jax.models.sentence_folder import prompt_for_kind
    from ark_jax.models.weight_names import ENCODERS

    cfg, form = retriever.cfg, retriever.form
    plain = VectorForm(form.poolings, form.width, normalised=form.normalised)
    is_known = isinstance(cfg, encoder.Config) and not retriever.onnx_digest
    if not is_known or form != plain or not {*POOLINGS} >= {*form.poolings}:
        return None
    fields = {x.name: x.default for x in dataclasses.fields(cfg)}
    usual = {x: y for x, y in fields.items() if y is not dataclasses.MISSING and x not in _FREE}
    usual |= {"dtype": "float32", "compute": "float32"}
    if any(getattr(cfg, name) != value for name, value in usual.items()):
        return None
    checkpoint = hf.Checkpoint(retriever.base)
    table = ENCODERS[hf.read_config(retriever.base)["model_type"]]
    stored = {
        name: [*map(checkpoint.stored_name, table[name].names(cfg.layers))]
        for name, _ in hf.named_parameters(retriever.model)
    }
    types = {checkpoint.slice(x).get_dtype() for names in stored.values() for x in names}
    if not types.issubset(_TYPES) or retriever.tokenizer.truncation_side != "right":
        return None
    return {
        "files": [str(x.absolute()) for x in hf.weight_files(retriever.base)],
        "stored": stored,
        "tokenizer": retriever.tokenizer.backend_tokenizer.to_str(),
        "room": retriever.max_length,
        "lower": retriever.lower,
        "prompts": {kind: prompt_for_kind(retriever.prompts, kind) for kind in KINDS},
        "poolings": form.poolings,
        "width": form.width,
        **{name: getattr(cfg, name) for name in ("layers", "heads", "norm_eps", "pad")},
    }


class NumpyRetriever:
    """Embeds texts one by one, as `Retriever` does but for the last digits of float32.

    Args:
        described: what `describe` returned, now or in another process.
    """

    def __init__(self, described: Mapping[str, Any]):
        from safetensors import safe_open
        from tokenizers import Tokenizer

        self.settings = described
        self.tokenizer = Tokenizer.from_str(described["tokenizer"])
        self.tokenizer.no_padding()
        self.tokenizer.enable_truncation(described["room"])
        files = [safe_open(file, "numpy") for file in described["files"]]
        self._places = {name: file for file in files for name in file.keys()}  # noqa: SIM118

    def encode(self, texts: Sequence[str], *, kind: str) -> Float[np.ndarray, "n e"]:
        """Unit vectors of texts; see `Retriever.encode`."""
        check_list("texts", texts)
        prompted = [self.settings["prompts"][kind] + text for text in texts]
        prompted = [text.lower() for text in prompted] if self.settings["lower"] else prompted
        ids = [np.array(x.ids, np.int32) for x in self.tokenizer.encode_batch(prompted)]
        with concurrent.futures.ThreadPoolExecutor() as threads:
            rows = list(threads.map(self._embed, ids))
        return np.stack(rows) if rows else np.zeros((0, self.settings["width"]), np.float32)

    def _embed(self, ids: Int[np.ndarray, " t"]) -> Float[np.ndarray, " e"]:
        """The vector of a text; see `encoder.Encoder` and `pooling.embed`."""
        places, pad = np.arange(len(ids)), self.settings["pad"]
        if pad is not None:
            counted = ids != pad
            places = np.where(counted, np.cumsum(counted), 0) + pad
        x = self._rows("embed", ids) + self._rows("position", places)
        if "segment" in self.settings["stored"]:
            x = x + self._rows("segment", np.array([0]))
        x = self._norm("embed_norm", x)
        for layer in range(self.settings["layers"]):
            x = self._layer(x, layer)
        pooled = {"cls": x[0], "mean": x.mean(0)}
        vector = np.concatenate([pooled[name] for name in self.settings["poolings"]])
        vector = vector[: self.settings["width"]]
        return vector / np.sqrt(np.maximum(vector @ vector, np.float32(1e-24)))

    def _layer(self, x: Float[np.ndarray, "t d"], layer: int) -> Float[np.ndarray, "t d"]:
        """Attention and the feed-forward network, each with its norm behind it."""
        from scipy.special import erf

        linear = lambda name, x: (
            x @ self._weight(name, layer).T + self._weight(f"{name}_bias", layer)
        )
        heads = lambda name: linear(name, x).reshape(len(x), self.settings["heads"], -1)
        q, k, v = (heads(name).swapaxes(0, 1) for name in "qkv")  # [n t h]
        scores = q @ k.swapaxes(1, 2) / np.float32(q.shape[-1] ** 0.5)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        y = (weights @ v / weights.sum(-1, keepdims=True)).swapaxes(0, 1).reshape(x.shape)
        x = self._norm("attn_norm", x + linear("o", y), layer)
        y = linear("up", x)
        y = y * (1 + erf(y * np.float32(0.5**0.5))) * np.float32(0.5)
        return self._norm("ffn_norm", x + linear("down", y), layer)

    def _norm(self, name: str, x: Float[np.ndarray, "t d"], layer: int = 0) -> np.ndarray:
        """Layer norm."""
        x = x - x.mean(-1, keepdims=True)
        x /= np.sqrt(np.mean(x * x, -1, keepdims=True) + np.float32(self.settings["norm_eps"]))
        return x * self._weight(name, layer) + self._weight(f"{name}_bias", layer)

    @functools.cache  # noqa: B019  # as long as the process, which asks one question
    def _weight(self, name: str, layer: int) -> np.ndarray:
        """A parameter of a layer, float32."""
        stored = self.settings["stored"][name][layer]
        return self._places[stored].get_tensor(stored).astype(np.float32, copy=False)

    def _rows(self, name: str, numbers: Int[np.ndarray, " t"]) -> Float[np.ndarray, "t d"]:
        """Rows of a table, the only ones that are read."""
        stored = self.settings["stored"][name][0]
        table = self._places[stored].get_slice(stored)
        return np.concatenate([table[i : i + 1] for i in numbers.tolist()]).astype(np.float32)
