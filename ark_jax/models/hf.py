"""Hugging Face checkpoints: read into each device's shards, written back under the same names."""

import contextlib
import dataclasses
import fnmatch
import functools
import json
import math
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import einops
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from safetensors import SafetensorError, safe_open

from ark_jax.layout import check_divides, fetch, groups, shape_of, weight_spec
from ark_jax.models import decoder, encoder, torch_weights
from ark_jax.models.weight_names import (
    DECODERS,
    ENCODERS,
    LEGACY_SUFFIXES,
    MASKED_LM_HEADS,
    PREFIXES,
    UNUSED_TENSORS,
    Row,
    Table,
)
from ark_jax.runtime import storage
from ark_jax.runtime.accelerator import device_in_use, float_type
from ark_jax.runtime.distributed import is_first_process
from ark_jax.runtime.log import say

# Every file that a tokenizer may consist of; a saved model gets those that its base has.
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "sentencepiece.bpe.model",
    "added_tokens.json",
    "chat_template.jinja",
)


SENTENCE_SETTINGS = "config_sentence_transformers.json"  # of sentence-transformers and PyLate
_FLOAT_TYPES = ("F64", "F32", "F16", "BF16")  # that weights may have in a safetensors file
# All types that are written, in the order of their arrays in a file.
_TYPES = ("U64", "I64", "F64", "F32", "U32", "I32", "BF16", "F16", "U16", "I16", "I8", "U8", "BOOL")


def resolve(name_or_folder: str) -> Path:
    """Returns a local folder with the model's files.

    A local folder is returned as it is. A folder in a bucket is copied into the cache; the files of
    a hub name (weights, configs, tokenizer) are downloaded into the hub's cache. A hub name may end
    in `@REVISION`: a branch, a tag or a commit.

    Raises:
        FileNotFoundError: there is no such folder, and it is not a hub name.
    """
    folder = storage.local_copy(name_or_folder)
    if name_or_folder and folder.is_dir():
        return folder
    if not storage.is_hub_name(name_or_folder):
        raise FileNotFoundError(
            f"{name_or_folder or 'empty path'}: no such folder, and no hub name of the form "
            "owner/model or owner/model@REVISION"
        )
    return storage.hub_model(name_or_folder)


def read_config(folder: Path) -> dict:
    """The config.json of a model folder."""
    path = folder / "config.json"
    if not path.is_file():
        raise FileNotFoundError(
            f"{folder}: no config.json; give a Hugging Face model folder or hub name"
        )
    return read_json(path)


def read_json(path: Path, kind: type = dict):
    """The object in a JSON file, or the array for `kind=list`.

    Raises:
        ValueError: the file is not JSON, or holds another kind of value.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: not JSON ({error}); fetch the file again") from None
    if not isinstance(value, kind):
        raise ValueError(
            f"{path}: holds a {type(value).__name__}, not a {kind.__name__}; fetch the file again"
        )
    return value


def read_json_if_present(path: Path) -> dict:
    """The object in a JSON file; empty if there is no file."""
    return read_json(path) if path.is_file() else {}


def wrong_field(path: Path, name: str, admissible: str, value: object) -> ValueError:
    """The error that a file's field has a value that is not admissible."""
    return ValueError(
        f"{path}: {name} must be {admissible}, it is {repr(value)[:60]}; correct the field"
    )


def architecture(settings: dict):
    """(Config class, model class, weight-name table) for the settings of a config.json.

    Raises:
        ValueError: the architecture is not implemented.
    """
    model_type = settings.get("model_type")
    if model_type in decoder.FAMILIES:
        return decoder.Config, decoder.Decoder, DECODERS[model_type]
    if model_type in encoder.FAMILIES:
        return encoder.Config, encoder.Encoder, ENCODERS[model_type]
    known = ", ".join((*decoder.FAMILIES, *encoder.FAMILIES))
    raise ValueError(f"config.json: model_type {model_type!r} is not implemented; known: {known}")


