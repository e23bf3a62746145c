"""The folders of pair scorers: sequence classifiers with one label, and our own.

Our own has body/, a whole sentence-transformers folder, head/ with the head's tensors, and
pair_scorer.json. It has no config.json, so that a library that does not know the head refuses the
folder and does not score with a head that it drew at random.
"""

import json
from pathlib import Path

import numpy as np

from ark_jax.layout import check_divides
from ark_jax.models import decoder, encoder, hf, pair_heads, sentence_folder
from ark_jax.models.config_json import expect, refuse_unless
from ark_jax.models.weight_names import CLASSIFIERS, STAR_HEAD, Table
from ark_jax.runtime.distributed import is_first_process

SETTINGS = "pair_scorer.json"
# sentence-transformers' list of modules, and the one of a decoder that answers yes or no.
MODULES, SCORE = "modules.json", "LogitScore"
_CLASSES = {
    "bert": "Bert",
    "roberta": "Roberta",
    "xlm-roberta": "XLMRoberta",
    "distilbert": "DistilBert",
    "mpnet": "MPNet",
    "deberta-v2": "DebertaV2",
    "nomic_bert": "NomicBert",
    "new": "New",
    "gte": "Gte",
    "modernbert": "ModernBert",
}


def head_table(head: str, family: str) -> Table:
    """The weight names of a head, for a body of a family."""
    return STAR_HEAD if head == "star" else CLASSIFIERS[family]


def read_family(base: Path) -> str:
    """The model_type of an encoder's folder.

    Raises:
        ValueError: it is not an encoder.
    """
    family = hf.read_config(base).get("model_type")
    if family not in encoder.FAMILIES:
        raise ValueError(
            f"{base}: model_type {family!r} cannot score pairs; give an encoder: "
            f"{', '.join(encoder.FAMILIES)}"
        )
    return family


def first_layer(base: Path) -> pair_heads.FirstLayer:
    """The first layer of the sequence classifiers of an encoder's folder.

    Raises:
        ValueError: config.json names an activation or a pooling that is not implemented.
    """
    settings = hf.read_config(base)
    family = settings["model_type"]
    if family != "modernbert":
        expect(settings, pooler_hidden_act="gelu")
        activations = {"distilbert": "relu", "deberta-v2": "gelu"}
        return pair_heads.FirstLayer(activations.get(family, "tanh"))
    pooling = settings.get("classifier_pooling", "cls")
    refuse_unless(pooling in ("cls", "mean"), "classifier_pooling", pooling)
    expect(settings, classifier_activation="gelu")
    return pair_heads.FirstLayer("gelu", pooling, bool(settings.get("classifier_bias")), True)


def is_classifier(folder: Path) -> bool:
    """Whether config.json declares a sequence classifier."""
    names = hf.read_config(folder).get("architectures")
    return isinstance(names, list) and any(
        str(name).endswith("ForSequenceClassification") for name in names
    )


def scores_pairs(model: str) -> bool:
    """Whether a model, a folder or a hub name, has a head that scores pairs."""
    folder = hf.resolve(model)
    if (folder / SETTINGS).is_file():
        return True
    return (folder / "config.json").is_file() and is_classifier(folder)


def is_decoder(folder: Path) -> bool:
    """Whether the folder holds a decoder, which scores pairs by its next word, without a head."""
    is_other = (folder / SETTINGS).is_file() or not (folder / "config.json").is_file()
    return not is_other and hf.read_config(folder).get("model_type") in decoder.FAMILIES


def weights_folder(folder: Path) -> Path:
    """The folder of the weights, config.json and tokenizer of a pair scorer or a retriever."""
    if (folder / SETTINGS).is_file():
        return sentence_folder.weights_folder(folder / "body")
    modules = folder / MODULES
    if modules.is_file() and SCORE in modules.read_text(encoding="utf-8"):
        return folder
    return sentence_folder.weights_folder(folder)


def read_settings(folder: Path) -> dict | None:
    """pair_scorer.json of our own folder; None if the folder has none.

    Raises:
        ValueError: a field is missing or has a value that we do not know.
    """
    path = folder / SETTINGS
    if not path.is_file():
        return None
    settings = hf.read_json(path)
    if settings.get("head") not in pair_heads.HEADS:
        raise ValueError(
            f"{path}: head={settings.get('head')!r}: must be one of "
            f"{', '.join(pair_heads.HEADS)}; fetch the file again"
        )
    scale = settings.get("scale")
    if not isinstance(scale, int | float) or isinstance(scale, bool) or scale <= 0:
        raise ValueError(f"{path}: scale={scale!r}: must be a number above 0; fetch the file again")
    return settings


