"""A retriever whose vectors onnxruntime or OpenVINO computes on CPUs, from an ONNX file."""

import dataclasses
import functools
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from ark_jax.models.batching import Batching
from ark_jax.models.pooling import VectorForm
from ark_jax.models.retriever import Retriever
from ark_jax.runtime.map_shards import cores
from ark_jax.text.token_rows import TokenIds

_FILE = "onnx/model.onnx"
FILES = {"onnx": _FILE, "onnx-int8": "onnx/model_int8.onnx", "openvino": _FILE}  # of each engine
VECTOR, UNIT = "sentence_vector", "sentence_embedding"  # outputs, of any and of unit length
TOKENS = 2048  # of a batch, padding included
CLOSE = 1e-4  # the most that a component is from that of the weights' vectors, which are then equal
Run = Callable[[str, Mapping[str, np.ndarray]], np.ndarray]  # an output's name, inputs -> output
_PROBES = ("Who?", "The lamp office lit forty lamps, and a strike put them out. " * 8)


@dataclasses.dataclass(repr=False, kw_only=True)
class OnnxRetriever(Retriever):
    """As `Retriever`, but another engine computes the vectors.

    OpenVINO takes bfloat16 where the processor has it, and vectors then differ by some thousandths.
    """

    weights: Retriever  # the same model, without the engine
    engine: str
    compute: Run

    @classmethod
    def open(cls, folder: Path, engine: str) -> "OnnxRetriever":
        """Opens a folder of `integrations.onnx.save_onnx` with an engine of `FILES`.

        Raises:
            ValueError: there is no such engine.
            RuntimeError: it is not installed.
            FileNotFoundError: the folder has no file for it.
        """
        if engine not in FILES:
            raise ValueError(f"engine={engine!r}: must be jax, {', '.join(FILES)}")
        path, flag = folder / FILES[engine], " --int8" * (engine == "onnx-int8")
        if not path.is_file():
            write = f"`ark-jax onnx {folder} --out=DIR{flag}` writes a folder with it"
            raise FileNotFoundError(f"{folder}: no {FILES[engine]}; {write}")
        try:
            compute = _start(engine, str(path), cores())
        except ModuleNotFoundError as error:
            fix = f"pip install 'ark-jax[{engine.removesuffix('-int8')}]'"
            raise RuntimeError(f"engine={engine} needs the package {error.name}: {fix}") from None
        weights = Retriever.from_pretrained(folder)
        return cls(**vars(weights), weights=weights, engine=engine, compute=compute)

    @functools.cached_property
    def onnx_digest(self) -> str:
        """The sha256 of the ONNX file; empty if its vectors are those of the weights."""
        if self.engine != "onnx-int8":
            vectors, exact = (x.encode(_PROBES, kind="document") for x in (self, self.weights))
            if np.abs(vectors - exact).max() <= CLOSE:
                return ""
        digest, path = hashlib.sha256(self.engine.encode()), self.base / FILES[self.engine]
        for file in sorted(path.parent.glob(f"{path.name}*")):  # large weights lie beside it
            digest.update(file.read_bytes())
        return digest.hexdigest()

    def _embed_batches(
        self, ids: Sequence[TokenIds], batching: Batching, form: VectorForm
    ) -> Iterator[tuple[list[int], np.ndarray]]:
        """As the base's, in batches of texts of similar length, whatever `batching` is."""
        order = sorted(range(len(ids)), key=lambda i: -len(ids[i]))
        while order:
            longest = max(len(ids[order[0]]), 1)
            count = max(TOKENS // longest, 1)
            numbers, order = order[:count], order[count:]
            tokens = np.zeros((2, len(numbers), longest), np.int64)  # and their mask
            for row, i in enumerate(numbers):
                tokens[0, row, : len(ids[i])], tokens[1, row, : len(ids[i])] = ids[i], 1
            feed = {"input_ids": tokens[0], "attention_mask": tokens[1]}
            name = UNIT if form.similarity == "cosine" else VECTOR
            yield numbers, self.compute(name, feed)


def _start(engine: str, path: str, threads: int) -> Run:
    """What computes an output of a file."""
    if engine == "openvino":
        import openvino

        options = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY"}
        compiled = openvino.compile_model(path, "CPU", options)
        return lambda name, feed: compiled(feed)[name].copy()
    import onnxruntime

    of_session = onnxruntime.SessionOptions()
    of_session.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(path, of_session, providers=["CPUExecutionProvider"])
    return lambda name, feed: session.run([name], feed)[0]