class Checkpoint:
    """The files that hold a folder's weights, as transformers chooses them, as one table."""

    def __init__(self, folder: Path):
        self.folder = folder
        files = weight_files(folder)
        names_of = lambda file: _open_safetensors(file).keys()
        self._files = {name: file for file in files for name in names_of(file)}
        self._has_prefix = any(name.startswith(PREFIXES) for name in self._files)

    def names(self) -> set[str]:
        """The names of all tensors, as stored."""
        return set(self._files)

    def stored_name(self, name: str) -> str:
        """How this checkpoint spells a name of the weight-name table.

        The checkpoint of a bare model lacks the family's prefix, and BERT's first checkpoints have
        older suffixes.
        """
        if not self._has_prefix:
            prefix = next((prefix for prefix in PREFIXES if name.startswith(prefix)), "")
            name = name.removeprefix(prefix)
        for suffix, legacy in LEGACY_SUFFIXES.items():
            legacy_name = name.removesuffix(suffix) + legacy
            if name.endswith(suffix) and legacy_name in self._files:
                return legacy_name
        return name

    def require(self, name: str) -> None:
        """Raises ValueError if the checkpoint lacks a tensor."""
        if name not in self._files:
            raise ValueError(
                f"{self.folder}: tensor {name} is missing; the checkpoint is incomplete or of "
                "another architecture"
            )

    def slice(self, name: str):
        """A tensor that is read from disk as it is indexed.

        Each call opens the file anew: pages of a mapped file count as the process's memory until
        the mapping is closed, so they are released with the slice.
        """
        self.require(name)
        return _open_safetensors(self._files[name]).get_slice(name)

    def float_types(self) -> list[str]:
        """The floating-point types of the tensors, sorted."""
        types = {self.dtype(name) for name in self._files}
        return sorted(str(kind) for kind in types if jnp.issubdtype(kind, jnp.floating))

    def dtype(self, name: str) -> np.dtype:
        """The type in which a tensor is stored."""
        tensor = self.slice(name)
        return tensor[tuple(slice(0, 0) for _ in tensor.get_shape())].dtype


def weight_files(folder: Path) -> list[Path]:
    """The files that hold a folder's weights: the first that transformers would look for.

    A file in place of a folder is one of torch's own format.

    Raises:
        FileNotFoundError: there is none, or a shard is missing.
        ValueError: they are of torch's own format, and torch is not installed or refuses them.
    """
    if folder.is_file():
        return [torch_weights.convert([folder])]
    single, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    present, pickled = sorted(folder.glob("*.safetensors")), torch_weights.find(folder)
    if single.is_file():
        files, source = [single], single
    elif index.is_file():
        files, source = [folder / name for name in sorted(set(_weight_map(index).values()))], index
    elif pickled:
        return [torch_weights.convert(pickled)]
    else:
        hint = f" but {', '.join(file.name for file in present)}; rename the one that counts"
        raise FileNotFoundError(
            f"{folder}: no model.safetensors, nor its index"
            f"{hint if present else '; fetch the weights, or save them with transformers'}"
        )
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        raise FileNotFoundError(
            f"{folder}: no {missing[0]}, which {source.name} names; fetch it too"
        )
    if unread := ", ".join(file.name for file in [*present, *pickled] if file not in files):
        _say_once(f"{folder}: {source.name} is read, as by transformers, and not {unread}")
    return files


_say_once = functools.cache(say)


def _weight_map(index: Path) -> dict[str, str]:
    """The file of each tensor, as an index file lists them."""
    files = read_json(index).get("weight_map")
    if not isinstance(files, dict) or not all(isinstance(file, str) for file in files.values()):
        raise ValueError(f"{index}: no weight_map from tensors to files; fetch the file again")
    for file in files.values():
        check_inside(index, file)
    return files


