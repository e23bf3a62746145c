"""What each family of encoders is, read from its config.json: the fields of `encoder.Config`."""

from collections.abc import Callable, Mapping
from typing import Any

from ark_jax.models.config_json import (
    SIZES,
    check_positive,
    check_sizes,
    expect,
    layer_kinds,
    refuse_unless,
)
from ark_jax.models.rotary import read_rotary

Fields = dict[str, Any]


def _common(hf: Mapping, names: Mapping[str, str], act: str, known: tuple[str, ...]) -> Fields:
    """The fields that all families have, but for the switches of their own.

    Args:
        names: of the sizes, where they differ from `SIZES`.
        act: the name of the activation.
        known: the activations that are implemented, that of a config without the field first.
    """
    sizes = {field: names.get(field, name) for field, name in SIZES.items()}
    check_sizes(hf, tuple(sizes.values()))
    activation = hf.get(act, known[0])
    refuse_unless(activation in known, act, activation)
    for field in ("is_decoder", "add_cross_attention"):
        refuse_unless(not hf.get(field), field, hf.get(field))
    heads, width = (hf[sizes[field]] for field in ("heads", "width"))
    refuse_unless(width % heads == 0, f"{sizes['width']}={width}, {sizes['heads']}", heads)
    return {field: hf[name] for field, name in sizes.items()} | {
        "activation": activation,
        "pad": None,
        "segments": 0,
    }


def _like_bert(hf: Mapping, *known: str) -> Fields:
    """The fields of a family with BERT's names; `known` are the activations."""
    check_sizes(hf, ("type_vocab_size",))
    check_positive(hf, ("layer_norm_eps",))
    fields = _common(hf, {}, "hidden_act", known or ("gelu",))
    return fields | {"segments": hf["type_vocab_size"], "norm_eps": hf["layer_norm_eps"]}


def _bert(hf: Mapping) -> Fields:
    expect(hf, position_embedding_type="absolute")
    return _like_bert(hf)


def _roberta(hf: Mapping) -> Fields:
    pad = hf["pad_token_id"]
    refuse_unless(isinstance(pad, int) and pad >= 0, "pad_token_id", pad)
    return _bert(hf) | {"pad": pad}


def _distilbert(hf: Mapping) -> Fields:
    """It has no segments, and its eps is in its source, not in its config."""
    names = {"width": "dim", "layers": "n_layers", "heads": "n_heads", "ffn": "hidden_dim"}
    return _common(hf, names, "activation", ("gelu",)) | {"norm_eps": 1e-12}


def _mpnet(hf: Mapping) -> Fields:
    """Positions as RoBERTa's, with the pad id of its source; biases by distance."""
    check_positive(hf, ("layer_norm_eps",))
    expect(hf, relative_attention_num_buckets=32)
    return _common(hf, {}, "hidden_act", ("gelu",)) | {
        "norm_eps": hf["layer_norm_eps"],
        "pad": 1,
        "distances": "bias",
        "buckets": 32,
        "farthest": 128,
    }


_DEBERTA = {
    "relative_attention": True,
    "share_att_key": True,
    "norm_rel_ebd": "layer_norm",
    "position_biased_input": False,
    "conv_kernel_size": 0,
}


def _deberta(hf: Mapping) -> Fields:
    """DeBERTa-v2 and v3 as published, but for v2's convolution."""
    fields = _common(hf, {}, "hidden_act", ("gelu",))
    check_positive(hf, ("layer_norm_eps",))
    missing = {"relative_attention": False, "share_att_key": False, "norm_rel_ebd": "none"}
    expect({**missing, "position_biased_input": True, **hf}, **_DEBERTA)
    kinds = hf.get("pos_att_type") or ()
    kinds = kinds.lower().split("|") if isinstance(kinds, str) else kinds
    refuse_unless(sorted(map(str.strip, kinds)) == ["c2p", "p2c"], "pos_att_type", kinds)
    size = hf["hidden_size"] // hf["num_attention_heads"]
    expect(hf, embedding_size=hf["hidden_size"], attention_head_size=size)
    farthest = hf.get("max_relative_positions", -1)
    farthest = farthest if farthest > 0 else hf["max_position_embeddings"]
    buckets = hf.get("position_buckets", -1)
    return fields | {
        "norm_eps": hf["layer_norm_eps"],
        "segments": hf["type_vocab_size"],
        "has_position_table": False,
        "distances": "states",
        "buckets": 2 * (buckets if buckets > 0 else farthest),
        "farthest": farthest if buckets > 0 else 0,
    }


