"""The conditions under which text-embeddings-inference serves a local folder.

Restated from version 1.8: router/src/lib.rs (the configs it parses, pooling, length),
backends/candle/src/lib.rs (architectures, weight files) and backends/candle/src/models/ (config
fields, tensor names and shapes). Covers what it serves on a CPU, of the architectures that ark_jax
has.
"""

import json
from pathlib import Path

from safetensors import safe_open
from tokenizers import Tokenizer

COUNT, NUMBER, FLAG = "a whole number of 0 or more", "a number", "true or false"
_BERT = dict.fromkeys(
    (
        "vocab_size",
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "intermediate_size",
        "max_position_embeddings",
        "type_vocab_size",
        "pad_token_id",
    ),
    COUNT,
)
_BERT |= dict.fromkeys(("hidden_dropout_prob", "initializer_range", "layer_norm_eps"), NUMBER)
_DISTILBERT = dict.fromkeys(
    (
        "vocab_size",
        "dim",
        "n_layers",
        "n_heads",
        "hidden_dim",
        "max_position_embeddings",
        "pad_token_id",
    ),
    COUNT,
)
_QWEN3 = dict.fromkeys(
    (
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "max_position_embeddings",
        "eos_token_id",
    ),
    COUNT,
)
_QWEN3 |= {"rms_norm_eps": NUMBER, "attention_bias": FLAG, "use_sliding_window": FLAG}
FIELDS = {
    "bert": _BERT,
    "roberta": _BERT,
    "xlm-roberta": _BERT,
    "distilbert": _DISTILBERT,
    "qwen3": _QWEN3,
}
ACTIVATIONS = ("gelu", "relu", "silu")
# It normalises in any case, and looks for Dense modules.
MODULES = ("Transformer", "Pooling", "Normalize")


