"""Regular expressions that match whole words, also in scripts without spaces."""

import re

# Thai, Lao, Burmese, Khmer, kana and Han; also Hangul, whose particles follow a word without a
# space.
UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1100-\u11ff\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"
    "\uf900-\ufaff\U00020000-\U0003ffff"
)
# No letter, digit or underscore of a spaced script stands directly before (after) this place.
_WORD_START, _WORD_END = rf"(?<![^\W{UNSPACED}])", rf"(?![^\W{UNSPACED}])"
_UNSPACED = re.compile(f"[{UNSPACED}]")
_LETTER = re.compile(rf"[^\W{UNSPACED}]")  # of a spaced script, or a digit or underscore


def is_unspaced(character: str) -> bool:
    """Whether the character belongs to a script that writes words without spaces."""
    return _UNSPACED.match(character) is not None


def whole_word_pattern(words: str, pattern: str = "") -> str:
    """A regular expression for `words` that does not match inside a longer word.

    An end in an unspaced script matches anywhere, since such a script does not mark word
    boundaries. A neighbour in such a script does not count as part of a word either.

    Args:
        words: the text to find; its first and last characters decide how each end is bounded.
        pattern: the regular expression between the ends; `words` itself if it is empty.
    """
    start = "" if is_unspaced(words[:1]) else _WORD_START
    end = "" if is_unspaced(words[-1:]) else _WORD_END
    return f"{start}{pattern or re.escape(words)}{end}"


def contains_words(text: str, words: str) -> bool:
    """Whether `text` holds `words` as whole words, ignoring case and spacing."""
    words, text = (" ".join(x.casefold().split()) for x in (words, text))
    if not words:
        return False
    # It finds what `whole_word_pattern` matches, but compiling a pattern takes 2 ms.
    opens, closes = is_unspaced(words[0]), is_unspaced(words[-1])
    start = text.find(words)
    while start >= 0:
        end = start + len(words)
        prefix, suffix = text[max(start - 1, 0) : start], text[end : end + 1]
        if (opens or not _LETTER.match(prefix)) and (closes or not _LETTER.match(suffix)):
            return True
        start = text.find(words, start + 1)
    return False