def check_inside(file: Path, name: str) -> None:
    """Raises ValueError if `name`, which `file` gives, leads out of its folder."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\0" in name:
        raise ValueError(
            f"{file}: names {name[:80]!r}, which lies outside its folder; fetch the file again"
        )


def _open_safetensors(file: Path):
    """Opens a safetensors file and reads its header.

    Raises:
        ValueError: the file is truncated, or is not a safetensors file.
    """
    try:
        return safe_open(file, "numpy")
    except SafetensorError as error:
        raise ValueError(
            f"{file} ({file.stat().st_size:,} bytes): cut short or no safetensors file ({error}); "
            "fetch it again"
        ) from None


def load_model(
    name_or_folder: str,
    *,
    dtype: str = "float32",
    compute: str = "float32",
    attention: str = "auto",
    head: bool = True,
):
    """Reads a model folder, each device its own shards only.

    Args:
        dtype: type of the parameters; "auto" suits the device.
        compute: type of the activations; "auto" suits the device.
        attention: kernel, one of `kernels.KERNELS`.
        head: False leaves out a decoder's output head, as a retriever needs none.

    Returns:
        (model, config, extra_tensors). The last maps names to values of the tensors that the model
        does not compute with, so that an export is complete.

    Raises:
        ValueError: a tensor is missing, unexpected or misshapen, or config.json has an unsupported
            setting. The message names it.
    """
    folder = resolve(name_or_folder)
    cfg, model_class, table = read_architecture(
        folder, dtype=dtype, compute=compute, attention=attention
    )
    tied = getattr(cfg, "tied", False)
    if not head and model_class is decoder.Decoder:
        cfg = dataclasses.replace(cfg, tied=True)
    check_divides(cfg.dims, str(folder))
    checkpoint = Checkpoint(folder)
    model, used = read_module(model_class, cfg, table, checkpoint)
    unread = checkpoint.names() - used
    if tied:
        unread.discard("lm_head.weight")  # some writers store the embedding a second time
    return model, cfg, read_extra(checkpoint, unread, is_encoder=model_class is encoder.Encoder)


def read_module(
    new: Callable[..., Any], cfg, table: Table, checkpoint: Checkpoint
) -> tuple[Any, set[str]]:
    """A module with the checkpoint's weights, and the names of the tensors it was read from.

    Args:
        new: `new(cfg, rngs=...)` makes the module; only its shapes are used.
        cfg: has the sizes `dims`, the number of `layers` and the `dtype` of the parameters.
        table: a row of weight_names.py for each parameter.
    """
    parameters, tree = _outline(new, cfg)
    for name, _ in parameters:  # the last layer first: a config may promise a billion
        if table[name].first < cfg.layers:
            checkpoint.require(checkpoint.stored_name(table[name].name.format(l=cfg.layers - 1)))
    params: list[Any] = [None] * len(parameters)
    used: set[str] = set()
    # The largest first: reading a parameter takes twice its memory for a moment, which is then
    # less than what the rest will take.
    for i in sorted(range(len(parameters)), key=lambda i: -parameters[i][1]):
        row = table[parameters[i][0]]
        names = [checkpoint.stored_name(name) for name in row.names(cfg.layers)]
        used.update(names)
        params[i] = nnx.Param(_read_parameter(checkpoint, names, row, cfg))
    return jax.tree.unflatten(tree, params), used


@functools.lru_cache(maxsize=32)
def _outline(new: Callable[..., Any], cfg) -> tuple[tuple[tuple[str, int], ...], Any]:
    """(name, size) of each parameter that `new(cfg)` makes, and the tree that holds them.

    Kept, since it takes longer than to read a small model: a process loads the same sizes often.
    """
    abstract = jax.eval_shape(lambda: new(cfg, rngs=nnx.Rngs(0)))
    sizes = ((name, param.get_value().size) for name, param in named_parameters(abstract))
    return tuple(sizes), jax.tree.structure(abstract, is_leaf=_is_param)


def read_architecture(folder: Path, **options: str):
    """(config, model class, weight-name table); errors name the folder's config.json."""
    settings = read_config(folder)
    for name in options.keys() & {"dtype", "compute"}:
        options[name] = float_type(options[name], device_in_use())
    try:
        config_class, model_class, table = architecture(settings)
        return config_class.from_hf(settings, **options), model_class, table
    except KeyError as error:
        raise ValueError(
            f"{folder}/config.json: no {error}; a {settings['model_type']} checkpoint must say it"
        ) from None
    except ValueError as error:  # its message begins with config.json
        raise ValueError(f"{folder}/{error}") from None


