"""The files that tell sentence-transformers how a model turns texts into vectors."""

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from ark_jax.models import decoder, hf
from ark_jax.models.late_settings import (
    COLBERT,
    ENCODER,
    KINDS,
    LIMITS,
    METADATA,
    PYLATE,
    LateSettings,
    read_encoder_settings,
    read_late_settings,
)
from ark_jax.models.pooling import ACTIVATIONS, SIMILARITIES, TOKENS, Dense, VectorForm

# The legacy names, which every sentence-transformers version and text-embeddings-inference read, in
# the order in which concatenated poolings follow each other.
_POOLING_KEYS = {
    "cls": "pooling_mode_cls_token",
    "max": "pooling_mode_max_tokens",
    "mean": "pooling_mode_mean_tokens",
    "mean_sqrt_len_tokens": "pooling_mode_mean_sqrt_len_tokens",
    "weightedmean": "pooling_mode_weightedmean_tokens",
    "lasttoken": "pooling_mode_lasttoken",
}
# The attributes of pooling.Dense, and sentence-transformers' names.
_TENSORS = {
    "dense_weight": "linear.weight",
    "dense_bias": "linear.bias",
    "dense_residual": "residual.weight",
}
_MASK = "MultiVectorMask"  # instead of Pooling: every token keeps its vector
_MODULES = ("Transformer", "Pooling", "Dense", "Normalize", _MASK)
_ORDER = re.compile(
    rf"Transformer( Pooling( Dense)*( Normalize)*|( Dense)*( Normalize)?( {_MASK}( Normalize)?)?)"
)
_TYPE = "sentence_transformers.models."  # in front of a module's name, in every version
_PYLATE_DENSE = "pylate.models.Dense.Dense"  # projects each token
_ENCODER_TYPES = {  # of a MultiVectorEncoder
    "Transformer": "base.modules.transformer.Transformer",
    "Dense": "base.modules.dense.Dense",
    _MASK: f"multi_vector_encoder.modules.multi_vector_mask.{_MASK}",
    "Normalize": "base.modules.normalize.Normalize",
}
IDENTITY, RELU = "torch.nn.modules.linear.Identity", "torch.nn.modules.activation.ReLU"
# BGE-M3's layers for vectors of tokens and for their weights, beside its model.
TOKEN_HEAD, LEXICAL_HEAD = "colbert_linear.pt", "sparse_linear.pt"
_OTHER_TOKENS = ("tokenizer_name_or_path", "processing_kwargs")
_OTHER_LENGTHS = ("query_length", "document_length", "query_expansion")
# Where versions and families keep max_seq_length and do_lower_case.
_FAMILIES = ("roberta", "distilbert", "xlm-roberta")
_LIMITS = (LIMITS, *(f"sentence_{family}_config.json" for family in _FAMILIES))


@dataclasses.dataclass(frozen=True)
class Settings:
    """What config_sentence_transformers.json says of a folder's vectors."""

    prompts: dict[str, str]  # name, such as a kind of text -> the text put in front of it
    default_prompt: str | None  # name of the prompt of `SentenceTransformer.encode`
    width: int | None  # leading components of a vector that are kept; None keeps all
    similarity: str  # one of pooling.SIMILARITIES


@dataclasses.dataclass(frozen=True)
class ModelFiles:
    """One model of a sentence-transformers folder, with the settings that the folder gives it."""

    folder: Path  # of the weights, config.json and the tokenizer
    # (TOKENS,): each token keeps its vector. None: a bare model, which declares no pooling.
    poolings: tuple[str, ...] | None
    include_prompt: bool
    # Folder, or file, and activation of each Dense module, and whether it is a residual.
    dense: tuple[tuple[Path, str, bool], ...]
    normalised: bool
    settings: Settings
    late: LateSettings | None = None  # of a ColBERT's


