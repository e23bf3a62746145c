"""The words of a text as BM25 counts them."""

from collections.abc import Sequence


def stems(texts: Sequence[str]) -> list[list[str]]:
    """The English stems of each text, in order, without stop words."""
    return _tokenize(texts, return_ids=False)


def stem_numbers(texts: Sequence[str]) -> tuple[list[list[int]], dict[str, int]]:
    """`stems` as numbers, and stem -> its number. Which number a stem gets is left open."""
    numbers = _tokenize(texts, return_ids=True)
    return numbers.ids, numbers.vocab


def _tokenize(texts: Sequence[str], *, return_ids: bool):
    import bm25s
    import Stemmer

    stemmer = Stemmer.Stemmer("english")
    return bm25s.tokenize(
        list(texts), stopwords="en", stemmer=stemmer, return_ids=return_ids, show_progress=False
    )
