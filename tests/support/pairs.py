"""Tiny sequence classifiers on disk, as transformers would write them."""

import json
from pathlib import Path

import numpy as np
from support import tiny
from tokenizers import AddedToken, Tokenizer

WORDS = ("yes", "no", "<|im_start|>", "<|im_end|>")  # of the prompt of a yes/no decoder

TOKENIZER = {"bert": "cls", "distilbert": "cls", "roberta": "both", "xlm-roberta": "both"}
CLASSIFIER = {
    "bert": ("BertForSequenceClassification", "bert.pooler.dense", "classifier"),
    "distilbert": ("DistilBertForSequenceClassification", "pre_classifier", "classifier"),
    "roberta": ("RobertaForSequenceClassification", "classifier.dense", "classifier.out_proj"),
    "xlm-roberta": (
        "XLMRobertaForSequenceClassification",
        "classifier.dense",
        "classifier.out_proj",
    ),
}


def write_classifier(folder: Path, family: str, *, labels: int = 1) -> Path:
    """A model folder with a tokenizer and a classifier of `labels` labels."""
    name, dense, out = CLASSIFIER[family]
    rng = np.random.default_rng(7)
    tensors = {
        key: x
        for key, x in tiny.tensors(family).items()
        if not key.startswith(("lm_head", "vocab_", "cls."))
    }
    for layer, rows in ((dense, tiny.WIDTH), (out, labels)):
        tensors[f"{layer}.weight"] = rng.normal(0, 0.5, (rows, tiny.WIDTH)).astype(np.float32)
        tensors[f"{layer}.bias"] = rng.normal(0, 0.5, rows).astype(np.float32)
    changes = {
        "architectures": [name],
        "id2label": {str(i): f"LABEL_{i}" for i in range(labels)},
        "label2id": {f"LABEL_{i}": i for i in range(labels)},
    }
    tiny.write(folder, family, tokenizer=TOKENIZER[family], weights=tensors, changes=changes)
    _make_tokenizer_of(family, folder)
    return folder


def write_encoder(folder: Path, family: str, *, limit: int | None = 48) -> Path:
    """A sentence-transformers folder of an encoder without a classifier."""
    tiny.write(folder, family, tokenizer=TOKENIZER[family])
    _make_tokenizer_of(family, folder)
    return tiny.sentence_transformer(folder, pooling="mean", max_seq_length=limit)


def write_yes_no(path: Path) -> Path:
    """A decoder whose tokenizer has the words of the prompt."""
    weights = tiny.tensors("qwen3")
    name = "model.embed_tokens.weight"
    new = np.random.default_rng(0).normal(0, 0.5, (16, tiny.WIDTH)).astype(np.float32)
    weights[name] = np.concatenate([weights[name], new])
    changes = {"vocab_size": tiny.VOCAB + 16, "max_position_embeddings": 2048}
    tiny.write(path, "qwen3", tokenizer="plain", weights=weights, changes=changes)
    tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
    tokenizer.add_tokens(
        [AddedToken(word, single_word=True, normalized=False) for word in WORDS[:2]]
    )
    tokenizer.add_special_tokens(list(WORDS[2:]))
    tokenizer.save(str(path / "tokenizer.json"))
    return path


def write_logit_score(folder: Path) -> Path:
    """Gives a yes/no decoder the files of sentence-transformers 6, and a template of its own."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    kinds = ("base.modules.transformer.Transformer", "cross_encoder.modules.logit_score.LogitScore")
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.{kind}"}
        for i, (kind, path) in enumerate(zip(kinds, ("", "1_LogitScore"), strict=True))
    ]
    ids = {"true_token_id": tokenizer.token_to_id("no"), "false_token_id": 7}
    files = {
        "modules.json": modules,
        "1_LogitScore/config.json": ids,
        "config_sentence_transformers.json": {
            "model_type": "CrossEncoder",
            "prompts": {"board": "Find the board."},
            "default_prompt_name": "board",
            "activation_fn": "torch.nn.modules.linear.Identity",
        },
        "sentence_bert_config.json": {
            "transformer_task": "text-generation",
            "modality_config": {
                "text": {"method": "forward", "method_output_name": "logits"},
                "message": {"method": "forward", "method_output_name": "logits", "format": "flat"},
            },
            "module_output_name": "causal_logits",
        },
    }
    (folder / "1_LogitScore").mkdir()
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    (folder / "chat_template.jinja").write_text(
        "{% for m in messages %}{% if m['role'] == 'query' %}Q: {% elif m['role'] == 'document' %}"
        "D: {% endif %}{{ m['content'] }}<|im_end|>{% endfor %}answer:"
    )
    return folder


def _make_tokenizer_of(family: str, folder: Path) -> None:
    """Gives the tokenizer what the family's own has: a template of pairs, or segment types."""
    if family == "bert":
        path = folder / "tokenizer_config.json"
        names = {"model_input_names": ["input_ids", "token_type_ids", "attention_mask"]}
        path.write_text(json.dumps(json.loads(path.read_text()) | names))
    if TOKENIZER[family] == "both":
        path = folder / "tokenizer.json"
        settings = json.loads(path.read_text())
        special = lambda token: {"SpecialToken": {"id": token, "type_id": 0}}
        text = lambda name: {"Sequence": {"id": name, "type_id": 0}}
        begin, stop = special(tiny.BEGIN), special(tiny.STOP)
        settings["post_processor"]["pair"] = [begin, text("A"), stop, stop, text("B"), stop]
        path.write_text(json.dumps(settings))
