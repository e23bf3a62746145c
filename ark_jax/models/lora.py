"""LoRA: low-rank adapters beside a model's weights, a tree of their own that follows the letters.

A weight of letters "i o", from i to o, gets the factors A "i r" and B "r o": "d n h" gives "d r" and "r n h", "n h d"
gives "n h r" and "r d". They are sharded as the letters say and stacked over layers as the blocks are.

The forward pass knows nothing of adapters: it runs on `merge(model, adapter)`, and training takes the gradient with
respect to the adapter alone. The optimizer then holds two moments of the adapter, not of the model; the gradient of a
merged weight is still formed before it is cut down to its factors. There is no dropout, which would need a forward
pass of its own.
"""

import dataclasses
import functools
import json
import math
import re
from collections.abc import Sequence
from pathlib import Path

import einops
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float
from safetensors import safe_open
from safetensors.numpy import save

from ark_jax.layout import fetch, groups, put, shape_of, weight_spec
from ark_jax.log import primary
from ark_jax.models import hf

_PEFT = "base_model.model."  # what peft puts in front of a module's name
Row = tuple[str, str, str]  # our name, Hugging Face name, letters: a line of a table of hf.py


@functools.partial(jax.tree_util.register_dataclass, data_fields=["a", "b"], meta_fields=["rows", "alpha"])
@dataclasses.dataclass(frozen=True)
class Adapter:
    """Factors by the name of the weight they adapt, float32. Only these are leaves: an optimizer sees nothing else."""

    a: dict[str, Float[Array, "l *i r"]]
    b: dict[str, Float[Array, "l r *o"]]
    rows: tuple[Row, ...]
    alpha: float

    @property
    def rank(self) -> int:
        return next(iter(self.b.values())).shape[1]


def rows(base: Path, targets: Sequence[str]) -> tuple[Row, ...]:
    """The matrices of a model's blocks that `targets` name (q k v o gate up down), all if it is empty.

    Args:
        base: the model's folder; its config.json says which table holds.

    Raises:
        ValueError: a target that this model does not have.
    """
    _, _, table = hf.family(hf.read_config(base))
    known = {name: (name, real, pattern) for name, (real, pattern) in table.items()
             if "{l}" in real and len(groups(pattern.split("->")[0])) == 2}
    for name in targets:
        if name not in known:
            raise ValueError(f"train.lora_targets: {name!r} is no matrix of {base.name}, which has {', '.join(known)}; "
                             "() adapts them all")
    return tuple(known[name] for name in targets or known)


def _letters(pattern: str) -> tuple[str, str]:
    """`"d (n h) -> n h d"` -> `("n h", "d")`: what a weight maps from, and to. Hugging Face writes the output first."""
    outs, ins = groups(pattern.split("->")[0])
    return " ".join(ins), " ".join(outs)


def init(some: tuple[Row, ...], cfg, *, rank: int, alpha: float, key: jax.Array) -> Adapter:
    """A fresh adapter, which changes nothing: A is random as in peft, B is zero.

    Args:
        some: from `rows`.
        alpha: the product A·B counts alpha / rank times. For the rank-stabilised variant give alpha · sqrt(rank).
    """
    if rank < 1 or alpha <= 0:
        raise ValueError(f"train.lora_rank={rank} and train.lora_alpha={alpha}: an adapter needs both above zero")
    dims = cfg.dims | {"l": cfg.layers, "r": rank}
    a, b = {}, {}
    for (name, _, pattern), own in zip(some, jax.random.split(key, len(some)), strict=True):
        ins, outs = _letters(pattern)
        left, right = f"l {ins} r", f"l r {outs}"
        # Kaiming-uniform with a = sqrt(5): the variance is a third of what the number of inputs n asks, so ±1/sqrt(n).
        bound = 1 / math.sqrt(math.prod(shape_of(ins, dims)))
        a[name] = jax.random.uniform(own, shape_of(left, dims), jnp.float32, -bound, bound,
                                     out_sharding=weight_spec(left))
        b[name] = jnp.zeros(shape_of(right, dims), jnp.float32, out_sharding=weight_spec(right))
    return Adapter(a, b, some, alpha)


def merge(model, adapter: Adapter):
    """The model with w + alpha / rank · A·B in place of each adapted w, in w's own type and layout; the rest is shared."""
    scale = adapter.alpha / adapter.rank
    out = jax.tree.map(lambda x: x, model)  # modules of its own around the same arrays
    for name, _, pattern in adapter.rows:
        ins, outs = (side.replace(" ", "") for side in _letters(pattern))
        w = getattr(out.blocks, name)[...]
        # In full precision, where an accelerator would round A and B to bfloat16: it costs nothing beside the model.
        change = jnp.einsum(f"l{ins}r,lr{outs}->l{ins}{outs}", adapter.a[name], adapter.b[name], precision="highest",
                            out_sharding=jax.typeof(w).sharding.spec)
        setattr(out.blocks, name, nnx.Param((w + scale * change).astype(w.dtype)))
    return out


