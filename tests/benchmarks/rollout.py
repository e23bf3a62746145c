"""Several samples of a prompt, against transformers: `python tests/benchmarks/rollout.py`.

SmolLM2-135M in float32 on the CPU, both sides with the same threads: ARK_BENCH_PROMPTS (4) real
prompts of 512 tokens, 8 samples of each, 32 new tokens of each sample. No reply ends before, so
that all sides make the same number of tokens. The peers are `generate` with num_return_sequences,
and a careful user of transformers, who computes each prompt once and repeats its keys and values.
"""

import os
import sys
from collections.abc import Callable

import torch
from language import left, models, readings
from models import under
from timing import machine, race, report
from transformers import DynamicCache

from ark_jax import LanguageModel, layout

PROMPTS = int(os.environ.get("ARK_BENCH_PROMPTS", "4"))
ROUNDS = int(os.environ.get("ARK_BENCH_ROUNDS", "3"))
LENGTH, SAMPLES, NEW = 512, 8, 32


def prompts(lm: LanguageModel) -> list[str]:
    """Prompts for an answer from a story, the last `LENGTH` tokens of each."""
    decoded = [lm.tokenizer.decode(ids[-LENGTH:]) for ids in lm.prompt_ids(readings(PROMPTS))]
    assert list(map(len, lm.prompt_ids(decoded))) == [LENGTH] * PROMPTS
    return decoded


@torch.no_grad()
def by_transformers(lm, theirs, texts: list[str], *, share: bool) -> torch.Tensor:
    """Token ids `[prompts · samples, LENGTH + NEW]`.

    Args:
        share: whether keys and values of the prompts are computed once and then repeated.
    """
    tokens, mask = left(lm.prompt_ids(texts))
    caches = {}
    if share:
        cache = DynamicCache()
        theirs(tokens[:, :-1], attention_mask=mask[:, :-1], past_key_values=cache, logits_to_keep=1)
        cache.batch_repeat_interleave(SAMPLES)
        tokens, mask = (x.repeat_interleave(SAMPLES, 0) for x in (tokens, mask))
        caches = {"past_key_values": cache}
    return theirs.generate(
        tokens,
        attention_mask=mask,
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        num_return_sequences=1 if share else SAMPLES,
        max_new_tokens=NEW,
        min_new_tokens=NEW,
        pad_token_id=0,
        **caches,
    )


def contenders() -> dict[str, Callable[[], object]]:
    lm, theirs = models()
    texts = prompts(lm)
    lm.stop_ids = ()
    ours = lambda log_probs: (
        lambda: lm.sample(texts, n=SAMPLES, max_new_tokens=NEW, seed=0, log_probs=log_probs)
    )
    peer = lambda share: lambda: by_transformers(lm, theirs, texts, share=share)
    return {
        "ark_jax": ours(False),
        "ark_jax, with log-probabilities": ours(True),
        "transformers": under("default", peer(False)),
        "transformers, prompt shared": under("default", peer(True)),
        "transformers, shared, tuned": under("tuned", peer(True)),
    }


if __name__ == "__main__":
    layout.enter_mesh((1, 1, 1))
    print(f"{machine()}; torch {torch.__version__} with {torch.get_num_threads()} threads")
    runs = contenders()
    report(
        f"SmolLM2-135M, {SAMPLES} samples of {PROMPTS} prompts of {LENGTH} tokens, {NEW} new each",
        "tokens",
        PROMPTS * SAMPLES * NEW,
        race({name: runs[name] for name in sys.argv[1:] or runs}, rounds=ROUNDS),
    )
