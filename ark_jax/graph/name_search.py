"""Looks up names in a graph, finds names in texts, and suggests similar names."""

import collections
import dataclasses
import difflib
import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ark_jax.graph.parquet import TEXT
from ark_jax.graph.terms import Terms
from ark_jax.text.word_boundaries import UNSPACED

# Words without underscores, characters of scripts without blanks, and punctuation marks.
_TOKEN = re.compile(rf"[{UNSPACED}]|(?:(?![{UNSPACED}_])\w)+|[^\w\s]")
_BATCH = 1 << 16
_QUESTIONS = 1 << 12  # how many texts are searched at a time
_NEAR = 50  # candidates that difflib compares


@dataclasses.dataclass
class Lookup:
    """The nodes of names.

    Attributes:
        nodes: name -> indices of its nodes, ascending; a name without a node is absent.
        also_ids: names that are also the id of another node.
    """

    nodes: dict[str, tuple[int, ...]]
    also_ids: list[str]


def look_up(names: Iterable[str], terms: Terms) -> Lookup:
    """All nodes of each name.

    Names and aliases are compared first, then ids. A name that is found in neither is compared
    again without regard to case.
    """
    pending = list(dict.fromkeys(names))
    nodes = _terms_of_names(pending, *_names_and_aliases(terms))
    by_id = _terms_of_names(pending, terms.ids, np.arange(len(terms)))
    also_ids = [x for x in pending if x in nodes and set(by_id.get(x, ())) - set(nodes[x])]
    nodes = by_id | nodes
    pending = [name for name in pending if name not in nodes]
    if pending:
        texts, owners = _names_and_aliases(terms)
        texts = _map_texts(str.casefold, [*texts.chunks, terms.ids])
        owners = np.concatenate([owners, np.arange(len(terms))])
        folded = _terms_of_names({name.casefold() for name in pending}, texts, owners)
        nodes |= {name: folded[name.casefold()] for name in pending if name.casefold() in folded}
    return Lookup(nodes, also_ids)


def _names_and_aliases(terms: Terms) -> tuple[pa.ChunkedArray, np.ndarray]:
    """All names and aliases of terms, and the index of the term of each."""
    named = np.flatnonzero(pc.is_valid(terms.names).to_numpy(zero_copy_only=False))
    aliased = pc.list_parent_indices(terms.aliases).to_numpy()
    texts = pa.chunked_array([terms.names.drop_null(), pc.list_flatten(terms.aliases)], TEXT)
    return texts, np.concatenate([named, aliased])


def _map_texts(function: Callable[[str], str], chunks: Iterable[pa.Array]) -> pa.ChunkedArray:
    """Applies a function to Arrow strings in batches, so that no list holds all of them."""
    parts = (chunk[i : i + _BATCH] for chunk in chunks for i in range(0, len(chunk), _BATCH))
    return pa.chunked_array(
        [pa.array(map(function, part.to_pylist()), TEXT, size=len(part)) for part in parts], TEXT
    )


def _terms_of_names(
    names: Iterable[str], texts: pa.Array | pa.ChunkedArray, terms: np.ndarray
) -> dict[str, tuple[int, ...]]:
    """name -> the terms that have it as a text, ascending; a name that no term has is absent."""
    # The names are hashed and not the texts, of which a graph has many more.
    names = list(names)
    if not names:
        return {}
    places = pc.index_in(texts, value_set=pa.array(names, TEXT))
    places = places.fill_null(-1).to_numpy()
    owners: dict[str, set[int]] = collections.defaultdict(set)
    for row in np.flatnonzero(places >= 0).tolist():
        owners[names[places[row]]].add(int(terms[row]))
    return {name: tuple(sorted(nodes)) for name, nodes in owners.items()}


class Mentions:
    """Finds the names of a graph in texts.

    The rule: names are compared word by word, an underscore counts as a blank. The longest match
    goes first, and matches do not overlap. Case counts; only a text without a match is searched
    again without it. A name of English stop words alone ("Her", "the") never matches, nor does one
    character. A name with one other word, in lower case ("film", "the story"), matches only if the
    text has no other match.

    Args:
        terms: the nodes of the graph.
    """

    def __init__(self, terms: Terms):
        texts, owners = _names_and_aliases(terms)
        self._exact = _NameForms(
            _map_texts(lambda name: " ".join(_TOKEN.findall(name)), texts.chunks), owners
        )

    @functools.cached_property
    def _folded(self) -> "_NameForms":
        return _NameForms(_map_texts(str.casefold, self._exact.texts.chunks), self._exact.owners)

    def find(self, texts: Sequence[str]) -> list[dict[str, tuple[int, ...]]]:
        """For each text, the names in it and the nodes of each, in order of the text."""
        names: list[dict[str, tuple[int, ...]]] = []
        for start in range(0, len(texts), _QUESTIONS):
            names += self._find_in_batch(texts[start : start + _QUESTIONS])
        return names

    def _find_in_batch(self, texts: Sequence[str]) -> list[dict[str, tuple[int, ...]]]:
        """As `find`, for all texts at once."""
        tokens = [_TOKEN.findall(text) for text in texts]
        by_text = self._exact.search(tokens)
        nameless = [i for i, names in enumerate(by_text) if not names]
        if nameless:
            folded = [[token.casefold() for token in tokens[i]] for i in nameless]
            for i, names in zip(nameless, self._folded.search(folded), strict=True):
                by_text[i] = names
        return by_text


