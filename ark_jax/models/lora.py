"""LoRA: low-rank adapters, a tree of their own beside a model's weights.

A weight with the letters "i o" maps i to o. Its factors are A "i r" and B "r o": "d n h" gives "d
r" and "r n h", "n h d" gives "n h r" and "r d". They are sharded by their letters, and stacked
over layers as the blocks are.

The forward pass knows nothing of adapters: it runs on `adapt(model, adapter)`, whose weights add
their factors' product when a layer reads them, and training takes the gradient with respect to the
adapter alone. So the optimizer holds two moments of the adapter, and a step holds one layer's
merged weights and their gradient. There is no dropout, which would need a forward pass of its own.

Where a checkpoint keeps q, k and v in one tensor, each has an adapter. For peft theirs are one of a
larger rank: A has theirs one below the other, B has theirs along its diagonal.
"""

import dataclasses
import functools
import json
import math
import re
import typing
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
from ark_jax.models import hf
from ark_jax.models.weight_names import Row
from ark_jax.runtime.distributed import is_first_process

_PEFT_PREFIX = "base_model.model."  # what peft puts in front of a module's name
Weight = tuple[str, Row]  # an attribute, and its row in a table of weight_names.py


@typing.no_type_check  # tree operations put other leaves into it
@functools.partial(
    jax.tree_util.register_dataclass, data_fields=["a", "b"], meta_fields=["weights", "alpha"]
)
@dataclasses.dataclass(frozen=True)
class Adapter:
    """Factors by the name of the weight that they adapt, float32.

    Only the factors are leaves of the tree, so an optimizer sees nothing else.
    """

    a: dict[str, Float[Array, "l *i r"]]
    b: dict[str, Float[Array, "l r *o"]]
    weights: tuple[Weight, ...]
    alpha: float

    @property
    def rank(self) -> int:
        return next(iter(self.b.values())).shape[1]

    @property
    def entries(self) -> int:
        """How many numbers the factors have."""
        return sum(x.size for x in jax.tree.leaves(self))

    def applied_to(self, model):
        """`adapt(model, self)`."""
        return adapt(model, self)


def target_weights(base: Path, targets: Sequence[str]) -> tuple[Weight, ...]:
    """The block matrices that `targets` name (q k v o gate up down), or all if it is empty.

    Args:
        base: the model's folder, whose config.json selects the table of names.

    Raises:
        ValueError: the model has no such matrix.
    """
    _, _, table = hf.architecture(hf.read_config(base))
    matrices = {
        name: (name, row)
        for name, row in table.items()
        if "{l}" in row.name and len(groups(row.letters.split("->")[0])) == 2
    }
    for name in targets:
        if name not in matrices:
            raise ValueError(
                f"train.lora_targets: {name!r} is not a matrix of {base.name}, which has "
                f"{', '.join(matrices)}; () adapts them all"
            )
    return tuple(matrices[name] for name in targets or matrices)


def _inputs_and_outputs(letters: str) -> tuple[str, str]:
    """The letters of a weight's inputs and outputs: `"d (n h) -> n h d"` gives `("n h", "d")`.

    Hugging Face's side is on the left and has the output first.
    """
    outputs, inputs = groups(letters.split("->")[0])
    return " ".join(inputs), " ".join(outputs)


