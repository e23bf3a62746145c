"""The files that tell sentence-transformers how a model turns texts into vectors."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from ark_jax.models import decoder, hf

POOLINGS = ("mean", "cls", "lasttoken")
KINDS = ("query", "document")  # of texts; a Router has a route for each
# The legacy names, which every sentence-transformers version and text-embeddings-inference read.
_POOLING_KEYS = {
    "cls": "pooling_mode_cls_token",
    "mean": "pooling_mode_mean_tokens",
    "max": "pooling_mode_max_tokens",
    "mean_sqrt_len": "pooling_mode_mean_sqrt_len_tokens",
    "weightedmean": "pooling_mode_weightedmean_tokens",
    "lasttoken": "pooling_mode_lasttoken",
}
_CHAIN = ("Transformer", "Pooling", "Normalize")  # what turns a text into a vector, in this order
_MASK = "MultiVectorMask"  # instead of Pooling: every token keeps its vector
_TYPE = "sentence_transformers.models."  # in front of a module's name, in every version


@dataclasses.dataclass(frozen=True)
class ModelFiles:
    """One model of a sentence-transformers folder, with the settings that the folder gives it."""

    folder: Path  # of the weights, config.json and the tokenizer
    # "none": each token keeps its vector. None: a bare model, which declares no pooling.
    pooling: str | None
    prompts: dict[str, str]  # kind of text -> the text put in front of it
    width: int | None  # leading components of a vector that are kept; None keeps all


def read_model(folder: Path) -> ModelFiles:
    """The model of an ordinary folder, or of a bare Hugging Face folder.

    Raises:
        ValueError: a module is not implemented, or the folder holds two models.
    """
    prompts, width = read_prompts_and_width(folder)
    modules = _read_modules(folder)
    if modules and modules[0][0] == "Router":
        raise ValueError(
            f"{folder}/modules.json: a Router, which has a model for queries and one for "
            "documents; open it with ark_jax.DualEncoder.from_pretrained"
        )
    return ModelFiles(folder, _declared_pooling(folder, modules, "modules.json"), prompts, width)


def read_models(folder: Path) -> dict[str, ModelFiles]:
    """The model of each kind of text. An ordinary folder has the same for both.

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: a file or a module cannot be used. The message names it.
    """
    modules = _read_modules(folder)
    if not modules or modules[0][0] != "Router":
        return dict.fromkeys(KINDS, read_model(folder))
    prompts, width = read_prompts_and_width(folder)
    routes = _read_routes(folder, modules[0][1])
    models = {}
    for kind in KINDS:
        chain = routes[kind] + modules[1:]
        pooling = _declared_pooling(folder, chain, "router_config.json")
        if chain[0][0] != "Transformer" or not pooling:
            raise ValueError(
                f"{folder}/router_config.json: the route {kind!r} has the modules "
                f"{', '.join(name for name, _ in chain)}; it must begin with Transformer and have "
                "a Pooling"
            )
        models[kind] = ModelFiles(folder / chain[0][1], pooling, prompts, width)
    return models


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
                modules.append((_module_kind(kind, path, (*_CHAIN, _MASK, "Router")), place))
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
    kind = module_type.rsplit(".", 1)[-1]
    if kind not in known:
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
            (_module_kind(types[id], path, _CHAIN), PurePosixPath(router, id).as_posix())
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


def _declared_pooling(folder: Path, modules: Sequence[tuple[str, str]], file: str) -> str | None:
    """The pooling that the modules declare: "none" with a token mask, None without a Pooling.

    Args:
        modules: (kind, path) of each.
        file: name of the file that lists the modules, for messages.
    """
    for kind, path in modules:
        if kind == _MASK:
            _check_mask(folder / path / "config.json")
            return "none"
    poolings = [_read_pooling(folder, path, file) for kind, path in modules if kind == "Pooling"]
    return poolings[-1] if poolings else None


def _read_pooling(folder: Path, module: str, file: str) -> str:
    """The pooling that the configuration of a Pooling module selects."""
    name = PurePosixPath(module, "config.json").as_posix()
    if not (folder / name).is_file():
        raise FileNotFoundError(f"{folder}: no {name}, which {file} names; fetch it too")
    config = hf.read_json(folder / name)
    selected = [pooling for pooling, key in _POOLING_KEYS.items() if config.get(key) is True]
    selected = selected or [config.get("pooling_mode")]
    if len(selected) != 1 or selected[0] not in POOLINGS:
        raise ValueError(
            f"{folder}/{module}: pooling {selected} is not implemented; implemented: "
            f"{', '.join(POOLINGS)}"
        )
    if not config.get("include_prompt", True):
        raise ValueError(f"{folder}/{module}: include_prompt=false is not implemented")
    return selected[0]


def _check_mask(path: Path) -> None:
    """Refuses a MultiVectorMask that leaves out tokens."""
    for field in ("skiplist_words", "keep_only_token_ids"):
        if skipped := _read_json_if_present(path).get(field):
            raise ValueError(
                f"{path}: {field}={skipped} is not implemented; give a model that compares all "
                "tokens"
            )


def _read_json_if_present(path: Path) -> dict:
    """The object in a JSON file; empty if there is no file."""
    return hf.read_json(path) if path.is_file() else {}


def read_prompts_and_width(folder: Path) -> tuple[dict[str, str], int | None]:
    """The prompts and the vector width that a sentence-transformers folder declares."""
    path = folder / "config_sentence_transformers.json"
    settings = _read_json_if_present(path)
    prompts = settings.get("prompts") or {}
    if not isinstance(prompts, dict) or not all(isinstance(text, str) for text in prompts.values()):
        raise ValueError(
            f"{path}: prompts must map kinds to texts, it is {prompts!r}; correct the field"
        )
    width = settings.get("truncate_dim")
    if width is not None and type(width) is not int:
        raise ValueError(
            f"{path}: truncate_dim must be a number of components, it is {width!r}; "
            "correct the field"
        )
    return prompts, width


def prompt_for_kind(prompts: dict[str, str], kind: str) -> str:
    """The prompt of "query" or "document"; older models name the second one "passage"."""
    default = prompts.get("passage", "") if kind == "document" else ""
    return prompts.get(kind, default)


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
    path = folder / "sentence_bert_config.json"
    settings = _read_json_if_present(path)
    limit, lower = settings.get("max_seq_length"), settings.get("do_lower_case") or False
    if limit is not None and not (type(limit) is int and limit > 0):
        raise ValueError(
            f"{path}: max_seq_length must be a number of tokens, it is {limit!r}; correct the field"
        )
    if not isinstance(lower, bool):
        raise ValueError(
            f"{path}: do_lower_case must be true or false, it is {lower!r}; correct the field"
        )
    return limit, lower


def write_modules(folder: Path) -> None:
    """Writes modules.json of an ordinary folder, which holds the model itself."""
    paths = ("", *(f"{i}_{kind}" for i, kind in enumerate(_CHAIN) if i))
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": _TYPE + kind}
        for i, (path, kind) in enumerate(zip(paths, _CHAIN, strict=True))
    ]
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


def write_router(folder: Path) -> None:
    """Writes modules.json and router_config.json of a folder with a model for each kind of text."""
    modules = [{"idx": 0, "name": "0", "path": "", "type": f"{_TYPE}Router"}]
    _write_json(folder / "modules.json", modules)
    structure = {kind: [f"{kind}_{i}_{part}" for i, part in enumerate(_CHAIN)] for kind in KINDS}
    types = {id: _TYPE + id.rsplit("_", 1)[-1] for route in structure.values() for id in route}
    parameters = {"default_route": "document", "allow_empty_key": True}
    _write_json(
        folder / "router_config.json",
        {"types": types, "structure": structure, "parameters": parameters},
    )


def route_folder(folder: Path, kind: str, module: int) -> Path:
    """The folder of a module in the route of a kind: 0 Transformer, 1 Pooling, 2 Normalize."""
    return folder / f"{kind}_{module}_{_CHAIN[module]}"


def write_pooling(folder: Path, pooling: str, width: int) -> None:
    """Writes config.json of a Pooling module, for vectors of `width` components."""
    modes = {key: name == pooling for name, key in _POOLING_KEYS.items()}
    _write_json(
        folder / "config.json", {"word_embedding_dimension": width, **modes, "include_prompt": True}
    )


def write_text_limit(folder: Path, max_length: int, *, lower: bool) -> None:
    """Writes sentence_bert_config.json, with the most tokens of a text, to the model's folder."""
    _write_json(
        folder / "sentence_bert_config.json", {"max_seq_length": max_length, "do_lower_case": lower}
    )


def write_prompts_and_width(
    folder: Path, prompts: dict[str, str], width: int | None, *, multi_vector: bool = False
) -> None:
    """Writes the file that `read_prompts_and_width` reads; without `width`, all is kept."""
    _write_json(
        folder / "config_sentence_transformers.json",
        {
            "prompts": prompts,
            "default_prompt_name": None,
            **({"model_type": "MultiVectorEncoder"} if multi_vector else {}),
            "similarity_fn_name": "maxsim" if multi_vector else "cosine",
            **({"truncate_dim": width} if width else {}),
        },
    )


def _write_json(path: Path, value) -> None:
    """Writes `value` as JSON; makes the file's folder."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
