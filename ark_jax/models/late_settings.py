"""How a ColBERT reads texts and which tokens it compares, in files of PyLate and ColBERT v2."""

import dataclasses
import string
from pathlib import Path
from typing import Any

from ark_jax.models import hf

PYLATE, COLBERT = "PyLate", "ColBERT v2"  # layouts of a folder
METADATA = "artifact.metadata"  # ColBERT v2's settings
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
    query_length: int = 32  # tokens, markers and special tokens included
    document_length: int = 180
    do_query_expansion: bool = True  # mask tokens fill a query up to its length
    attend_to_expansion_tokens: bool = False  # whether other tokens see them
    skiplist_words: tuple[str, ...] = tuple(string.punctuation)  # not compared in documents
    layout: str = PYLATE

    def of_kind(self, kind: str) -> tuple[str, int]:
        """The marker and the most tokens of a kind of text."""
        if kind == "query":
            return self.query_prefix, self.query_length
        return self.document_prefix, self.document_length

    @property
    def fills_unseen(self) -> bool:
        """Whether queries end with tokens that have vectors and that no token sees."""
        return self.do_query_expansion and not self.attend_to_expansion_tokens


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
    given: dict[str, Any] = {}
    for field, default in vars(defaults).items():
        name = names.get(field, "" if names else field)
        value = settings.get(name)
        if value is None or field == "layout":
            continue
        value = tuple(value) if isinstance(value, list) else value
        parts = value if isinstance(default, tuple) else ()
        valid = type(value) is type(default) and all(isinstance(word, str) for word in parts)
        if not valid or (type(value) is int and value < 4):  # a marker and two special tokens
            kinds = {str: "a token", bool: "true or false", tuple: "a list of words"}
            admissible = kinds.get(type(default), "a number of tokens above 3")
            raise hf.wrong_field(path, name, admissible, settings[name])
        given[field] = value
    return dataclasses.replace(defaults, **given)
