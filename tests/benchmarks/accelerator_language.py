"""Lines of `accelerator.py` for language models: scoring, generation, a policy step."""

import dataclasses
import functools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import accelerator_torch as peers
import jax
import numpy as np
from accelerator_table import (
    FAILED,
    Row,
    Sizes,
    against,
    counted_programs,
    judged,
    step_row,
    turns,
    words,
)

from ark_jax import LanguageModel
from ark_jax.models.batching import batch_tokens_of_device
from ark_jax.recipes.ark import alignment
from ark_jax.train import flops, memory, parts
from ark_jax.train.groups import BatchShape, Group
from ark_jax.train.likelihood import LikelihoodObjective, step_arrays, step_flops
from ark_jax.train.policy import PolicyLoss

DTYPE = "bfloat16"


def opened(folder: Path, dtype: str = DTYPE) -> LanguageModel:
    return LanguageModel.from_pretrained(folder, dtype=dtype, compute=dtype)


def timed(
    run: Callable[[], object], open_peers: Callable[[], peers.Contenders], rounds: int
) -> tuple[dict[str, float], int, str]:
    """Seconds of all contenders, our number of programs, and a verdict on how it grows."""
    with counted_programs() as compiled:
        run()
        first = len(compiled)
        run()
        again = len(compiled) - first
    seconds = turns({"ours": run}, rounds)
    print(f"ours {seconds['ours']:.3f} s; peers follow", file=sys.stderr, flush=True)
    seconds |= turns(open_peers(), rounds)
    return seconds, first, f"{FAILED}: {again} programs compiled again" if again else "ok"


def scoring_rows(sizes: Sizes, folder: Path) -> Iterator[Row]:
    """Log-likelihoods of questions and answers about shared chunks, against float32."""
    rng = np.random.default_rng(0)
    templates = alignment.load_templates({})
    length = sizes.tokens // 2  # a word has about two tokens
    pairs = [
        pair
        for chunk in [words(rng, length) for _ in range(sizes.chunks)]
        for _ in range(sizes.questions)
        for pair in alignment.scored_pairs(
            templates, passage=chunk, question=words(rng, 12), answer=words(rng, 6)
        )
    ]
    few = pairs[: 4 * sizes.questions]
    with jax.default_matmul_precision("highest"):
        wanted = opened(folder, "float32").log_likelihood(few).mean
    jax.clear_caches()
    lm = opened(folder)
    run = functools.partial(lm.log_likelihood, pairs)
    open_peers = functools.partial(peers.scoring, folder, lm, pairs, DTYPE)
    seconds, count, verdict = timed(run, open_peers, sizes.rounds)
    error = float(np.abs(lm.log_likelihood(few).mean - wanted).mean() / np.abs(wanted).mean())
    what = f"{sizes.chunks} chunks x {sizes.questions} questions x 2 directions, {DTYPE}"
    row = judged("scoring", what, error, 5e-2)
    figure = f"{len(pairs) / seconds['ours']:,.0f} pairs/s, {count} programs, mean {row.ours}"
    yield dataclasses.replace(
        row, ours=figure, peer=against(seconds), verdict=row.verdict if verdict == "ok" else verdict
    )


def generation_rows(sizes: Sizes, folder: Path) -> Iterator[Row]:
    """Greedy replies of one length, to prompts of one length."""
    rng = np.random.default_rng(0)
    lm = opened(folder)
    lm.stop_ids = ()
    prompts = [words(rng, sizes.tokens // 8) for _ in range(sizes.texts)]
    run = functools.partial(lm.generate, prompts, max_new_tokens=sizes.new_tokens)
    open_peers = functools.partial(peers.generation, folder, lm, prompts, sizes.new_tokens, DTYPE)
    seconds, count, verdict = timed(run, open_peers, sizes.rounds)
    once = turns({"ours": functools.partial(lm.generate, prompts, max_new_tokens=1)}, 3)["ours"]
    step = (seconds["ours"] - once) / max(sizes.new_tokens - 1, 1)
    cfg, places = lm.cfg, sum(lm.token_counts(prompts)) + sizes.texts * sizes.new_tokens / 2
    weights = flops.weights(cfg) + cfg.vocab * cfg.width
    moved = 2 * (weights + 2 * cfg.layers * cfg.kv_heads * cfg.head_dim * places)
    new = sizes.texts * sizes.new_tokens
    yield Row(
        "generation",
        f"{sizes.texts} prompts, {sizes.new_tokens} new tokens each, {DTYPE}",
        f"{new / seconds['ours']:,.0f} tokens/s, {step * 1e3:.2f} ms a step: weights, keys and "
        f"values at {moved / step / 1e12:.2f} TB/s, {count} programs",
        against(seconds),
        verdict,
    )


def policy_rows(sizes: Sizes, folder: Path) -> Iterator[Row]:
    """GRPO's step from float32 weights: prompts, several completions of each, advantages."""
    rng = np.random.default_rng(0)
    count = max(sizes.texts // 4, 2)
    shape = (count, sizes.samples, sizes.new_tokens)
    lm = LanguageModel.from_pretrained(folder, compute=DTYPE)
    draw = lambda *shape: rng.integers(3, lm.cfg.vocab, shape).astype(np.int32)
    prompts, completions = draw(count, sizes.tokens), draw(*shape)
    advantages = rng.normal(size=shape[:2])
    groups = [
        Group(prompt.tolist(), rows.tolist(), gains)
        for prompt, rows, gains in zip(prompts, completions, advantages, strict=True)
    ]
    whole = BatchShape.holding([groups])
    split = parts.split(groups, parts.prompts_of_part(whole, batch_tokens_of_device()))
    part = BatchShape.holding(split)
    choice = memory.choose(
        lm.cfg,
        "auto",
        1,
        lambda _: part.texts_of_device(),
        trained=memory.bytes_on_device(lm.model),
    )
    tokens, work = step_flops(lm.cfg, groups, 0)
    row = step_row(
        LikelihoodObjective(dataclasses.replace(lm.cfg, remat=choice.remat), PolicyLoss()),
        lm.model,
        step_arrays(split, part),
        lambda: peers.policy(folder, prompts, completions, advantages, DTYPE),
        work,
        tokens,
        choice.memory.total,
        sizes.rounds,
    )
    what = f"{count} prompts x {sizes.tokens}, {sizes.samples} x {sizes.new_tokens}, {DTYPE}"
    yield dataclasses.replace(row, part="GRPO step", what=f"{what}, remat={choice.remat}")
