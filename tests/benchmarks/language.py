"""Scoring and generation against transformers: `python tests/benchmarks/language.py [score] [cost]
[generate] [memory]`.

SmolLM2-135M in float32 on the CPU, both sides with the same threads; the pairs are real: chunks of
512 tokens of FairytaleQA stories, questions and answers of the same stories, both directions of the
alignment score. The peer runs as shipped and with `torch.set_float32_matmul_precision("medium")`,
faster on some CPUs; llama.cpp with weights in float32 and as its file has them (llama.py).
"""

import csv
import functools
import math
import os
import re
import resource
import sys
import timeit
from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np
import torch
from llama import MODULES, llamas
from models import DATA, PRECISIONS, under
from timing import installed, machine, product_rate, race, report
from transformers import AutoModelForCausalLM, DynamicCache

from ark_jax import LanguageModel, layout
from ark_jax.demo.models import demo_models
from ark_jax.models import prefix_groups
from ark_jax.recipes.ark import alignment
from ark_jax.text import prompts
from ark_jax.text import tokens as tk

CHUNK = 512
BATCH = 8  # rows of the peer's batches; of 4, 8, 16 and 32 the fastest here


@functools.cache
def ours() -> LanguageModel:
    return LanguageModel.from_pretrained(demo_models()["generator"])


@functools.cache
def models():
    return ours(), AutoModelForCausalLM.from_pretrained(
        demo_models()["generator"], dtype=torch.float32
    ).eval()


@functools.cache
def stories() -> list[tuple[str, list[tuple[str, str]]]]:
    """The first whole chunk of each story, and its questions with their first answers."""
    tokenizer = ours().tokenizer
    out = []
    for path in sorted((DATA / "fairytaleqa").rglob("*-story.csv")):
        read = lambda path: list(csv.DictReader(path.open(encoding="utf-8")))
        text = "\n".join(row["text"] for row in read(path))[: 8 * CHUNK]
        asked = read(
            DATA
            / "fairytaleqa"
            / "questions"
            / path.parent.name
            / path.name.replace("-story.csv", "-questions.csv")
        )
        first = tk.token_chunks(text, tokenizer, size=CHUNK, overlap=12)[0]
        if first.tokens == CHUNK:
            out.append(
                (
                    text[first.start : first.end],
                    [(row["question"], row["answer1"]) for row in asked],
                )
            )
    return out


def pairs_of(chunks: int, questions: int) -> list[tuple[str, str]]:
    """(prompt, target) pairs of both directions: a chunk for each story, and its questions."""
    templates = alignment.load_templates({})
    enough = [(chunk, asked) for chunk, asked in stories() if len(asked) >= questions]
    out = []
    for chunk, asked in enough[:chunks]:
        for question, answer in asked[:questions]:
            out += alignment.scored_pairs(
                templates, passage=chunk, question=question, answer=answer
            )
    return out


def tokenised(lm: LanguageModel, pairs: Sequence[tuple[str, str]]) -> list[tuple[list[int], int]]:
    """Ids of prompt and target, and how many are the target's."""
    joined = lm.tokenizer([prompt + target for prompt, target in pairs])["input_ids"]
    before = lm.tokenizer([prompt.rstrip() for prompt, _ in pairs])["input_ids"]
    return [(ids, len(ids) - len(context)) for ids, context in zip(joined, before, strict=True)]


def values(logits: torch.Tensor, rows: Sequence[tuple[list[int], int]]) -> list[float]:
    """Sums over the targets of rows whose last token's logits stand last."""
    most = max(n for _, n in rows)
    ids = torch.tensor([[0] * (most - n) + list(ids[-n:]) for ids, n in rows])
    is_target = torch.arange(most) >= most - torch.tensor([[n] for _, n in rows])
    scores = logits[:, -most - 1 : -1].float()
    logs = scores.gather(2, ids[..., None].to(scores.device))[..., 0] - scores.logsumexp(-1)
    return (logs * is_target.to(logs.device)).sum(1).tolist()