def init(weights: tuple[Weight, ...], cfg, *, rank: int, alpha: float, key: jax.Array) -> Adapter:
    """A new adapter, which changes nothing: A is random as in peft, B is zero.

    Args:
        weights: from `target_weights`.
        alpha: the product A·B is scaled by alpha / rank. For the rank-stabilised variant, give
            alpha · sqrt(rank).
    """
    if rank < 1 or alpha <= 0:
        raise ValueError(
            f"train.lora_rank={rank} and train.lora_alpha={alpha}: an adapter needs both above zero"
        )
    dims = cfg.dims | {"l": cfg.layers, "r": rank}
    a, b = {}, {}
    keys = jax.random.split(key, len(weights))
    for (name, row), weight_key in zip(weights, keys, strict=True):
        inputs, outputs = _inputs_and_outputs(row.letters)
        a_side, b_side = f"l {inputs} r", f"l r {outputs}"
        # Kaiming-uniform with a = sqrt(5), of n inputs: the bounds are ±1/sqrt(n).
        bound = 1 / math.sqrt(math.prod(shape_of(inputs, dims)))
        a[name] = jax.random.uniform(
            weight_key,
            shape_of(a_side, dims),
            jnp.float32,
            -bound,
            bound,
            out_sharding=weight_spec(a_side),
        )
        b[name] = jnp.zeros(shape_of(b_side, dims), jnp.float32, out_sharding=weight_spec(b_side))
    return Adapter(a, b, weights, alpha)


def new_adapter(base: Path, cfg, settings, seed: int) -> Adapter:
    """An adapter that changes nothing yet.

    Args:
        base: as in `target_weights`.
        cfg: of the model.
        settings: has `lora_rank`, `lora_alpha` and `lora_targets`, see `target_weights`.
        seed: decides the factors.
    """
    weights = target_weights(base, settings.lora_targets)

    @jax.jit
    def create() -> Adapter:
        return init(
            weights,
            cfg,
            rank=settings.lora_rank,
            alpha=settings.lora_alpha,
            key=jax.random.key(seed),
        )

    return create()


def split_weights(model, cfg, base: Path, settings, seed: int) -> tuple[typing.Any, typing.Any]:
    """(trainable, frozen): the model and None if the rank is 0, else a new adapter and the model.

    The arguments are those of `new_adapter`.
    """
    if not settings.lora_rank:
        return model, None
    return new_adapter(base, cfg, settings, seed), model


@typing.no_type_check  # tree operations put other leaves into it
@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["weight", "a", "b"],
    meta_fields=["product", "scale"],
)
@dataclasses.dataclass(frozen=True)
class AdaptedWeight:
    """A weight, of one layer or of all, to which its factors are added where it is read.

    Args:
        product: the equation of A·B.
        scale: alpha / rank.
    """

    weight: Float[Array, "*l_i_o"]
    a: Float[Array, "*l_i r"]
    b: Float[Array, "*l r_o"]
    product: str
    scale: float

    def __getitem__(self, index):
        """w + alpha / rank · A·B, in w's type and sharding."""
        w = self.weight
        # Accelerators would round A and B to bfloat16. Full precision costs little beside the
        # model.
        change = jnp.einsum(
            self.product,
            self.a,
            self.b,
            precision="highest",
            out_sharding=jax.typeof(w).sharding.spec,
        )
        return (w + self.scale * change).astype(w.dtype)[index]


def adapt(model, adapter: Adapter):
    """The model with an `AdaptedWeight` for each adapted weight. Both share their arrays."""
    adapted = jax.tree.map(lambda x: x, model)  # new modules around the same arrays
    for name, row in adapter.weights:
        inputs, outputs = (side.replace(" ", "") for side in _inputs_and_outputs(row.letters))
        weight = AdaptedWeight(
            getattr(adapted.blocks, name)[...],
            adapter.a[name],
            adapter.b[name],
            f"...{inputs}r,...r{outputs}->...{inputs}{outputs}",
            adapter.alpha / adapter.rank,
        )
        setattr(adapted.blocks, name, nnx.Param(weight))
    return adapted


def merge(model, adapter: Adapter):
    """The model with w + alpha / rank · A·B for each adapted weight w.

    All other weights are shared with `model`.
    """
    return merge_weights(adapt(model, adapter))


def merge_weights(adapted):
    """A model with an array for each `AdaptedWeight`."""
    is_adapted = lambda x: isinstance(x, AdaptedWeight)
    return jax.tree.map(lambda x: x[...] if is_adapted(x) else x, adapted, is_leaf=is_adapted)