def read_extra(
    checkpoint: Checkpoint, names: set[str], *, is_encoder: bool
) -> dict[str, np.ndarray]:
    """Reads tensors that the model does not compute with.

    Raises:
        ValueError: one of `names` is not known as unused.
    """
    patterns = UNUSED_TENSORS + (MASKED_LM_HEADS if is_encoder else ())
    known = [name for name in sorted(names) if any(fnmatch.fnmatch(name, p) for p in patterns)]
    extra_tensors = {name: checkpoint.slice(name)[...] for name in known}
    if names - set(known):
        raise ValueError(
            f"{checkpoint.folder}: tensors the architecture has no place for: "
            f"{', '.join(sorted(names)[:5])}"
        )
    return extra_tensors


def export(
    model, cfg, folder: Path, *, base: Path, extra_tensors: dict[str, np.ndarray], dtype: str = ""
) -> None:
    """Writes `model` as safetensors under the names and in the types of the checkpoint in `base`.

    Every process must call this, since arrays are gathered. Process 0 writes, in files of at most
    5 GB.

    Args:
        dtype: type of the written weights; empty keeps the checkpoint's types.
    """
    _, _, table = architecture(read_config(base))
    checkpoint = Checkpoint(base)
    is_float = lambda x: jnp.issubdtype(x.dtype, jnp.floating)
    tensors = {
        name: x.astype(dtype) if dtype and is_float(x) else x for name, x in extra_tensors.items()
    }
    for name, tensor in named_tensors(model, cfg, table).items():
        stored = checkpoint.stored_name(name)
        tensors[stored] = tensor.astype(dtype or checkpoint.dtype(stored), copy=False)
    write_tensors(tensors, folder)


def named_tensors(model, cfg, table: Table) -> dict[str, np.ndarray]:
    """Every parameter by its name in the table, in Hugging Face's shape; some are views.

    Every process must call this, since arrays are gathered.
    """
    parts: dict[str, dict[int, np.ndarray]] = {}
    for name, value in named_parameters(model):
        if name.startswith("dense_") and name not in table:
            continue  # a module after pooling, which sentence_folder.py writes
        row = table[name]
        source, target = row.letters.split("->")
        array = fetch(value[...])
        layers = array[row.first :] if "{l}" in row.name else [array]
        for expanded, layer in zip(row.names(cfg.layers), layers, strict=True):
            tensor = einops.rearrange(
                layer, f"{target} -> {source}", **_letter_sizes(source, cfg.dims)
            )
            parts.setdefault(expanded, {})[row.part] = tensor
    joined = {name: [x[i] for i in range(len(x))] for name, x in parts.items()}
    return {name: x[0] if len(x) == 1 else np.concatenate(x) for name, x in joined.items()}


def save_model(
    model,
    cfg,
    folder: Path,
    *,
    base: Path,
    extra_tensors: dict[str, np.ndarray],
    files: Sequence[str] = TOKENIZER_FILES,
    dtype: str = "",
) -> None:
    """Writes a folder that transformers opens: weights, config.json and the tokenizer.

    The weights are written by `export`; config.json and those of `files` that exist are copied from
    `base`. Every process must call this; process 0 writes.

    Raises:
        ValueError: `folder` is `base`, whose files are still in use.
    """
    if folder.resolve() == base.resolve():
        raise ValueError(f"{folder} is the folder this model was read from; give another")
    if is_first_process():
        folder.mkdir(parents=True, exist_ok=True)
    export(model, cfg, folder, base=base, extra_tensors=extra_tensors, dtype=dtype)
    if is_first_process():
        copy_files(base, folder, ("config.json", *files))
        if dtype:
            name_type(folder, dtype)