def read_model(folder: Path) -> ModelFiles:
    """The model of an ordinary folder, or of a bare Hugging Face folder.

    Raises:
        ValueError: a module is not implemented, or the folder holds two models.
    """
    modules = _read_modules(folder)
    if not modules and (late := read_late_settings(folder)):
        parts = (TOKENS,), True, ((folder, IDENTITY, False),), True
        return ModelFiles(folder, *parts, read_settings(folder), late)
    if modules and modules[0][0] == "Router":
        raise ValueError(
            f"{folder}/modules.json: a Router, which has a model for queries and one for "
            "documents; open it with ark_jax.DualEncoder.from_pretrained"
        )
    return _model_of(folder, modules or [("Transformer", "")], "modules.json", is_bare=not modules)


def read_models(folder: Path) -> dict[str, ModelFiles]:
    """The model of each kind of text. An ordinary folder has the same for both.

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: a file or a module cannot be used. The message names it.
    """
    modules = _read_modules(folder)
    if not modules or modules[0][0] != "Router":
        return dict.fromkeys(KINDS, read_model(folder))
    routes = _read_routes(folder, modules[0][1])
    models = {}
    for kind in KINDS:
        models[kind] = _model_of(folder, routes[kind] + modules[1:], "router_config.json")
        if not models[kind].poolings:
            raise ValueError(f"{folder}/router_config.json: the route {kind!r} has no Pooling")
    return models


def weights_folder(folder: Path) -> Path:
    """The folder of the weights, config.json and tokenizer that embed documents."""
    return read_models(folder)["document"].folder


def _model_of(
    folder: Path, modules: Sequence[tuple[str, str]], file: str, *, is_bare: bool = False
) -> ModelFiles:
    """The model that a chain of modules makes.

    Args:
        modules: (kind, path) of each.
        file: name of the file that lists the modules, for messages.
    """
    chain = " ".join(kind for kind, _ in modules)
    if not _ORDER.fullmatch(chain):
        raise ValueError(
            f"{folder}/{file}: the modules {chain.replace(' ', ', ')} in this order are not "
            "implemented; they must be Transformer, Pooling, any Dense, and perhaps Normalize"
        )
    late = read_late_settings(folder)
    root, is_masked = dict(modules)["Transformer"] == "", _MASK in chain
    if bool(late) != ("Transformer Dense" in chain and not is_masked) or (late and not root):
        raise ValueError(
            f"{folder}/{file}: {chain.replace(' ', ', ')} {'and' if late else 'without'} the "
            "settings of a ColBERT; give a folder that PyLate wrote"
        )
    places = {kind: [folder / path for name, path in modules if name == kind] for kind in _MODULES}
    poolings: tuple[str, ...] | None = None
    include_prompt = True
    if is_masked:
        _check_normalize(folder, file, places["Normalize"])
        late = read_encoder_settings(places["Transformer"][0], places[_MASK][0])
    else:
        _refuse_limits(places["Transformer"][0], _OTHER_LENGTHS)
    if late:
        poolings = (TOKENS,)
    if places["Pooling"]:
        poolings, include_prompt = _read_pooling(folder, dict(modules)["Pooling"], file)
    return ModelFiles(
        places["Transformer"][0],
        poolings,
        include_prompt,
        tuple(
            (place, *_read_activation(place / "config.json", of_tokens=late is not None))
            for place in places["Dense"]
        ),
        bool(places["Normalize"]) or is_bare or late is not None,
        read_settings(folder),
        late,
    )


def _read_modules(folder: Path) -> list[tuple[str, str]]:
    """(kind, path) of each module that modules.json lists; empty for a bare model."""
    path = folder / "modules.json"
    if not path.is_file():
        return []
    modules = []
    for module in hf.read_json(path, list):
        match module:
            case {"type": str(kind), "path": str(place)}:
                hf.check_inside(path, place)
                modules.append((_module_kind(kind, path, (*_MODULES, "Router")), place))
            case _:
                raise ValueError(f"{path}: {module} has no type or no path; fetch the file again")
    if "Router" in [kind for kind, _ in modules[1:]]:
        raise ValueError(f"{path}: a Router after another module is not implemented")
    return modules