class _NameForms:
    """Names to find in texts.

    Args:
        texts: the names, as tokens with blanks between.
        owners: the term of each name.
    """

    def __init__(self, texts: pa.ChunkedArray, owners: np.ndarray):
        self.texts, self.owners = texts, owners
        most_blanks = pc.max(pc.count_substring(texts, " ")).as_py()
        self._longest = (most_blanks or 0) + 1
        firsts = pc.list_element(pc.split_pattern(texts, " ", max_splits=1), 0)
        self._firsts = frozenset(firsts.unique().to_pylist())

    def search(self, texts: Sequence[list[str]]) -> list[dict[str, tuple[int, ...]]]:
        """For each text, which is given as tokens: name in it -> the terms of the name."""
        grams = {gram for tokens in texts for _, _, gram in self._candidate_runs(tokens)}
        owners = _terms_of_names(filter(_can_be_name, grams), self.texts, self.owners)
        return [self._longest_matches(tokens, owners) for tokens in texts]

    def _candidate_runs(self, tokens: list[str]) -> Iterator[tuple[int, int, str]]:
        """Start, end and text of each run of tokens that begins like a name, the longest first."""
        starts = [i for i, token in enumerate(tokens) if token in self._firsts]
        for length in range(min(self._longest, len(tokens)), 0, -1):
            for start in starts:
                if start + length <= len(tokens):
                    yield start, start + length, " ".join(tokens[start : start + length])

    def _longest_matches(
        self, tokens: list[str], owners: Mapping[str, tuple[int, ...]]
    ) -> dict[str, tuple[int, ...]]:
        """The names in a text by the rule of `Mentions`, and the terms of each."""
        free = [True] * len(tokens)
        matches = []
        for start, end, gram in self._candidate_runs(tokens):
            if gram in owners and all(free[start:end]):
                free[start:end] = [False] * (end - start)
                matches.append((start, gram))
        clear = [m for m in matches if not m[1].islower() or len(_telling_words(m[1])) > 1]
        return {gram: owners[gram] for _, gram in sorted(clear or matches)}


@functools.cache
def _stop_words() -> frozenset[str]:
    from bm25s.stopwords import STOPWORDS_EN_PLUS  # which takes a second

    return frozenset(STOPWORDS_EN_PLUS)


def _telling_words(gram: str) -> list[str]:
    """The words that are neither punctuation nor stop words."""
    return [w for w in gram.split() if w[0].isalnum() and w.casefold() not in _stop_words()]


def _can_be_name(gram: str) -> bool:
    """Whether a run of tokens is more than one character, and more than stop words."""
    return len(gram) > 1 and bool(_telling_words(gram))


def nearest(name: str, terms: Terms, k: int = 3) -> list[str]:
    """The names most similar to another, by difflib, of those that share most letter trigrams.

    Args:
        name: any text.
        terms: whose names and aliases are compared; ids where a term has no name.
        k: how many names.
    """
    texts = pa.concat_arrays([pc.coalesce(terms.names, terms.ids), pc.list_flatten(terms.aliases)])
    if not len(texts):
        return []
    folded, wanted = pc.utf8_lower(texts), name.lower()
    wanted_runs = {wanted[i : i + 3] for i in range(max(len(wanted) - 2, 1))}
    shared = np.zeros(len(texts))
    for run in sorted(wanted_runs):
        shared += pc.match_substring(folded, run).to_numpy(zero_copy_only=False)
    run_counts = np.maximum(pc.utf8_length(texts).to_numpy() - 2, 1)
    jaccard = shared / (len(wanted_runs) + run_counts - shared + 1e-9)
    best = np.argsort(-jaccard, kind="stable")[:_NEAR]
    candidates = {texts[int(i)].as_py() for i in best if jaccard[i] > 0}
    likeness = lambda candidate: difflib.SequenceMatcher(None, wanted, candidate.lower()).ratio()
    return sorted(candidates, key=lambda candidate: (-likeness(candidate), candidate))[:k]