def left(rows: Sequence[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens and mask, padded on the left, so that all targets end together."""
    width = max(map(len, rows))
    tokens, mask = (
        torch.zeros((len(rows), width), dtype=torch.long),
        torch.zeros((len(rows), width), dtype=torch.long),
    )
    for i, row in enumerate(rows):
        tokens[i, width - len(row) :], mask[i, width - len(row) :] = torch.tensor(row), 1
    return tokens, mask


@torch.no_grad()
def batched(lm, theirs, pairs, size: int = BATCH) -> np.ndarray:
    """A careful scorer: sorted by length, one pass a batch, logits at target positions only."""
    rows, out = tokenised(lm, pairs), np.zeros(len(pairs))
    order = sorted(range(len(rows)), key=lambda i: -len(rows[i][0]))
    for start in range(0, len(order), size):
        chosen = order[start : start + size]
        tokens, mask = (x.to(theirs.device) for x in left([rows[i][0] for i in chosen]))
        logits = theirs(
            tokens,
            attention_mask=mask,
            position_ids=(mask.cumsum(1) - 1).clamp(min=0),
            use_cache=False,
            logits_to_keep=max(rows[i][1] for i in chosen) + 1,
        ).logits
        out[chosen] = values(logits, [rows[i] for i in chosen])
    return out


@torch.no_grad()
def with_prefix(lm, theirs, pairs, size: int = BATCH) -> np.ndarray:
    """The same; keys and values of a prefix that a chunk's pairs share are computed once."""
    rows, out = tokenised(lm, pairs), np.zeros(len(pairs))
    for group in prefix_groups.group_by_prefix([(ids, len(ids) - n - 1) for ids, n in rows]):
        prefix = rows[group.members[0]][0][: group.prefix_length]
        ids = torch.tensor([prefix], device=theirs.device)
        known = theirs(ids, use_cache=True, logits_to_keep=1).past_key_values
        known = [(layer.keys, layer.values) for layer in known.layers]
        order = sorted(group.members, key=lambda i: -len(rows[i][0]))
        for start in range(0, len(order), size):
            chosen = order[start : start + size]
            suffixes = [rows[i][0][group.prefix_length :] for i in chosen]
            tokens, mask = (x.to(theirs.device) for x in left(suffixes))
            cache = DynamicCache(
                [tuple(x.expand(len(chosen), -1, -1, -1) for x in pair) for pair in known]
            )
            mask = torch.cat([mask.new_ones((len(chosen), len(prefix))), mask], 1)
            positions = (mask.cumsum(1) - 1)[:, len(prefix) :]
            logits = theirs(
                tokens,
                attention_mask=mask,
                position_ids=positions,
                past_key_values=cache,
                use_cache=True,
                logits_to_keep=max(rows[i][1] for i in chosen) + 1,
            ).logits
            out[chosen] = values(logits, [rows[i] for i in chosen])
    return out


def score() -> None:
    """Pairs in both directions at 1, 4 and 8 questions a chunk, tokenisation and all."""
    for questions, chunks, rounds in ((1, 2, 3), (4, 1, 3), (8, 1, 3)):
        score_race(questions, chunks, rounds)


def score_race(questions: int, chunks: int, rounds: int) -> None:
    lm, theirs = models()
    pairs = pairs_of(chunks, questions)
    ours = lm.log_likelihood(pairs).sum
    difference = max(np.abs(run(lm, theirs, pairs) - ours).max() for run in (batched, with_prefix))
    peers = {
        f"transformers, {name}, {p}": under(p, functools.partial(run, lm, theirs, pairs))
        for name, run in (("batched", batched), ("with prefix", with_prefix))
        for p in PRECISIONS
    }
    for name, llama in llamas(16).items() if installed(*MODULES) else ():
        run = lambda llama=llama: llama.score(tokenised(lm, pairs))
        away = np.abs(run() - ours).max()
        peers[f"llama.cpp, with prefix, {name} (by {away:.0e})"] = run
    report(
        f"SmolLM2-135M, {chunks} chunks x {questions} questions x 2 directions "
        f"(largest difference {difference:.0e})",
        "pairs",
        len(pairs),
        race({"ark_jax": lambda: lm.log_likelihood(pairs), **peers}, rounds=rounds),
        least=operations(lm, tokenised(lm, pairs))[0] / product_rate(2048, 576, 1536),
        apart=[name for name in peers if "Q4_1" in name],
    )


def operations(lm: LanguageModel, rows: Sequence[tuple[list[int], int]]) -> tuple[float, float]:
    """FLOPs of scoring: with prefixes computed once, and without."""
    parameters = sum(x.size for x in jax.tree.leaves(lm.model.blocks))
    heads = 4 * lm.cfg.layers * lm.cfg.heads * lm.cfg.head_dim
    logits = 2 * lm.cfg.vocab * lm.cfg.width * sum(n for _, n in rows)
    causal = lambda n, before=0: 2 * parameters * n + heads * (n * before + n * n / 2)
    shared = alone = logits
    alone += sum(causal(len(ids)) for ids, _ in rows)
    for group in prefix_groups.group_by_prefix([(ids, len(ids) - n - 1) for ids, n in rows]):
        before = group.prefix_length
        shared += causal(before)
        shared += sum(causal(len(rows[i][0]) - before, before) for i in group.members)
    return shared, alone


def cost() -> None:
    """Draws cost.svg: seconds and operations of a pair, against the questions of a chunk."""
    lm = ours()
    points = []
    print(
        "\n| questions a chunk | seconds a pair | GFLOP a pair | GFLOP without sharing |"
        "\n|---|---|---|---|"
    )
    for questions, chunks in ((1, 6), (2, 4), (5, 2), (10, 2), (30, 1)):
        pairs = pairs_of(chunks, questions)
        rows, count = tokenised(lm, pairs), chunks * questions
        seconds = (
            race({"ark_jax": lambda pairs=pairs: lm.log_likelihood(pairs)}, rounds=3)[
                "ark_jax"
            ].median
            / count
        )
        shared, alone = operations(lm, rows)
        points.append((questions, seconds, alone / shared))
        print(
            f"| {questions} | {seconds:.3f} | {shared / count / 1e9:.1f} "
            f"| {alone / count / 1e9:.1f} |",
            flush=True,
        )
    (Path(__file__).parent / "cost.svg").write_text(curve(points))


def curve(points: list[tuple[int, float, float]]) -> str:
    """Seconds a pair against questions a chunk, both logarithmic, and the factor in operations."""
    (left, top), (right, bottom) = (60, 20), (460, 240)
    x = lambda n: left + (right - left) * math.log(n) / math.log(30)
    low, high = (f([seconds for _, seconds, _ in points]) for f in (min, max))
    y = lambda s: bottom - 20 - (bottom - top - 40) * math.log(s / low) / math.log(high / low)
    text = lambda x, y, value, anchor="middle": (
        f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}">{value}</text>'
    )
    style = 'font-family="sans-serif" font-size="12" fill="#456"'
    body = [
        '<rect width="520" height="310" fill="#fff"/>',
        f'<path d="M{left},{top}V{bottom}H{right}" fill="none" stroke="#999"/>',
        text(
            left,
            14,
            "seconds a pair, both directions: SmolLM2-135M, 512-token chunks, two AVX2 cores",
            "start",
        ),
        text(
            260,
            bottom + 32,
            "questions a chunk; below, how many times fewer operations than without sharing",
        ),
        f'<polyline points="{" ".join(f"{x(n):.0f},{y(s):.0f}" for n, s, _ in points)}" '
        'fill="none" stroke="#27a"/>',
    ]
    for n, s, times in points:
        body += [
            f'<circle cx="{x(n):.0f}" cy="{y(s):.0f}" r="4"/>',
            text(x(n) + 6, y(s) - 8, f"{s:.2f} s", "start"),
            text(x(n), bottom + 16, n),
            text(x(n), bottom + 48, f"{times:.1f} ×"),
        ]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 520 310" {style}>',
            *body,
            "</svg>\n",
        ]
    )


