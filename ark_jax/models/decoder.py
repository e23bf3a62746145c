"""Decoders: Qwen3, Qwen2, Llama, Mistral and Gemma 3's text models, with one Config and one Block.

The caller passes the attention function, and so decides which keys and values are cached.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from ark_jax import layout
from ark_jax.layout import einsum, lookup, over_tokens, param
from ark_jax.models import attention, kernels, packing, rotary
from ark_jax.models.config_json import (
    SIZES,
    check_positive,
    check_sizes,
    layer_kinds,
    refuse_unless,
)
from ark_jax.models.rotary import Rotary, read_rotary

# What to do about numbers that are not finite; ends a message.
NOT_FINITE_CAUSE = (
    "a weight of the model is damaged, or its activations exceed the largest number of their type: "
    "fetch the model again, or compute in float32"
)
_QWEN = {"sliding_window": 4096, "max_window_layers": 28}
# What transformers takes for a field that config.json lacks.
_DEFAULTS: dict[str, dict[str, Any]] = {
    "qwen3": {"num_key_value_heads": 32, "head_dim": 128, **_QWEN},
    "qwen2": {"num_key_value_heads": 32, **_QWEN},
    "llama": {},
    "mistral": {"num_key_value_heads": 8, "sliding_window": 4096},
    "gemma3_text": {
        "num_key_value_heads": 4,
        "head_dim": 256,
        "tie_word_embeddings": True,
        "hidden_activation": "gelu_pytorch_tanh",
        "sliding_window": 4096,
        "query_pre_attn_scalar": 256,
    },
}
FAMILIES = tuple(_DEFAULTS)
ones, zeros = jax.nn.initializers.ones, jax.nn.initializers.zeros


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """Sizes and switches of a decoder; sizes have no default, switches have Llama's."""

    vocab: int
    width: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    rotaries: tuple[Rotary, ...]  # of layers that see whole texts, and of local ones
    window: int = 0  # a token of a local layer sees tokens that are less than so many places away
    local: tuple[bool, ...] = ()  # of each layer; () if none is
    causal: bool = True  # whether a token sees no later one
    norm_eps: float
    qk_norm: bool
    biases: tuple[str, ...] = ()  # the weights that have a bias: q k v o gate up down
    activation: str = "silu"  # a key of `ACTIVATIONS`
    query_scale: float = 1.0  # of queries, beside the head size's
    # Gemma multiplies by 1 + weight in norms, norms what a part adds to the residual stream, too,
    # and scales embeddings by the root of the width.
    gemma: bool = False
    tied: bool
    dtype: str
    compute: str
    # What the backward pass computes again: "products" saves products with weights, "all" nothing.
    remat: str = "products"
    attention: str = "auto"  # one of kernels.KERNELS
    # As those of an encoder.
    gated = True
    distances = ""

    @property
    def between(self) -> str:
        """The type of what is no factor of a product with weights."""
        return self.compute

    @property
    def norms_behind(self) -> bool:
        """Whether a norm takes a layer's last product."""
        return self.gemma

    @property
    def dims(self) -> dict[str, int]:
        """The size of each letter; see layout.py for the alphabet."""
        return {
            "v": self.vocab,
            "d": self.width,
            "e": self.width,
            "n": self.heads,
            "k": self.kv_heads,
            "h": self.head_dim,
            "f": self.ffn,
        }

    @classmethod
    def from_hf(
        cls, hf: dict, *, dtype: str = "float32", compute: str = "float32", attention: str = "auto"
    ) -> "Config":
        """Reads a Hugging Face `config.json`.

        Raises:
            ValueError: a setting that would change the mathematics and is not implemented.
        """
        family = hf["model_type"]
        hf = _DEFAULTS[family] | hf
        gemma = family == "gemma3_text"
        optional = ("num_key_value_heads", "head_dim", "sliding_window", "sliding_window_pattern")
        check_sizes(hf, tuple(SIZES.values()), optional)
        check_positive(hf, ("rms_norm_eps", "query_pre_attn_scalar"))
        window, local = _windows(hf, family)
        names = ("full_attention", "sliding_attention") if gemma else ("", "")
        rotaries = [read_rotary(hf, 1e6 if gemma else 1e4, names[0])]
        if gemma:
            rotaries.append(read_rotary(hf, 1e4, names[1], "rope_local_base_freq"))
        act = "hidden_activation" if gemma else "hidden_act"
        activation = hf.get(act, "silu")
        refuse_unless(activation in ACTIVATIONS, act, activation)
        size = hf.get("head_dim") or hf["hidden_size"] // hf["num_attention_heads"]
        kv_heads = hf.get("num_key_value_heads") or hf["num_attention_heads"]
        refuse_unless(hf["num_attention_heads"] % kv_heads == 0, "num_key_value_heads", kv_heads)
        return cls(
            **{field: hf[name] for field, name in SIZES.items() if field != "positions"},
            kv_heads=kv_heads,
            head_dim=size,
            rotaries=tuple(rotaries),
            window=window,
            local=local,
            causal=_is_causal(hf, family),
            norm_eps=hf["rms_norm_eps"],
            qk_norm=gemma or family == "qwen3",
            biases=_biases(hf, family),
            activation=activation,
            query_scale=(size / hf["query_pre_attn_scalar"]) ** 0.5 if gemma else 1.0,
            gemma=gemma,
            tied=hf.get("tie_word_embeddings", False),
            dtype=dtype,
            compute=compute,
            attention=attention,
        )


