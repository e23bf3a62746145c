"""Hugging Face checkpoints: read straight into the shards of each device, and written back under the same names."""

import dataclasses
import fnmatch
import json
import math
from pathlib import Path

import einops
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from ark_jax import bucket
from ark_jax.layout import check_divides, fetch, groups, shape_of, weight_spec
from ark_jax.models import decoder, encoder
from ark_jax.models.tables import CARRIED, DECODER, ENCODERS, MASKED_WORDS, OLD, PREFIXES


def resolve(name_or_folder: str) -> Path:
    """A local folder as it is; one in a bucket copied; a hub name downloaded (weights, configs, tokenizer) into the hub cache."""
    folder = bucket.local(name_or_folder)
    if folder.is_dir():
        return folder
    if folder.is_absolute() or name_or_folder.startswith((".", "~")) or name_or_folder.count("/") != 1:
        raise FileNotFoundError(f"{name_or_folder}: no such folder, and no hub name of the form owner/model")
    from huggingface_hub import snapshot_download

    patterns = ["*.json", "*.safetensors", "*.txt", "*.model", "*/config.json", "*.jinja"]
    return Path(snapshot_download(name_or_folder, allow_patterns=patterns))


def read_config(folder: Path) -> dict:
    path = folder / "config.json"
    if not path.is_file():
        raise FileNotFoundError(f"{folder}: no config.json; give a Hugging Face model folder or hub name")
    return read_json(path)


def read_json(path: Path, kind: type = dict):
    """A JSON file that holds an object, or an array for kind=list."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: not JSON ({error}); fetch the file again") from None
    if not isinstance(value, kind):
        raise ValueError(f"{path}: holds a {type(value).__name__}, not a {kind.__name__}; fetch the file again")
    return value


def family(hf: dict):
    """(Config, model class, table) of a Hugging Face config."""
    if hf.get("model_type") in decoder.FAMILIES:
        return decoder.Config, decoder.Decoder, DECODER
    if hf.get("model_type") in encoder.FAMILIES:
        return encoder.Config, encoder.Encoder, ENCODERS[hf["model_type"]]
    known = ", ".join((*decoder.FAMILIES, *encoder.FAMILIES))
    raise ValueError(f"config.json: model_type {hf.get('model_type')!r} is not implemented; known: {known}")


class Checkpoint:
    """The safetensors files of a folder, addressed by tensor name with or without the family's prefix."""

    def __init__(self, folder: Path):
        self.folder = folder
        # An index names the files that count; some publishers leave a second copy beside them.
        index = folder / "model.safetensors.index.json"
        named = set(_weight_map(index).values()) if index.is_file() else ()
        files = [folder / name for name in sorted(named)] or sorted(folder.glob("*.safetensors"))
        if not files:
            raise FileNotFoundError(f"{folder}: no *.safetensors; convert the checkpoint to safetensors first")
        absent = [file.name for file in files if not file.is_file()]
        if absent:
            raise FileNotFoundError(f"{folder}: no {absent[0]}, which {index.name} names; fetch it too")
        self._where = {name: file for file in files for name in _open(file).keys()}  # noqa: SIM118
        self.bare = not any(name.startswith(PREFIXES) for name in self._where)

    def names(self) -> set[str]:
        return set(self._where)

    def real(self, name: str) -> str:
        """A table's name as this checkpoint spells it."""
        prefix = next((p for p in PREFIXES if self.bare and name.startswith(p)), "")
        name = name.removeprefix(prefix)
        older = [name.removesuffix(new) + old for new, old in OLD.items() if name.endswith(new)]
        return older[0] if older and older[0] in self._where else name

    def slice(self, name: str):
        """One tensor, read as it is indexed. The file is opened anew, since a mapped page counts as memory of the process
        for as long as its mapping lives: what was read goes with the slice."""
        if name not in self._where:
            raise ValueError(f"{self.folder}: tensor {name} is missing; the checkpoint is incomplete or of another architecture")
        return _open(self._where[name]).get_slice(name)


def _weight_map(index: Path) -> dict[str, str]:
    """tensor -> file, as an index has it."""
    files = read_json(index).get("weight_map")
    if not isinstance(files, dict) or not all(isinstance(file, str) for file in files.values()):
        raise ValueError(f"{index}: no weight_map from tensors to files; fetch the file again")
    return files


def _open(file: Path):
    """Reads the header only, which tells a file that was cut short from a whole one."""
    try:
        return safe_open(file, "numpy")
    except SafetensorError as error:
        raise ValueError(f"{file} ({file.stat().st_size:,} bytes): cut short or no safetensors file ({error}); "
                         "fetch it again") from None


