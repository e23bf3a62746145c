"""How a ColBERT reads texts and which tokens it compares, in each layout of its files."""

import dataclasses
import string
from pathlib import Path
from typing import Any

from ark_jax.models import hf

PYLATE, COLBERT, ENCODER = "PyLate", "ColBERT v2", "MultiVectorEncoder"  # layouts of a folder
METADATA = "artifact.metadata"  # ColBERT v2's settings
LIMITS = "sentence_bert_config.json"  # of a MultiVectorEncoder's texts
KINDS = ("query", "document")  # of texts
# Our field -> its name there.
_NAMES = {
    "query_prefix": "query_token_id",
    "document_prefix": "doc_token_id",
    "query_length": "query_maxlen",
    "document_length": "doc_maxlen",
    "attend_to_expansion_tokens": "attend_to_mask_tokens",
}


@dataclasses.dataclass(frozen=True)
class LateSettings:
    """The settings under PyLate's names, with its defaults (Khattab and Zaharia 2020, sec. 3.2)."""

    query_prefix: str = "[Q] "  # a token behind the first one of a text; "" for none
    document_prefix: str = "[D] "
    query_length: int = 32  # tokens, markers and special tokens included; 0: all that is read
    document_length: int = 180
    do_query_expansion: bool = True  # mask tokens fill a query up to its length
    attend_to_expansion_tokens: bool = False  # whether other tokens see them
    skiplist_words: tuple[str, ...] = tuple(string.punctuation)  # not compared
    skiplist_tasks: tuple[str, ...] = ("document",)  # the kinds of text in which they are not
    layout: str = PYLATE

    def of_kind(self, kind: str) -> tuple[str, int]:
        """The marker and the most tokens of a kind of text."""
        if kind == "query":
            return self.query_prefix, self.query_length
        return self.document_prefix, self.document_length

    @property
    def expansion(self) -> dict[str, Any] | None:
        """How a MultiVectorEncoder fills queries."""
        if not self.do_query_expansion:
            return None
        attend = self.attend_to_expansion_tokens
        return {"strategy": "fixed", "attend": attend, "token": None, "length": self.query_length}

    @property
    def fills_unseen(self) -> bool:
        """Whether queries end with tokens that have vectors and that no token sees."""
        return self.do_query_expansion and not self.attend_to_expansion_tokens


# sentence-transformers 6 reads prompts in place of markers, and leaves out nothing by default.
PLAIN = LateSettings("", "", 0, 0, False, False, (), layout=ENCODER)


def read_encoder_settings(model: Path, mask: Path) -> LateSettings:
    """The settings of a MultiVectorEncoder of sentence-transformers 6.

    Args:
        model: folder of its Transformer.
        mask: folder of its MultiVectorMask.

    Raises:
        ValueError: a field cannot be used. The message names it.
    """
    path = mask / "config.json"
    masked = hf.read_json_if_present(path)
    if kept := masked.get("keep_only_token_ids"):
        admissible = "absent: other tokens are compared, too"
        raise hf.wrong_field(path, "keep_only_token_ids", admissible, kept)
    kinds = masked.get("skiplist_tasks") or PLAIN.skiplist_tasks
    if not {*kinds} <= {*KINDS}:
        raise hf.wrong_field(path, "skiplist_tasks", f"of {', '.join(KINDS)}", kinds)
    path = model / LIMITS
    limits = hf.read_json_if_present(path)
    expansion = limits.get("query_expansion") or {}
    fixed = {"strategy": "fixed", "token": None}
    if not isinstance(expansion, dict) or (expansion and {**expansion, **fixed} != expansion):
        admissible = f"null or contain {fixed}: queries would be filled otherwise"
        raise hf.wrong_field(path, "query_expansion", admissible, expansion)
    fields = {
        "query_length": expansion.get("length") or limits.get("query_length"),
        "document_length": limits.get("document_length"),
        "do_query_expansion": bool(expansion),
        "attend_to_expansion_tokens": expansion.get("attend"),
    }
    words = {"skiplist_words": masked.get("skiplist_words")}
    settings = _checked(mask / "config.json", words, {}, _checked(path, fields, {}, PLAIN))
    return dataclasses.replace(settings, skiplist_tasks=tuple(kinds))


def read_late_settings(folder: Path) -> LateSettings | None:
    """The settings of PyLate's or ColBERT v2's folder; None for any other.

    Raises:
        ValueError: a field cannot be used. The message names it.
    """
    path = folder / hf.SENTENCE_SETTINGS
    settings = hf.read_json_if_present(path)
    if settings.get("model_type") == "ColBERT" or "query_prefix" in settings:
        if settings.get("query_expansion"):
            admissible = "absent: queries would be filled otherwise"
            raise hf.wrong_field(path, "query_expansion", admissible, settings["query_expansion"])
        return _checked(path, settings, {}, LateSettings())
    config = hf.read_json_if_present(folder / "config.json")
    if "HF_ColBERT" not in (config.get("architectures") or ()):
        return None
    path = folder / METADATA
    settings = hf.read_json_if_present(path)
    for field, value in {"similarity": "cosine", "interaction": "colbert"}.items():
        if settings.get(field, value) != value:
            admissible = f"{value}: texts would be ranked otherwise"
            raise hf.wrong_field(path, field, admissible, settings[field])
    words = LateSettings.skiplist_words if settings.get("mask_punctuation", True) else ()
    defaults = LateSettings("[unused0]", "[unused1]", skiplist_words=words, layout=COLBERT)
    return _checked(path, settings, _NAMES, defaults)


def _checked(path: Path, settings: dict, names: dict, defaults: LateSettings) -> LateSettings:
    """The settings of a file; those that it lacks, or has as null, are the defaults.

    Args:
        names: our field -> its name in the file; of PyLate they are the same.
    """
    fields: dict[str, Any] = {}
    for field, default in vars(defaults).items():
        name = names.get(field, "" if names else field)
        value = settings.get(name)
        if value is None or field in ("layout", "skiplist_tasks"):
            continue
        value = tuple(value) if isinstance(value, list) else value
        parts = value if isinstance(default, tuple) else ()
        valid = type(value) is type(default) and all(isinstance(word, str) for word in parts)
        if not valid or (type(value) is int and value < 4):  # a marker and two special tokens
            kinds = {str: "a token", bool: "true or false", tuple: "a list of words"}
            admissible = kinds.get(type(default), "a number of tokens above 3")
            raise hf.wrong_field(path, name, admissible, settings[name])
        fields[field] = value
    return dataclasses.replace(defaults, **fields)
