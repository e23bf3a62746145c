"""Hugging Face's names and shapes of each family's weights, for reading and writing alike.

A family names the module of each of its weights; the shape follows from the weight's own name.
Shapes, shardings and the conversion in both directions follow from letters, which layout.py
explains. `{l}` in a name stands for the layer; our parameter stacks all layers.
"""

from collections.abc import Mapping
from typing import NamedTuple

from ark_jax.layout import groups

# "their letters -> our letters" of a weight by its attribute; a vector's are its own.
_LETTERS = {
    **dict.fromkeys(("embed", "head"), "v e -> v e"),
    "position": "p e -> p e",
    "segment": "y e -> y e",
    "q": "(n h) d -> d n h",
    **dict.fromkeys(("k", "v"), "(k h) d -> d k h"),
    "o": "d (n h) -> n h d",
    **dict.fromkeys(("gate", "up"), "f d -> d f"),
    "down": "d f -> f d",
    **dict.fromkeys(("q_norm", "k_norm"), "h -> h"),
    "distance": "x n -> x n",
    "relative": "x d -> x d",
    **dict.fromkeys(("dense", "key", "value"), "j d -> d j"),
    "out": "c j -> j c",
}


class Row(NamedTuple):
    """Where a checkpoint keeps a parameter.

    Attributes:
        name: of the tensor, with the slot {l} if each layer has one.
        letters: "stored letters -> our letters".
        part, parts: the tensor holds so many parameters of one shape, one after the other along its
            first axis; this is number `part` of them.
        first: the first layer that has the tensor. Earlier layers do not use the parameter.
    """

    name: str
    letters: str
    part: int = 0
    parts: int = 1
    first: int = 0

    def names(self, layers: int) -> list[str]:
        """The name in each layer that has one, or the name alone."""
        in_layers = [self.name.format(l=i) for i in range(self.first, layers)]
        return in_layers if "{l}" in self.name else [self.name]


Table = Mapping[str, Row]


def _rows(modules: Mapping[str, str], first: Mapping[str, int] | None = None) -> dict[str, Row]:
    """The weight and the bias of each module: attribute -> module, "+1/3" for its second third."""
    rows = {}
    for attribute, module in modules.items():
        name, _, fused = module.partition("+")
        part, parts = map(int, (fused or "0/1").split("/"))
        letters = _LETTERS.get(attribute, "d -> d")
        outputs = " ".join(groups(letters.split("->")[0])[0])
        stored = f"({outputs})" if " " in outputs else outputs
        place = part, parts, (first or {}).get(attribute, 0)
        rows[attribute] = Row(f"{name}.weight", letters, *place)
        rows[f"{attribute}_bias"] = Row(f"{name}.bias", f"{stored} -> {outputs}", *place)
    return rows


def _table(
    top: Mapping[str, str], layer: str, block: Mapping[str, str], **first: int
) -> dict[str, Row]:
    """The rows of a family, from its modules outside of layers and in each layer.

    Args:
        first: the first layer that has a module, where that is not 0.
    """
    return _rows({**top, **{name: layer + module for name, module in block.items()}}, first)


def _bert(prefix: str, layer: str, modules: str, norm: str = "embeddings.LayerNorm", **top: str):
    """A table like BERT's, of the modules q k v o, attn_norm, up, down, ffn_norm and gate."""
    embeddings = f"{prefix}.embeddings."
    names = ("q", "k", "v", "o", "attn_norm", "up", "down", "ffn_norm", "gate")
    return _table(
        {
            "embed": embeddings + "word_embeddings",
            "position": embeddings + "position_embeddings",
            "segment": embeddings + "token_type_embeddings",
            "embed_norm": f"{prefix}.{norm}",
            **{name: f"{prefix}.{module}" for name, module in top.items()},
        },
        f"{prefix}.{layer}.{{l}}.",
        dict(zip(names, modules.split(), strict=False)),
    )


