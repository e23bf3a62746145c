"""Chunks that end where sentences end.

`sentencex` finds the sentences. It knows the full stops of many scripts, the abbreviations of
many languages, keeps quotations whole, and gives offsets.
"""

import functools
import itertools
import operator
import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence

from ark_jax.text.tokens import Span, check_overlap, token_offsets
from ark_jax.text.word_boundaries import UNSPACED

# Characters that `sentencex` sees at once: its time grows with the square of a paragraph in which
# a character takes several bytes.
WINDOW = 2048
# The first character after a blank line or a page break.
_PARAGRAPH = re.compile(r"(?:\n[^\S\n]*\n|[\f\u2029])\s*(\S)")
_ITEM = r"[-*+•‣◦–—|]|#{1,6}|\(?\d{1,3}[.)]|\(?[A-Za-z]\)"
_LIST_ITEM = re.compile(rf"\n[^\S\n]*({_ITEM})[^\S\n]")
_LINE = re.compile(r"\n[^\S\n]*(\S)")
# A character of a script without spaces begins a word. Korean has spaces.
_UNSPACED = rf"(?![\u1100-\u11ff\uac00-\ud7af])[{UNSPACED}]"
_WORD = re.compile(rf"(?:(?<!\S)|(?<={_UNSPACED})(?=\w)|(?={_UNSPACED}))(\S)")
_CHARACTER = re.compile(r"(?<!\u200d)([^\s\u200d])")
_QUOTES = "\"'“”„‟‘’‚«»‹›「」『』()[]"
_WITHOUT_QUOTES = str.maketrans(_QUOTES, " " * len(_QUOTES))


def sentence_chunks(
    text: str,
    tokenizer,
    *,
    size: int,
    overlap: int,
    breaks: Iterable[int] = (),
    sentences: int = 0,
    language: str = "en",
) -> list[Span]:
    """Cuts `text` into chunks of whole sentences, each as long as `size` tokens allow.

    A paragraph and an item of a list end a sentence. A sentence longer than a chunk is cut at
    sentences that it quotes, else at lines, else at words, else at characters. A chunk repeats as
    many sentences from the end of the one before as `overlap` tokens hold. If the last chunk would
    be shorter than a quarter of `size`, it gets sentences of the one before.

    A chunk ends before a heading once it holds half of `size`; the next one starts with the
    heading, without overlap. No chunk ends with a heading, unless the text does.

    Args:
        size: tokens of the whole text that a chunk shares a character with, at most; only a single
            character may have more.
        breaks: offsets of headings, each of one line.
        sentences: of a chunk, at most; a heading belongs to its next sentence. 0: as many as fit.
        language: ISO code, which decides after which abbreviations a sentence goes on. English
            stands in for a language that `sentencex` does not know.

    Returns:
        Spans in order that hold every character except white space and characters without a token.
    """
    check_overlap(size, overlap)
    offsets = token_offsets(text, tokenizer)
    if not offsets or text.isspace():
        return []
    headings = _headings(text, breaks)
    starts = sorted(
        {*_sentence_starts(text, language), *_layout_starts(text), *(h for h, _ in headings)}
    )
    starts = _join_headings(starts, headings)
    units = _Units(text, offsets, starts)
    quoted = functools.partial(_quoted_sentence_starts, language=language)
    for find_starts in (quoted, *_FINER):
        units = units.divide(size, find_starts)
    if sentences:
        return list(_group(units, size, sentences, set(starts)))
    return list(_pack(units, size, overlap, {heading for heading, _ in headings}))


def sentence_spans(text: str) -> list[tuple[int, int]]:
    """Start and end of each sentence, without outer blanks; paragraphs and items end one, too."""
    starts = sorted({*_sentence_starts(text, "en"), *_layout_starts(text)})
    spans = itertools.pairwise([*starts, len(text)])
    return [(a, a + len(text[a:b].rstrip())) for a, b in spans if not text[a:b].isspace()]


def _headings(text: str, breaks: Iterable[int]) -> list[tuple[int, int]]:
    """The offset of each heading, and of the text after it."""
    headings = []
    for place in sorted(breaks):
        start = _next_character(text, place)
        newline = text.find("\n", start)
        text_start = len(text) if newline < 0 else _next_character(text, newline)
        if start < len(text):
            headings.append((start, text_start))
    return headings


def _next_character(text: str, place: int) -> int:
    """The offset of the first visible character from `place` on, or the length of the text."""
    match = re.compile(r"\S").search(text, place)
    return match.start() if match else len(text)


def _join_headings(starts: list[int], headings: list[tuple[int, int]]) -> list[int]:
    """Removes the starts within a heading and where its text begins, so that they stay together."""
    joined = []
    for start in starts:
        place = bisect_left(headings, (start,)) - 1
        if place < 0 or start > headings[place][1]:
            joined.append(start)
    return joined


def _layout_starts(text: str) -> Iterator[int]:
    """Yields where paragraphs and list items start."""
    # White space at the end is left out: a pattern would go through it once for each blank line.
    end = len(text.rstrip())
    for pattern in (_PARAGRAPH, _LIST_ITEM):
        yield from (match.start(1) for match in pattern.finditer(text, 0, end))


def _sentence_starts(text: str, language: str) -> Iterator[int]:
    """Yields where sentences start, which are found window by window.

    A window ends at a blank line. Without one, its last sentence may go on: the next window begins
    with it, and is twice as wide if there is no other.
    """
    start, width = 0, WINDOW
    while start < len(text):
        end = min(start + width, len(text))
        if end < len(text) and (blank_line := text.rfind("\n\n", start + 1, end)) > 0:
            end, cut = blank_line, False
        else:
            cut = end < len(text)
        sentences = _segment_starts(text[start:end], language)
        if cut and len(sentences) < 2:
            width *= 2
            continue
        if cut:
            end = start + sentences.pop()
        yield from (start + sentence for sentence in sentences)
        start, width = end, WINDOW


