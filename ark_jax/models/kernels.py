"""Attention kernels of libraries, and which kernel suits a device.

Each attends rows of texts that begin at the left, by the lengths of the texts. A dense mask would
become a bias, which cuDNN reads whole and whose gradient it always writes.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from absl import flags
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from ark_jax import layout
from ark_jax.runtime.accelerator import KERNELS, Device, device_in_use

LANES = 128  # splash takes multiples of as many tokens and numbers a head
SPLASH_BLOCKS = (512, 256, 128)  # tokens that it computes at once


def choose(kernel: str, device: Device, dtype: DTypeLike, head_size: int, tokens: int) -> str:
    """The kernel that suits the device if `kernel` is "auto", else `kernel`.

    "cudnn" and "splash" are chosen in 16 bits only, so that float32 means the same everywhere.
    cuDNN's limits are those that `jax.nn.dot_product_attention` checks. Where texts or heads are
    shorter than half of what splash pads them to, it would mostly compute padding.

    Args:
        tokens: number of tokens of the longest row.

    Raises:
        ValueError: the kernel is unknown.
    """
    if kernel not in KERNELS:
        raise ValueError(f"attention={kernel!r}: must be one of {', '.join(KERNELS)}")
    if kernel != "auto":
        return kernel
    is_16_bit = jnp.dtype(dtype).itemsize == 2
    largest = 256 if device.capability >= 9 else 128
    if is_16_bit and device.capability >= 8 and head_size % 8 == 0 and head_size <= largest:
        return "cudnn"
    if is_16_bit and device.platform == "tpu" and min(head_size, tokens) >= LANES // 2:
        return "splash"
    return "xla"


def attend_rows(
    q: Float[Array, "b t n h"],
    k: Float[Array, "b t k h"],
    v: Float[Array, "b t k h"],
    lengths: Int[Array, " b"],
    *,
    causal: bool,
    kernel: str,
) -> Float[Array, "b t n h"]:
    """Softmax attention of rows by "cudnn", "splash" or "tokamax". Padding gets undefined values.

    Args:
        lengths: tokens of each row, int32; the first tokens of a row are its text.

    Raises:
        ValueError: the kernel is not installed, or does not support the type.
    """
    # A row without a text would be a mean over no key: NaN in some kernels.
    lengths = jnp.maximum(lengths, 1)
    if kernel == "splash":
        return _attend_by_splash(q, k, v, lengths, causal=causal)
    attend = _library_attention(kernel, q.dtype)
    return attend(
        q, k, v, is_causal=causal, query_seq_lengths=lengths, key_value_seq_lengths=lengths
    )


def _library_attention(kernel: str, dtype: DTypeLike) -> Callable:
    """The attention function of "cudnn" or "tokamax".

    Raises:
        ValueError: cuDNN does not support the type, or tokamax is not installed.
    """
    if kernel == "cudnn":
        if dtype == jnp.float32:
            raise ValueError(
                "attention='cudnn' does not support float32: set compute to 'bfloat16', or "
                "attention to 'xla'"
            )
        return functools.partial(jax.nn.dot_product_attention, implementation="cudnn")
    try:
        from tokamax import dot_product_attention
    except ImportError:
        raise ValueError("attention='tokamax' needs the package: pip install tokamax") from None
    if not flags.FLAGS.is_parsed():
        # Otherwise tokamax parses the command line of the running program as its own.
        flags.FLAGS.mark_as_parsed()
    return dot_product_attention


def is_cudnn_forward(primitive, *_, **__) -> bool:
    """A policy of `jax.checkpoint`: saves what cuDNN's forward pass returns.

    Its backward pass needs sums of the softmax, which have no name. Without them it would attend
    once more.
    """
    return primitive.name.startswith("dot_product_attention_fwd")


def _attend_by_splash(
    q: Float[Array, "b t n h"],
    k: Float[Array, "b t k h"],
    v: Float[Array, "b t k h"],
    lengths: Int[Array, " b"],
    *,
    causal: bool,
) -> Float[Array, "b t n h"]:
    """`attend_rows` by JAX's Pallas kernel for TPUs. Elsewhere it is interpreted, which is slow."""
    from jax.experimental.pallas.ops.tpu import splash_attention as splash

    _, t, n, h = q.shape
    size = -(-t // LANES) * LANES
    mask = (splash.CausalMask if causal else splash.FullMask)((size, size))
    block = next(block for block in SPLASH_BLOCKS if size % block == 0)
    names = ("q", "kv", "kv_compute", "q_dkv", "kv_dkv", "kv_dkv_compute", "q_dq", "kv_dq")
    sizes: dict[str, Any] = {f"block_{name}": block for name in names}
    attend = splash.make_splash_mha(
        splash.MultiHeadMask([mask] * n),
        block_sizes=splash.BlockSizes(**sizes),
        head_shards=1,
        q_seq_shards=1,
        residual_checkpoint_name=layout.SAVED,
        interpret=device_in_use().platform != "tpu",
    )
    # Zeros at the end of a head change neither its scores nor its other values.
    fill = ((0, 0), (0, 0), (0, size - t), (0, -h % LANES))
    heads_first = (jnp.pad(x.transpose(0, 2, 1, 3), fill) for x in (q * h**-0.5, k, v))
    texts = (jnp.arange(size) < lengths[:, None]).astype(jnp.int32)
    out = jax.vmap(attend)(*heads_first, splash.SegmentIds(texts, texts))
    return out[:, :, :t, :h].transpose(0, 2, 1, 3)