def _is_causal(hf: Mapping, family: str) -> bool:
    """Whether a token sees no later one; embedding models of decoders may see all."""
    if family == "gemma3_text":
        for field in ("attn_logit_softcapping", "final_logit_softcapping"):
            refuse_unless(hf.get(field) is None, field, hf.get(field))
        return not hf.get("use_bidirectional_attention")
    return bool(hf.get("is_causal", True))


def _windows(hf: Mapping, family: str) -> tuple[int, tuple[bool, ...]]:
    """The window of local layers, and which layers are local."""
    window, every = hf.get("sliding_window") or 0, hf.get("sliding_window_pattern") or 6
    refuse_unless(family != "llama" or not window, "sliding_window", window)
    is_local = lambda i: True
    if family == "mistral":
        refuse_unless(not hf.get("layer_types"), "layer_types", hf.get("layer_types"))
    elif family == "gemma3_text":
        is_local = lambda i: (i + 1) % every > 0
    elif not hf.get("use_sliding_window"):  # Qwen's checkpoints name a window that they do not use
        window = 0
    else:
        is_local = lambda i: i >= hf["max_window_layers"]
    local = layer_kinds(hf, is_local) if window else ()
    is_halved = family == "gemma3_text" and not _is_causal(hf, family)
    return window // 2 + 1 if is_halved else window, local


def _biases(hf: Mapping, family: str) -> tuple[str, ...]:
    """The weights that have a bias."""
    if family == "qwen2":
        return ("q", "k", "v")
    fields = {"attention_bias": ("q", "k", "v", "o"), "mlp_bias": ("gate", "up", "down")}
    refuse_unless(family == "llama" or not hf.get("mlp_bias"), "mlp_bias", hf.get("mlp_bias"))
    refuse_unless(family != "mistral" or not hf.get("attention_bias"), "attention_bias", True)
    return tuple(x for field, names in fields.items() if hf.get(field) for x in names)


def gelu(x: Float[Array, "*b f"]) -> Float[Array, "*b f"]:
    """The exact GELU by erf, as torch has it. JAX's is by erfc, twice as slow on a CPU."""
    return 0.5 * x * (1 + jax.lax.erf(x * math.sqrt(0.5)))


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "gelu": gelu,
    "silu": jax.nn.silu,
    "gelu_pytorch_tanh": functools.partial(jax.nn.gelu, approximate=True),
}


def rematerialised(layer: Callable, policy: str) -> Callable:
    """`layer`, which saves only its input and what the policy names for its backward pass.

    Args:
        policy: a value of `Config.remat`.
    """
    policies = jax.checkpoint_policies
    saved = {
        "products": policies.save_from_both_policies(
            policies.save_only_these_names(layout.SAVED), kernels.is_cudnn_forward
        ),
        "all": policies.nothing_saveable,
    }
    if policy not in saved:
        raise ValueError(f"train.remat={policy!r}: must be 'products' or 'all'")
    return jax.checkpoint(layer, policy=saved[policy])


def rms_norm(
    x: Float[Array, "*b d"], scale: Float[Array, " d"], eps: float
) -> Float[Array, "*b d"]:
    """Root-mean-square norm over the last axis, in float32."""

    def norm(x: Float[Array, "*b d"]) -> Float[Array, "*b d"]:
        y = x.astype(jnp.float32)
        y = y * jax.lax.rsqrt(jnp.mean(y * y, -1, keepdims=True) + eps)
        return (y * scale).astype(x.dtype)

    return over_tokens(norm, x)