def load(name_or_folder: str, *, dtype: str = "float32", compute: str = "float32", attention: str = "xla", head: bool = True):
    """Reads a model folder straight into the shards of each device.

    Returns:
        (model, config, carried): `carried` maps the names of tensors that are not computed with to their
        values, for a complete export.

    Raises:
        ValueError: a missing, surplus or misshapen tensor, named; an unknown or unsupported config.
    """
    folder = resolve(name_or_folder)
    hf = read_config(folder)
    try:
        config_class, model_class, table = family(hf)
        cfg = config_class.from_hf(hf, dtype=dtype, compute=compute, attention=attention)
    except KeyError as error:
        raise ValueError(f"{folder}/config.json: no {error}; a {hf['model_type']} checkpoint must say it") from None
    except ValueError as error:  # of config.json
        raise ValueError(f"{folder}/{error}") from None
    tied = getattr(cfg, "tied", False)
    if not head and model_class is decoder.Decoder:
        cfg = dataclasses.replace(cfg, tied=True)
    check_divides(cfg.dims, str(folder))
    files = Checkpoint(folder)
    leaves, tree = _leaves(jax.eval_shape(lambda: model_class(cfg, rngs=nnx.Rngs(0))))
    params, used = [None] * len(leaves), set()
    # The largest first: what a parameter takes twice, while it is copied to its devices, is less than what is still to come.
    for i in sorted(range(len(leaves)), key=lambda i: -leaves[i][1].get_value().size):
        hf_name, pattern = table[leaves[i][0]]
        names = [files.real(n) for n in _expand(hf_name, cfg.layers)]
        used.update(names)
        params[i] = nnx.Param(_read(files, names, pattern, "{l}" in hf_name, cfg.dims, dtype))
    surplus = files.names() - used
    if tied:
        surplus.discard("lm_head.weight")  # a copy of the embedding that some writers keep
    kinds = CARRIED + (MASKED_WORDS if model_class is encoder.Encoder else ())
    carried = {n: files.slice(n)[...] for n in sorted(surplus) if any(fnmatch.fnmatch(n, kind) for kind in kinds)}
    if surplus - set(carried):
        raise ValueError(f"{folder}: tensors the architecture has no place for: {', '.join(sorted(surplus)[:5])}")
    return jax.tree.unflatten(tree, params), cfg, carried


def export(model, cfg, folder: Path, *, base: Path, carried: dict[str, np.ndarray]) -> None:
    """Writes `model` as safetensors under the names and in the types of the checkpoint in `base`.

    Every process must call it (arrays are gathered); process 0 writes, shards of at most 5 GB.
    """
    _, _, table = family(read_config(base))
    files = Checkpoint(base)
    tensors = dict(carried)
    for name, value in _leaves(model)[0]:
        hf_name, pattern = table[name]
        left, right = pattern.split("->")
        whole = fetch(value[...])
        parts = whole if "{l}" in hf_name else [whole]
        for real, part in zip(_expand(hf_name, cfg.layers), parts, strict=True):
            real = files.real(real)
            back = einops.rearrange(part, f"{right} -> {left}", **_sizes(left, cfg.dims))
            kind = files.slice(real)[tuple(slice(0, 0) for _ in back.shape)].dtype
            tensors[real] = np.ascontiguousarray(back.astype(kind))
    if jax.process_index() == 0:
        _write(tensors, folder)


def _write(tensors: dict[str, np.ndarray], folder: Path, limit: int = 5_000_000_000) -> None:
    for old in folder.glob("model*.safetensors*"):  # an index of shards that were here would count more than what is written
        old.unlink()
    # Not `save_file`, whose files nobody but their owner may read.
    write = lambda shard, name: (folder / name).write_bytes(save(shard, metadata={"format": "pt"}))
    shards: list[dict[str, np.ndarray]] = [{}]
    size = 0
    for name in sorted(tensors):
        if shards[-1] and size + tensors[name].nbytes > limit:
            shards.append({})
            size = 0
        shards[-1][name] = tensors[name]
        size += tensors[name].nbytes
    if len(shards) == 1:
        write(shards[0], "model.safetensors")
        return
    index = {"metadata": {"total_size": sum(x.nbytes for x in tensors.values())}, "weight_map": {}}
    for i, shard in enumerate(shards, 1):
        file = f"model-{i:05d}-of-{len(shards):05d}.safetensors"
        write(shard, file)
        index["weight_map"] |= dict.fromkeys(shard, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")


def _leaves(model):
    """[(attribute name, parameter)] in tree order, and the tree."""
    flat, tree = jax.tree_util.tree_flatten_with_path(model, is_leaf=lambda x: isinstance(x, nnx.Param))
    return [(getattr(path[-1], "name", None) or path[-1].key, leaf) for path, leaf in flat], tree


def _expand(hf_name: str, layers: int) -> list[str]:
    return [hf_name.format(l=i) for i in range(layers)] if "{l}" in hf_name else [hf_name]


def _sizes(side: str, dims: dict[str, int]) -> dict[str, int]:
    return {letter: dims[letter] for part in groups(side) for letter in part}


def _read(files: Checkpoint, names: list[str], pattern: str, stack: bool, dims: dict[str, int], dtype: str) -> jax.Array:
    """One parameter from its tensor, or from those of all layers. A device reads its own byte ranges, a tensor at a time."""
    left, right = pattern.split("->")
    for name in names:
        found, wanted = tuple(files.slice(name).get_shape()), shape_of(left, dims)
        if found != wanted:
            raise ValueError(f"{files.folder}: tensor {name} has shape {found}, config.json says {wanted}; take the config.json "
                             "of this checkpoint")

    def part(index: tuple[slice, ...]) -> np.ndarray:
        own = {letter: slice(*cut.indices(dims[letter])) for letter, cut in zip(right.split(), index[stack:], strict=True)}
        sizes = {letter: cut.stop - cut.start for letter, cut in own.items()}
        # A mesh cuts what comes first in a group, so that the group's rows stay together.
        rows = [math.prod(dims[letter] for letter in group[1:]) for group in groups(left)]
        where = tuple(slice(own[group[0]].start * n, own[group[0]].stop * n) for group, n in zip(groups(left), rows, strict=True))
        out = np.empty((len(names), *sizes.values()), jnp.dtype(dtype))
        for i, name in enumerate(names):
            out[i] = einops.rearrange(files.slice(name)[where].astype(out.dtype, copy=False), pattern, **sizes)
        return out if stack else out[0]

    # What is a vector in the file is whole on every device, as a vector is.
    shape = shape_of(right, dims)
    spec = weight_spec(right) if len(groups(left)) > 1 else P(*[None] * len(shape))
    shape, spec = ((len(names), *shape), P(None, *spec)) if stack else (shape, spec)
    return jax.make_array_from_callback(shape, NamedSharding(jax.sharding.get_mesh(), spec), part)
