"""Prompt templates: text files with {slots}. Each packaged one can be replaced by a user's file.

A template may enclose a slot in tags, as in `<passages>{passages}</passages>`, to mark its value as
data. `fill` keeps values from closing such a block.
"""

import functools
import hashlib
import importlib.resources
import re
from pathlib import Path


def load_template(name: str, path: str = "", *, target: str = "") -> str:
    """Reads the template `name`.

    Args:
        path: the user's own file, or the name of a packaged variant ("story" is read_story.txt),
            which may have other slots. Empty reads the packaged default.
        target: the slot that a scored template must end in: the model scores the tokens of its
            value.

    Raises:
        ValueError: the file cannot be read, it lacks a slot of the packaged template, or it does
            not end in its target.
    """
    text = _packaged(f"{name}_{path}" if path else name)
    missing: set[str] = set()
    if path and not text:
        text = _read_own_template(name, path)
        missing = _slots(_packaged(name)) - _slots(text)
    if missing:
        slots = ", ".join(f"{{{slot}}}" for slot in sorted(missing))
        raise ValueError(f"prompt {path or name}: no slot {slots}; add it to the text")
    if target and not text.endswith("{" + target + "}"):
        raise ValueError(
            f"prompt {path or name}: must end in {{{target}}}, the text that is scored"
        )
    return text


def _packaged(name: str) -> str:
    """The packaged template of that name; empty if there is none."""
    file = importlib.resources.files("ark_jax.text") / "templates" / f"{name}.txt"
    return file.read_text(encoding="utf-8").rstrip("\n") if file.is_file() else ""


def _read_own_template(name: str, path: str) -> str:
    """The user's file in place of the template `name`; ValueError if it cannot be read."""
    try:
        return Path(path).expanduser().read_text(encoding="utf-8-sig").rstrip("\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ValueError(
            f"config.prompts.{name}: {path} cannot be read ({reason}); correct the path, or save "
            "the file as UTF-8"
        ) from None


def _slots(text: str) -> set[str]:
    """The names of the slots of a template."""
    return set(re.findall(r"\{(\w+)\}", text))


def fill(text: str, **values: object) -> str:
    """Replaces each {slot} by its value.

    Values are inserted in one pass, so braces inside a value stay as they are. So do braces in the
    template that are no slot, as in JSON. A tag of the template, such as `</passages>`, loses its
    angle bracket inside a value: it becomes `‹/passages>`.
    """
    tag_start = _tag_start(text)

    def replacement(slot: re.Match) -> str:
        if slot[1] not in values:
            return slot[0]
        inserted = str(values[slot[1]])
        return tag_start.sub("‹", inserted) if tag_start else inserted

    return re.sub(r"\{(\w+)\}", replacement, text)


@functools.cache
def _tag_start(template: str) -> re.Pattern | None:
    """Matches the bracket of each tag that the template closes, however it is spaced or cased."""
    names = sorted(set(re.findall(r"</(\w+)>", template)))
    return re.compile(rf"<(?=\s*/?\s*(?:{'|'.join(names)})\b)", re.IGNORECASE) if names else None


def split_target(template: str, target: str, **values: object) -> tuple[str, str]:
    """The filled template without the slot of its target, which ends it, and the target's value."""
    return fill(template.removesuffix(f"{{{target}}}"), **values), str(values[target])


def text_digest(text: str) -> str:
    """The first sixteen hex digits of the text's SHA-256: part of every manifest and cache key."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]
