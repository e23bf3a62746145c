"""Prompt texts: plain files with {slots}, packaged as data, each replaceable by a file of the user's."""

import hashlib
import importlib.resources
import re
from collections.abc import Mapping
from pathlib import Path

# The slots each prompt must offer. A text that lacks one would silently leave its content out.
SLOTS = {
    "extract": {"passage"},
    "glean": set(),
    "rewrite": {"question", "answer", "entities", "count"},
    "read": {"passages", "question"},
    "judge": {"question", "references", "passages", "first", "second"},
    "forward": {"passage", "question", "answer"},
    "backward": {"passage", "question", "answer"},
}
# Scored prompts must end in their target, whose tokens are the ones whose likelihood is taken.
TARGET = {"forward": "answer", "backward": "question"}


def load(name: str, path: str = "") -> str:
    """The text of prompt `name`, from the user's `path` if one is given, or the packaged variant that it names: "story" is
    read_story.txt.

    Raises:
        ValueError: the file cannot be read, lacks a slot, or a scored prompt does not end in its target.
    """
    folder = importlib.resources.files("ark_jax.embedded") / "prompts"
    packaged = folder / (f"{name}_{path}.txt" if path else f"{name}.txt")
    try:
        text = (packaged if packaged.is_file() else Path(path).expanduser()).read_text(encoding="utf-8-sig").rstrip("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"config.prompts.{name}: {path} cannot be read ({getattr(error, 'strerror', None) or error}); "
                         "mend the path, or save the file as UTF-8") from None
    missing = SLOTS[name] - set(re.findall(r"\{(\w+)\}", text))
    if missing:
        raise ValueError(f"prompt {path or name}: no slot {{{'}, {'.join(sorted(missing))}}}; add it to the text")
    if name in TARGET and not text.endswith("{" + TARGET[name] + "}"):
        raise ValueError(f"prompt {path or name}: must end in {{{TARGET[name]}}}, the text that is scored")
    return text


def fill(text: str, **values: object) -> str:
    """Puts values into slots, in one pass: braces inside a value are left alone, as is JSON in the text."""
    return re.sub(r"\{(\w+)\}", lambda slot: str(values.get(slot[1], slot[0])), text)


def directions(templates: Mapping[str, str], **values: str) -> list[tuple[str, str]]:
    """(prompt, target) of each scored prompt, in the order of `TARGET`: what stands before the target, and the target."""
    return [(fill(templates[name], **values).removesuffix(values[slot]), values[slot]) for name, slot in TARGET.items()]


def digest(text: str) -> str:
    """Sixteen hex digits that change with the text; part of every manifest and cache key."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]