def extractions(n: int) -> list[str]:
    """Prompts for a knowledge graph: chunks of 160 to 512 tokens, one a story."""
    lm, template, sizes = (
        ours(),
        prompts.load_template("extract"),
        np.random.default_rng(0).integers(160, CHUNK + 1, n),
    )
    out = []
    for (chunk, _), size in zip(stories(), sizes, strict=False):
        first = tk.token_chunks(chunk, lm.tokenizer, size=int(size), overlap=12)[0]
        out.append(lm.chat(prompts.fill(template, passage=chunk[first.start : first.end])))
    return out


def rewritings(n: int) -> list[str]:
    """Prompts for new versions of a question, with names from its story's chunk as neighbours."""
    lm, template, out = ours(), prompts.load_template("rewrite"), []
    for chunk, asked in stories()[:n]:
        names = dict.fromkeys(re.findall(r"(?<=[a-z,] )[A-Z][a-z]{2,}", chunk))
        question, answer = asked[0]
        out.append(
            lm.chat(
                prompts.fill(
                    template,
                    question=question,
                    answer=answer,
                    count=3,
                    entities="\n".join(f"- {name}" for name in names),
                )
            )
        )
    return out


def readings(n: int) -> list[str]:
    """Prompts for a short answer from a chunk."""
    lm, template = ours(), prompts.load_template("read")
    return [
        lm.chat(prompts.fill(template, passages=chunk, question=asked[0][0]))
        for chunk, asked in stories()[:n]
    ]


