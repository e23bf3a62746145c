"""Terms of scripts that set no blanks between words, and of emoji, by repetition.

Without a dictionary nobody knows where such a word ends. A sequence of characters that comes back
elsewhere is taken for one.
"""

import itertools
from collections.abc import Iterator, Mapping

import regex

from ark_jax.text.word_boundaries import UNSPACED

LONGEST_TERM = 6  # characters as a reader counts them
# One such character: a letter with its marks, or an emoji with what is joined to it.
_ONE = r"\X\p{M}*"
_CHARACTER = regex.compile(_ONE)
# Not the signs that are text unless a selector follows, such as the copyright sign.
_EMOJI = r"(?:\p{Emoji_Presentation}|\p{Extended_Pictographic}\uFE0F)"
_LETTER = rf"[\p{{L}}&&[{UNSPACED}]]"
_RUN = regex.compile(
    rf"(?:(?={_LETTER}){_ONE})+|(?P<emoji>(?:(?={_EMOJI}){_ONE})+)", flags=regex.VERSION1
)


def unspaced_terms(text: str) -> list[str]:
    """Every sequence of two to six characters of an unspaced script, of one to six emoji."""
    terms = []
    for run in _RUN.finditer(text):
        shortest = 1 if run["emoji"] else 2
        terms += _sequences(run[0], shortest, LONGEST_TERM)
    return terms


def contained_terms(counts: Mapping[str, int]) -> set[str]:
    """The terms of `unspaced_terms` that occur only inside a longer one of `counts`.

    Args:
        counts: how often each term occurs. Words of other scripts contain none.
    """
    contained = set()
    for term, count in counts.items():
        if _RUN.fullmatch(term):
            shorter = _sequences(term, 1, LONGEST_TERM - 1)
            contained |= {part for part in shorter if part != term and counts.get(part) == count}
    return contained


def _sequences(run: str, shortest: int, longest: int) -> Iterator[str]:
    characters = _CHARACTER.findall(run)
    for start, length in itertools.product(range(len(characters)), range(shortest, longest + 1)):
        if start + length <= len(characters):
            yield "".join(characters[start : start + length])
