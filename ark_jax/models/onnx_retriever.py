"""A retriever whose vectors onnxruntime or OpenVINO computes on CPUs, from an ONNX file."""

import dataclasses
import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from ark_jax.models.batching import Batching
from ark_jax.models.pooling import VectorForm
from ark_jax.models.retriever import Retriever
from ark_jax.text.token_rows import TokenIds

FILES = {  # of each engine, in the model's folder
    "onnx": "onnx/model.onnx",
    "onnx-int8": "onnx/model_int8.onnx",
    "openvino": "onnx/model.onnx",
}
POOLINGS = ("cls", "mean", "lasttoken")
TOKENS = 2048  # of a batch, padding included
CLOSE = 1e-4  # the most that a component of a float32 file's vectors is from that of the weights
_PROBES = ("Who?", "The lamp office lit forty lamps, and a strike put them out. " * 8)


@dataclasses.dataclass(repr=False)
class OnnxRetriever(Retriever):
    """As `Retriever`, but another engine computes the hidden states.

    OpenVINO takes bfloat16 where the processor has it, and vectors then differ by some thousandths.
    """

    session: Any = None

    @classmethod
    def open(cls, folder: Path, engine: str) -> "OnnxRetriever":
        """Opens a model folder with the file of an engine, one of `FILES`.

        Raises:
            ValueError: there is no such engine or the model has another form of vectors.
            RuntimeError: the engine is not installed.
            FileNotFoundError: the folder has no such file.
        """
        if engine not in FILES:
            raise ValueError(f"engine={engine!r}: must be jax, {', '.join(FILES)}")
        path = folder / FILES[engine]
        if not path.is_file():
            flag = " --int8" * (engine == "onnx-int8")
            raise FileNotFoundError(
                f"{folder}: no {FILES[engine]}; `ark-jax onnx {folder} --out=DIR{flag}` writes "
                "a folder with it"
            )
        own = Retriever.from_pretrained(folder)
        check_form(own)
        start = _OpenVino if engine == "openvino" else _onnx_session
        try:
            session = start(str(path), len(os.sched_getaffinity(0)))
        except ModuleNotFoundError as error:
            extra = engine.removesuffix("-int8")
            raise RuntimeError(
                f"engine={engine} needs the package {error.name}: pip install 'ark-jax[{extra}]'"
            ) from None
        fields = {field.name: getattr(own, field.name) for field in dataclasses.fields(own)}
        opened = cls(**fields, session=session)
        theirs, weights = (x.encode(_PROBES, kind="document") for x in (opened, own))
        if engine == "onnx-int8" or np.abs(theirs - weights).max() > CLOSE:
            digest = hashlib.sha256(engine.encode())
            for file in sorted(path.parent.glob(f"{path.name}*")):  # large weights lie beside it
                digest.update(file.read_bytes())
            opened.onnx_digest = digest.hexdigest()
        return opened

    def _embed_batches(
        self, ids: Sequence[TokenIds], batching: Batching, form: VectorForm
    ) -> Iterator[tuple[list[int], np.ndarray]]:
        """As the base's, in batches of texts of similar length, whatever `batching` is."""
        order = sorted(range(len(ids)), key=lambda i: -len(ids[i]))
        while order:
            longest = max(len(ids[order[0]]), 1)
            count = max(TOKENS // longest, 1)
            numbers, order = order[:count], order[count:]
            tokens = np.zeros((len(numbers), longest), np.int64)
            mask = np.zeros_like(tokens)
            for row, i in enumerate(numbers):
                tokens[row, : len(ids[i])], mask[row, : len(ids[i])] = ids[i], 1
            feed = {"input_ids": tokens, "attention_mask": mask}
            yield numbers, _embed(self.session.run(["last_hidden_state"], feed)[0], mask, form)


def _onnx_session(path: str, threads: int) -> Any:
    """The session of onnxruntime for a file."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


class _OpenVino:
    """A session of OpenVINO, called as onnxruntime's."""

    def __init__(self, path: str, threads: int):
        import openvino

        options = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY"}
        self.request = openvino.compile_model(path, "CPU", options).create_infer_request()

    def run(self, names: Sequence[str], feed: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """The outputs with these names."""
        outputs = self.request.infer(feed)
        return [outputs[name] for name in names]


def check_form(retriever: Retriever) -> None:
    """Raises ValueError for a model whose vectors need more than one pooling."""
    form = retriever.form
    plain = VectorForm(form.poolings, form.width, normalised=form.normalised)
    if form != plain or form.pooling not in POOLINGS:
        raise ValueError(
            f"{retriever.base}: ONNX is written of models with one pooling (cls, mean or "
            f"lasttoken), without Dense and compared by cosines; this one has {form}"
        )


def _embed(
    hidden: Float[np.ndarray, "b t d"], mask: Int[np.ndarray, "b t"], form: VectorForm
) -> Float[np.ndarray, "b e"]:
    """As `pooling.embed`, of padding on the right."""
    counts = mask.sum(1)
    if form.pooling == "mean":
        x = np.einsum("btd,bt->bd", hidden, mask.astype(np.float32))
        x /= np.maximum(counts, 1)[:, None].astype(np.float32)
    else:
        last = np.maximum(counts, 1) - 1
        x = hidden[np.arange(len(hidden)), last if form.pooling == "lasttoken" else 0]
    x = x[:, : form.width]
    if form.similarity != "cosine":
        return x
    return x / np.sqrt(np.maximum(np.sum(x * x, -1, keepdims=True), np.float32(1e-24)))
