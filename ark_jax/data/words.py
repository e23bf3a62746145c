"""Whole words in any script: some set their words apart by blanks, some do not."""

import re

# Thai, Lao, Burmese, Khmer, kana, Han; and Hangul, whose particles follow a word without a blank.
UNSPACED = ("\u0e00-\u0eff\u1000-\u109f\u1100-\u11ff\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff"
            "\U00020000-\U0003ffff")
_BEFORE, _BEHIND = rf"(?<![^\W{UNSPACED}])", rf"(?![^\W{UNSPACED}])"
_UNSPACED = re.compile(f"[{UNSPACED}]")


def unspaced(character: str) -> bool:
    """Whether a character's script writes words without blanks between them."""
    return _UNSPACED.match(character) is not None


def whole(words: str, pattern: str = "") -> str:
    """A pattern that finds `words`, or what `pattern` says of them, but not inside of a longer word.

    Where a script has no blanks a neighbour says nothing, so an end in such a script is free, and so is one beside it.
    """
    before, behind = ("" if unspaced(end) else bound for end, bound in ((words[:1], _BEFORE), (words[-1:], _BEHIND)))
    return f"{before}{pattern or re.escape(words)}{behind}"