def cast_weights(folder: Path, base: Path, dtype: str) -> None:
    """Rewrites a folder's weights in `dtype`, or each in the type that it has in the folder `base`.

    A weight that `base` lacks keeps its type. config.json names the new type.
    """
    checkpoint, stored = Checkpoint(folder), Checkpoint(base)
    tensors = {name: checkpoint.slice(name)[...] for name in sorted(checkpoint.names())}
    types = {
        name: dtype or str(stored.dtype(name) if name in stored.names() else x.dtype)
        for name, x in tensors.items()
        if jnp.issubdtype(x.dtype, jnp.floating)
    }
    if any(tensors[name].dtype != kind for name, kind in types.items()):
        write_tensors({n: x.astype(types.get(n, x.dtype)) for n, x in tensors.items()}, folder)
        name_type(folder, dtype or read_config(base))


def name_type(folder: Path, source: str | dict) -> None:
    """Sets the type that config.json names, if it names one, to `source` or as that config has it.

    Transformers would round weights to the type that config.json names.
    """
    settings = read_config(folder)
    kind = lambda name: source if isinstance(source, str) else source.get(name, settings[name])
    settings |= {name: kind(name) for name in ("dtype", "torch_dtype") if name in settings}
    text = json.dumps(settings, indent=2) + "\n"
    (folder / "config.json").write_text(text, encoding="utf-8")


def copy_files(base: Path, folder: Path, names: Sequence[str]) -> None:
    """Copies those of the named files that `base` has."""
    for name in names:
        if (base / name).is_file():
            shutil.copyfile(base / name, folder / name)


@contextlib.contextmanager
def local_folder(folder: str | Path) -> Iterator[Path]:
    """Yields a local folder to write to: `folder` itself, or one that is uploaded to its bucket."""
    if "://" not in str(folder):
        yield Path(folder)
        return
    with tempfile.TemporaryDirectory() as local:
        yield Path(local)
        storage.upload(Path(local), str(folder))