def _unit(cfg: Config) -> Callable:
    """The start of a norm's weights, with which it only norms."""
    return zeros if cfg.gemma else ones


def norm(x: Float[Array, "*b d"], scale: nnx.Param, cfg: Config) -> Float[Array, "*b d"]:
    """`rms_norm` as the family has it."""
    factors = scale[...]
    factors = 1 + factors.astype(jnp.float32) if cfg.gemma else factors
    return rms_norm(x, factors, cfg.norm_eps)


class Biased(nnx.Module):
    """A layer some of whose weights have a bias."""

    def add_biases(self, cfg: Any, rngs: nnx.Rngs) -> None:
        """Adds those that `cfg.biases` names; the layer adds its norms'."""
        heads = {"q": "n h", "k": "k h", "v": "k h", "o": "d"}
        for name, letters in (heads | {"gate": "f", "up": "f", "down": "d"}).items():
            if name in cfg.biases:
                new = param(letters, cfg.dims, cfg.dtype, rngs, init=zeros)
                setattr(self, f"{name}_bias", new)

    def bias(self, name: str, cfg: Any) -> Float[Array, "*_"] | None:
        """The bias of a weight, if it has one."""
        return getattr(self, f"{name}_bias")[...] if name in cfg.biases else None


class Block(Biased):
    """One layer: attention and a gated feed-forward network, each after an RMS norm."""

    def __init__(self, cfg: Config, *, rngs: nnx.Rngs):
        new = functools.partial(param, dims=cfg.dims, dtype=cfg.dtype, rngs=rngs)
        unit = _unit(cfg)
        self.attn_norm, self.ffn_norm = new("d", init=unit), new("d", init=unit)
        self.q, self.k, self.v, self.o = new("d n h"), new("d k h"), new("d k h"), new("n h d")
        self.add_biases(cfg, rngs)
        if cfg.qk_norm:
            self.q_norm, self.k_norm = new("h", init=unit), new("h", init=unit)
        if cfg.gemma:
            self.attn_out_norm, self.ffn_out_norm = new("d", init=unit), new("d", init=unit)
        self.gate, self.up, self.down = new("d f"), new("d f"), new("f d")

    def qkv(
        self, x: Float[Array, "b t d"], angles: Float[Array, "b t half_h"], cfg: Config
    ) -> tuple[Float[Array, "b t n h"], Float[Array, "b t k h"], Float[Array, "b t k h"]]:
        """Queries, keys and values, with positions applied to the first two."""
        y = norm(x, self.attn_norm, cfg)
        q = einsum("btd,dnh->btnh", y, self.q[...], self.bias("q", cfg))
        k = einsum("bsd,dkh->bskh", y, self.k[...], self.bias("k", cfg))
        v = einsum("bsd,dkh->bskh", y, self.v[...], self.bias("v", cfg))
        if cfg.qk_norm:
            q, k = norm(q, self.q_norm, cfg), norm(k, self.k_norm, cfg)
        scale = cfg.rotaries[0].scale
        return rotary.rotate(q, angles, scale * cfg.query_scale), rotary.rotate(k, angles, scale), v

    def finish(
        self, x: Float[Array, "b t d"], attended: Float[Array, "b t n h"], cfg: Config
    ) -> Float[Array, "b t d"]:
        """The layer's output, from its input and the output of its attention heads."""
        y = einsum("btnh,nhd->btd", attended, self.o[...], self.bias("o", cfg))
        x = x + (norm(y, self.attn_out_norm, cfg) if cfg.gemma else y)
        y = norm(x, self.ffn_norm, cfg)
        gate = einsum("btd,df->btf", y, self.gate[...], self.bias("gate", cfg))
        up = einsum("btd,df->btf", y, self.up[...], self.bias("up", cfg))
        y = (ACTIVATIONS[cfg.activation](gate.astype(jnp.float32)) * up).astype(x.dtype)
        y = einsum("btf,fd->btd", y, self.down[...], self.bias("down", cfg))
        return x + (norm(y, self.ffn_out_norm, cfg) if cfg.gemma else y)