def write_settings(folder: Path, cfg: pair_heads.PairConfig) -> None:
    """Writes pair_scorer.json, which `read_settings` reads."""
    text = json.dumps({"head": cfg.head, "scale": cfg.scale}, indent=2)
    (folder / SETTINGS).write_text(text + "\n", encoding="utf-8")


def read_head(checkpoint: hf.Checkpoint, cfg: pair_heads.PairConfig, family: str):
    """(head, names of the tensors it was read from) of a checkpoint.

    Raises:
        ValueError: the classifier has more labels than one, or a tensor is missing or misshapen.
    """
    table = head_table(cfg.head, family)
    name = checkpoint.stored_name(table["out"][0])
    checkpoint.require(name)
    labels = checkpoint.slice(name).get_shape()[0]
    if labels != 1:
        raise ValueError(
            f"{checkpoint.folder}: a classifier of {labels} labels ({name}); a pair scorer has "
            "one: give a model that was trained to rank"
        )
    return hf.read_module(pair_heads.new_head, cfg, table, checkpoint)


def read_classifier(folder: Path, cfg: pair_heads.PairConfig):
    """(model, tensors that it does not compute with) of a sequence classifier."""
    family = read_family(folder)
    check_divides(cfg.dims, str(folder))
    checkpoint = hf.Checkpoint(folder)
    _, model_class, table = hf.read_architecture(folder)
    head, head_names = read_head(checkpoint, cfg, family)
    body, body_names = hf.read_module(model_class, cfg.body, table, checkpoint)
    unread = checkpoint.names() - head_names - body_names
    extra_tensors = hf.read_extra(checkpoint, unread, is_encoder=True)
    return pair_heads.PairModel(body, head), extra_tensors


def classifier_config(base: Path) -> dict:
    """config.json of a sequence classifier with one label whose body is of the folder `base`."""
    settings = hf.read_config(base)
    return settings | {
        "architectures": [f"{_CLASSES[settings['model_type']]}ForSequenceClassification"],
        "id2label": {"0": "LABEL_0"},
        "label2id": {"LABEL_0": 0},
    }


def write_config(folder: Path, settings: dict) -> None:
    """Writes a config.json by which sentence-transformers' CrossEncoder gives our logits."""
    # It would put a sigmoid over them.
    activation = {"activation_fn": "torch.nn.modules.linear.Identity"}
    name = "sentence_transformers"
    settings = settings | {name: settings.get(name, {}) | activation}
    text = json.dumps(settings, indent=2, ensure_ascii=False)
    (folder / "config.json").write_text(text + "\n", encoding="utf-8")


def write_classifier(
    folder: Path,
    base: Path,
    tensors: dict[str, np.ndarray],
    extra_tensors: dict[str, np.ndarray],
    dtype: str = "",
) -> None:
    """Weights in `dtype`, else in the types of `base`; config.json and tokenizer of a classifier.

    Every process must call this; process 0 writes.

    Args:
        extra_tensors: those of `base` that the model does not compute with. They are dropped if
            `base` is not a classifier, which has no place for them.
    """
    checkpoint = hf.Checkpoint(base)
    stored = {name: checkpoint.stored_name(name) for name in tensors}
    out = dict(extra_tensors) if is_classifier(base) else {}
    for name, tensor in tensors.items():
        is_new = stored[name] not in checkpoint.names()
        kind = tensor.dtype if is_new else checkpoint.dtype(stored[name])
        out[name] = tensor.astype(dtype or kind)
    hf.write_tensors(out, folder)
    if not is_first_process():
        return
    hf.copy_files(base, folder, hf.TOKENIZER_FILES)
    write_config(folder, classifier_config(base))
    if dtype:
        hf.name_type(folder, dtype)


def write_tokenizer_fields(folder: Path, **fields: object) -> None:
    """Sets fields of tokenizer_config.json, where every library reads them."""
    path = folder / "tokenizer_config.json"
    settings = (hf.read_json(path) if path.is_file() else {}) | fields
    path.write_text(json.dumps(settings, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