def problems(folder: Path) -> list[str]:
    """Every reason why the folder would not be served, or would give other vectors."""
    issues: list[str] = []

    def read(name: str):
        try:
            return json.loads((folder / name).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            issues.append(f"{name}: {type(error).__name__}")

    config, pooling, limit, settings, modules = (
        read(name)
        for name in (
            "config.json",
            "1_Pooling/config.json",
            "sentence_bert_config.json",
            "config_sentence_transformers.json",
            "modules.json",
        )
    )
    try:
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    except Exception as error:  # the library's own kind
        issues.append(f"tokenizer.json: {error}")
    if issues:
        return issues
    family = config.get("model_type")
    if family not in FIELDS:
        return [f"config.json: model_type {family!r} is not served"]
    issues = [*_config_problems(config), *_pooling_problems(pooling, family)]
    return issues or [
        *_text_problems(config, limit, settings, modules, tokenizer),
        *_weight_problems(folder, config),
    ]


def _config_problems(config: dict) -> list[str]:
    issues = [
        f"config.json: {name} is {config.get(name)!r}, must be {kind}"
        for name, kind in FIELDS[config["model_type"]].items()
        if not _has_kind(config.get(name), kind)
    ]
    architectures = config.get("architectures")
    if not isinstance(architectures, list) or any(
        name.endswith("Classification") for name in architectures
    ):
        issues.append(
            f"config.json: architectures is {architectures!r}, must be a list without classifiers"
        )
    act = config.get("activation" if config["model_type"] == "distilbert" else "hidden_act")
    if act not in ACTIVATIONS:
        issues.append(f"config.json: the activation {act!r} is none it has")
    if config.get("position_embedding_type", "absolute") != "absolute":
        issues.append("config.json: position_embedding_type must be absolute")
    if config["model_type"] == "qwen3":
        if config.get("use_sliding_window"):
            issues.append("config.json: use_sliding_window is not served")
        if not _has_kind(config.get("rope_theta"), NUMBER) and not _has_kind(
            (config.get("rope_parameters") or {}).get("rope_theta"), NUMBER
        ):
            issues.append("config.json: rope_theta is missing")
    return issues


def _has_kind(value, kind: str) -> bool:
    if kind == FLAG:
        return isinstance(value, bool)
    is_integer = isinstance(value, int) and not isinstance(value, bool)
    return (is_integer and value >= 0) if kind == COUNT else is_integer or isinstance(value, float)


def _pooling_problems(pooling: dict, family: str) -> list[str]:
    names = [f"pooling_mode_{name}" for name in ("cls_token", "mean_tokens", "lasttoken")]
    issues = [
        f"1_Pooling/config.json: {name} is missing"
        for name in names[:2]
        if not isinstance(pooling.get(name), bool)
    ]
    if sum(
        bool(value) for name, value in pooling.items() if name.startswith("pooling_mode_")
    ) != 1 or not any(pooling.get(name) for name in names):
        issues.append("1_Pooling/config.json: not one of cls, mean and last token")
    if pooling.get("pooling_mode_lasttoken") and family != "qwen3":
        issues.append(f"1_Pooling/config.json: the last token is not served of {family}")
    return issues


def _text_problems(
    config: dict, limit: dict, settings: dict, modules: list, tokenizer: Tokenizer
) -> list[str]:
    issues = [
        f"modules.json: {m.get('type')} is not applied"
        for m in modules
        if str(m.get("type")).rsplit(".", 1)[-1] not in MODULES
    ]
    offset = config["pad_token_id"] + 1 if "roberta" in config["model_type"] else 0
    longest = limit.get("max_seq_length")
    if not _has_kind(longest, COUNT) or longest > config["max_position_embeddings"] - offset:
        issues.append(
            f"sentence_bert_config.json: max_seq_length is {longest!r}, must be a number of "
            "positions that there are"
        )
    if limit.get("do_lower_case") and tokenizer.encode("A").ids != tokenizer.encode("a").ids:
        issues.append("sentence_bert_config.json: do_lower_case is not heeded")
    prompts = settings.get("prompts")
    if prompts is not None and not all(isinstance(text, str) for text in prompts.values()):
        issues.append("config_sentence_transformers.json: prompts must be texts")
    return issues


def _weight_problems(folder: Path, config: dict) -> list[str]:
    index = folder / "model.safetensors.index.json"
    files = (
        ["model.safetensors"]
        if (folder / "model.safetensors").is_file()
        else sorted(set(json.loads(index.read_text())["weight_map"].values()))
        if index.is_file()
        else []
    )
    shapes, issues = {}, [] if files else ["no model.safetensors and no index of several"]
    for name in files:
        with safe_open(folder / name, "numpy") as file:
            for tensor in file.offset_keys():
                part = file.get_slice(tensor)
                shapes[tensor] = tuple(part.get_shape())
                if part.get_dtype() not in (
                    "F32",
                    "F16",
                    "BF16",
                    "I64",
                ):  # I64: BERT's old list of positions, which is not read
                    issues.append(f"{name}: {tensor} is of type {part.get_dtype()}")
    misses = []
    for rename in _PREFIXES[config["model_type"]]:
        wanted = {rename(name): shape for name, shape in _tensors(config).items()}
        misses.append(
            [
                f"weights: {name} is {shapes.get(name, 'missing')}, must be {shape}"
                for name, shape in wanted.items()
                if shapes.get(name) != shape
            ]
        )
    return issues + min(misses, key=len)


def _prefixed(prefix: str):
    return lambda name: prefix + name


_PREFIXES = {
    "bert": (_prefixed(""), _prefixed("bert.")),
    "qwen3": (_prefixed(""), _prefixed("model.")),
    **dict.fromkeys(
        ("roberta", "xlm-roberta"),
        (_prefixed(""), _prefixed("roberta."), _prefixed("xlm-roberta.")),
    ),
    "distilbert": (_prefixed(""), _prefixed("distilbert.")),
}


def _tensors(config: dict) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the tensors that are read, without the prefix."""
    if config["model_type"] == "qwen3":
        d, f, h = config["hidden_size"], config["intermediate_size"], config.get("head_dim")
        h = h or d // config["num_attention_heads"]
        q, kv = config["num_attention_heads"] * h, config["num_key_value_heads"] * h
        layer = {
            "input_layernorm": (d,),
            "post_attention_layernorm": (d,),
            "self_attn.q_proj": (q, d),
            "self_attn.k_proj": (kv, d),
            "self_attn.v_proj": (kv, d),
            "self_attn.o_proj": (d, q),
            "self_attn.q_norm": (h,),
            "self_attn.k_norm": (h,),
            "mlp.gate_proj": (f, d),
            "mlp.up_proj": (f, d),
            "mlp.down_proj": (d, f),
        }
        out = {"embed_tokens": (config["vocab_size"], d), "norm": (d,)}
        out |= {
            f"layers.{i}.{name}": shape
            for i in range(config["num_hidden_layers"])
            for name, shape in layer.items()
        }
        return {f"{name}.weight": shape for name, shape in out.items()}
    distil = config["model_type"] == "distilbert"
    d, f, layers = (
        config[name]
        for name in (
            ("dim", "hidden_dim", "n_layers")
            if distil
            else ("hidden_size", "intermediate_size", "num_hidden_layers")
        )
    )
    tables = {
        "word_embeddings": config["vocab_size"],
        "position_embeddings": config["max_position_embeddings"],
        **({} if distil else {"token_type_embeddings": config["type_vocab_size"]}),
    }
    out = {f"embeddings.{name}.weight": (rows, d) for name, rows in tables.items()}
    if distil:
        at, norms = "transformer.layer", ("sa_layer_norm", "output_layer_norm")
        linear = {
            **{f"attention.{x}_lin": (d, d) for x in ("q", "k", "v", "out")},
            "ffn.lin1": (f, d),
            "ffn.lin2": (d, f),
        }
    else:
        at, norms = "encoder.layer", ("attention.output.LayerNorm", "output.LayerNorm")
        linear = {
            **{f"attention.self.{x}": (d, d) for x in ("query", "key", "value")},
            "attention.output.dense": (d, d),
            "intermediate.dense": (f, d),
            "output.dense": (d, f),
        }
    both = {"embeddings.LayerNorm": (d,)}
    both |= {
        f"{at}.{i}.{name}": shape
        for i in range(layers)
        for name, shape in (*linear.items(), *((n, (d,)) for n in norms))
    }
    for name, shape in both.items():
        out |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
    return out


_HEADS = {
    "bert": ("bert.pooler.dense", "classifier"),
    "roberta": ("classifier.dense", "classifier.out_proj"),
    "xlm-roberta": ("classifier.dense", "classifier.out_proj"),
}


def rerank_problems(folder: Path) -> list[str]:
    """Every reason why the folder would not be served at /rerank; a CPU serves no DistilBERT there.

    Restated from the same files: a classifier by its architecture, whose one label makes it a
    reranker.
    """
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    architectures = config.get("architectures") or []
    issues = []
    if not any(name.endswith("Classification") for name in architectures):
        issues.append(f"config.json: architectures is {architectures!r}, must be a classifier")
    labels, ids = config.get("id2label"), config.get("label2id")
    if not isinstance(labels, dict) or not isinstance(ids, dict):
        issues.append("config.json: id2label or label2id is missing")
    elif len(labels) != 1:
        issues.append(f"config.json: id2label has {len(labels)} labels, must have 1")
    dense, out = _HEADS[config["model_type"]]
    d = config["hidden_size"]
    wanted = {dense: (d, d), out: (len(labels or [1]), d)} if not issues else {}
    with safe_open(folder / "model.safetensors", "numpy") as file:
        for name, shape in wanted.items():
            for part, size in (("weight", shape), ("bias", shape[:1])):
                tensor = f"{name}.{part}"
                if tensor not in file.keys():  # noqa: SIM118
                    issues.append(f"weights: {tensor} is missing")
                elif tuple(file.get_slice(tensor).get_shape()) != size:
                    issues.append(f"weights: {tensor} must be {size}")
    return issues + _weight_problems(folder, config)
