"""The peer of `accelerator.py`: transformers' model in torch, if torch sees the device."""

import copy
import functools
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np


def torch_model(folder: Path):
    """transformers' model on the same device, and its torch device; None if torch lacks it."""
    try:
        import torch
        from transformers import Qwen3Model
    except ImportError:
        return None, ""
    platform = jax.default_backend()
    place = "cuda" if platform == "gpu" and torch.cuda.is_available() else platform
    if place not in ("cpu", "cuda"):
        return None, ""
    return Qwen3Model.from_pretrained(folder, dtype=torch.float32).to(place), place


def torch_forward(peer, place: str, ids: np.ndarray, dtype: str) -> dict[str, Callable]:
    import torch

    model = copy.deepcopy(peer).to(getattr(torch, dtype)).eval()
    tokens = torch.from_numpy(ids).long().to(place)

    @torch.no_grad()
    def run(precision: str) -> None:
        torch.set_float32_matmul_precision(precision)
        model(input_ids=tokens, use_cache=False)
        finish(place)

    return torch_settings(run, dtype)


def torch_settings(run: Callable[[str], None], dtype: str) -> dict[str, Callable]:
    """torch as shipped, and in float32 with its fastest products too."""
    settings = {"torch": "highest"}
    if dtype == "float32":
        settings["torch, medium"] = "medium"
    return {name: functools.partial(run, precision) for name, precision in settings.items()}


def finish(place: str) -> None:
    """Waits for torch."""
    import torch

    if place == "cuda":
        torch.cuda.synchronize()


def torch_training(
    peer, place: str, questions: np.ndarray, passages: np.ndarray, dtype: str
) -> dict[str, Callable]:
    """The same step; in bfloat16 by autocast, which keeps float32 weights as ours does."""
    import torch

    model = copy.deepcopy(peer).train()
    sides = [torch.from_numpy(x).long().to(place) for x in (questions, passages)]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, weight_decay=0.01, fused=True)

    def vector(tokens):
        last = model(input_ids=tokens, use_cache=False).last_hidden_state[:, -1]
        return torch.nn.functional.normalize(last.float(), dim=1)

    def run(precision: str) -> None:
        torch.set_float32_matmul_precision(precision)
        with torch.autocast(place, torch.bfloat16, enabled=dtype == "bfloat16"):
            left, right = map(vector, sides)
        targets = torch.arange(len(left), device=place)
        loss = torch.nn.functional.cross_entropy(left @ right.T / 0.05, targets)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        loss.item()
        finish(place)

    return torch_settings(run, dtype)
