"""An encoder as an ONNX file, for onnxruntime, fastembed and browsers; it needs no torch.

The operators are of version 17, which all of these programs know.
"""

import logging
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from ark_jax import layout
from ark_jax.models import encoder, hf
from ark_jax.models.onnx_retriever import FILES, UNIT, VECTOR
from ark_jax.models.pooling import VectorForm
from ark_jax.models.retriever import Retriever
from ark_jax.runtime.storage import local_path
from ark_jax.text.token_vectors import tokens_error

FILE = FILES["onnx"]  # where fastembed and transformers.js look for it
MOST_BYTES = (1 << 31) - (1 << 20)  # of a protobuf file; larger weights go into a second file
FAMILIES = ("bert", "roberta", "xlm-roberta", "distilbert")
HIDDEN = np.finfo(np.float32).min
EMBEDDINGS = ("embed", "position", "segment", "embed_norm", "embed_norm_bias")


def save_onnx(retriever: Retriever, folder: str | Path, *, int8: bool = False) -> None:
    """Writes the folder of `Retriever.save_pretrained`, and the model as ONNX into it.

    Inputs are `input_ids` and `attention_mask`, int64 `[b t]`, padding on the right. Outputs are
    `last_hidden_state`, float32 `[b t d]`, `sentence_embedding`, the unit vectors `[b e]`, and
    `sentence_vector`, which have any length.

    Args:
        int8: also writes a file whose products with weights are of int8. onnxruntime, which must be
            installed, scales weights by column and activations as they come.

    Raises:
        ValueError: the model is a decoder or keeps a vector for each token, or `folder` is where it
            was read from or in a bucket.
        RuntimeError: onnxruntime is not installed.
    """
    if retriever.pooling == "none":
        raise tokens_error(str(retriever.base))
    family = hf.read_config(retriever.base)["model_type"]
    if family not in FAMILIES:
        raise ValueError(
            f"{retriever.base}: {family}; ONNX is written of {', '.join(FAMILIES)} alone"
        )
    form = retriever.form
    plain = VectorForm(form.poolings, form.width, normalised=form.normalised)
    if form != plain or form.pooling not in ("cls", "mean", "lasttoken"):
        raise ValueError(
            f"{retriever.base}: ONNX is written of models with one pooling (cls, mean or "
            f"lasttoken), without Dense and compared by cosines; this one has {form}"
        )
    if int8:
        try:
            from onnxruntime import quantization
        except ModuleNotFoundError as error:
            fix = "pip install 'ark-jax[onnx]'"
            raise RuntimeError(f"int8 needs the package {error.name}: {fix}") from None
    folder = local_path(folder)
    retriever.save_pretrained(folder)
    path = folder / FILE
    path.parent.mkdir(exist_ok=True)
    model = make_model(retriever)
    external = sum(len(x.raw_data) for x in model.graph.initializer) > MOST_BYTES
    onnx.save(model, path, save_as_external_data=external, location=f"{path.name}_data")
    if int8:
        options = {"weight_type": quantization.QuantType.QInt8, "op_types_to_quantize": ["MatMul"]}
        options |= {"per_channel": True, "use_external_data_format": external}
        logging.disable(logging.WARNING)  # it advises what would help other operators
        quantization.quantize_dynamic(path, folder / FILES["onnx-int8"], **options)
        logging.disable(logging.NOTSET)


def make_model(retriever: Retriever) -> onnx.ModelProto:
    """The ONNX model of an encoder; see `save_onnx`."""
    cfg, graph = retriever.cfg, _Graph()
    weights = {
        name: layout.fetch(value[...]).astype(np.float32)
        for name, value in hf.named_parameters(retriever.model)
    }
    mask = graph("Cast", "attention_mask", to=TensorProto.FLOAT)
    mask_bias = graph("Mul", graph("Sub", np.float32(1), mask), HIDDEN)
    mask_bias = graph("Unsqueeze", mask_bias, np.array([1, 2]))  # [b 1 1 t], added to every row
    x = _embeddings(graph, weights, cfg)
    for i in range(cfg.layers):
        layer = {name: value[i] for name, value in weights.items() if name not in EMBEDDINGS}
        x = _transformer_block(graph, x, mask_bias, layer, cfg)
    graph("Identity", x, name="last_hidden_state")
    _pool(graph, x, mask, retriever)
    texts, width = ["batch", "tokens"], retriever.width
    ids = [
        helper.make_tensor_value_info(name, TensorProto.INT64, texts)
        for name in ("input_ids", "attention_mask")
    ]
    outputs = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (
            ("last_hidden_state", [*texts, cfg.width]),
            (UNIT, ["batch", width]),
            (VECTOR, ["batch", width]),
        )
    ]
    encoder_graph = helper.make_graph(graph.nodes, "encoder", ids, outputs, graph.tensors)
    return helper.make_model(
        encoder_graph,
        ir_version=8,
        opset_imports=[helper.make_opsetid("", 17)],
        producer_name="ark_jax",
    )


