"""Encoding, ours against sentence-transformers and engines of ONNX files.

    python tests/benchmarks/engines.py

All embed the same texts with MiniLM's weights. nDCG@10 is of the 1,025 questions of FairytaleQA's
val among all sections of its 23 stories; a name says by how much it differs from ours, and no peer
that loses more than .003 counts as its best. nncf compresses OpenVINO's file to int8, calibrated on
stories of train. OpenVINO and onnxruntime get our tokens and our batches of similar lengths, the
others choose their own. model2vec, distilled from MiniLM, looks vectors of tokens up: another
trade-off. Peers that are not installed are left out; `pip install nncf fastembed model2vec` adds
those that [reference] lacks. ARK_BENCH_TEXTS (200) sections and questions are embedded.
"""

import copy
import csv
import dataclasses
import functools
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from models import DATA, at_roof, minilm, under
from timing import installed, machine, race, report

from ark_jax import Retriever
from ark_jax.demo.models import demo_models
from ark_jax.evaluate.retrieval import measure
from ark_jax.integrations.onnx import save_onnx
from ark_jax.models.onnx_retriever import FILES, OnnxRetriever

TEXTS = int(os.environ.get("ARK_BENCH_TEXTS", "200"))
CALIBRATED = 100  # texts
LOST = 0.003  # of nDCG@10; a peer that loses more is another trade-off
ENGINES = {"onnx": "onnxruntime", "onnx-int8": "onnxruntime, int8", "openvino": "OpenVINO"}
Encode = Callable[[list[str], str], np.ndarray]  # texts and their kind -> vectors


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


def by_sentence_transformers() -> dict[str, Encode]:
    _, peer = minilm()
    compiled = copy.deepcopy(peer)
    compiled[0].auto_model.compile(dynamic=True)
    encode = lambda model: (
        lambda texts, kind: model.encode(texts, show_progress_bar=False, normalize_embeddings=True)
    )
    return {
        "sentence-transformers": under("default", encode(peer)),
        "the same, medium": under("tuned", encode(peer)),
        "the same, medium, torch.compile": under("tuned", encode(compiled)),
    }


def by_engines(folder: Path, calibration: list[str]) -> dict[str, Encode]:
    """Our options of another engine, and OpenVINO in int8."""
    out: dict[str, OnnxRetriever] = {}
    for engine, name in ENGINES.items():
        if installed(name.partition(",")[0].lower()):
            out[f"{name} (engine={engine})"] = OnnxRetriever.open(folder, engine)
    if installed("openvino", "nncf"):
        import nncf
        import openvino

        known = OnnxRetriever.open(folder, "openvino")
        fed = [
            {"input_ids": row[None], "attention_mask": np.ones((1, len(row)), np.int64)}
            for row in (
                np.array(row) for row in known.tokenize(calibration, kind="document").tolist()
            )
        ]
        static = nncf.quantize(
            openvino.Core().read_model(folder / FILES["onnx"]),
            nncf.Dataset(fed),
            model_type=nncf.ModelType.TRANSFORMER,
            subset_size=len(fed),
        )
        options = {"INFERENCE_NUM_THREADS": os.cpu_count(), "PERFORMANCE_HINT": "LATENCY"}
        run = openvino.compile_model(static, "CPU", options)
        compute = lambda name, feed: run(feed)[name].copy()
        out["OpenVINO, int8 of nncf"] = dataclasses.replace(known, compute=compute)
    return {name: by_ours(retriever) for name, retriever in out.items()}


def by_ours(retriever: Retriever) -> Encode:
    return lambda texts, kind: retriever.encode(texts, kind=kind)


def by_fastembed(folder: Path) -> dict[str, Encode]:
    from fastembed import TextEmbedding
    from fastembed.common.model_description import ModelSource, PoolingType

    TextEmbedding.add_custom_model(
        model="ours/minilm",
        pooling=PoolingType.MEAN,
        normalization=True,
        sources=ModelSource(hf="ours/minilm"),
        dim=384,
        model_file=FILES["onnx"],
    )
    out = {}
    for tokens in (128, 256):
        model = TextEmbedding(
            "ours/minilm", specific_model_path=str(folder), threads=os.cpu_count()
        )
        model.model.tokenizer.enable_truncation(tokens)
        name = f"fastembed, {tokens} tokens" + " (its own)" * (tokens == 128)
        out[name] = lambda texts, kind, model=model: np.stack([*model.embed(texts)])
    return out


def by_model2vec() -> dict[str, Encode]:
    from model2vec.distill import distill

    model = distill(model_name=demo_models()["retriever"], pca_dims=256)
    unit = lambda x: x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-9)
    return {"model2vec": lambda texts, kind: unit(model.encode(texts))}


def with_quality(encoders: dict[str, Encode]) -> tuple[dict[str, Encode], set[str]]:
    """Encoders whose names say their nDCG@10, and the names of those that lose too much."""
    sections, asked, own = stories("val"), questions("val"), None
    numbers = {key: i for i, key in enumerate(sections)}
    out, lossy = {}, set()
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
        print(f"  {name:<40} nDCG@10 {np.mean(values):.4f}, cosines {farthest:.1e}", flush=True)
        if abs(difference) >= 5e-5:
            name += f" [{difference:+.4f}]"
        out[name] = encode
        if difference < -LOST:
            lossy.add(name)
    return out, lossy


def main() -> None:
    print(machine())
    ours, _ = minilm()
    sections = [text for texts in stories("train").values() for text in texts]
    every = lambda count: sections[:: max(len(sections) // count, 1)][:count]
    half = Retriever.from_pretrained(ours.base, compute="bfloat16")
    encoders = {"ark_jax": by_ours(ours), "ark_jax, compute=bfloat16": by_ours(half)}
    encoders |= by_sentence_transformers()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if installed("onnx", "onnxruntime"):
            save_onnx(ours, folder, int8=True)
            encoders |= by_engines(folder, every(CALIBRATED))
            if installed("fastembed"):
                encoders |= by_fastembed(folder)
        if installed("model2vec"):
            encoders |= by_model2vec()
        print("\nquality, and the largest difference of a cosine")
        encoders, lossy = with_quality(encoders)
        asked = [text for text, _ in questions("val")][:TEXTS]
        for work, texts, kind in (
            ("story sections", every(TEXTS), "document"),
            ("questions", asked, "query"),
        ):
            runs = {x: functools.partial(encode, texts, kind) for x, encode in encoders.items()}
            lengths = [len(row) for row in ours.tokenize(texts, kind=kind)]
            report(
                f"MiniLM, encode, {len(texts)} {work} [nDCG@10 of val beside ours]",
                "texts",
                len(texts),
                race(runs, rounds=3),
                least=at_roof(ours.cfg, lengths),
                apart=lossy,
            )


if __name__ == "__main__":
    main()
