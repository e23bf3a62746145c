"""How each stage of ARK grows: `python tests/benchmarks/growth.py 1000 10000 [100000 ...]`.

Makes a corpus of so many documents of one chunk each, and one question for thirteen of them, and
runs all stages with tiny models, so that what is left is the work of the host. Each stage is a
process of its own. The table has its CPU seconds and peak memory, and the exponent of its seconds
between the two largest sizes: 1 is linear.

Texts are sentences of FairytaleQA's stories ($ARK_DATA) below one sentence of two names. Names are
drawn as Zipf's law has it, from half as many as there are documents.
"""

import json
import math
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from timing import machine

sys.path.insert(0, str(Path(__file__).parents[1]))
from support import tiny
from support.paths import DATA

from ark_jax.recipes.ark import config
from ark_jax.recipes.ark.recipe import stages

PER_QUESTION = 13  # documents
SYLLABLES = ("Bar", "den", "fol", "gri", "hul", "jas", "kem", "lor", "mun", "nes", "pik", "rov")
# What decides how much each stage does is that of the defaults, but for the model's own work.
FIELDS = {
    "data.chunk_tokens": 512,
    "data.pool": "corpus",
    "graph.similarity": 1.0,  # random weights make any two names alike
    "train.batch": 64,
    "evaluate.read": 0,
}


def name(rank: int) -> str:
    """A name of two words, another for each rank."""
    word = ""
    while rank or len(word) < 6:
        rank, syllable = divmod(rank, len(SYLLABLES))
        word += SYLLABLES[syllable]
    return f"{word[:3].capitalize()}{word[3:]} {word[-3:].capitalize()}ton"


def sentences() -> list[str]:
    """Of all stories."""
    files = sorted((DATA / "fairytaleqa" / "section-stories").rglob("*.csv"))
    text = " ".join(file.read_text(encoding="utf-8") for file in files)
    return [sentence for sentence in re.split(r"(?<=[.!?])\s+", text) if 20 < len(sentence) < 120]


def write_corpus(folder: Path, count: int) -> None:
    """Documents and questions; equal counts give equal ones."""
    random, stock = np.random.default_rng(count), sentences()
    with (
        (folder / "corpus.jsonl").open("w") as documents,
        open(folder / "questions.jsonl", "w") as questions,
    ):
        for number in range(count):
            first, second = (random.zipf(1.3, 2) % max(count // 2, 2)).tolist()
            place = name(count + number)
            lines = [f"{name(first)} met {name(second)} at {place}."]
            lines += [stock[i] for i in random.integers(0, len(stock), 2)]
            row = {"id": f"d{number}", "text": " ".join(lines)}
            documents.write(json.dumps(row) + "\n")
            if number % PER_QUESTION == 0:
                row = {
                    "id": f"q{number}",
                    "question": f"Whom did {name(first)} meet at {place}?",
                    "answers": [name(second)],
                    "documents": [f"d{number}"],
                }
                questions.write(json.dumps(row) + "\n")


def run_stages(count: int, folder: Path) -> Iterator[tuple[str, float, float]]:
    """Name, CPU seconds and peak memory in GiB of each stage."""
    write_corpus(folder, count)
    encoder = tiny.write(folder / "encoder", "bert", tokenizer="cls")
    models = {
        "retriever.path": str(tiny.sentence_transformer(encoder, pooling="mean")),
        "generator.path": str(tiny.write(folder / "generator", "llama", tokenizer="begin")),
    }
    paths = {
        "data.path": str(folder / "corpus.jsonl"),
        "data.questions": str(folder / "questions.jsonl"),
    }
    fields = [f"--config.{field}={value}" for field, value in (FIELDS | models | paths).items()]
    common = ["--config=ark", f"--workdir={folder / 'workdir'}", *fields]
    for stage in stages(config.ark()):
        command = [sys.executable, "-m", "ark_jax", stage.name, *common]
        process = subprocess.Popen(command, stdout=sys.stderr)
        _, status, used = os.wait4(process.pid, 0)
        if status:
            raise SystemExit(f"stage {stage.name} of {count:,} chunks failed")
        yield stage.name, used.ru_utime + used.ru_stime, used.ru_maxrss / 2**20


def main(counts: list[int]) -> None:
    print(machine())
    columns: dict[int, dict[str, tuple[float, float]]] = {}
    for count in counts:
        began = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            rows = run_stages(count, Path(folder))
            columns[count] = {stage: (seconds, peak) for stage, seconds, peak in rows}
        minutes = (time.perf_counter() - began) / 60
        print(f"{count:,} chunks: {minutes:.1f} minutes", file=sys.stderr)
    print("\n| stage | " + " | ".join(f"{n:,} chunks" for n in counts) + " | exponent |")
    print("|---" * (len(counts) + 2) + "|")
    for stage in columns[counts[0]]:
        cells = [
            f"{seconds:.1f} s, {peak:.2f} GiB"
            for seconds, peak in (columns[n][stage] for n in counts)
        ]
        exponent = ""
        if len(counts) > 1:
            before, after = (columns[n][stage][0] for n in counts[-2:])
            exponent = f"{math.log(after / before) / math.log(counts[-1] / counts[-2]):.2f}"
        print(f"| {stage} | " + " | ".join(cells) + f" | {exponent} |")


if __name__ == "__main__":
    main(sorted(map(int, sys.argv[1:])) or [1000, 10_000])