class _Graph:
    """Nodes and tensors of a graph. A call adds the node of an operator and returns its name.

    An input is the name of an earlier node, or an array, which becomes a tensor of the graph.
    """

    def __init__(self):
        self.nodes, self.tensors = [], []

    def __call__(self, operator: str, *inputs, name: str = "", **attributes) -> str:
        name = name or f"{operator}_{len(self.nodes)}"
        names = [x if isinstance(x, str) else self._tensor(np.asarray(x)) for x in inputs]
        self.nodes.append(helper.make_node(operator, names, [name], **attributes))
        return name

    def _tensor(self, value: np.ndarray) -> str:
        """Adds an array and returns its name."""
        name = f"tensor_{len(self.tensors)}"
        self.tensors.append(numpy_helper.from_array(np.ascontiguousarray(value), name))
        return name


# The functions below add nodes to a graph. They take and return names of nodes.


def _linear(graph: _Graph, x: str, w: np.ndarray, bias: np.ndarray) -> str:
    return graph("Add", graph("MatMul", x, w), bias)


def _norm(graph: _Graph, x: str, scale: np.ndarray, bias: np.ndarray, eps: float) -> str:
    return graph("LayerNormalization", x, scale, bias, axis=-1, epsilon=eps)


def _embeddings(graph: _Graph, weights: Mapping[str, np.ndarray], cfg: encoder.Config) -> str:
    """The nodes of `Encoder.embeddings`, with segment 0 everywhere."""
    table = weights["position"]
    if cfg.segments:
        table = table + weights["segment"][0]
    if cfg.pad is None:
        length = graph("Shape", "input_ids", start=1, end=2)
        positions = graph("Slice", table, np.array([0]), length)
    else:
        is_token = graph("Not", graph("Equal", "input_ids", np.int64(cfg.pad)))
        is_token = graph("Mul", graph("Cast", is_token, to=TensorProto.INT64), "attention_mask")
        numbers = graph("Mul", graph("CumSum", is_token, np.int64(1)), is_token)
        positions = graph("Gather", table, graph("Add", numbers, np.int64(cfg.pad)))
    x = graph("Add", graph("Gather", weights["embed"], "input_ids"), positions)
    return _norm(graph, x, weights["embed_norm"], weights["embed_norm_bias"], cfg.norm_eps)


def _transformer_block(
    graph: _Graph, x: str, mask_bias: str, layer: Mapping[str, np.ndarray], cfg: encoder.Config
) -> str:
    """The nodes of `encoder.Block`.

    Args:
        mask_bias: added to logits: 0, or the lowest float32 for padding; `[b 1 1 t]`.
        layer: the weights of this layer.
    """
    d, n = cfg.width, cfg.heads

    def heads(name: str, order: tuple[int, ...]) -> str:
        """The projection `name` of x, cut into heads `[b t n h]` and transposed."""
        y = _linear(graph, x, layer[name].reshape(d, d), layer[f"{name}_bias"].reshape(d))
        return graph("Transpose", graph("Reshape", y, np.array([0, 0, n, d // n])), perm=order)

    q = graph("Mul", heads("q", (0, 2, 1, 3)), np.float32((d // n) ** -0.5))
    logits = graph("Add", graph("MatMul", q, heads("k", (0, 2, 3, 1))), mask_bias)
    y = graph("MatMul", graph("Softmax", logits, axis=-1), heads("v", (0, 2, 1, 3)))
    y = graph("Reshape", graph("Transpose", y, perm=(0, 2, 1, 3)), np.array([0, 0, d]))
    y = _linear(graph, y, layer["o"].reshape(d, d), layer["o_bias"])
    x = _norm(graph, graph("Add", x, y), layer["attn_norm"], layer["attn_norm_bias"], cfg.norm_eps)
    y = _linear(graph, x, layer["up"], layer["up_bias"])
    erf = graph("Erf", graph("Mul", y, np.float32(0.5**0.5)))
    y = graph("Mul", graph("Mul", y, np.float32(0.5)), graph("Add", erf, np.float32(1)))
    y = _linear(graph, y, layer["down"], layer["down_bias"])
    return _norm(graph, graph("Add", x, y), layer["ffn_norm"], layer["ffn_norm_bias"], cfg.norm_eps)


def _pool(graph: _Graph, x: str, mask: str, retriever: Retriever) -> None:
    """The nodes of `retriever.pool` and `embed`, whose outputs are vectors."""
    if retriever.pooling != "mean":
        count = graph("CumSum", "attention_mask", np.int64(1))
        last = graph("ReduceSum", "attention_mask", np.array([1]))
        number = np.int64(1) if retriever.pooling == "cls" else last
        chosen = graph("Cast", graph("Equal", count, number), to=TensorProto.FLOAT)
        mask = graph("Mul", mask, chosen)
    weights = graph("Unsqueeze", mask, np.array([2]))
    total = graph("ReduceSum", graph("Mul", x, weights), np.array([1]), keepdims=0)
    count = graph("Max", graph("ReduceSum", mask, np.array([1])), np.float32(1))
    mean, width = graph("Div", total, count), np.array([retriever.width])
    vector = graph("Slice", mean, np.array([0]), width, np.array([1]), name=VECTOR)
    norm = graph("Max", graph("ReduceL2", vector, axes=[1]), np.float32(1e-12))
    graph("Div", vector, norm, name=UNIT)
