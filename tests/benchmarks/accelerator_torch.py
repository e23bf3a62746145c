"""The peers of `accelerator.py`, if torch sees the device."""

import functools
from collections.abc import Callable, Sequence
from pathlib import Path

import jax
import numpy as np

Contenders = dict[str, Callable[[], object]]


def place() -> str:
    """torch's name of the device that jax uses; "" if torch lacks it."""
    try:
        import torch
        import transformers  # noqa: F401
    except ImportError:
        return ""
    platform = jax.default_backend()
    platform = "cuda" if platform == "gpu" and torch.cuda.is_available() else platform
    return platform if platform in ("cpu", "cuda") else ""


def finish() -> None:
    """Waits for torch."""
    import torch

    if place() == "cuda":
        torch.cuda.synchronize()


def free() -> None:
    """Gives torch's unused memory back to the device."""
    import gc

    gc.collect()
    if place() == "cuda":
        import torch

        torch.cuda.empty_cache()


def precise(run: Callable[[], object], precision: str = "highest") -> Callable[[], None]:
    """`run` with torch's products in float32 set so; blocks until they are done."""

    def go() -> None:
        import torch

        torch.set_float32_matmul_precision(precision)
        run()
        finish()

    return go


def opened(folder: Path, dtype: str, *, head: bool = False):
    import torch
    from transformers import AutoModel, AutoModelForCausalLM

    kind = AutoModelForCausalLM if head else AutoModel
    model = kind.from_pretrained(folder, dtype=getattr(torch, dtype), attn_implementation="sdpa")
    return model.to(place()).eval()


def forward(folder: Path, ids: np.ndarray, dtype: str) -> Contenders:
    """Hidden states; in float32 with torch's fastest products too."""
    if not place():
        return {}
    import torch

    model, tokens = opened(folder, dtype), torch.from_numpy(ids).long().to(place())
    run = torch.no_grad()(lambda: model(input_ids=tokens, use_cache=False))
    settings = {"torch": "highest"}
    if dtype == "float32":
        settings["torch, medium"] = "medium"
    return {name: precise(run, precision) for name, precision in settings.items()}


def training(folder: Path, questions: np.ndarray, passages: np.ndarray, dtype: str) -> Contenders:
    """The same step; in bfloat16 by autocast, which keeps float32 weights as ours does."""
    if not place():
        return {}
    import torch

    model = opened(folder, "float32").train()
    sides = [torch.from_numpy(x).long().to(place()) for x in (questions, passages)]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, weight_decay=0.01, fused=True)

    def vector(tokens):
        last = model(input_ids=tokens, use_cache=False).last_hidden_state[:, -1]
        return torch.nn.functional.normalize(last.float(), dim=1)

    def run() -> None:
        with torch.autocast(place(), torch.bfloat16, enabled=dtype == "bfloat16"):
            left, right = map(vector, sides)
        targets = torch.arange(len(left), device=place())
        loss = torch.nn.functional.cross_entropy(left @ right.T / 0.05, targets)
        update(model, optimizer, loss.backward)

    return {"torch": precise(run)}


def update(model, optimizer, backward: Callable[[], object]) -> None:
    import torch

    optimizer.zero_grad()
    backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


def encoding(folder: Path, texts: Sequence[str], dtype: str) -> Contenders:
    """sentence-transformers: as shipped (batches of 32), and with larger batches."""
    if not place():
        return {}
    import torch
    from sentence_transformers import SentenceTransformer

    settings = {"dtype": getattr(torch, dtype), "attn_implementation": "sdpa"}
    model = SentenceTransformer(str(folder), device=place(), model_kwargs=settings)
    return {
        f"sentence-transformers, batches of {size}": precise(
            functools.partial(
                model.encode,
                list(texts),
                batch_size=size,
                show_progress_bar=False,
                normalize_embeddings=True,
            )
        )
        for size in (32, 256)
    }


def scoring(folder: Path, lm, pairs: Sequence[tuple[str, str]], dtype: str) -> Contenders:
    """Log-likelihoods by transformers, whole and with shared prefixes; see `language.py`."""
    if not place():
        return {}
    from language import batched, with_prefix

    model = opened(folder, dtype, head=True)
    return {
        "transformers": precise(lambda: batched(lm, model, pairs, size=32)),
        "transformers, shared prefix": precise(lambda: with_prefix(lm, model, pairs, size=32)),
    }


def generation(folder: Path, lm, prompts: Sequence[str], new_tokens: int, dtype: str) -> Contenders:
    """Greedy `generate`; with a static cache transformers compiles the model."""
    if not place():
        return {}
    from language import left

    model = opened(folder, dtype, head=True)
    tokens, mask = (x.to(place()) for x in left(lm.prompt_ids(prompts)))
    run = functools.partial(
        model.generate,
        tokens,
        attention_mask=mask,
        do_sample=False,
        max_new_tokens=new_tokens,
        min_new_tokens=new_tokens,
        pad_token_id=0,
    )
    static = functools.partial(run, cache_implementation="static")
    return {"transformers": precise(run), "transformers, static cache": precise(static)}


def policy(
    folder: Path, prompts: np.ndarray, completions: np.ndarray, advantages: np.ndarray, dtype: str
) -> Contenders:
    """GRPO's step as TRL takes it: prompts repeated, logits of completions, in pieces of 16 rows.

    Args:
        prompts: token ids `[p s]`.
        completions, advantages: `[p n t]` and `[p n]`.
    """
    if not place():
        return {}
    import torch

    model = opened(folder, "float32", head=True).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, weight_decay=0.01, fused=True)
    count = completions.shape[1]
    rows = np.concatenate(
        [np.repeat(prompts, count, 0), completions.reshape(-1, completions.shape[-1])], 1
    )
    ids = torch.from_numpy(rows).long().to(place())
    gains = torch.from_numpy(advantages.reshape(-1)).float().to(place())
    size = completions.shape[-1]

    def backward() -> None:
        for piece, gain in zip(ids.split(16), gains.split(16), strict=True):
            with torch.autocast(place(), torch.bfloat16, enabled=dtype == "bfloat16"):
                logits = model(piece, use_cache=False, logits_to_keep=size + 1).logits[:, :-1]
            wanted = piece[:, -size:, None]
            logs = logits.float().log_softmax(-1).gather(2, wanted)[..., 0]
            ratio = (logs - logs.detach()).exp()
            (-(ratio * gain[:, None]).sum() / (len(ids) * size)).backward()

    return {"torch": precise(lambda: update(model, optimizer, backward))}


def nearest(queries: np.ndarray, keys: np.ndarray, k: int) -> Contenders:
    """Products and `topk` in float32, with keys that stay on the device."""
    if not place():
        return {}
    import torch

    queries, keys = (torch.from_numpy(x).to(place()) for x in (queries, keys))
    return {"torch, keys on the device": precise(lambda: (queries @ keys.T).topk(k).values.cpu())}