def _module_kind(module_type: str, path: Path, known: Sequence[str]) -> str:
    """The last part of a module's type, such as Pooling; versions differ in what precedes it.

    Raises:
        ValueError: the kind is not in `known`. The message names `path`.
    """
    if module_type == _PYLATE_DENSE:
        return "Dense"
    package, _, kind = module_type.rpartition(".")
    if kind not in known or package.partition(".")[0] != "sentence_transformers":
        raise ValueError(f"{path}: module {module_type} is not implemented")
    return kind


def _read_routes(folder: Path, router: str) -> dict[str, list[tuple[str, str]]]:
    """For each kind of text, (kind, path) of the modules of its route.

    Args:
        router: path of the Router within `folder`.
    """
    path = folder / router / "router_config.json"
    if not path.is_file():
        raise FileNotFoundError(
            f"{folder}: no {PurePosixPath(router, path.name)}, which modules.json names; fetch it "
            "too"
        )
    settings = hf.read_json(path)
    types, structure = (settings.get(name) for name in ("types", "structure"))
    if not _are_valid_routes(types, structure):
        raise ValueError(f"{path}: no types or no structure of modules; fetch the file again")
    if missing := [kind for kind in KINDS if kind not in structure]:
        raise ValueError(
            f"{path}: no route {missing[0]!r} but {', '.join(map(repr, structure)) or 'none'}; "
            "give a model with the routes 'query' and 'document'"
        )
    for module in types:
        hf.check_inside(path, module)
    return {
        kind: [
            (_module_kind(types[id], path, _MODULES), PurePosixPath(router, id).as_posix())
            for id in structure[kind]
        ]
        for kind in KINDS
    }


def _are_valid_routes(types, structure) -> bool:
    """Whether `types` maps module names to types, and `structure` routes to lists of such names."""
    if not (isinstance(types, dict) and isinstance(structure, dict)):
        return False
    routes = list(structure.values())
    return all(isinstance(kind, str) for kind in types.values()) and all(
        isinstance(route, list) and route and all(id in types for id in route) for route in routes
    )


def _read_pooling(folder: Path, module: str, file: str) -> tuple[tuple[str, ...], bool]:
    """The poolings that a Pooling module selects, and its include_prompt."""
    name = PurePosixPath(module, "config.json").as_posix()
    if not (folder / name).is_file():
        raise FileNotFoundError(f"{folder}: no {name}, which {file} names; fetch it too")
    config = hf.read_json(folder / name)
    modes = config.get("pooling_mode")  # of version 6; it counts, where both are present
    if modes is None:
        modes = [mode for mode, key in _POOLING_KEYS.items() if config.get(key) is True] or "mean"
    modes = [modes] if isinstance(modes, str) else modes
    if not isinstance(modes, list) or not modes or not all(mode in _POOLING_KEYS for mode in modes):
        raise ValueError(
            f"{folder}/{module}: pooling {modes} is not implemented; implemented: "
            f"{', '.join(_POOLING_KEYS)}"
        )
    include_prompt = config.get("include_prompt", True)
    if not isinstance(include_prompt, bool):
        raise hf.wrong_field(folder / name, "include_prompt", "true or false", include_prompt)
    return tuple(modes), include_prompt


def _read_activation(path: Path, *, of_tokens: bool) -> tuple[str, bool]:
    """The activation that config.json of a Dense module names, and whether it is a residual.

    Args:
        of_tokens: whether it projects each token.

    Raises:
        ValueError: it is not implemented, or another field is not.
    """
    config = hf.read_json_if_present(path)
    activation = config.get("activation_function", "torch.nn.modules.activation.Tanh")
    if activation not in ACTIVATIONS:
        names = ", ".join(name.rpartition(".")[2] for name in ACTIVATIONS)
        raise hf.wrong_field(path, "activation_function", f"one of torch's {names}", activation)
    projected = "token_embeddings" if of_tokens else "sentence_embedding"
    for name in ("module_input_name", "module_output_name"):
        if config.get(name) not in (None, projected):
            raise hf.wrong_field(path, name, projected, config[name])
    return activation, bool(config.get("use_residual"))