def write_tensors(tensors: dict[str, np.ndarray], folder: Path, limit: int = 5_000_000_000) -> None:
    """Writes model.safetensors in process 0, or several files and their index.

    Those of an earlier export in `folder` are deleted.

    Args:
        tensors: name -> array.
        limit: bytes of a file; a larger tensor has a file of its own.
    """
    if not is_first_process():
        return
    folder.mkdir(parents=True, exist_ok=True)
    # An earlier export's index would be preferred to the new files.
    for stale in folder.glob("model*.safetensors*"):
        stale.unlink()
    shards = _split_into_shards(tensors, limit)
    if len(shards) == 1:
        _write_shard(shards[0], folder / "model.safetensors")
        return
    size = sum(x.nbytes for x in tensors.values())
    index: dict[str, dict] = {"metadata": {"total_size": size}, "weight_map": {}}
    for i, shard in enumerate(shards, 1):
        file = f"model-{i:05d}-of-{len(shards):05d}.safetensors"
        _write_shard(shard, folder / file)
        index["weight_map"] |= dict.fromkeys(shard, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")


def _split_into_shards(tensors: dict[str, np.ndarray], limit: int) -> list[dict[str, np.ndarray]]:
    """Cuts tensors by name into shards of at most `limit` bytes, or of one larger tensor."""
    shards: list[dict[str, np.ndarray]] = [{}]
    size = 0
    for name in sorted(tensors):
        if shards[-1] and size + tensors[name].nbytes > limit:
            shards.append({})
            size = 0
        shards[-1][name] = tensors[name]
        size += tensors[name].nbytes
    return shards


def _write_shard(shard: dict[str, np.ndarray], file: Path) -> None:
    """Writes a file of safetensors, an array at a time; the library would hold all twice more."""
    codes = {name: _type_code(array.dtype) for name, array in shard.items()}
    names = sorted(shard, key=lambda name: (_TYPES.index(codes[name]), name))
    header: dict[str, dict] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name in names:
        start, end = end, end + shard[name].nbytes
        place = {"shape": shard[name].shape, "data_offsets": (start, end)}
        header[name] = {"dtype": codes[name], **place}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    with file.open("wb") as out:
        out.write(len(text).to_bytes(8, "little") + text)
        for name in names:
            out.write(np.ascontiguousarray(shard[name]).reshape(-1).view(np.uint8).data)


def _type_code(dtype: np.dtype) -> str:
    """How a safetensors file names a type: float32 is F32, bfloat16 BF16, bool BOOL."""
    if dtype.name in ("bfloat16", "bool"):
        return {"bfloat16": "BF16", "bool": "BOOL"}[dtype.name]
    return f"{dtype.kind.upper()}{8 * dtype.itemsize}"


def named_parameters(model) -> list[tuple[str, nnx.Param]]:
    """(attribute, parameter) of every parameter, in tree order. All layers are stacked in one."""
    leaves = jax.tree_util.tree_leaves_with_path(model, is_leaf=_is_param)
    return [(getattr(path[-1], "name", None) or path[-1].key, leaf) for path, leaf in leaves]


def _is_param(leaf) -> bool:
    return isinstance(leaf, nnx.Param)


def _letter_sizes(side: str, dims: dict[str, int]) -> dict[str, int]:
    """The size of each letter on one side of a pattern."""
    return {letter: dims[letter] for part in groups(side) for letter in part}


def _read_parameter(checkpoint: Checkpoint, names: list[str], row: Row, cfg) -> jax.Array:
    """One parameter from its tensor, or, stacked, from the tensors of all layers.

    Each device reads the bytes of its own shard only, one tensor at a time. Layers without the
    tensor have ones.

    Raises:
        ValueError: a tensor has another type or shape than it should.
    """
    source, target = row.letters.split("->")
    dims, stack = cfg.dims, "{l}" in row.name
    rows, *other_sizes = shape_of(source, dims)
    for name in names:
        tensor = checkpoint.slice(name)
        if tensor.get_dtype() not in _FLOAT_TYPES:
            raise ValueError(
                f"{checkpoint.folder}: tensor {name} is of type {tensor.get_dtype()}, not one of "
                f"{', '.join(_FLOAT_TYPES)}; take a checkpoint that is not quantised"
            )
        stored, expected = tuple(tensor.get_shape()), (row.parts * rows, *other_sizes)
        if stored != expected:
            raise ValueError(
                f"{checkpoint.folder}: tensor {name} has shape {stored}, config.json says "
                f"{expected}; take the config.json of this checkpoint"
            )

    def read_shard(index: Any) -> np.ndarray:
        """The part of the parameter that `index`, a slice for each axis, selects."""
        letters = zip(target.split(), index[stack:], strict=True)
        cuts = {letter: slice(*cut.indices(dims[letter])) for letter, cut in letters}
        sizes = {letter: cut.stop - cut.start for letter, cut in cuts.items()}
        first, *region = _stored_region(source, cuts, dims)
        part = slice(first.start + row.part * rows, first.stop + row.part * rows)
        shard = np.ones((row.first + len(names), *sizes.values()), jnp.dtype(cfg.dtype))
        for i, name in enumerate(names, row.first):
            tensor = checkpoint.slice(name)[(part, *region)].astype(shard.dtype, copy=False)
            shard[i] = einops.rearrange(tensor, row.letters, **sizes)
        return shard if stack else shard[0]

    # A vector in the file is replicated, as `weight_spec` does with vectors.
    shape = shape_of(target, dims)
    spec = weight_spec(target) if len(groups(source)) > 1 else P(*[None] * len(shape))
    shape, spec = ((row.first + len(names), *shape), P(None, *spec)) if stack else (shape, spec)
    sharding = NamedSharding(jax.sharding.get_mesh(), spec)
    return jax.make_array_from_callback(shape, sharding, read_shard)


def _stored_region(source: str, cuts: dict[str, slice], dims: dict[str, int]) -> tuple[slice, ...]:
    """The slices of a stored tensor that hold a shard.

    A mesh cuts only the first letter of a group such as (n h), so each slice is contiguous.

    Args:
        source: letters of the stored tensor.
        cuts: the slice of each letter.
    """
    region = []
    for first, *letters in groups(source):
        rows = math.prod(dims[letter] for letter in letters)
        region.append(slice(cuts[first].start * rows, cuts[first].stop * rows))
    return tuple(region)