def _segment_starts(text: str, language: str) -> list[int]:
    """Where the sentences start that `sentencex` finds."""
    from sentencex import get_sentence_boundaries

    sentences = get_sentence_boundaries(language, text)
    stripped = ((sentence, sentence["text"].lstrip()) for sentence in sentences)
    return [sentence["end_index"] - len(content) for sentence, content in stripped if content]


def _quoted_sentence_starts(text: str, language: str) -> Iterator[int]:
    """Yields where sentences start, also inside quotations and brackets."""
    for start in _segment_starts(text.translate(_WITHOUT_QUOTES), language):
        while start > 1 and text[start - 1] in _QUOTES and text[start - 2].isspace():
            start -= 1
        yield start


def _start_finder(pattern: re.Pattern) -> Callable[[str], Iterator[int]]:
    """A function that finds where group 1 of `pattern` begins, except at a combining mark."""

    def find_starts(text: str) -> Iterator[int]:
        for match in pattern.finditer(text):
            if not unicodedata.category(match[1]).startswith("M"):
                yield match.start(1)

    return find_starts


_token_start, _token_end = operator.itemgetter(0), operator.itemgetter(1)
_FINER = (_start_finder(_LINE), _start_finder(_WORD), _start_finder(_CHARACTER))


class _Units:
    """The parts of a text that chunks are made of: sentences, and parts of sentences too long.

    Unit i begins at `starts[i]` and ends before white space at `ends[i]`. The tokens that share a
    character with units i to j are `first[i]` to `last[j]`, without the latter.
    """

    def __init__(self, text: str, offsets: list[tuple[int, int]], starts: Sequence[int]):
        self.text, self.offsets = text, offsets
        self.starts, self.ends, self.first, self.last = [], [], [], []
        for start, stop in zip(starts, [*starts[1:], len(text)], strict=True):
            end = start + len(text[start:stop].rstrip())
            first = bisect_right(offsets, start, key=_token_end)
            last = bisect_left(offsets, end, key=_token_start)
            if first < last or not self.starts:
                self._append(start, end, first, max(first, last))
            else:  # characters without a token
                self.ends[-1] = end

    def _append(self, start: int, end: int, first: int, last: int) -> None:
        """Adds a unit."""
        self.starts.append(start)
        self.ends.append(end)
        self.first.append(first)
        self.last.append(last)

    def __len__(self) -> int:
        return len(self.starts)

    def tokens(self, i: int, j: int) -> int:
        """Number of tokens of the units i to j - 1."""
        return self.last[j - 1] - self.first[i]

    def divide(self, size: int, find_starts: Callable[[str], Iterable[int]]) -> "_Units":
        """Divides every unit of more than `size` tokens where `find_starts` says."""
        starts = []
        for i, start in enumerate(self.starts):
            starts.append(start)
            if self.tokens(i, i + 1) > size:
                inner = find_starts(self.text[start : self.ends[i]])
                starts += [start + place for place in inner if place > 0]
        if len(starts) == len(self):
            return self
        return _Units(self.text, self.offsets, starts)


def _group(units: _Units, size: int, count: int, whole: set[int]) -> Iterator[Span]:
    """Chunks of `count` sentences, or of as many as `size` tokens hold; none overlap.

    Args:
        whole: the characters where sentences start; other units are parts of long ones.
    """
    i = 0
    while i < len(units):
        fitting = max(bisect_right(units.last, units.first[i] + size), i + 1)
        further = [k for k in range(i + 1, fitting) if units.starts[k] in whole]
        j = further[count - 1] if len(further) >= count else fitting
        yield Span(units.starts[i], units.ends[j - 1], units.tokens(i, j))
        i = j


def _pack(units: _Units, size: int, overlap: int, headings: set[int]) -> Iterator[Span]:
    """Chunks of consecutive units, of at most `size` tokens unless a single unit is longer.

    A chunk ends before a heading where that leaves it at least half full.

    Args:
        overlap: the most tokens that a chunk repeats of the one before.
        headings: the characters where headings start.
    """
    at_heading = [start in headings for start in units.starts]
    i = covered = 0
    while covered < len(units):
        j = max(bisect_right(units.last, units.first[i] + size), covered + 1)
        # Units i to j - 1 fit. The chunk has to go beyond the `covered` units of those before.
        ends = range(covered + 1, j + 1)
        before_headings = (end for end in ends if end < len(units) and at_heading[end])
        heading = next((end for end in before_headings if 2 * units.tokens(i, end) >= size), None)
        j = heading or _balanced_end(units, i, ends, size)
        yield Span(units.starts[i], units.ends[j - 1], units.tokens(i, j))
        if j < len(units) and not heading:
            # The next chunk has to hold unit j too.
            earliest = max(units.last[j - 1] - overlap, units.last[j] - size)
            i = min(bisect_left(units.first, earliest, i + 1), j)
        else:
            i = j
        covered = j


def _balanced_end(units: _Units, i: int, ends: range, size: int) -> int:
    """Where a chunk from unit i ends: at the last of `ends`, unless that leaves a tiny last chunk.

    The two last chunks then share the tokens as evenly as possible.
    """
    last = ends[-1]
    if last == len(units) or 4 * units.tokens(last, len(units)) >= size:
        return last

    def difference(end: int) -> int:
        return abs(units.tokens(i, end) - units.tokens(end, len(units)))

    return min((end for end in ends if units.tokens(end, len(units)) <= size), key=difference)