def save_peft(
    adapter: Adapter, folder: Path, *, base: str, task: str = "FEATURE_EXTRACTION"
) -> None:
    """Writes a folder for `PeftModel.from_pretrained(AutoModel.from_pretrained(base), folder)`.

    Every process must call this, since arrays are gathered. Process 0 writes.

    Args:
        task: peft's name of what the model is for. "CAUSAL_LM" takes `AutoModelForCausalLM`, whose
            modules have other names.
        base: hub name or folder of the weights that the adapter was trained beside; with others it
            means nothing. In a chain of stages that is the merged model of the stage before, since
            the whole chain is not an adapter of this rank.
    """
    prefix = _PEFT_PREFIX + ("model." if task == "CAUSAL_LM" else "")
    tensors: dict[str, np.ndarray] = {}
    for name, row in adapter.weights:
        inputs, outputs = _inputs_and_outputs(row.letters)
        for factor, letter, pattern, axes in (
            (adapter.a, "A", f"l {inputs} r -> l r ({inputs})", (1,)),
            (adapter.b, "B", f"l r {outputs} -> l ({outputs}) r", (1, 2)),
        ):
            layers = einops.rearrange(fetch(factor[name]), pattern)
            # Zeros where a tensor holds other weights; the factors of all then sum to the tensor's.
            around = row.part, row.parts - row.part - 1
            fill = [[(axis in axes) * n * x for x in around] for axis, n in enumerate(layers.shape)]
            names = _factor_names(row.name, letter, len(layers))
            for stored, layer in zip(names, np.pad(layers, fill), strict=True):
                tensors[prefix + stored] = layer + tensors.get(prefix + stored, np.float32(0))
    settings = _peft_settings(adapter, base, task)
    if is_first_process():
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "adapter_model.safetensors").write_bytes(save(tensors, metadata={"format": "pt"}))
        (folder / "adapter_config.json").write_text(
            json.dumps(settings, indent=2) + "\n", encoding="utf-8"
        )


def _peft_settings(adapter: Adapter, base: str, task: str) -> dict:
    """The contents of adapter_config.json."""
    # A pattern, since peft matches a list by the ends of names: BERT's output.dense also ends
    # attention.output.dense.
    modules = "|".join(dict.fromkeys(_module_pattern(row) for _, row in adapter.weights))
    return {
        "peft_type": "LORA",
        "task_type": task,
        "base_model_name_or_path": base,
        "r": adapter.rank,
        "lora_alpha": adapter.alpha,
        "target_modules": rf"(.*\.)?({modules})",
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "use_rslora": False,
        "inference_mode": True,
    } | _patterns(adapter.weights, adapter.rank, adapter.alpha)


def _module_pattern(row: Row) -> str:
    """A regular expression of a weight's module in all layers."""
    return re.escape(_module_name(row.name)).replace(r"\{l\}", r"\d+")


def _patterns(weights: Sequence[Weight], rank: int, alpha: float) -> dict[str, dict]:
    """Rank and alpha of the tensors that hold several weights."""
    fused = {_module_pattern(row): row.parts for _, row in weights if row.parts > 1}
    return {
        f"{name}_pattern": {module: parts * value for module, parts in fused.items()}
        for name, value in (("rank", rank), ("alpha", alpha))
    }


