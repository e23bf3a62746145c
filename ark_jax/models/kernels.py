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

LANES = 128  # splash takes multiples of as many tokens
SPLASH_BLOCKS = (512, 256, 128)  # tokens that it computes at once
SPLASH_KEYS = 1024  # at most as many of a prefix at once; a step costs more than 128 keys would
SPLASH_LIST = 1 << 16  # numbers of a list of blocks, of which scalar memory (1 MiB) has to hold two
FEWEST_KEYS = 256  # of which a part of a text's keys is worth a kernel of its own


def choose(kernel: str, device: Device, dtype: DTypeLike, head_size: int, tokens: int) -> str:
    """The kernel that suits the device if `kernel` is "auto", else `kernel`.

    "cudnn" and "splash" are chosen in 16 bits only, so that float32 means the same everywhere.
    cuDNN's limits are those that `jax.nn.dot_product_attention` checks. Where texts are shorter
    than half of what splash pads them to, it would mostly compute padding; where heads are, most of
    a TPU's product unit would idle.

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


def has_windows(kernel: str, causal: bool) -> bool:
    """Whether a kernel can hide tokens that are far away; cuDNN can only behind a token."""
    return kernel in ("xla", "splash") or (kernel == "cudnn" and causal)


def choose_for_part(
    kernel: str, device: Device, dtype: DTypeLike, head_size: int, queries: int, keys: int
) -> str:
    """The kernel for a part of the keys that queries see: "xla", or one that gives sums.

    To join the parts moves some 2.5 KB a query and head, as much as XLA's scores of 256 keys.
    """
    if kernel == "tokamax" or (kernel == "auto" and keys < FEWEST_KEYS):
        return "xla"
    return choose(kernel, device, dtype, head_size, min(queries, keys))


def attend_rows(
    q: Float[Array, "b t n h"],
    k: Float[Array, "b t k h"],
    v: Float[Array, "b t k h"],
    lengths: Int[Array, " b"],
    *,
    causal: bool,
    kernel: str,
    window: int = 0,
) -> Float[Array, "b t n h"]:
    """Softmax attention of rows by "cudnn", "splash" or "tokamax". Padding gets undefined values.

    Args:
        lengths: tokens of each row, int32; the first tokens of a row are its text.
        window: hides tokens that are so many places away, or more; 0: none.

    Raises:
        ValueError: the kernel is not installed, or does not support the type.
    """
    # A row without a text would be a mean over no key: NaN in some kernels.
    lengths = jnp.maximum(lengths, 1)
    if kernel == "splash":
        q, k, v = (x.transpose(0, 2, 1, 3) for x in (q, k, v))
        texts = (jnp.arange(q.shape[2]) < lengths[:, None]).astype(jnp.int32)
        return _attend_by_splash(q, k, v, texts, causal=causal, window=window).transpose(0, 2, 1, 3)
    sizes: dict[str, Any] = {"query_seq_lengths": lengths, "key_value_seq_lengths": lengths}
    if window:
        sizes["local_window_size"] = window - 1, 0
    tokens = q.shape[1]
    # JAX's gradient by cuDNN refuses odd lengths.
    q, k, v = (jnp.pad(x, ((0, 0), (0, tokens % 2), (0, 0), (0, 0))) for x in (q, k, v))
    out = _library_attention(kernel, q.dtype)(q, k, v, is_causal=causal, **sizes)
    return out[:, :tokens]


def attend_texts(
    q: Float[Array, "b n t h"],
    k: Float[Array, "b k t h"],
    v: Float[Array, "b k t h"],
    texts: Int[Array, "b t"],
    *,
    kernel: str,
) -> tuple[Float[Array, "b n t h"], Float[Array, "b n t"]]:
    """Causal attention within each text by "cudnn" or "splash", and the logarithms of its sums.

    Neither has a gradient.

    Args:
        texts: number of the token's text in its row, from 1; 0: padding. cuDNN takes one text a
            row, at its left.
    """
    if kernel == "splash":
        return _attend_by_splash(q, k, v, texts, causal=True, sums=True)
    lengths = jnp.maximum(jnp.sum(texts > 0, axis=1, dtype=jnp.int32), 1)
    return _attend_by_cudnn(q, k, v, lengths, lengths, causal=True)


def attend_prefixes(
    q: Float[Array, "b k r h"],
    k: Float[Array, "prefixes k s h"],
    v: Float[Array, "prefixes k s h"],
    lengths: Int[Array, " prefixes"],
    prefix_indices: Int[Array, " b"],
    *,
    kernel: str,
) -> tuple[Float[Array, "b k r h"], Float[Array, "b k r"]]:
    """Attention to a whole prefix by "cudnn" or "splash", and the logarithms of its sums.

    Neither has a gradient.

    Args:
        q: the query heads of a key head folded into its rows.
        lengths: tokens of each prefix, which begins at the left. An empty one has one token.
        prefix_indices: the prefix that the queries of a row see.
    """
    lengths = jnp.maximum(lengths, 1)
    if kernel == "splash":
        return _attend_prefixes_by_splash(q, k, v, lengths, prefix_indices)
    queries = jnp.full(len(q), q.shape[2], jnp.int32)
    k, v, lengths = (x[prefix_indices] for x in (k, v, lengths))
    return _attend_by_cudnn(q, k, v, queries, lengths, causal=False)


def _library_attention(kernel: str, dtype: DTypeLike) -> Callable:
    """The attention function of "cudnn" or "tokamax".

    Raises:
        ValueError: cuDNN does not support the type, or tokamax is not installed.
    """
    if kernel == "cudnn":
        _check_cudnn(dtype)
        return functools.partial(jax.nn.dot_product_attention, implementation="cudnn")
    try:
        from tokamax import dot_product_attention
    except ImportError:
        raise ValueError("attention='tokamax' needs the package: pip install tokamax") from None
    if not flags.FLAGS.is_parsed():
        # Otherwise tokamax parses the command line of the running program as its own.
        flags.FLAGS.mark_as_parsed()
    return dot_product_attention


def _check_cudnn(dtype: DTypeLike) -> None:
    """Raises ValueError if cuDNN does not support the type."""
    if dtype == jnp.float32:
        raise ValueError(
            "attention='cudnn' does not support float32: set compute to 'bfloat16', or "
            "attention to 'xla'"
        )


def _attend_by_cudnn(
    q: Float[Array, "b n t h"],
    k: Float[Array, "b k s h"],
    v: Float[Array, "b k s h"],
    queries: Int[Array, " b"],
    keys: Int[Array, " b"],
    *,
    causal: bool,
) -> tuple[Float[Array, "b n t h"], Float[Array, "b n t"]]:
    """Attention by so many queries to so many keys of each row, and the logarithms of its sums."""
    # `jax.nn.dot_product_attention` would round the sums to 16 bits, and so weights by some %.
    from jax._src.cudnn import fused_attention_stablehlo as cudnn

    _check_cudnn(q.dtype)
    mask = cudnn.MaskType.PADDING_CAUSAL if causal else cudnn.MaskType.PADDING
    return cudnn.dot_product_attention(
        q,
        k,
        v,
        q_seqlen=queries,
        kv_seqlen=keys,
        scale=q.shape[-1] ** -0.5,
        mask_type=mask,
        qkv_layout="BNTH",
        return_residual=True,
    )


def is_cudnn_forward(primitive, *_, **__) -> bool:
    """A policy of `jax.checkpoint`: saves what cuDNN's forward pass returns.

    Its backward pass needs sums of the softmax, which have no name. Without them it would attend
    once more.
    """
    return primitive.name.startswith("dot_product_attention_fwd")


def _attend_by_splash(
    q: Float[Array, "b n t h"],
    k: Float[Array, "b k t h"],
    v: Float[Array, "b k t h"],
    texts: Int[Array, "b t"],
    *,
    causal: bool,
    window: int = 0,
    sums: bool = False,
) -> Any:
    """Attention within each text of a row by JAX's Pallas kernel for TPUs.

    Elsewhere it is interpreted, which is slow.

    Args:
        texts: number of the token's text.
        window: as of `attend_rows`.
        sums: returns the logarithms `[b n t]` of the softmax's sums, too; without a gradient.
    """
    from jax.experimental.pallas.ops.tpu import splash_attention as splash

    _, n, t, h = q.shape
    size = _round_up(t)
    mask: splash.Mask = (splash.CausalMask if causal else splash.FullMask)((size, size))
    if window:
        mask = splash.LocalMask((size, size), (window - 1, 0 if causal else window - 1), 0)
    names = ("q", "kv", "kv_compute", "q_dkv", "kv_dkv", "kv_dkv_compute", "q_dq", "kv_dq")
    sizes: dict[str, Any] = {f"block_{name}": _splash_block(size) for name in names}
    attend = splash.make_splash_mha(
        splash.MultiHeadMask([mask] * n),
        block_sizes=splash.BlockSizes(**sizes),
        head_shards=1,
        q_seq_shards=1,
        save_residuals=sums,
        residual_checkpoint_name=None if sums else layout.SAVED,
        interpret=device_in_use().platform != "tpu",
    )
    fill = ((0, 0), (0, 0), (0, size - t), (0, 0))
    padded = (jnp.pad(x, fill) for x in (q * h**-0.5, k, v))
    texts = jnp.pad(texts, fill[::2])
    out = jax.vmap(attend)(*padded, splash.SegmentIds(texts, texts))
    return jax.tree.map(lambda x: x[:, :, :t], (out[0], *out[1]) if sums else out)


def _attend_prefixes_by_splash(
    q: Float[Array, "b k r h"],
    k: Float[Array, "prefixes k s h"],
    v: Float[Array, "prefixes k s h"],
    lengths: Int[Array, " prefixes"],
    prefix_indices: Int[Array, " b"],
) -> tuple[Float[Array, "b k r h"], Float[Array, "b k r"]]:
    """`attend_prefixes` by JAX's Pallas kernel for TPUs.

    All queries are one text and all keys another. For each block of queries the kernel reads a list
    of key blocks, here those of its prefix, so that none is copied for a row.
    """
    from jax.experimental.pallas.ops.tpu import splash_attention as splash
    from jax.experimental.pallas.ops.tpu.splash_attention import (
        splash_attention_kernel,
        splash_attention_mask_info,
    )

    b, heads, r, h = q.shape
    queries, count = _round_up(r), -(-k.shape[2] // SPLASH_KEYS)
    query_block, key_block = _splash_block(queries), _round_up(-(-k.shape[2] // count))
    keys = count * key_block
    if b > 1 and b * queries // query_block * _round_up(count) > SPLASH_LIST:
        halves = slice(b // 2), slice(b // 2, b)
        attend_half = lambda rows: _attend_prefixes_by_splash(
            q[rows], k, v, lengths, prefix_indices[rows]
        )
        return jax.tree.map(lambda *x: jnp.concatenate(x), *map(attend_half, halves))
    column = jnp.arange(count)
    last = ((lengths - 1) // key_block)[prefix_indices, None]
    # A block that is not needed repeats the one before, which is then not read again.
    blocks = prefix_indices[:, None] * count + jnp.minimum(column, last)
    list_of_blocks = lambda x: jnp.repeat(x.astype(jnp.int32), queries // query_block, axis=0)[None]
    attend = splash_attention_kernel.SplashAttentionKernel(
        splash_attention_mask_info.MaskInfo(
            data_next=list_of_blocks(blocks),
            mask_next=None,
            block_mask=list_of_blocks(2 * (column <= last)),  # 2: without a mask of its own
            partial_mask_blocks=None,
            q_sequence=None,
        ),
        None,
        None,
        block_sizes=splash.BlockSizes(query_block, key_block),
        is_mqa=False,
        save_residuals=True,
        mask_value=splash_attention_kernel.DEFAULT_MASK_VALUE,
        attn_logits_soft_cap=None,
        residual_checkpoint_name=None,
        mask_function=None,
        interpret=device_in_use().platform != "tpu",
    )

    def end_to_end(x: Array, size: int) -> Array:
        """`[b k t h]` -> `[k (b size) h]`."""
        x = jnp.pad(x, ((0, 0), (0, 0), (0, size - x.shape[2]), (0, 0)))
        return x.transpose(1, 0, 2, 3).reshape(heads, -1, h)

    texts = splash.SegmentIds(
        jnp.ones(b * queries, jnp.int32),
        (jnp.arange(keys) < lengths[:, None]).astype(jnp.int32).reshape(-1),
    )
    out, (sums,) = attend(
        end_to_end(q * h**-0.5, queries), end_to_end(k, keys), end_to_end(v, keys), texts
    )
    rows = lambda x: jnp.moveaxis(x.reshape(heads, b, queries, *x.shape[2:]), 1, 0)[:, :, :r]
    return rows(out), rows(sums)


def _round_up(tokens: int) -> int:
    return -(-tokens // LANES) * LANES


def _splash_block(tokens: int) -> int:
    """The largest block that divides so many tokens."""
    return next(block for block in SPLASH_BLOCKS if tokens % block == 0)
