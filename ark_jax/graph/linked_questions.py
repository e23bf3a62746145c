"""Questions over a graph of triples, whose topics and answers are found among its nodes."""

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
from ark_jax.graph.triple_questions import TripleQuestion
from ark_jax.graph.triples import Triples
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
    nodes = _terms_of_names(pending, *terms.names_and_aliases())
    by_id = _terms_of_names(pending, terms.ids, np.arange(len(terms)))
    also_ids = [x for x in pending if x in nodes and set(by_id.get(x, ())) - set(nodes[x])]
    nodes = by_id | nodes
    pending = [name for name in pending if name not in nodes]
    if pending:
        texts, owners = terms.names_and_aliases()
        texts = _map_texts(str.casefold, [*texts.chunks, terms.ids])
        owners = np.concatenate([owners, np.arange(len(terms))])
        folded = _terms_of_names({name.casefold() for name in pending}, texts, owners)
        nodes |= {name: folded[name.casefold()] for name in pending if name.casefold() in folded}
    return Lookup(nodes, also_ids)


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
    """

    def __init__(self, terms: Terms):
        texts, owners = terms.names_and_aliases()
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

    def nodes_in(self, texts: Sequence[str]) -> list[tuple[int, ...]]:
        """The nodes whose names are in each text, ascending."""
        return [_sorted_union(nodes_of.values()) for nodes_of in self.find(texts)]

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
        may_name = lambda gram: len(gram) > 1 and _telling_words(gram)
        owners = _terms_of_names(filter(may_name, grams), self.texts, self.owners)
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


def nearest(name: str, terms: Terms, k: int = 3) -> list[str]:
    """The names most similar to another, by difflib, of those that share most letter trigrams.

    Args:
        terms: whose names and aliases are compared; ids where a term has no name.
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


LISTED = 5  # remarks of one kind; further ones are counted


@dataclasses.dataclass(frozen=True)
class Linked:
    """Questions whose answers and topics are nodes of a graph.

    Attributes:
        questions: as they were given.
        topics: for each question, the nodes of its topics, ascending. A name of several nodes
            gives all of them.
        answers: for each question and each of its answers, the nodes that it may be; none if it is
            not in the graph.
        counts: how many names were looked up and how many are absent, see `link`.
        remarks: sentences for the user, such as which names are absent.
    """

    questions: list[TripleQuestion]
    topics: list[tuple[int, ...]]
    answers: list[tuple[tuple[int, ...], ...]]
    counts: dict[str, int]
    remarks: list[str]

    def answer_nodes(self, question: int) -> np.ndarray:
        """All nodes that are an answer to a question, ascending: int64 [n]."""
        return np.unique(np.array([n for nodes in self.answers[question] for n in nodes], np.int64))

    def summary(self) -> str:
        """The counts, a line each."""
        return "\n".join(f"{name.replace('_', ' ')}: {n:,}" for name, n in self.counts.items())


def link(questions: Sequence[TripleQuestion], graph: Triples) -> Linked:
    """Finds the nodes of topics and answers.

    A given name is looked up by `look_up`. The topics of a question that names none are
    found in its text by the rule of `Mentions`.

    `counts` has, beside the number of questions:

    topics_given, topics_absent: names of topics, and how many of them are not in the graph.
    topics_from_text: questions whose topics were found in their text.
    without_topic: questions without a topic in the graph.
    answers, answers_absent: answers, and how many of them are not in the graph. An absent answer
        counts as a miss for every system.
    without_answer_in_graph: questions with answers none of which is in the graph.
    """
    questions = list(questions)
    searched_names = [name for q in questions for name in (*q.entities, *_answer_names(q))]
    lookup = look_up(searched_names, graph.nodes)
    nodes_of = lambda name: lookup.nodes.get(name, ())
    answers = [tuple(map(nodes_of, _answer_names(q))) for q in questions]
    without_names = [i for i, q in enumerate(questions) if not q.entities]
    mentions: list[dict[str, tuple[int, ...]]] = []
    if without_names:
        mentions = Mentions(graph.nodes).find([questions[i].question for i in without_names])
    topics = [_sorted_union(map(nodes_of, q.entities)) for q in questions]
    for i, names in zip(without_names, mentions, strict=True):
        topics[i] = _sorted_union(names.values())
    given_names = [name for q in questions for name in q.entities]
    all_answers = [nodes for question_answers in answers for nodes in question_answers]
    counts = {
        "questions": len(questions),
        "topics_given": len(given_names),
        "topics_absent": sum(not nodes_of(name) for name in given_names),
        "topics_from_text": sum(map(bool, mentions)),
        "without_topic": sum(not nodes for nodes in topics),
        "answers": len(all_answers),
        "answers_absent": sum(not nodes for nodes in all_answers),
        "without_answer_in_graph": sum(
            bool(question_answers) and not any(question_answers) for question_answers in answers
        ),
    }
    ambiguous = {name: nodes for name, nodes in lookup.nodes.items() if len(nodes) > 1}
    for names in mentions:
        ambiguous |= {name: nodes for name, nodes in names.items() if len(nodes) > 1}
    remarks = [
        *_absent_topics(questions, nodes_of, graph),
        *_absent_answers(questions, answers, counts),
        *_ambiguous_names(ambiguous, graph),
    ]
    if lookup.also_ids:
        examples = ", ".join(map(repr, lookup.also_ids[:3]))
        remarks.append(
            f"{len(lookup.also_ids):,} names are also ids of other nodes ({examples}); "
            "they are read as names"
        )
    return Linked(questions, topics, answers, counts, remarks)


