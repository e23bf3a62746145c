"""The files that tell sentence-transformers how a model turns texts into vectors."""

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from ark_jax.models import decoder, hf
from ark_jax.models.late_settings import METADATA, PYLATE, LateSettings, read_late_settings
from ark_jax.models.pooling import ACTIVATIONS, SIMILARITIES, TOKENS, Dense, VectorForm

KINDS = ("query", "document")  # of texts; a Router has a route for each
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
_MASK = "MultiVectorMask"  # instead of Pooling: every token keeps its vector
_MODULES = ("Transformer", "Pooling", "Dense", "Normalize", _MASK)
_ORDER = re.compile(rf"Transformer( Pooling( Dense)*|( Dense)+| {_MASK})?( Normalize)*")
_TYPE = "sentence_transformers.models."  # in front of a module's name, in every version
_PYLATE_DENSE = "pylate.models.Dense.Dense"  # projects each token
_IDENTITY = "torch.nn.modules.linear.Identity"
_OTHER_TOKENS = ("tokenizer_name_or_path", "query_length", "document_length", "query_expansion")
# Where versions and families keep max_seq_length and do_lower_case.
_FAMILIES = ("bert", "roberta", "distilbert", "xlm-roberta")
_LIMITS = tuple(f"sentence_{family}_config.json" for family in _FAMILIES)


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
    dense: tuple[tuple[Path, str], ...]  # folder and activation of each Dense module
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
        parts = (TOKENS,), True, ((folder, _IDENTITY),), True
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
    root = dict(modules)["Transformer"] == ""
    if bool(late) != ("Transformer Dense" in chain) or (late and not root):
        raise ValueError(
            f"{folder}/{file}: {chain.replace(' ', ', ')} {'and' if late else 'without'} the "
            "settings of a ColBERT; give a folder that PyLate wrote"
        )
    places = {kind: [folder / path for name, path in modules if name == kind] for kind in _MODULES}
    poolings: tuple[str, ...] | None = None
    include_prompt = True
    if places[_MASK]:
        _check_mask(places[_MASK][0] / "config.json")
    if late or places[_MASK]:
        poolings = (TOKENS,)
    if places["Pooling"]:
        poolings, include_prompt = _read_pooling(folder, dict(modules)["Pooling"], file)
    return ModelFiles(
        places["Transformer"][0],
        poolings,
        include_prompt,
        tuple(
            (place, _read_activation(place / "config.json", of_tokens=late is not None))
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


def _read_activation(path: Path, *, of_tokens: bool) -> str:
    """The activation that config.json of a Dense module names.

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
    if config.get("use_residual"):
        raise hf.wrong_field(path, "use_residual", "false: the residual would be left out", True)
    return activation


def read_dense(folder: Path, size: int, dtype: str) -> Dense:
    """The layer of a Dense module, or of ColBERT v2's weights, for vectors of `size` components.

    Raises:
        FileNotFoundError, ValueError: weights are missing, or have another shape.
    """
    checkpoint = hf.Checkpoint(folder)
    checkpoint.require("linear.weight")
    names = checkpoint.names() & {"linear.weight", "linear.bias"}
    values = {name: checkpoint.slice(name)[...].astype(dtype) for name in names}
    weight, bias = values["linear.weight"], values.get("linear.bias")
    if weight.shape[1:] != (size,) or (bias is not None and bias.shape != weight.shape[:1]):
        raise ValueError(
            f"{folder}: tensor linear.weight has shape {weight.shape}, the modules before it give "
            f"vectors of {size} components; take the files of one model"
        )
    return Dense(weight, bias)


def _check_mask(path: Path) -> None:
    """Refuses a MultiVectorMask that leaves out tokens."""
    for field in ("skiplist_words", "keep_only_token_ids"):
        if skipped := hf.read_json_if_present(path).get(field):
            raise hf.wrong_field(path, field, "empty: all tokens are compared", skipped)


def read_width(model: ModelFiles) -> int:
    """The components of a vector before it is narrowed."""
    if model.dense:
        return hf.Checkpoint(model.dense[-1][0]).slice("linear.weight").get_shape()[0]
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
    path = next((folder / x for x in _LIMITS if (folder / x).is_file()), folder / _LIMITS[0])
    settings = hf.read_json_if_present(path)
    limit, lower = settings.get("max_seq_length"), settings.get("do_lower_case") or False
    if limit is not None and not (type(limit) is int and limit > 0):
        raise hf.wrong_field(path, "max_seq_length", "a number of tokens", limit)
    if not isinstance(lower, bool):
        raise hf.wrong_field(path, "do_lower_case", "true or false", lower)
    for name in (*_OTHER_TOKENS, "processing_kwargs"):
        if settings.get(name):
            raise hf.wrong_field(path, name, "absent: texts would be cut otherwise", settings[name])
    if late := read_late_settings(folder):  # PyLate stores the limit of what it read last
        limit = late.document_length
    return limit, lower


def module_names(form: VectorForm) -> list[str]:
    """The modules that turn a text into a vector of this form, in their order."""
    dense = ["Dense"] * len(form.activations)
    if form.poolings == (TOKENS,):
        return ["Transformer", *dense]  # of PyLate
    return ["Transformer", "Pooling", *dense, *["Normalize"] * form.normalised]


def write_modules(folder: Path, form: VectorForm) -> None:
    """Writes modules.json of an ordinary folder or PyLate's, which holds the model itself."""
    types = {"Dense": _PYLATE_DENSE} if form.poolings == (TOKENS,) else {}
    row = lambda i, kind: {"idx": i, "name": str(i), "path": f"{i}_{kind}" if i else ""}
    names = enumerate(module_names(form))
    modules = [row(i, kind) | {"type": types.get(kind, _TYPE + kind)} for i, kind in names]
    _write_json(folder / "modules.json", modules)


def write_multi_vector_modules(folder: Path) -> None:
    """Writes modules.json of a model that keeps a vector for each token, and its modules."""
    modules = {
        "": "base.modules.transformer.Transformer",
        f"1_{_MASK}": f"multi_vector_encoder.modules.multi_vector_mask.{_MASK}",
        "2_Normalize": "base.modules.normalize.Normalize",
    }
    rows = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.{kind}"}
        for i, (path, kind) in enumerate(modules.items())
    ]
    _write_json(folder / "modules.json", rows)
    _write_json(folder / f"1_{_MASK}" / "config.json", {"skiplist_words": []})
    tokens = dict.fromkeys(("module_input_name", "module_output_name"), "token_embeddings")
    _write_json(folder / "2_Normalize" / "config.json", tokens)


def write_late_files(
    folder: Path, base: Path, settings: Settings, late: LateSettings, form: VectorForm
) -> None:
    """Writes the settings of PyLate's or ColBERT v2's folder, whose weights are written.

    Args:
        base: the folder that the model was read from, in the same layout.

    Raises:
        ValueError: ColBERT v2 has no place for prompts.
    """
    if late.layout == PYLATE:
        write_modules(folder, form)
        stored = {name: value for name, value in vars(late).items() if name != "layout"}
        named = {"model_type": "ColBERT", "similarity_fn_name": "MaxSim"}
        write_settings(folder, settings, stored | named)
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
    folder: Path, prefix: str, form: VectorForm, size: int, dense: Sequence[Dense]
) -> None:
    """Writes the folders of the modules after Transformer, for hidden states of `size` components.

    Weights of Dense, which are few, are float32.

    Args:
        prefix: in front of the folders' names: empty, or the kind of a Router's route.
    """
    layers = iter(zip(dense, form.activations, strict=True))
    for i, kind in enumerate(module_names(form)[1:], 1):
        place = folder / f"{prefix}{i}_{kind}"
        place.mkdir(exist_ok=True)
        if kind == "Pooling":
            modes = {key: name in form.poolings for name, key in _POOLING_KEYS.items()}
            config: dict[str, Any] = {"word_embedding_dimension": size, **modes}
            order = [name for name in _POOLING_KEYS if name in form.poolings]
            if order != list(form.poolings):  # the legacy keys have an order of their own
                config["pooling_mode"] = list(form.poolings)
            _write_json(place / "config.json", config | {"include_prompt": form.include_prompt})
        if kind == "Dense":
            layer, activation = next(layers)
            tensors = {
                name.replace("dense_", "linear."): np.asarray(x[...].addressable_data(0), "float32")
                for name, x in hf.named_parameters(layer)
            }
            rows, columns = tensors["linear.weight"].shape
            sizes = {"in_features": columns, "out_features": rows, "bias": len(tensors) == 2}
            _write_json(place / "config.json", sizes | {"activation_function": activation})
            hf.write_tensors(tensors, place)


def write_text_limit(folder: Path, max_length: int, *, lower: bool) -> None:
    """Writes sentence_bert_config.json, with the most tokens of a text, to the model's folder."""
    _write_json(
        folder / "sentence_bert_config.json", {"max_seq_length": max_length, "do_lower_case": lower}
    )


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