# What Nomic's config.json names and its encoders have not.
_NOMIC_OFF = (
    "prenorm parallel_block qkv_proj_bias mlp_fc1_bias mlp_fc2_bias rotary_emb_interleaved "
    "rotary_emb_scale_base rotary_scaling_factor use_rms_norm moe_every_n_layers"
)


def _nomic(hf: Mapping) -> Fields:
    """Nomic's first config.json has GPT-2's names; transformers has BERT's."""
    if "n_embd" not in hf:
        fields = _like_bert(hf, "silu")
        size = fields["width"] // fields["heads"]
        refuse_unless(hf.get("head_dim") in (None, size), "head_dim", hf.get("head_dim"))
        rotary = read_rotary(hf, 1000.0)
    else:
        off = dict.fromkeys(_NOMIC_OFF.split(), False)
        expect({k: v or False for k, v in hf.items()}, rotary_emb_fraction=1.0, **off)
        names = {"width": "n_embd", "layers": "n_layer", "heads": "n_head", "ffn": "n_inner"}
        names["positions"] = "n_positions"
        fields = _common(hf, names, "activation_function", ("swiglu",))
        check_positive(hf, ("layer_norm_epsilon", "rotary_emb_base"))
        fields |= {"segments": hf["type_vocab_size"], "norm_eps": hf["layer_norm_epsilon"]}
        rotary = read_rotary({"rope_theta": hf["rotary_emb_base"]}, 1000.0)
    return fields | {
        "activation": "silu",
        "biases": ("norm",),
        "gated": True,
        "has_position_table": False,
        "rotaries": (rotary,),
    }


def _gte(hf: Mapping) -> Fields:
    """GTE v1.5 and multilingual: `new` in Alibaba's own code, `gte` in transformers."""
    expect(hf, position_embedding_type="rope", layer_norm_type="layer_norm", pack_qkv=True)
    expect(hf, logn_attention_scale=False)
    segments = hf["type_vocab_size"]
    fields = _like_bert({**hf, "type_vocab_size": segments or 1})
    return fields | {
        "segments": segments,
        "biases": ("q", "k", "v", "o", "down", "norm"),
        "gated": True,
        "has_position_table": False,
        "rotaries": (read_rotary(hf, 10_000.0 if hf["model_type"] == "new" else 160_000.0),),
    }


def _modernbert(hf: Mapping) -> Fields:
    """Every third layer sees whole texts, the others their neighbourhood."""
    refuse_unless(not hf.get("rope_scaling"), "rope_scaling", hf.get("rope_scaling"))
    check_sizes(hf, ("local_attention", "global_attn_every_n_layers"))
    check_positive(hf, ("norm_eps",))
    fields = _common(hf, {}, "hidden_activation", ("gelu", "silu", "gelu_pytorch_tanh"))
    every = hf.get("global_attn_every_n_layers", 3)
    biases = {
        "attention_bias": ("q", "k", "v", "o"),
        "mlp_bias": ("gate", "up", "down"),
        "norm_bias": ("norm",),
    }
    return fields | {
        "norm_eps": hf.get("norm_eps", 1e-5),
        "biases": tuple(x for field, names in biases.items() if hf.get(field) for x in names),
        "gated": True,
        "norms_behind": False,
        "has_position_table": False,
        "rotaries": (
            read_rotary(hf, 160_000.0, "full_attention", "global_rope_theta"),
            read_rotary(hf, 10_000.0, "sliding_attention", "local_rope_theta"),
        ),
        "window": hf.get("local_attention", 128) // 2 + 1,
        "local": layer_kinds(hf, lambda i: i % every > 0),
    }


FAMILIES: dict[str, Callable[[Mapping], Fields]] = {
    "bert": _bert,
    "roberta": _roberta,
    "xlm-roberta": _roberta,
    "distilbert": _distilbert,
    "mpnet": _mpnet,
    "deberta-v2": _deberta,
    "nomic_bert": _nomic,
    "new": _gte,
    "gte": _gte,
    "modernbert": _modernbert,
}