_BERT = (
    "attention.self.query attention.self.key attention.self.value attention.output.dense "
    "attention.output.LayerNorm intermediate.dense output.dense output.LayerNorm"
)
_ROBERTA = _bert("roberta", "encoder.layer", _BERT)
_GTE = (
    "attention.qkv_proj+0/3 attention.qkv_proj+1/3 attention.qkv_proj+2/3 attention.o_proj attn_ln "
    "mlp.up_gate_proj+0/2 mlp.down_proj mlp_ln mlp.up_gate_proj+1/2"
)
ENCODERS: dict[str, Table] = {
    "bert": _bert("bert", "encoder.layer", _BERT),
    "roberta": _ROBERTA,
    "xlm-roberta": _ROBERTA,
    "distilbert": _bert(
        "distilbert",
        "transformer.layer",
        "attention.q_lin attention.k_lin attention.v_lin attention.out_lin sa_layer_norm ffn.lin1 "
        "ffn.lin2 output_layer_norm",
    ),
    "mpnet": _bert(
        "mpnet",
        "encoder.layer",
        "attention.attn.q attention.attn.k attention.attn.v attention.attn.o attention.LayerNorm "
        "intermediate.dense output.dense output.LayerNorm",
        distance="encoder.relative_attention_bias",
    ),
    "deberta-v2": _bert(
        "deberta",
        "encoder.layer",
        "attention.self.query_proj attention.self.key_proj attention.self.value_proj "
        "attention.output.dense attention.output.LayerNorm intermediate.dense output.dense "
        "output.LayerNorm",
        relative="encoder.rel_embeddings",
        relative_norm="encoder.LayerNorm",
    ),
    "nomic_bert": _bert(
        "nomic_bert",
        "encoder.layers",
        "attn.Wqkv+0/3 attn.Wqkv+1/3 attn.Wqkv+2/3 attn.out_proj norm1 mlp.fc11 mlp.fc2 norm2 "
        "mlp.fc12",
        norm="emb_ln",
    ),
    "new": _bert("new", "encoder.layer", _GTE),
    "gte": _bert("gte", "encoder.layer", _GTE),
    "modernbert": _table(
        {
            "embed": "model.embeddings.tok_embeddings",
            "embed_norm": "model.embeddings.norm",
            "norm": "model.final_norm",
        },
        "model.layers.{l}.",
        {
            **{name: f"attn.Wqkv+{i}/3" for i, name in enumerate("qkv")},
            "o": "attn.Wo",
            "attn_norm": "attn_norm",
            "gate": "mlp.Wi+0/2",
            "up": "mlp.Wi+1/2",
            "down": "mlp.Wo",
            "ffn_norm": "mlp_norm",
        },
        attn_norm=1,
    ),
}
_DECODER = {
    **{name: f"self_attn.{name}_proj" for name in "qkvo"},
    **{name: f"self_attn.{name}" for name in ("q_norm", "k_norm")},
    **{name: f"mlp.{name}_proj" for name in ("gate", "up", "down")},
    "attn_norm": "input_layernorm",
}
_DECODER_TOP = {"embed": "model.embed_tokens", "norm": "model.norm", "head": "lm_head"}
DECODER = _table(
    _DECODER_TOP, "model.layers.{l}.", {**_DECODER, "ffn_norm": "post_attention_layernorm"}
)
# Gemma has norms on both sides of attention and of the feed-forward network.
_GEMMA = {
    "attn_out_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "ffn_out_norm": "post_feedforward_layernorm",
}
DECODERS: dict[str, Table] = {
    **dict.fromkeys(("qwen3", "qwen2", "llama", "mistral"), DECODER),
    "gemma3_text": _table(_DECODER_TOP, "model.layers.{l}.", {**_DECODER, **_GEMMA}),
}


def _classifier(dense: str, out: str, **others: str) -> Table:
    """The rows of a classifier's head, from its modules."""
    return _rows({"dense": dense, "out": out, **others})


_ROBERTA_CLASSIFIER = _classifier("classifier.dense", "classifier.out_proj")
CLASSIFIERS = {
    "roberta": _ROBERTA_CLASSIFIER,
    "xlm-roberta": _ROBERTA_CLASSIFIER,
    "mpnet": _ROBERTA_CLASSIFIER,
    "distilbert": _classifier("pre_classifier", "classifier"),
    "deberta-v2": _classifier("pooler.dense", "classifier"),
    **{
        name: _classifier(f"{name}.pooler.dense", "classifier")
        for name in ("bert", "nomic_bert", "new", "gte")
    },
    "modernbert": _classifier("head.dense", "classifier", dense_norm="head.norm"),
}
# A head that no other library has; the names are ours.
STAR_HEAD = {
    "markers": Row("star.markers.weight", "m e -> m e"),
    **_rows({name: f"star.{name}" for name in ("key", "value", "dense", "out")}),
    "dense": Row("star.dense.weight", "j (g d) -> g d j"),
}
# Tensors that the model does not compute with. An export copies them from its base, unchanged.
UNUSED_TENSORS = (
    "*pooler.dense.*",
    "*position_ids",
    "cls.*",
    "lm_head.weight",
    "*rotary_emb.inv_freq",
)
# An encoder's heads for masked words are copied too. A decoder does compute with its head.
MASKED_LM_HEADS = (
    *("lm_head.*", "vocab_transform.*", "vocab_layer_norm.*", "vocab_projector.*"),
    *("head.*", "decoder.*", "lm_predictions.*", "mask_predictions.*"),
)
# How BERT's first checkpoints, bert-base-uncased among them, end the names of layer norms.
LEGACY_SUFFIXES = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
# Checkpoints saved from the bare model lack these prefixes.
PREFIXES = (
    *("model.", "bert.", "roberta.", "distilbert.", "mpnet.", "deberta.", "nomic_bert.", "new."),
    "gte.",
)
