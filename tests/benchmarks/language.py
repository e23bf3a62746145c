"""Scoring and generation against transformers: `python tests/benchmarks/language.py [score] [cost] [generate]`.

SmolLM2-135M in float32 on the CPU, both sides with the same threads; the pairs are real: chunks of 512 tokens of
FairytaleQA stories, questions and answers of the same stories, both directions of the alignment score. The peer runs
as shipped and with `torch.set_float32_matmul_precision("medium")`, faster on some CPUs.
"""

import csv
import functools
import sys
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from models import DATA, PRECISIONS, under
from timing import machine, race, report
from transformers import AutoModelForCausalLM, DynamicCache

from ark_jax import LanguageModel, layout
from ark_jax.models import sharing
from ark_jax.models.wheels import demo_models
from ark_jax.text import prompts
from ark_jax.text import tokens as tk

CHUNK = 512
BATCH = 8  # rows of the peer's batches; of 4, 8, 16 and 32 the fastest here


@functools.cache
def models():
    folder = demo_models()["generator"]
    return LanguageModel.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


@functools.cache
def stories() -> list[tuple[list[str], list[tuple[str, str]]]]:
    """Of each story its full chunks, and its questions with their first answers."""
    tokenizer = models()[0].tokenizer
    out = []
    for path in sorted((DATA / "fairytaleqa").rglob("*-story.csv")):
        read = lambda path: list(csv.DictReader(path.open(encoding="utf-8")))
        text = "\n".join(row["text"] for row in read(path))
        asked = read(DATA / "fairytaleqa" / "questions" / path.parent.name / path.name.replace("-story.csv", "-questions.csv"))
        spans = [s for s in tk.token_chunks(text, tokenizer, size=CHUNK, overlap=12) if s.tokens == CHUNK]
        out.append(([text[s.start : s.end] for s in spans], [(row["question"], row["answer1"]) for row in asked]))
    return out


def pairs_of(chunks: int, questions: int) -> list[tuple[str, str]]:
    """(prompt, target) of both directions: that many chunks, one a story, each with so many of its story's questions."""
    templates = {name: prompts.load(name) for name in prompts.TARGET}
    enough = [(some[0], asked) for some, asked in stories() if some and len(asked) >= questions]
    out = []
    for chunk, asked in enough[:chunks]:
        for question, answer in asked[:questions]:
            filled = {"question": question, "answer": answer}
            for name, slot in prompts.TARGET.items():
                text = prompts.fill(templates[name], passage=chunk, **filled)
                out.append((text.removesuffix(filled[slot]), filled[slot]))
    return out


def tokenised(lm: LanguageModel, pairs: Sequence[tuple[str, str]]) -> list[tuple[list[int], int]]:
    """Ids of prompt and target, and how many are the target's."""
    whole = lm.tokenizer([prompt + target for prompt, target in pairs])["input_ids"]
    before = lm.tokenizer([prompt.rstrip() for prompt, _ in pairs])["input_ids"]
    return [(ids, len(ids) - len(context)) for ids, context in zip(whole, before, strict=True)]


def values(logits: torch.Tensor, rows: Sequence[tuple[list[int], int]]) -> Iterator[float]:
    """Sums over the targets of rows whose last token's logits stand last."""
    for scores, (ids, n) in zip(logits, rows, strict=True):
        wanted = torch.tensor(ids[-n:])
        some = scores[len(scores) - n - 1 : -1].float()
        yield float((some.gather(1, wanted[:, None])[:, 0] - some.logsumexp(-1)).sum())


def left(rows: Sequence[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens and mask, padded on the left, so that all targets end together."""
    width = max(map(len, rows))
    tokens, mask = torch.zeros((len(rows), width), dtype=torch.long), torch.zeros((len(rows), width), dtype=torch.long)
    for i, row in enumerate(rows):
        tokens[i, width - len(row) :], mask[i, width - len(row) :] = torch.tensor(row), 1
    return tokens, mask


@torch.no_grad()
def batched(lm, theirs, pairs) -> np.ndarray:
    """A careful scorer: sorted by length, one pass a batch, logits of the targets' positions only."""
    rows, out = tokenised(lm, pairs), np.zeros(len(pairs))
    order = sorted(range(len(rows)), key=lambda i: -len(rows[i][0]))
    for at in range(0, len(order), BATCH):
        some = order[at : at + BATCH]
        tokens, mask = left([rows[i][0] for i in some])
        logits = theirs(tokens, attention_mask=mask, position_ids=(mask.cumsum(1) - 1).clamp(min=0), use_cache=False,
                        logits_to_keep=max(rows[i][1] for i in some) + 1).logits
        out[some] = list(values(logits, [rows[i] for i in some]))
    return out


@torch.no_grad()
def with_prefix(lm, theirs, pairs) -> np.ndarray:
    """The same with the keys and values of what the pairs of a chunk, both directions, have in common computed once."""
    rows, out = tokenised(lm, pairs), np.zeros(len(pairs))
    for group in sharing.share([(ids, len(ids) - n - 1) for ids, n in rows]):
        prefix = rows[group.members[0]][0][: group.prefix]
        known = theirs(torch.tensor([prefix]), use_cache=True, logits_to_keep=1).past_key_values
        known = [(layer.keys, layer.values) for layer in known.layers]
        order = sorted(group.members, key=lambda i: -len(rows[i][0]))
        for at in range(0, len(order), BATCH):
            some = order[at : at + BATCH]
            tokens, mask = left([rows[i][0][group.prefix :] for i in some])
            cache = DynamicCache([tuple(x.expand(len(some), -1, -1, -1) for x in pair) for pair in known])
            mask = torch.cat([torch.ones((len(some), len(prefix)), dtype=torch.long), mask], 1)
            positions = (mask.cumsum(1) - 1)[:, len(prefix) :]
            logits = theirs(tokens, attention_mask=mask, position_ids=positions, past_key_values=cache, use_cache=True,
                            logits_to_keep=max(rows[i][1] for i in some) + 1).logits
            out[some] = list(values(logits, [rows[i] for i in some]))
    return out


def score() -> None:
    """Pairs in both directions at 1, 4 and 16 questions a chunk, tokenisation and all."""
    for questions, chunks, rounds in ((1, 4, 3), (4, 2, 3), (16, 1, 3)):
        score_race(questions, chunks, rounds)


def score_race(questions: int, chunks: int, rounds: int) -> None:
    lm, theirs = models()
    pairs = pairs_of(chunks, questions)
    ours = lm.log_likelihood(pairs).sum
    difference = max(np.abs(run(lm, theirs, pairs) - ours).max() for run in (batched, with_prefix))
    peers = {f"transformers, {name}, {p}": under(p, functools.partial(run, lm, theirs, pairs))
             for name, run in (("batched", batched), ("with prefix", with_prefix)) for p in PRECISIONS}
    report(f"SmolLM2-135M, {chunks} chunks x {questions} questions x 2 directions (largest difference {difference:.0e})",
           "pairs", len(pairs), race({"ark_jax": lambda: lm.log_likelihood(pairs), **peers}, rounds=rounds))


if __name__ == "__main__":
    layout.enter_mesh((1, 1, 1))
    print(f"{machine()}; torch {torch.__version__} with {torch.get_num_threads()} threads")
    for name in sys.argv[1:] or ["score"]:
        {"score": score}[name]()