def read_dense(place: Path, size: int, dtype: str, *, has_residual: bool = False) -> Dense:
    """The layer of a Dense module, or of ColBERT v2's weights, for vectors of `size` components.

    Args:
        place: the folder, or the file of one of BGE-M3's heads.
        has_residual: whether the module adds its input, which it multiplies if sizes differ.

    Raises:
        FileNotFoundError, ValueError: weights are missing, or have another shape.
    """
    checkpoint, name = hf.Checkpoint(place), dense_weight(place)
    checkpoint.require(name)
    names = (name, name.replace("weight", "bias"), "residual.weight")
    stored = checkpoint.names().intersection(names)
    arrays = {x: checkpoint.slice(x)[...].astype(dtype) for x in stored}
    weight, bias, residual = arrays[name], arrays.get(names[1]), arrays.get(names[2])
    shape = (len(weight), size)
    if has_residual and size != len(weight):
        checkpoint.require("residual.weight")
    for x, array in arrays.items():
        if array.shape != shape[: array.ndim] or (array.ndim == 1) != (x == names[1]):
            raise ValueError(
                f"{place}: tensor {x} has shape {array.shape}, the modules before it give "
                f"vectors of {size} components; take the files of one model"
            )
    return Dense(weight, bias, residual if has_residual else None)


def dense_weight(place: Path) -> str:
    """The name of a Dense module's weight: BGE-M3's files hold a bare layer."""
    return "weight" if place.is_file() else "linear.weight"


def _check_normalize(folder: Path, file: str, places: Sequence[Path]) -> None:
    """Refuses a model whose token vectors have another length than 1."""
    if not places:
        raise ValueError(
            f"{folder}/{file}: {_MASK} without Normalize is not implemented: tokens would be "
            "ranked by their lengths, too"
        )
    for path in (place / "config.json" for place in places):
        name = hf.read_json_if_present(path).get("module_input_name")
        if name != "token_embeddings":
            raise hf.wrong_field(path, "module_input_name", "token_embeddings", name)


def read_width(model: ModelFiles) -> int:
    """The components of a vector before it is narrowed."""
    if model.dense:
        place = model.dense[-1][0]
        return hf.Checkpoint(place).slice(dense_weight(place)).get_shape()[0]
    return hf.read_architecture(model.folder)[0].width * len(model.poolings or (TOKENS,))


def read_settings(folder: Path) -> Settings:
    """The prompts, width and similarity that a sentence-transformers folder declares."""
    path = folder / hf.SENTENCE_SETTINGS
    settings = hf.read_json_if_present(path)
    prompts = settings.get("prompts") or {}
    texts = prompts.values() if isinstance(prompts, dict) else [0]
    if not all(isinstance(text, str | None) for text in texts):
        raise hf.wrong_field(path, "prompts", "a map from kinds to texts", prompts)
    default = settings.get("default_prompt_name")
    if default not in (None, *prompts, *KINDS):
        raise hf.wrong_field(path, "default_prompt_name", f"one of {list(prompts)}", default)
    width = settings.get("truncate_dim")
    if width is not None and type(width) is not int:
        raise hf.wrong_field(path, "truncate_dim", "a number of components", width)
    similarity = settings.get("similarity_fn_name") or "cosine"
    if similarity == "MaxSim":  # PyLate's spelling
        similarity = "maxsim"
    if similarity not in (*SIMILARITIES, "maxsim"):
        admissible = "cosine or dot: texts would be ranked otherwise"
        raise hf.wrong_field(path, "similarity_fn_name", admissible, similarity)
    prompts = {name: text or "" for name, text in prompts.items()}
    return Settings(prompts, default, width, "cosine" if similarity == "maxsim" else similarity)


def prompt_for_kind(prompts: Mapping[str, str], kind: str) -> str:
    """The prompt of "query" or "document"; older models name the second one otherwise."""
    names = ("document", "passage", "corpus") if kind == "document" else (kind,)
    return next((prompts[name] for name in names if name in prompts), "")


