"""Encoding on one core, ours against engines of ONNX files: `python tests/benchmarks/engines.py`.

Each engine embeds the same texts; its seconds are those of the processor, so that other programs
disturb them little. nDCG@10 is of the 1,025 questions of FairytaleQA's val among all sections of
its 23 stories. OpenVINO's files are compressed by nncf: weights alone (products in int8 by groups
of 32 activations), and statically with calibration on stories of train. It and onnxruntime get our
tokens and our batches of similar lengths; fastembed its own. Needs, beside .[reference],
`pip install openvino nncf fastembed`, in an environment of its own.
"""

import csv
import dataclasses
import os
import re
import statistics
import tempfile
import time
from pathlib import Path

CORE = max(os.sched_getaffinity(0))
os.sched_setaffinity(0, {CORE})  # before any library counts the cores

import nncf  # noqa: E402
import numpy as np  # noqa: E402
import openvino  # noqa: E402
import torch  # noqa: E402
from fastembed import TextEmbedding  # noqa: E402
from fastembed.common.model_description import ModelSource, PoolingType  # noqa: E402
from models import DATA, PRECISIONS, minilm  # noqa: E402
from timing import machine  # noqa: E402

from ark_jax import Retriever  # noqa: E402
from ark_jax.evaluate.retrieval import measure  # noqa: E402
from ark_jax.integrations.onnx import save_onnx  # noqa: E402
from ark_jax.models.onnx_retriever import FILES, OnnxRetriever  # noqa: E402

TEXTS = int(os.environ.get("ARK_BENCH_TEXTS", "200"))
ROUNDS = 3
FLAGS = ("avx2", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "amx_int8", "amx_bf16")
CALIBRATED = 100  # texts


def stories(split: str) -> dict[tuple[str, str], list[str]]:
    """(story, number) -> the texts of its section."""
    out: dict[tuple[str, str], list[str]] = {}
    for path in sorted((DATA / "fairytaleqa/section-stories" / split).rglob("*.csv")):
        for row in csv.DictReader(path.open(encoding="utf-8")):
            key = path.stem.removesuffix("-story"), row["section"].strip()
            out.setdefault(key, []).append(row["text"])
    return out


def questions(split: str) -> list[tuple[str, list[tuple[str, str]]]]:
    """Questions, and the sections that answer each."""
    return [
        (row["question"], [(path.stem.removesuffix("-questions"), x) for x in numbers])
        for path in sorted((DATA / "fairytaleqa/questions" / split).rglob("*.csv"))
        for row in csv.DictReader(path.open(encoding="utf-8"))
        if (numbers := row["cor_section"].replace(" ", "").split(","))
    ]


def by_openvino(model, **options):
    """What computes the outputs of a model, for `OnnxRetriever`."""
    options |= {"INFERENCE_NUM_THREADS": 1, "PERFORMANCE_HINT": "LATENCY"}
    compiled = openvino.Core().compile_model(model, "CPU", options)
    return lambda name, feed: compiled(feed)[name].copy()


def engines(folder: Path, calibration: list[str]) -> dict:
    """Name of an engine -> a function that embeds texts of a kind."""
    ours, peer = minilm()
    save_onnx(ours, folder, int8=True)
    onnx = {name: OnnxRetriever.open(folder, name) for name in FILES}
    core, file = openvino.Core(), str(folder / FILES["onnx"])
    rows = ours.tokenize(calibration, kind="document")
    fed = [
        {"input_ids": np.array([row], np.int64), "attention_mask": np.ones((1, len(row)), np.int64)}
        for row in rows.tolist()
    ]
    static = nncf.quantize(
        core.read_model(file),
        nncf.Dataset(fed),
        model_type=nncf.ModelType.TRANSFORMER,
        subset_size=len(fed),
    )
    weights = nncf.compress_weights(core.read_model(file), mode=nncf.CompressWeightsMode.INT8_SYM)
    others = {
        "openvino, float32": by_openvino(file, INFERENCE_PRECISION_HINT="f32"),
        "openvino, int8 static": by_openvino(static),
        "openvino, int8 by groups": by_openvino(weights, DYNAMIC_QUANTIZATION_GROUP_SIZE=32),
    }
    retrievers = {
        "ark_jax": ours,
        "ark_jax, compute=bfloat16": Retriever.from_pretrained(ours.base, compute="bfloat16"),
        **{f"ark_jax, engine={name}": x for name, x in onnx.items()},
        **{name: dataclasses.replace(onnx["onnx"], compute=x) for name, x in others.items()},
    }

    def of_peer(precision: str):
        def encode(texts, kind):
            torch.set_float32_matmul_precision(PRECISIONS[precision])
            return peer.encode(texts, show_progress_bar=False, normalize_embeddings=True)

        return encode

    def of_fastembed(tokens: int):
        model = TextEmbedding("ours/minilm", specific_model_path=str(folder), threads=1)
        model.model.tokenizer.enable_truncation(tokens)
        return lambda texts, kind: np.stack([*model.embed(texts)])

    TextEmbedding.add_custom_model(
        model="ours/minilm",
        pooling=PoolingType.MEAN,
        normalization=True,
        sources=ModelSource(hf="ours/minilm"),
        dim=ours.width,
        model_file=FILES["onnx"],
    )
    return {
        **{
            name: lambda texts, kind, x=x: x.encode(texts, kind=kind)
            for name, x in retrievers.items()
        },
        **{f"sentence-transformers, {x}": of_peer(x) for x in PRECISIONS},
        "fastembed, 128 tokens (its own)": of_fastembed(128),
        "fastembed, 256 tokens": of_fastembed(256),
    }