@torch.no_grad()
def by_transformers(
    lm, theirs, texts: list[str], limit: int, size: int, in_order: bool
) -> list[str]:
    """`generate` of batches in the order given, or of texts of about one length."""
    rows = lm.tokenizer(texts, add_special_tokens=False)["input_ids"]
    order = (
        list(range(len(rows)))
        if in_order
        else sorted(range(len(rows)), key=lambda i: -len(rows[i]))
    )
    out = [""] * len(rows)
    for start in range(0, len(order), size):
        chosen = order[start : start + size]
        tokens, mask = left([rows[i] for i in chosen])
        sequences = theirs.generate(
            tokens, attention_mask=mask, do_sample=False, max_new_tokens=limit, pad_token_id=0
        )
        for i, text in zip(
            chosen,
            lm.tokenizer.batch_decode(sequences[:, tokens.shape[1] :], skip_special_tokens=True),
            strict=True,
        ):
            out[i] = text
    return out


def generate() -> None:
    """Greedy texts after the library's own prompts, tokenisation and all; ARK_BENCH_PROMPTS of each
    kind (32), of up to ARK_BENCH_NEW tokens (256).

    The peer's best setting is the size of batch that is fastest in one pass: texts in order of
    length, torch tuned.
    """
    lm, theirs = models()
    sizes = (("PROMPTS", "32"), ("NEW", "256"))
    n, most = (int(os.environ.get(f"ARK_BENCH_{name}", default)) for name, default in sizes)
    for name, texts, limit in (
        ("extract", extractions(n), most),
        ("rewrite", rewritings(n), most),
        ("read", readings(n), 32),
    ):
        peer = functools.partial(by_transformers, lm, theirs, texts, limit)
        tuned = {
            size: under("tuned", lambda peer=peer, size=size: peer(size, False))
            for size in (4, 8, 16, 32)
            if size <= n
        }
        seconds = {size: timeit.timeit(run, number=1) for size, run in tuned.items()}
        best = min(seconds, key=seconds.get)
        peers = {
            "transformers, 8 in order": under("default", lambda peer=peer: peer(BATCH, True)),
            f"transformers, {best} sorted, tuned": tuned[best],
        }
        texts_out = lm.generate(texts, max_new_tokens=limit)
        ids = lm.tokenizer(texts, add_special_tokens=False)["input_ids"]
        for file, llama in llamas(BATCH).items() if installed(*MODULES) else ():
            run = functools.partial(llama.generate, ids, limit, set(lm.stop_ids))
            made = lm.tokenizer.batch_decode(run(), skip_special_tokens=True)
            equal = sum(a == b for a, b in zip(texts_out, made, strict=True))
            peers[f"llama.cpp, {file}, {BATCH} at once ({equal} the same)"] = run
        same = sum(a == b for a, b in zip(texts_out, peer(BATCH, True), strict=True))
        count = sum(
            len(lm.tokenizer(text, add_special_tokens=False)["input_ids"]) for text in texts_out
        )
        timings = race(
            {
                "ark_jax": lambda texts=texts, limit=limit: lm.generate(
                    texts, max_new_tokens=limit
                ),
                **peers,
            },
            rounds=3,
        )
        report(
            f"SmolLM2-135M, {name}: {n} prompts, up to {limit} new tokens ({same} texts the same)",
            "tokens",
            count,
            timings,
            apart=[name for name in peers if "Q4_1" in name],
        )


def memory() -> None:
    """The most memory that scoring has taken, beside the model, as the number of pairs grows."""
    lm = ours()
    peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    size = sum(x.nbytes for x in jax.tree.leaves(lm.model)) / 2**30
    work = [pairs_of(chunks, questions) for chunks, questions in ((2, 4), (2, 30), (8, 30))]
    print(
        f"\nSmolLM2-135M: the model {size:.2f} GiB, "
        f"the process with it and the pairs {peak():.2f} GiB"
    )
    for pairs in work:
        lm.log_likelihood(pairs)
        print(f"  after {len(pairs):,} pairs: {peak():.2f} GiB at most", flush=True)


if __name__ == "__main__":
    layout.enter_mesh((1, 1, 1))
    print(f"{machine()}; torch {torch.__version__} with {torch.get_num_threads()} threads")
    for name in sys.argv[1:] or ["score", "cost", "generate"]:
        {"score": score, "cost": cost, "generate": generate, "memory": memory}[name]()