def read_max_length(folder: Path, tokenizer) -> int:
    """The most tokens of a text that the model reads, prompt and special tokens included."""
    settings = hf.read_config(folder)
    kind, _, _ = hf.architecture(settings)
    positions = (
        settings.get("max_position_embeddings", 512)
        if kind is decoder.Config
        else kind.from_hf(settings).max_length
    )
    # Version 6 of sentence-transformers stores the limit with the tokenizer.
    return min(read_text_limit(folder)[0] or tokenizer.model_max_length, positions)


def read_text_limit(folder: Path) -> tuple[int | None, bool]:
    """(max_seq_length, do_lower_case) of a folder; None and False if they are not declared."""
    path, settings = _refuse_limits(folder, _OTHER_TOKENS)
    limit, lower = settings.get("max_seq_length"), settings.get("do_lower_case") or False
    if limit is not None and not (type(limit) is int and limit > 0):
        raise hf.wrong_field(path, "max_seq_length", "a number of tokens", limit)
    if not isinstance(lower, bool):
        raise hf.wrong_field(path, "do_lower_case", "true or false", lower)
    if late := read_late_settings(folder):  # PyLate stores the limit of what it read last
        limit = late.document_length
    return limit, lower


def _refuse_limits(folder: Path, names: Sequence[str]) -> tuple[Path, dict]:
    """The file that limits texts, and its fields, none of which may be one of `names`."""
    path = next((folder / x for x in _LIMITS if (folder / x).is_file()), folder / LIMITS)
    settings = hf.read_json_if_present(path)
    for name in names:
        if settings.get(name):
            raise hf.wrong_field(path, name, "absent: texts would be cut otherwise", settings[name])
    return path, settings


def module_names(form: VectorForm, late: LateSettings | None = None) -> list[str]:
    """The modules that turn a text into a vector of this form, in their order."""
    dense = ["Dense"] * len(form.activations)
    if late:
        return ["Transformer", *dense, *[_MASK, "Normalize"] * (late.layout != PYLATE)]
    return ["Transformer", "Pooling", *dense, *["Normalize"] * form.normalised]


def write_modules(folder: Path, form: VectorForm, late: LateSettings | None = None) -> None:
    """Writes modules.json of a folder without a Router, which holds the model itself."""
    types: dict[str, str] = {}
    if late and late.layout == PYLATE:
        types = {"Dense": _PYLATE_DENSE}
    elif late:
        types = {kind: f"sentence_transformers.{name}" for kind, name in _ENCODER_TYPES.items()}
    row = lambda i, kind: {"idx": i, "name": str(i), "path": f"{i}_{kind}" if i else ""}
    names = enumerate(module_names(form, late))
    modules = [row(i, kind) | {"type": types.get(kind, _TYPE + kind)} for i, kind in names]
    _write_json(folder / "modules.json", modules)


def write_late_files(
    folder: Path, base: Path, settings: Settings, late: LateSettings, form: VectorForm
) -> None:
    """Writes the settings of a model with vectors of tokens, whose weights are written.

    Args:
        base: the folder that the model was read from.

    Raises:
        ValueError: ColBERT v2 has no place for prompts.
    """
    if late.layout != COLBERT:
        write_modules(folder, form, late)
        named = {"model_type": "MultiVectorEncoder", "similarity_fn_name": "maxsim"}
        if late.layout == PYLATE:
            others = ("skiplist_tasks", "layout")
            stored = {name: value for name, value in vars(late).items() if name not in others}
            named = stored | {"model_type": "ColBERT", "similarity_fn_name": "MaxSim"}
        write_settings(folder, settings, named)
        return
    if any(settings.prompts.values()):
        raise ValueError(f"{folder}: {METADATA} has no place for prompts; give none")
    hf.copy_files(base, folder, (METADATA,))


def write_router(folder: Path, forms: Mapping[str, VectorForm]) -> None:
    """Writes modules.json and router_config.json of a folder with a model for each kind of text."""
    modules = [{"idx": 0, "name": "0", "path": "", "type": f"{_TYPE}Router"}]
    _write_json(folder / "modules.json", modules)
    structure = {
        kind: [f"{kind}_{i}_{part}" for i, part in enumerate(module_names(form))]
        for kind, form in forms.items()
    }
    types = {id: _TYPE + id.rsplit("_", 1)[-1] for route in structure.values() for id in route}
    parameters = {"default_route": "document", "allow_empty_key": True}
    _write_json(
        folder / "router_config.json",
        {"types": types, "structure": structure, "parameters": parameters},
    )


