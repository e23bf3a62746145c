"""FLOPs that a model asks for, and which share of the devices' peak a training run achieves (MFU).

The count has the products with the layers' weights and those of attention, for real tokens; a
multiply-add counts two. It leaves out padding, repeated computations that save memory (remat,
GradCache), embeddings (they are looked up), norms, softmax and the scores of the loss. So MFU
(model FLOPs utilisation, Chowdhery et al. 2022, appendix B) falls where memory is saved by
computing again.
"""

import math
import re
import time
from collections.abc import Sequence

import jax
import numpy as np

# An integer, a mean of integers, or a sum that numpy computed.
Count = float | np.number

# FLOP/s of a device in dense bfloat16 products, by its `device_kind`. TPUs:
# cloud.google.com/tpu/docs/v4, v5e, v5p, v6e. GPUs: NVIDIA's data sheets of A100, H100, H200 and
# HGX B200, halved where they are given with sparsity.
PEAKS = {
    r"TPU v4": 275e12,
    r"TPU v5( lite|e)": 197e12,
    r"TPU v5p?": 459e12,
    r"TPU v6( lite|e)": 918e12,
    r"NVIDIA A100.*": 312e12,
    r"NVIDIA H100 PCIe": 756e12,
    r"NVIDIA H[12]00 NVL": 835e12,
    r"NVIDIA (H100 80GB HBM3|H200)": 989e12,
    r"NVIDIA B200": 2250e12,
}


def weights(cfg) -> int:
    """Entries of the matrices of all layers; every token is multiplied with each entry once."""
    dims = cfg.dims
    heads = 2 * dims["n"] + 2 * dims["k"]  # q and o, k and v
    return cfg.layers * dims["d"] * (heads * dims["h"] + (2 + cfg.gated) * dims["f"])


def attention_pairs(cfg, lengths: Sequence[Count]) -> Count:
    """Pairs (query token, key token) that attention needs for texts of these lengths.

    They are the mean over layers, since local layers need fewer.
    """
    lengths, total = np.asarray(lengths, float), 0.0
    local = sum(cfg.local) / cfg.layers
    for reach, share in ((math.inf, 1 - local), (cfg.window, local)):
        near = np.minimum(lengths, reach)
        pairs = near * (near + 1) / 2 + (lengths - near) * near  # with earlier tokens
        total += share * (pairs if cfg.causal else 2 * pairs - lengths).sum()
    return total


def forward(cfg, tokens: Count, pairs: Count, logits: Count = 0) -> np.ndarray:
    """FLOPs of a forward pass, `[2]`: products with weights, and attention.

    Args:
        pairs: from `attention_pairs`.
        logits: tokens whose logits are computed.
    """
    products = weights(cfg) * tokens + cfg.vocab * cfg.width * logits
    return np.array([2 * products, 4 * cfg.layers * cfg.heads * cfg.dims["h"] * pairs], float)


def training(cfg, lengths: Sequence[int], adapter: int) -> float:
    """Model FLOPs of a training step on texts.

    These are 6 x weights x tokens + 12 x layers x heads x h x pairs. A causal model has half the
    pairs that are often counted.

    Args:
        lengths: tokens of each text.
        adapter: entries of an adapter's factors; 0 trains all weights.
    """
    tokens = sum(lengths)
    return with_backward(forward(cfg, tokens, attention_pairs(cfg, lengths)), tokens, adapter)


def with_backward(forward: np.ndarray, tokens: Count, adapter: int) -> float:
    """FLOPs of a training step whose forward pass over `tokens` takes `forward`, `[2]`.

    Frozen weights have no gradient, so an adapter's step takes 4 x weights x tokens, and 6 x its
    own entries.
    """
    products, attention = forward
    return float((2 if adapter else 3) * products + 3 * attention) + 6 * adapter * tokens


def peak(device_kind: str) -> float | None:
    """A device's FLOP/s in bfloat16, whatever the model's type; None if none is published."""
    return next((rate for kind, rate in PEAKS.items() if re.fullmatch(kind, device_kind)), None)


class Meter:
    """Measures the pace of training steps. The first step compiles and is left out.

    The host's work is the CPU time of the calling thread; waiting for the devices takes none.
    """

    def __init__(self):
        self._steps: list[tuple[int, float, float, float]] = []
        self._compiled = False
        self._clocks = _clocks()

    def add(self, tokens: int, flops: float) -> None:
        """Counts a step that is done: its tokens without padding and its model FLOPs.

        Its time is the time since the last call of `add` or `skip`.
        """
        clocks = _clocks()
        seconds, host = (end - start for end, start in zip(clocks, self._clocks, strict=True))
        self._clocks = clocks
        if self._compiled:
            self._steps.append((tokens, flops, seconds, host))
        self._compiled = True

    def skip(self) -> None:
        """Leaves out the time since the last step, such as that of a checkpoint."""
        self._clocks = _clocks()

    def pace(self, last: int = 0) -> dict[str, float]:
        """Means over the `last` steps (0: all), on all devices together.

        Empty before the second step. `host_share` is the host's work as a share of the time; near
        1, the devices wait for it. `mfu` is there if the devices' peak is known.
        """
        if not self._steps:
            return {}
        tokens, flops, seconds, host = map(sum, zip(*self._steps[-last:], strict=True))
        pace = {
            "seconds_a_step": seconds / len(self._steps[-last:]),
            "tokens_a_second": tokens / seconds,
            "flops_a_second": flops / seconds,
            "host_share": host / seconds,
        }
        devices = math.prod(jax.sharding.get_mesh().shape.values())
        if device_peak := peak(jax.devices()[0].device_kind):
            pace["mfu"] = flops / seconds / devices / device_peak
        return pace


def _clocks() -> tuple[float, float]:
    """(wall time, CPU time of this thread), in seconds."""
    return time.perf_counter(), time.thread_time()


def describe(pace: dict[str, float]) -> str:
    """A pace as text: `3,204 tokens/s, 0.0271 TFLOP/s, host 1.2 %, MFU 41.3 %`.

    The last two are left out if they are not known. Steps without texts give `0.0312 s a step`.
    """
    if not pace:
        return "compiled"
    if pace["tokens_a_second"]:
        tokens, teraflops = pace["tokens_a_second"], pace["flops_a_second"] / 1e12
        parts = [f"{tokens:,.0f} tokens/s", f"{teraflops:.3g} TFLOP/s"]
    else:
        parts = [f"{pace['seconds_a_step']:.3g} s a step"]
    for share, name in (("host_share", "host"), ("mfu", "MFU")):
        if share in pace:
            parts.append(f"{name} {100 * pace[share]:.1f} %")
    return ", ".join(parts)