def _answer_names(question: TripleQuestion) -> tuple[str, ...]:
    """The names or ids by which the answers of a question are looked up."""
    return question.answer_entities or question.answers


def _sorted_union(groups: Iterable[Iterable[int]]) -> tuple[int, ...]:
    return tuple(sorted({node for nodes in groups for node in nodes}))


def _absent_topics(
    questions: Sequence[TripleQuestion], nodes_of: Callable[[str], tuple[int, ...]], graph: Triples
) -> list[str]:
    """Remarks on topics that are not in the graph, with the most similar names."""
    first: dict[str, str] = {}
    for question in questions:
        for name in question.entities:
            if not nodes_of(name):
                first.setdefault(name, question.id)
    lines = []
    for name, id in list(first.items())[:LISTED]:
        nearest_names = ", ".join(map(repr, nearest(name, graph.nodes))) or "none"
        lines.append(
            f"topic {name!r} of question {id!r} is not in the graph; nearest: {nearest_names}"
        )
    return _with_count_of_rest(lines, len(first), "topics are not in the graph")


def _absent_answers(
    questions: Sequence[TripleQuestion],
    answers: Sequence[tuple[tuple[int, ...], ...]],
    counts: Mapping[str, int],
) -> list[str]:
    """Remarks on answers that are not in the graph."""
    if not counts["answers_absent"]:
        return []
    absent = (
        f"{name!r} of {q.id!r}"
        for q, nodes_by_answer in zip(questions, answers, strict=True)
        for name, nodes in zip(_answer_names(q), nodes_by_answer, strict=True)
        if not nodes
    )
    examples = ", ".join(name for name, _ in zip(absent, range(3), strict=False))
    lines = [
        f"{counts['answers_absent']:,} answers are not in the graph ({examples}); each counts as a "
        "miss"
    ]
    if 2 * counts["without_answer_in_graph"] > len(questions):
        lines.append(
            f"{counts['without_answer_in_graph']:,} of {len(questions):,} questions have no answer "
            "in the graph: check that they belong together"
        )
    return lines


def _ambiguous_names(names: Mapping[str, Sequence[int]], graph: Triples) -> list[str]:
    """Remarks on names of several nodes, all of which are taken."""
    lines = []
    for name, nodes in list(names.items())[:LISTED]:
        ids = ", ".join(graph.nodes.ids[node].as_py() for node in nodes[:LISTED])
        ending = f" and {len(nodes) - LISTED:,} more" if len(nodes) > LISTED else ""
        lines.append(f"{name!r} may be {len(nodes):,} nodes, all are taken: {ids}{ending}")
    return _with_count_of_rest(lines, len(names), "names lead to several nodes")


def _with_count_of_rest(lines: list[str], total: int, kind: str) -> list[str]:
    """Some remarks of a kind, and one that says how many more there are."""
    surplus = total - len(lines)
    return lines + ([f"{surplus:,} more {kind}"] if surplus else [])