def route_folder(folder: Path, kind: str) -> Path:
    """The folder of the model in the route of a kind."""
    return folder / f"{kind}_0_Transformer"


def write_vector_modules(
    folder: Path,
    prefix: str,
    form: VectorForm,
    size: int,
    dense: Sequence[Dense],
    late: LateSettings | None = None,
) -> None:
    """Writes the folders of the modules after Transformer, for hidden states of `size` components.

    Weights of Dense, which are few, are float32.

    Args:
        prefix: in front of the folders' names: empty, or the kind of a Router's route.
    """
    residuals = form.residuals or [False] * len(form.activations)
    layers = iter(zip(dense, form.activations, residuals, strict=True))
    tokens: dict[str, Any] = {}
    if late and late.layout != PYLATE:
        tokens = dict.fromkeys(("module_input_name", "module_output_name"), "token_embeddings")
    for i, kind in enumerate(module_names(form, late)[1:], 1):
        place = folder / f"{prefix}{i}_{kind}"
        place.mkdir(exist_ok=True)
        if kind == "Normalize" and tokens:
            _write_json(place / "config.json", tokens)
        if kind == _MASK and late:
            names = ("skiplist_words", "skiplist_tasks")
            _write_json(place / "config.json", {name: getattr(late, name) for name in names})
        if kind == "Pooling":
            modes = {key: name in form.poolings for name, key in _POOLING_KEYS.items()}
            config: dict[str, Any] = {"word_embedding_dimension": size, **modes}
            order = [name for name in _POOLING_KEYS if name in form.poolings]
            if order != list(form.poolings):  # the legacy keys have an order of their own
                config["pooling_mode"] = list(form.poolings)
            _write_json(place / "config.json", config | {"include_prompt": form.include_prompt})
        if kind == "Dense":
            layer, activation, has_residual = next(layers)
            tensors = {
                _TENSORS[name]: np.asarray(x[...].addressable_data(0), "float32")
                for name, x in hf.named_parameters(layer)
            }
            rows, columns = tensors["linear.weight"].shape
            config = {"in_features": columns, "out_features": rows, **tokens}
            config |= {"bias": layer.dense_bias is not None, "activation_function": activation}
            config |= {"use_residual": True} if has_residual else {}
            _write_json(place / "config.json", config)
            hf.write_tensors(tensors, place)


def write_text_limit(
    folder: Path, max_length: int, *, lower: bool, late: LateSettings | None = None
) -> None:
    """Writes sentence_bert_config.json, with the most tokens of a text, to the model's folder."""
    limits: dict[str, Any] = {"max_seq_length": max_length, "do_lower_case": lower}
    if late and late.layout == ENCODER:
        lengths = late.query_length, late.document_length, late.expansion
        limits |= {name: x for name, x in zip(_OTHER_LENGTHS, lengths, strict=True) if x}
    _write_json(folder / LIMITS, limits)


def write_settings(folder: Path, settings: Settings, others: Mapping[str, Any] = {}) -> None:
    """Writes the file that `read_settings` reads, and `others`; without a width, all is kept."""
    prompts = dict(settings.prompts)
    # Version 6 of sentence-transformers overlooks the older names of a document's prompt.
    if (prompt := prompt_for_kind(prompts, "document")) and "document" not in prompts:
        prompts["document"] = prompt
    _write_json(
        folder / hf.SENTENCE_SETTINGS,
        {
            "prompts": prompts,
            "default_prompt_name": settings.default_prompt,
            "similarity_fn_name": settings.similarity,
            **({"truncate_dim": settings.width} if settings.width else {}),
            **others,
        },
    )


def _write_json(path: Path, value) -> None:
    """Writes `value` as JSON; makes the file's folder."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
