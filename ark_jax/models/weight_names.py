"""Hugging Face's names and shapes of each family's weights, for reading and writing alike.

A family names the module of each of its weights; the shape follows from the weight's own name.
Shapes, shardings and the conversion in both directions follow from letters, which layout.py
explains. `{l}` in a name stands for the layer; our parameter stacks all layers.
"""

import re
from collections.abc import Mapping
from typing import NamedTuple

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


def _rows(modules: str, *, top: str = "", layer: str = "", **first: int) -> dict[str, Row]:
    """The weight and the bias of each module.

    Args:
        modules: "attribute=module", of which "a,b=module" hold equal parts of one tensor.
        top, layer: begin the names of modules, and of those in layers: after a "|".
        first: attribute -> the first layer that has it, where that is not 0.
    """
    rows = {}
    outside, _, inside = modules.partition("|")
    for start, group in ((top, outside), (layer, inside)):
        for attributes, module in (x.split("=") for x in group.split()):
            parts = attributes.split(",")
            for part, attribute in enumerate(parts):
                letters = _LETTERS.get(attribute, "d -> d")
                stored = re.findall(r"\(.*?\)|\w", letters)[0]  # of the first axis, the outputs
                place = part, len(parts), first.get(attribute, 0)
                name = start + module
                rows[attribute] = Row(f"{name}.weight", letters, *place)
                bias = f"{stored} -> {stored.strip('()')}"
                rows[f"{attribute}_bias"] = Row(f"{name}.bias", bias, *place)
    return rows


def _bert(prefix: str, modules: str, layer: str = "encoder.layer", norm: str = "") -> Table:
    """A table whose embeddings have BERT's names."""
    embeddings = (
        "embed=embeddings.word_embeddings position=embeddings.position_embeddings "
        f"segment=embeddings.token_type_embeddings embed_norm={norm or 'embeddings.LayerNorm'} "
    )
    return _rows(embeddings + modules, top=f"{prefix}.", layer=f"{prefix}.{layer}.{{l}}.")


_BERT_FFN = "up=intermediate.dense down=output.dense ffn_norm=output.LayerNorm"
_BERT_OUT = "o=attention.output.dense attn_norm=attention.output.LayerNorm " + _BERT_FFN
_BERT = f"|q=attention.self.query k=attention.self.key v=attention.self.value {_BERT_OUT}"
_GTE = (
    "|q,k,v=attention.qkv_proj o=attention.o_proj attn_norm=attn_ln up,gate=mlp.up_gate_proj "
    "down=mlp.down_proj ffn_norm=mlp_ln"
)
ENCODERS: dict[str, Table] = {
    "bert": _bert("bert", _BERT),
    "roberta": _bert("roberta", _BERT),
    "xlm-roberta": _bert("roberta", _BERT),
    "distilbert": _bert(
        "distilbert",
        "|q=attention.q_lin k=attention.k_lin v=attention.v_lin o=attention.out_lin "
        "attn_norm=sa_layer_norm up=ffn.lin1 down=ffn.lin2 ffn_norm=output_layer_norm",
        "transformer.layer",
    ),
    "mpnet": _bert(
        "mpnet",
        "distance=encoder.relative_attention_bias |q=attention.attn.q k=attention.attn.k "
        f"v=attention.attn.v o=attention.attn.o attn_norm=attention.LayerNorm {_BERT_FFN}",
    ),
    "deberta-v2": _bert(
        "deberta",
        "relative=encoder.rel_embeddings relative_norm=encoder.LayerNorm "
        "|q=attention.self.query_proj k=attention.self.key_proj v=attention.self.value_proj "
        + _BERT_OUT,
    ),
    "nomic_bert": _bert(
        "nomic_bert",
        "|q,k,v=attn.Wqkv o=attn.out_proj attn_norm=norm1 up=mlp.fc11 gate=mlp.fc12 down=mlp.fc2 "
        "ffn_norm=norm2",
        "encoder.layers",
        "emb_ln",
    ),
    "new": _bert("new", _GTE),
    "gte": _bert("gte", _GTE),
    "modernbert": _rows(
        "embed=embeddings.tok_embeddings embed_norm=embeddings.norm norm=final_norm "
        "|q,k,v=attn.Wqkv o=attn.Wo attn_norm=attn_norm gate,up=mlp.Wi down=mlp.Wo "
        "ffn_norm=mlp_norm",
        top="model.",
        layer="model.layers.{l}.",
        attn_norm=1,
    ),
}


def _decoder(norms: str) -> Table:
    """The table of a decoder, from the names of its norms behind attention."""
    return _rows(
        "embed=model.embed_tokens norm=model.norm head=lm_head |q=self_attn.q_proj "
        "k=self_attn.k_proj v=self_attn.v_proj o=self_attn.o_proj q_norm=self_attn.q_norm "
        "k_norm=self_attn.k_norm gate=mlp.gate_proj up=mlp.up_proj down=mlp.down_proj "
        f"attn_norm=input_layernorm {norms}",
        layer="model.layers.{l}.",
    )


DECODERS: dict[str, Table] = {
    **dict.fromkeys(
        ("qwen3", "qwen2", "llama", "mistral"), _decoder("ffn_norm=post_attention_layernorm")
    ),
    # Gemma has norms on both sides of attention and of the feed-forward network.
    "gemma3_text": _decoder(
        "attn_out_norm=post_attention_layernorm ffn_norm=pre_feedforward_layernorm "
        "ffn_out_norm=post_feedforward_layernorm"
    ),
}
_POOLER = "dense={}.pooler.dense out=classifier"
CLASSIFIERS: dict[str, Table] = {
    **{name: _rows(_POOLER.format(name)) for name in ("bert", "nomic_bert", "new", "gte")},
    **dict.fromkeys(
        ("roberta", "xlm-roberta", "mpnet"), _rows("dense=classifier.dense out=classifier.out_proj")
    ),
    "distilbert": _rows("dense=pre_classifier out=classifier"),
    "deberta-v2": _rows("dense=pooler.dense out=classifier"),
    "modernbert": _rows("dense=head.dense dense_norm=head.norm out=classifier"),
}
# A head that no other library has; the names are ours.
STAR_HEAD = {
    "markers": Row("star.markers.weight", "m e -> m e"),
    **_rows("key=key value=value dense=dense out=out", top="star."),
    "dense": Row("star.dense.weight", "j (g d) -> g d j"),
}
# Tensors that the model does not compute with. An export copies them from its base, unchanged.
UNUSED_TENSORS = (
    "*pooler.dense.*",
    "linear.weight",  # of ColBERT v2, which sentence_folder.py reads
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
PREFIXES = ("model.", *(f"{x}." for x in ("bert", "roberta", "distilbert", "mpnet", "deberta")))
PREFIXES += ("nomic_bert.", "new.", "gte.")
