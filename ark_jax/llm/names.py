"""Names and rare terms of a text, by capitals and statistics."""

import itertools
import re
from collections import Counter
from collections.abc import Iterator, Mapping

import regex

from ark_jax.text.word_boundaries import UNSPACED, is_unspaced

# The letters of scripts that put blanks between words; none of them is above U+2E80.
_LETTERS = [char for char in map(chr, range(0x2E80)) if char.isalpha() and not is_unspaced(char)]
_UPPERCASE = "".join(char for char in _LETTERS if char.isupper() or char.istitle())
# Lowercase letters, and the letters of scripts without case.
_OTHER_LETTERS = "".join(char for char in _LETTERS if char not in _UPPERCASE)
# A run of capitalised words, with small joining words allowed inside it.
_NAME = re.compile(
    rf"\b[{_UPPERCASE}][\w'’-]*"
    rf"(?:\s+(?:of|the|de|du|von|van|and|for|in)\s+(?=[{_UPPERCASE}])|\s+(?=[{_UPPERCASE}])"
    rf"|[{_UPPERCASE}][\w'’-]*)*"
)
_TERM = re.compile(rf"\b[{_OTHER_LETTERS}][\w-]{{4,}}")
_SENTENCE_END = re.compile(r"(?<=[.!?؟])\s+|(?<=[。！？။።])\s*")
# Words that are capitalised at the start of a sentence but are not names.
_FUNCTION_WORD_LIST = """
the a an and or but if when while as at by for from in into of on onto over to with without it its
he she they his her their this that these those there then than so such not no nor yet was were is
are be been had has have did do does after before during since until where who whom whose which
what why how all any both each few more most other some one
"""
_FUNCTION_WORDS = frozenset(_FUNCTION_WORD_LIST.split())


def candidate_terms(passage: str) -> set[str]:
    """The possible terms of a passage: words of five or more characters without a capital.

    In scripts without blanks these are the sequences of `unspaced_terms`.
    """
    return set(_terms(passage))


def _terms(text: str) -> list[str]:
    """All possible terms of a text, with repeats."""
    return _TERM.findall(text) + unspaced_terms(text)


def split_sentences(passage: str) -> list[str]:
    return _SENTENCE_END.split(passage)


def rare_limit(frequency: Mapping[str, int]) -> int:
    """The largest number of passages in which a rare term may occur.

    Args:
        frequency: term -> number of passages with it.
    """
    return max(2, max(frequency.values(), default=0) // 100)


def rare_terms(
    passage: str, frequency: Mapping[str, int], max_frequency: int | None = None
) -> set[str]:
    """The rare terms of a passage, as `extract_graph` defines them.

    Args:
        frequency: term -> number of passages with it.
        max_frequency: `rare_limit(frequency)`, which is slow to compute; None: computed here.
    """
    if max_frequency is None:
        max_frequency = rare_limit(frequency)
    occurrences = Counter(_terms(passage))
    rare = {
        term: count
        for term, count in occurrences.items()
        if max(count, frequency[term]) > 1 and frequency[term] <= max_frequency
    }
    return rare.keys() - contained_terms(rare)


def names_and_terms(sentence: str, rare: set[str]) -> list[str]:
    """The distinct names, then the rare terms, of a sentence."""
    names = [_trim_name(match[0]) for match in _NAME.finditer(sentence)]
    terms = [term for term in _terms(sentence) if term in rare]
    return list(dict.fromkeys(filter(None, names + terms)))


def _trim_name(name: str) -> str:
    """Removes the function words that begin a sentence: `The Long Staff` -> `Long Staff`."""
    parts = name.split()
    while parts and parts[0].lower() in _FUNCTION_WORDS:
        parts = parts[1:]
    return " ".join(parts)


LONGEST_TERM = 6  # characters as a reader counts them
# One such character: a letter with its marks, or an emoji with its modifiers.
_ONE_CHARACTER = r"\X\p{M}*"
_CHARACTER = regex.compile(_ONE_CHARACTER)
# Without signs that are text unless a variation selector follows, such as the copyright sign.
_EMOJI = r"(?:\p{Emoji_Presentation}|\p{Extended_Pictographic}\uFE0F)"
_LETTER = rf"[\p{{L}}&&[{UNSPACED}]]"
_RUN = regex.compile(
    rf"(?:(?={_LETTER}){_ONE_CHARACTER})+|(?P<emoji>(?:(?={_EMOJI}){_ONE_CHARACTER})+)",
    flags=regex.VERSION1,
)


def unspaced_terms(text: str) -> list[str]:
    """Every sequence of two to six characters of an unspaced script, or of one to six emoji."""
    terms = []
    for run in _RUN.finditer(text):
        shortest = 1 if run["emoji"] else 2
        terms += _character_sequences(run[0], shortest, LONGEST_TERM)
    return terms


def contained_terms(counts: Mapping[str, int]) -> set[str]:
    """The terms of `unspaced_terms` that occur only inside a longer one of `counts`.

    Args:
        counts: how often each term occurs. Words of other scripts contain none.
    """
    contained = set()
    for term, count in counts.items():
        if _RUN.fullmatch(term):
            shorter = _character_sequences(term, 1, LONGEST_TERM - 1)
            contained |= {part for part in shorter if part != term and counts.get(part) == count}
    return contained


def _character_sequences(run: str, shortest: int, longest: int) -> Iterator[str]:
    """Every part of a run with so many characters."""
    characters = _CHARACTER.findall(run)
    for start, length in itertools.product(range(len(characters)), range(shortest, longest + 1)):
        if start + length <= len(characters):
            yield "".join(characters[start : start + length])
