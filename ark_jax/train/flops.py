"""FLOPs that a model asks for, and how much of the devices' peak training steps make of them: MFU.

Counted are products with the weights of the layers and those of attention, of real tokens, a multiply-add as two. Not counted:
padding, what is computed again to save memory (remat, GradCache), embeddings (they are looked up), norms, softmax and the scores
of the loss. So MFU (model FLOPs utilisation, Chowdhery et al. 2022, appendix B) falls where memory is bought with computing.
"""

import math
import re
from collections.abc import Sequence

import jax
import numpy as np

from ark_jax.models import decoder

# FLOP/s of a device in dense bfloat16 products, by its `device_kind`. TPUs: cloud.google.com/tpu/docs/v4, v5e, v5p, v6e. GPUs:
# NVIDIA's data sheets of A100, H100, H200 and HGX B200; what they give with sparsity is halved.
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
    """Entries of the matrices of all layers, with each of which every token is multiplied."""
    dims, gated = cfg.dims, isinstance(cfg, decoder.Config)
    heads = 2 * dims["n"] + 2 * dims.get("k", dims["n"])  # q and o, k and v
    return cfg.layers * dims["d"] * (heads * dims["h"] + (3 if gated else 2) * dims["f"])


def seen(cfg, lengths: Sequence[int]) -> float:
    """Pairs of tokens in texts by themselves, one of which sees the other."""
    causal = isinstance(cfg, decoder.Config)
    return sum(t * (t + 1) / 2 if causal else t * t for t in lengths)


def forward(cfg, tokens: float, pairs: float, logits: float = 0) -> np.ndarray:
    """FLOPs of a forward pass, of products with weights and of attention: `[2]`.

    Args:
        pairs: of tokens, one of which sees the other.
        logits: tokens whose logits are computed.
    """
    products = weights(cfg) * tokens + cfg.vocab * cfg.width * logits
    return np.array([2 * products, 4 * cfg.layers * cfg.heads * cfg.dims["h"] * pairs], float)


def training(cfg, lengths: Sequence[int], adapter: int) -> float:
    """Model FLOPs of a training step on texts of these lengths: 6 x weights x tokens + 12 x layers x heads x h x pairs.

    A causal model's pairs are those it sees, half of what is often counted. Frozen weights have no gradient: 4 x weights, and
    6 x what is beside them.

    Args:
        adapter: entries of an adapter's factors; 0 trains all weights.
    """
    products, attention = forward(cfg, sum(lengths), seen(cfg, lengths))
    return float((2 if adapter else 3) * products + 3 * attention) + 6 * adapter * sum(lengths)


def peak(kind: str) -> float | None:
    """FLOP/s of a device by its `device_kind`, in bfloat16 whatever a model computes in; None where no figure is published."""
    return next((rate for pattern, rate in PEAKS.items() if re.fullmatch(pattern, kind)), None)


class Meter:
    """How fast training steps are; the first one added compiles, and is not counted.

    Args:
        adapter: as in `training`.
    """

    def __init__(self, cfg, adapter: int):
        self._cfg, self._adapter, self._steps, self._compiled = cfg, adapter, [], False

    def add(self, lengths: Sequence[int], seconds: float) -> None:
        """A step on texts of so many tokens."""
        if self._compiled:
            self._steps.append((sum(lengths), training(self._cfg, lengths, self._adapter), seconds))
        self._compiled = True

    def pace(self, last: int = 0) -> dict[str, float]:
        """Means over the `last` steps or all, on all devices together; `mfu` where their peak is known. Empty without a step."""
        if not self._steps:
            return {}
        tokens, flops, seconds = map(sum, zip(*self._steps[-last:], strict=True))
        devices = math.prod(jax.sharding.get_mesh().shape.values())
        most = peak(jax.devices()[0].device_kind)
        return {"seconds_a_step": seconds / len(self._steps[-last:]), "tokens_a_second": tokens / seconds,
                "flops_a_second": flops / seconds, **({"mfu": flops / seconds / devices / most} if most else {})}


def told(pace: dict[str, float]) -> str:
    """A pace for people: `3,204 tokens/s, 0.0271 TFLOP/s` and, where it is known, `MFU 41.3 %`."""
    if not pace:
        return "compiled"
    mfu = [f"MFU {100 * pace['mfu']:.1f} %"] if "mfu" in pace else []
    return ", ".join([f"{pace['tokens_a_second']:,.0f} tokens/s", f"{pace['flops_a_second'] / 1e12:.3g} TFLOP/s", *mfu])