def quality(encoders: dict) -> None:
    """nDCG@10 of each engine, and how far its cosines are from ours."""
    sections = stories("val")
    numbers = {key: i for i, key in enumerate(sections)}
    asked = questions("val")
    own = None
    print("\nquality: nDCG@10, its difference, the largest difference of a cosine")
    for name, encode in encoders.items():
        passages = encode([" ".join(texts) for texts in sections.values()], "document")
        cosines = encode([text for text, _ in asked], "query") @ passages.T
        values = []
        for row, (_, needed) in zip(cosines, asked, strict=True):
            ranked = [str(i) for i in np.argsort(-row, kind="stable")[:10]]
            gold = {str(numbers[key]): 1 for key in needed if key in numbers}
            values.append(measure(ranked, gold, ["ndcg@10"])["ndcg@10"])
        own = own or (np.mean(values), cosines)
        difference, farthest = np.mean(values) - own[0], np.abs(cosines - own[1]).max()
        print(f"  {name:<32} {np.mean(values):.4f} {difference:+.4f} {farthest:.1e}", flush=True)


def compete(work: str, texts: list[str], kind: str, encoders: dict) -> None:
    """Medians of the processor's seconds of rounds in which engines take turns."""
    seconds: dict[str, list[float]] = {name: [] for name in encoders}
    for turn in range(ROUNDS + 1):  # the first warms up
        for name, encode in encoders.items():
            start = time.process_time()
            encode(texts, kind)
            seconds[name] += [time.process_time() - start] * bool(turn)
    print(f"\n{work}, {len(texts)} texts, {ROUNDS} rounds")
    own = next(iter(seconds.values()))
    for name, values in seconds.items():
        ratio = statistics.median(y / x for x, y in zip(own, values, strict=True))
        rate = len(texts) / statistics.median(values)
        print(f"  {name:<32} {rate:8,.1f} texts/s   ours is {ratio:.2f} x", flush=True)


def main() -> None:
    info = Path("/proc/cpuinfo").read_text()
    flags = set(re.findall(r"\w+", re.findall(r"flags\s*: (.*)", info)[0]))
    print(f"{machine()}; one core; {', '.join(x for x in FLAGS if x in flags)}")
    ours, _ = minilm()
    sections = [text for texts in stories("train").values() for text in texts]
    every = lambda count: sections[:: max(len(sections) // count, 1)][:count]
    words = " ".join(sections[:400]).split(" ")
    rows = ours.tokenize(
        [" ".join(words[i : i + 150]) for i in range(0, len(words), 150)], kind="document"
    )
    chunks = [ours.tokenizer.decode(row[1:127]) for row in rows.tolist() if len(row) > 127]
    with tempfile.TemporaryDirectory() as folder:
        encoders = engines(Path(folder), every(CALIBRATED))
        compete("story sections", every(TEXTS), "document", encoders)
        compete("chunks of 128 tokens", chunks[:TEXTS], "document", encoders)
        compete("questions", [text for text, _ in questions("val")][:TEXTS], "query", encoders)
        quality(encoders)


if __name__ == "__main__":
    main()
