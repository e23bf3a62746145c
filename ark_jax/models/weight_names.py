"""Hugging Face's names and shapes of each family's weights, for reading and writing alike.

A row is `attribute: (Hugging Face name, "their letters -> our letters")`. Shapes, shardings and the
conversion in both directions follow from the letters, which layout.py explains. `{l}` in a name
stands for the layer; our parameter stacks all layers.
"""

_LAYER = "model.layers.{l}."
DECODER = {
    "embed": ("model.embed_tokens.weight", "v e -> v e"),
    "norm": ("model.norm.weight", "d -> d"),
    "head": ("lm_head.weight", "v e -> v e"),
    "attn_norm": (_LAYER + "input_layernorm.weight", "d -> d"),
    "ffn_norm": (_LAYER + "post_attention_layernorm.weight", "d -> d"),
    "q": (_LAYER + "self_attn.q_proj.weight", "(n h) d -> d n h"),
    "k": (_LAYER + "self_attn.k_proj.weight", "(k h) d -> d k h"),
    "v": (_LAYER + "self_attn.v_proj.weight", "(k h) d -> d k h"),
    "o": (_LAYER + "self_attn.o_proj.weight", "d (n h) -> n h d"),
    "q_bias": (_LAYER + "self_attn.q_proj.bias", "(n h) -> n h"),
    "k_bias": (_LAYER + "self_attn.k_proj.bias", "(k h) -> k h"),
    "v_bias": (_LAYER + "self_attn.v_proj.bias", "(k h) -> k h"),
    "q_norm": (_LAYER + "self_attn.q_norm.weight", "h -> h"),
    "k_norm": (_LAYER + "self_attn.k_norm.weight", "h -> h"),
    "gate": (_LAYER + "mlp.gate_proj.weight", "f d -> d f"),
    "up": (_LAYER + "mlp.up_proj.weight", "f d -> d f"),
    "down": (_LAYER + "mlp.down_proj.weight", "d f -> f d"),
}
_LAYER = "bert.encoder.layer.{l}."
BERT = {
    "embed": ("bert.embeddings.word_embeddings.weight", "v e -> v e"),
    "position": ("bert.embeddings.position_embeddings.weight", "p e -> p e"),
    "segment": ("bert.embeddings.token_type_embeddings.weight", "y e -> y e"),
    "embed_norm": ("bert.embeddings.LayerNorm.weight", "d -> d"),
    "embed_norm_bias": ("bert.embeddings.LayerNorm.bias", "d -> d"),
    "q": (_LAYER + "attention.self.query.weight", "(n h) d -> d n h"),
    "q_bias": (_LAYER + "attention.self.query.bias", "(n h) -> n h"),
    "k": (_LAYER + "attention.self.key.weight", "(n h) d -> d n h"),
    "k_bias": (_LAYER + "attention.self.key.bias", "(n h) -> n h"),
    "v": (_LAYER + "attention.self.value.weight", "(n h) d -> d n h"),
    "v_bias": (_LAYER + "attention.self.value.bias", "(n h) -> n h"),
    "o": (_LAYER + "attention.output.dense.weight", "d (n h) -> n h d"),
    "o_bias": (_LAYER + "attention.output.dense.bias", "d -> d"),
    "attn_norm": (_LAYER + "attention.output.LayerNorm.weight", "d -> d"),
    "attn_norm_bias": (_LAYER + "attention.output.LayerNorm.bias", "d -> d"),
    "up": (_LAYER + "intermediate.dense.weight", "f d -> d f"),
    "up_bias": (_LAYER + "intermediate.dense.bias", "f -> f"),
    "down": (_LAYER + "output.dense.weight", "d f -> f d"),
    "down_bias": (_LAYER + "output.dense.bias", "d -> d"),
    "ffn_norm": (_LAYER + "output.LayerNorm.weight", "d -> d"),
    "ffn_norm_bias": (_LAYER + "output.LayerNorm.bias", "d -> d"),
}
ROBERTA = {
    name: ("roberta." + hf_name.removeprefix("bert."), pattern)
    for name, (hf_name, pattern) in BERT.items()
}
_LAYER = "distilbert.transformer.layer.{l}."
DISTILBERT = {
    "embed": ("distilbert.embeddings.word_embeddings.weight", "v e -> v e"),
    "position": ("distilbert.embeddings.position_embeddings.weight", "p e -> p e"),
    "embed_norm": ("distilbert.embeddings.LayerNorm.weight", "d -> d"),
    "embed_norm_bias": ("distilbert.embeddings.LayerNorm.bias", "d -> d"),
    "q": (_LAYER + "attention.q_lin.weight", "(n h) d -> d n h"),
    "q_bias": (_LAYER + "attention.q_lin.bias", "(n h) -> n h"),
    "k": (_LAYER + "attention.k_lin.weight", "(n h) d -> d n h"),
    "k_bias": (_LAYER + "attention.k_lin.bias", "(n h) -> n h"),
    "v": (_LAYER + "attention.v_lin.weight", "(n h) d -> d n h"),
    "v_bias": (_LAYER + "attention.v_lin.bias", "(n h) -> n h"),
    "o": (_LAYER + "attention.out_lin.weight", "d (n h) -> n h d"),
    "o_bias": (_LAYER + "attention.out_lin.bias", "d -> d"),
    "attn_norm": (_LAYER + "sa_layer_norm.weight", "d -> d"),
    "attn_norm_bias": (_LAYER + "sa_layer_norm.bias", "d -> d"),
    "up": (_LAYER + "ffn.lin1.weight", "f d -> d f"),
    "up_bias": (_LAYER + "ffn.lin1.bias", "f -> f"),
    "down": (_LAYER + "ffn.lin2.weight", "d f -> f d"),
    "down_bias": (_LAYER + "ffn.lin2.bias", "d -> d"),
    "ffn_norm": (_LAYER + "output_layer_norm.weight", "d -> d"),
    "ffn_norm_bias": (_LAYER + "output_layer_norm.bias", "d -> d"),
}
ENCODERS = {"bert": BERT, "roberta": ROBERTA, "xlm-roberta": ROBERTA, "distilbert": DISTILBERT}