def save_peft(adapter: Adapter, folder: Path, *, base: str) -> None:
    """Writes what `peft.PeftModel.from_pretrained(AutoModel.from_pretrained(base), folder)` opens.

    Every process must call it (arrays are gathered); process 0 writes.

    Args:
        base: hub name or folder of the very weights that the adapter was trained beside, on which alone it means
            anything. In a chain of stages that is the merged model of the stage before, not the first base: the
            chain as a whole is no adapter of this rank.
    """
    tensors = {}
    for name, real, pattern in adapter.rows:
        ins, outs = _letters(pattern)
        for factor, part, how in ((adapter.a, "A", f"l {ins} r -> l r ({ins})"), (adapter.b, "B", f"l r {outs} -> l ({outs}) r")):
            whole = einops.rearrange(fetch(factor[name]), how)
            tensors |= {_PEFT + n: np.ascontiguousarray(x) for n, x in zip(_names(real, part, len(whole)), whole, strict=True)}
    # A pattern, since a list would match by ending, and BERT's output.dense ends attention.output.dense too.
    modules = "|".join(re.escape(_stem(real)).replace(r"\{l\}", r"\d+") for _, real, _ in adapter.rows)
    settings = {"peft_type": "LORA", "task_type": "FEATURE_EXTRACTION", "base_model_name_or_path": base, "r": adapter.rank,
                "lora_alpha": adapter.alpha, "target_modules": rf"(.*\.)?({modules})", "lora_dropout": 0.0, "bias": "none",
                "fan_in_fan_out": False, "use_rslora": False, "inference_mode": True}
    if primary():
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "adapter_model.safetensors").write_bytes(save(tensors, metadata={"format": "pt"}))
        (folder / "adapter_config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")


def load_peft(folder: Path, base: Path, cfg) -> Adapter:
    """An adapter folder of peft's, for the model that was read from the folder `base`.

    Raises:
        ValueError: a setting or tensor that a plain LoRA of whole block matrices does not have.
    """
    settings = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
    if settings["peft_type"] != "LORA" or settings.get("alpha_pattern"):
        raise ValueError(f"{folder}/adapter_config.json: peft_type={settings['peft_type']}, alpha_pattern="
                         f"{settings.get('alpha_pattern')}; only LORA with one alpha for all is implemented")
    with safe_open(folder / "adapter_model.safetensors", "numpy") as file:
        tensors = {_stem(name.removeprefix(_PEFT)): file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    names = lambda row, part: [_stem(name) for name in _names(row[1], part, cfg.layers)]
    some = tuple(row for row in rows(base, ()) if not tensors.keys().isdisjoint(names(row, "A")))
    odd = tensors.keys() ^ {name for row in some for part in "AB" for name in names(row, part)}
    if odd or not some:
        raise ValueError(f"{folder}/adapter_model.safetensors: {min(odd, default='no tensor')} is missing or surplus; "
                         "an adapter has both factors of a block matrix in every layer, and nothing else")
    dims = cfg.dims | {"l": cfg.layers, "r": settings["r"]}

    def factor(row: Row, part: str, source: str, target: str) -> jax.Array:
        sizes = {letter: dims[letter] for letter in target.split()}
        whole = einops.rearrange(np.stack([tensors[n] for n in names(row, part)]), f"{source} -> {target}", **sizes)
        return put(whole.astype(np.float32), weight_spec(target))

    a, b = {}, {}
    for row in some:
        ins, outs = _letters(row[2])
        a[row[0]] = factor(row, "A", f"l r ({ins})", f"l {ins} r")
        b[row[0]] = factor(row, "B", f"l ({outs}) r", f"l r {outs}")
    return Adapter(a, b, some, settings["lora_alpha"] * (math.sqrt(settings["r"]) if settings.get("use_rslora") else 1))


def _stem(real: str) -> str:
    """A tensor's name as AutoModel names the module: without the family's prefix, and without `.weight`."""
    for prefix in hf.PREFIXES:
        real = real.removeprefix(prefix)
    return real.removesuffix(".weight")


def _names(real: str, part: str, layers: int) -> list[str]:
    return [f"{_stem(real).format(l=i)}.lora_{part}.weight" for i in range(layers)]