def load_peft(folder: Path, base: Path, cfg) -> Adapter:
    """Reads an adapter folder of peft's, for the model in the folder `base`.

    Raises:
        ValueError: a setting or tensor is not that of a plain LoRA of whole block matrices, or of
            `save_peft`.
    """
    settings = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
    with safe_open(folder / "adapter_model.safetensors", "numpy") as file:
        tensors = {
            _module_name(name.removeprefix(_PEFT_PREFIX)): file.get_tensor(name)
            for name in file.keys()  # noqa: SIM118
        }
    weights, rank = _adapted_weights(tensors, folder, base, cfg.layers), settings["r"]
    dims = cfg.dims | {"l": cfg.layers, "r": rank}
    patterns = {x: settings.get(x) or {} for x in ("rank_pattern", "alpha_pattern")}
    by_part = patterns == _patterns(weights, rank, settings["lora_alpha"])
    by_part &= not settings.get("use_rslora")
    if settings["peft_type"] != "LORA" or (any(patterns.values()) and not by_part):
        raise ValueError(
            f"{folder}/adapter_config.json: peft_type={settings['peft_type']}, {patterns}; "
            "only LORA with one rank and alpha for all weights is implemented"
        )

    def put_factor(value: np.ndarray, source: str, target: str) -> jax.Array:
        """A factor of all layers, from letters `source` to letters `target`."""
        sizes = {letter: dims[letter] for letter in target.split()}
        value = einops.rearrange(value, f"{source} -> {target}", **sizes)
        return put(value.astype(np.float32), weight_spec(target))

    a, b, adapted = {}, {}, []
    for name, row in weights:
        of_a, of_b = (
            np.stack([tensors[x] for x in _tensor_names(row.name, letter, cfg.layers)])
            for letter in "AB"
        )
        of_b = np.split(of_b, row.parts, axis=1)[row.part]
        if by_part:
            ranks = slice(row.part * rank, (row.part + 1) * rank)
            if np.count_nonzero(of_b) != np.count_nonzero(of_b[..., ranks]):
                raise ValueError(f"{folder}: the adapters of parts of {row.name} are mixed")
            of_a, of_b = of_a[:, ranks], of_b[..., ranks]
        if not of_a.any() and row.parts > 1:
            continue  # a part of a tensor that was not adapted
        inputs, outputs = _inputs_and_outputs(row.letters)
        a[name] = put_factor(of_a, f"l r ({inputs})", f"l {inputs} r")
        b[name] = put_factor(of_b, f"l ({outputs}) r", f"l r {outputs}")
        adapted.append((name, row))
    stabiliser = math.sqrt(rank) if settings.get("use_rslora") else 1
    return Adapter(a, b, tuple(adapted), settings["lora_alpha"] * stabiliser)


def _adapted_weights(
    tensors: dict[str, np.ndarray], folder: Path, base: Path, layers: int
) -> tuple[Weight, ...]:
    """The block matrices that an adapter's tensors belong to.

    Raises:
        ValueError: a tensor is missing, or belongs to no matrix.
    """
    names = lambda row, part: set(_tensor_names(row.name, part, layers))
    weights = tuple(x for x in target_weights(base, ()) if tensors.keys() & names(x[1], "A"))
    expected = {name for _, row in weights for part in "AB" for name in names(row, part)}
    unmatched = tensors.keys() ^ expected
    if unmatched or not weights:
        raise ValueError(
            f"{folder}/adapter_model.safetensors: {min(unmatched, default='no tensor')} is missing "
            "or surplus; an adapter has both factors of a block matrix in every layer, and nothing "
            "else"
        )
    return weights


def _module_name(hf_name: str) -> str:
    """The module of a tensor in AutoModel: without the family's prefix and without `.weight`."""
    for prefix in hf.PREFIXES:
        hf_name = hf_name.removeprefix(prefix)
    return hf_name.removesuffix(".weight")


def _factor_names(hf_name: str, part: str, layers: int) -> list[str]:
    """peft's names of a weight's factor, "A" or "B", in all layers."""
    return [f"{_module_name(hf_name).format(l=i)}.lora_{part}.weight" for i in range(layers)]


def _tensor_names(hf_name: str, part: str, layers: int) -> list[str]:
    """`_factor_names` as `load_peft` stores them, without `.weight`."""
    return [_module_name(name) for name in _factor_names(hf_name, part, layers)]