def _classifier_table(dense: str, out: str) -> dict[str, tuple[str, str]]:
    """The weight names of a classifier's head, from the modules of its two layers."""
    return {
        "dense": (f"{dense}.weight", "j d -> d j"),
        "dense_bias": (f"{dense}.bias", "j -> j"),
        "out": (f"{out}.weight", "c j -> j c"),
        "out_bias": (f"{out}.bias", "c -> c"),
    }


_ROBERTA_CLASSIFIER = _classifier_table("classifier.dense", "classifier.out_proj")
CLASSIFIERS = {
    "bert": _classifier_table("bert.pooler.dense", "classifier"),
    "roberta": _ROBERTA_CLASSIFIER,
    "xlm-roberta": _ROBERTA_CLASSIFIER,
    "distilbert": _classifier_table("pre_classifier", "classifier"),
}
# A head that no other library has; the names are ours.
STAR_HEAD = {
    "markers": ("star.markers.weight", "m e -> m e"),
    "key": ("star.key.weight", "j d -> d j"),
    "key_bias": ("star.key.bias", "j -> j"),
    "value": ("star.value.weight", "j d -> d j"),
    "value_bias": ("star.value.bias", "j -> j"),
    "dense": ("star.dense.weight", "j (g d) -> g d j"),
    "dense_bias": ("star.dense.bias", "j -> j"),
    "out": ("star.out.weight", "c j -> j c"),
    "out_bias": ("star.out.bias", "c -> c"),
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
MASKED_LM_HEADS = ("lm_head.*", "vocab_transform.*", "vocab_layer_norm.*", "vocab_projector.*")
# How BERT's first checkpoints, bert-base-uncased among them, end the names of layer norms.
LEGACY_SUFFIXES = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
# Checkpoints saved from the bare model lack these prefixes.
PREFIXES = ("model.", "bert.", "roberta.", "distilbert.")