def local_layers(cfg: Any) -> Bool[Array, " l"] | None:
    """Whether each layer is local, for a scan over layers; None if none is."""
    return jnp.array(cfg.local) if cfg.local else None


class Decoder(nnx.Module):
    """Token ids to hidden states. `logits` is separate: scoring needs them at few positions."""

    def __init__(self, cfg: Config, *, rngs: nnx.Rngs):
        self.embed = param("v e", cfg.dims, cfg.dtype, rngs)
        keys = jax.random.split(rngs.params(), cfg.layers)
        self.blocks = jax.vmap(lambda key: Block(cfg, rngs=nnx.Rngs(key)))(keys)
        self.norm = param("d", cfg.dims, cfg.dtype, rngs, init=_unit(cfg))
        if not cfg.tied:
            self.head = param("v e", cfg.dims, cfg.dtype, rngs)

    def embeddings(self, tokens: Int[Array, "b t"], cfg: Config) -> Float[Array, "b t d"]:
        """Embeddings of token ids, in the type that the layers compute in."""
        x = lookup(self.embed[...], tokens).astype(cfg.compute)
        return x * jnp.asarray(cfg.width**0.5, x.dtype) if cfg.gemma else x

    def layers(
        self,
        x: Float[Array, "b t d"],
        positions: Int[Array, "b t"],
        attend: Callable,
        cfg: Config,
        memory: Any = None,
        *,
        length: int,
    ) -> tuple[Float[Array, "b t d"], Any]:
        """Runs all layers and the last norm. A row of `x` holds a text or a packed stream of texts.

        Args:
            attend: `attend(q, k, v, memory_of_layer, reach) -> (output, state_of_layer)` computes
                the attention of one layer; for `reach` see `attention.attend`.
            memory: a tree of arrays `[l ...]`, of which `attend` gets one slice per layer.
            length: the most tokens of a text.

        Returns:
            Hidden states, and the states of all layers, stacked `[l ...]`.
        """
        angles = rotary.angles(positions, cfg.rotaries, cfg.head_dim)

        @functools.partial(rematerialised, policy=cfg.remat)
        def layer(x, inputs):
            """One step of the scan: the layer's output, and the state that `attend` returns."""
            block, memory, is_local = inputs
            heads = block.qkv(x, rotary.of_layer(angles, is_local), cfg)
            attended, state = attend(*heads, memory, attention.reach(cfg, is_local, length))
            return block.finish(x, attended, cfg), state

        x, states = jax.lax.scan(layer, x, (self.blocks, memory, local_layers(cfg)))
        return norm(x, self.norm, cfg), states

    def __call__(
        self,
        tokens: Int[Array, "b t"],
        mask: Bool[Array, "b t"],
        cfg: Config,
        capacity: int | None = None,
    ) -> Float[Array, "b t d"]:
        """Hidden states after the last norm. Padding may be on either side.

        Args:
            capacity: at least the number of visible tokens of any device. Layers then skip padding,
                whose hidden states are zeros. Without it, layers compute padding too.
        """
        x, positions = self.embeddings(tokens, cfg), jnp.maximum(jnp.cumsum(mask, -1) - 1, 0)
        if capacity is None:
            attend = functools.partial(attention.attend, visible=mask)
        else:
            plan = packing.plan_packing(mask, capacity)
            x, positions = packing.pack(x, plan), packing.pack(positions, plan)
            attend = functools.partial(attention.attend_packed, plan=plan)

        def attend_layer(
            q: Float[Array, "rows t n h"],
            k: Float[Array, "rows t k h"],
            v: Float[Array, "rows t k h"],
            _: None,
            reach: Int[Array, ""] | None,
        ) -> tuple[Float[Array, "rows t n h"], None]:
            options: dict[str, Any] = {
                "kernel": cfg.attention,
                "reach": reach,
                "window": cfg.window,
            }
            return attend(q, k, v, causal=cfg.causal, **options), None

        x, _ = self.layers(x, positions, attend_layer, cfg, length=tokens.shape[1])
        return x if capacity is None else packing.unpack(x, plan)

    def logits(self, x: Float[Array, "a d"], cfg: Config) -> Float[Array, "a v"]:
        """Float32 logits of single positions."""
        return layout.logits(x, self.output_table(cfg))

    def output_table(self, cfg: Config) -> Float[Array, "v e"]:
        """The weights of the logits."""
        return (self.embed if cfg.tied else self.head)[...]
