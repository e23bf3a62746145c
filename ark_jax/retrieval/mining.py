"""Hard negatives: chunks that rank high for a question and are unlikely to answer it."""

import dataclasses
import hashlib
import itertools
import operator
import random
import re
from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from typing import Protocol, TypeVar, runtime_checkable

import numpy as np

from ark_jax.retrieval.bm25_index import count_bm25
from ark_jax.retrieval.searcher import Ranking, nearest_texts
from ark_jax.runtime.log import Progress
from ark_jax.text.token_vectors import Vectors, join
from ark_jax.text.word_boundaries import whole_word_pattern

QUESTIONS = 4096  # whose queries are searched for at once
Key = TypeVar("Key", bound=Hashable)  # of a chunk


@dataclasses.dataclass(frozen=True)
class MiningTask:
    """The input of a user's own miner.

    Texts are chunks in ARK, triples in GPR and paths in STAR. In STAR a question occurs once for
    each list of paths.

    Attributes:
        questions: question id -> text.
        pools: question id -> indices into `texts` of its candidates. In ARK and GPR its positives
            are among them.
        texts: all texts, from which negatives are chosen.
        query_vectors: question id -> unit vector `[e]`, by the retriever that mines. By
            `retriever.vectors=tokens` those of its tokens, `[t e]`.
        chunk_vectors: unit vectors of `texts`, `[n e]`, by the same retriever, or their
            `TokenVectors`.
        top: candidates that are used of each question; further ones are ignored.
    """

    questions: Mapping[str, str]
    pools: Mapping[str, Sequence[int]]
    texts: Sequence[str]
    query_vectors: Mapping[str, np.ndarray]
    chunk_vectors: Vectors
    top: int


@runtime_checkable
class Miner(Protocol):
    """Finds candidates for hard negatives."""

    def __call__(self, task: MiningTask) -> Mapping[str, Sequence[int]]:
        """Returns question id -> indices into `task.texts`, hardest first.

        Positives may be among them, they never become negatives.
        """


def dense_candidates(
    queries: Mapping[str, Vectors],
    pools: Mapping[str, Sequence[int]],
    vectors: Vectors,
    ids: Sequence[str],
    *,
    top: int,
) -> dict[str, Ranking]:
    """Retrieves the nearest chunks of every question and merges the results of its queries.

    Args:
        queries: question -> unit vectors `[r e]`, one for each query (rewritten version) of the
            question, or the `TokenVectors` of its queries.
        pools: question -> indices into `vectors` of the chunks that it may be answered from.
        vectors: unit vectors of all chunks, `[n e]`, or their `TokenVectors`.
        ids: the id of each row of `vectors`.
        top: number of chunks retrieved per query.

    Returns:
        question -> the chunks and the highest cosine of each over its queries, highest first. Of
        equal cosines that with the smaller id is first.
    """
    candidates: dict[str, Ranking] = {}
    with Progress("search for negatives", len(queries), "questions") as bar:
        questions = list(queries)
        for start in range(0, len(questions), QUESTIONS):
            block = questions[start : start + QUESTIONS]
            scopes = [pools[question] for question in block for _ in range(len(queries[question]))]
            joined = join([queries[question] for question in block])
            found = iter(nearest_texts(joined, vectors, top, scopes))
            for question in block:
                rankings = itertools.islice(found, len(queries[question]))
                candidates[question] = _merge_rankings(rankings, ids)
            bar.add(len(block))
    return candidates


def _merge_rankings(rankings: Iterable[Ranking], ids: Sequence[str]) -> Ranking:
    """Merges what the queries of one question find: each chunk once, with its highest cosine."""
    best: dict[int, float] = {}
    for chunk, score in itertools.chain.from_iterable(ranking.pairs() for ranking in rankings):
        best[chunk] = max(best.get(chunk, -1.0), score)
    ranked = sorted(best, key=lambda chunk: (-best[chunk], ids[chunk]))
    return Ranking(
        np.array(ranked, np.int32), np.array([best[chunk] for chunk in ranked], np.float32)
    )


def baseline_candidates(
    by: str,
    questions: Mapping[str, str],
    pools: Mapping[str, Sequence[int]],
    texts: Sequence[str],
    *,
    top: int,
) -> dict[str, list[int]]:
    """Chooses candidates without a dense retriever, as a baseline for ARK's negatives.

    Args:
        by: "bm25" ranks the pool by BM25; "random" draws from it with the question's id as the
            seed.
        questions: question id -> text.
        pools: question id -> indices into `texts` of the chunks that it may be answered from.
        texts: texts of all chunks.
        top: number of candidates per question.

    Returns:
        question id -> indices into `texts`, hardest first.
    """
    if by == "bm25":
        scopes = [pools[id] for id in questions]
        rankings = count_bm25(texts).search(list(questions.values()), top, scopes)
        return {id: x.ids.tolist() for id, x in zip(questions, rankings, strict=True)}
    return {
        id: random.Random(id).sample(list(pools[id]), min(top, len(pools[id]))) for id in questions
    }


def own_candidates(miner: Miner, task: MiningTask) -> dict[str, list[int]]:
    """The candidates that a miner of the user's own finds, the first `task.top` of each question.

    Raises:
        ValueError: a question is missing, or an index is not in its pool or is repeated.
    """
    mined = miner(task)
    rule = "it must return a dict, question id -> indices of texts"
    if not isinstance(mined, Mapping):
        raise ValueError(f"{rule}; it returned {type(mined).__name__}")
    if missing := [question for question in task.questions if question not in mined]:
        raise ValueError(f"{rule}; what it returned lacks question {missing[0]!r}")
    return {
        question: _checked_indices(mined[question], task, question) for question in task.questions
    }


def _checked_indices(mined: Sequence[int], task: MiningTask, question: str) -> list[int]:
    """The first `task.top` indices of a question as plain integers; ValueError for a wrong one."""
    pool = task.pools[question]
    within = pool if isinstance(pool, range) else set(pool)
    indices = []
    for value in list(mined)[: task.top]:
        try:
            index = operator.index(value)
        except TypeError:
            index = None
        if index is None or index not in within:
            raise ValueError(
                f"for question {question!r} it returned {value!r}, which is not an index of its "
                "pool"
            )
        if index in indices:
            raise ValueError(f"for question {question!r} it returned index {index} twice")
        indices.append(index)
    return indices


def choose_negatives(
    candidates: Iterable[tuple[Key, float]],
    positives: Sequence[Key],
    *,
    cosine: Mapping[Key, float],
    first_copy: Mapping[Key, Key],
    margin: float,
    spared: Collection[Key],
    keep: int,
    trusted: Collection[Key] = (),
) -> tuple[list[tuple[Key, float]], Counter]:
    """Chooses the first `keep` candidates of a question that may serve as negatives.

    Positives, copies of positives and copies of chosen negatives are never chosen. Chunks are named
    by their positions, ids or any other key.

    Args:
        candidates: (chunk, score), hardest first.
        positives: the positives.
        cosine: chunk -> cosine to the question, of all candidates and positives.
        first_copy: chunk -> the first chunk with the same text, if it is not the first itself; see
            `first_copies`.
        margin: the filter of NV-Retriever (there 0.95). A candidate must not exceed this share of
            the highest cosine of a positive, because it may be an unmarked positive. 0 turns the
            filter off.
        spared: chunks that are never chosen, because they explain the answer nearly as well as the
            positives.
        keep: largest number of negatives.
        trusted: chunks that are known to be irrelevant: only the rule of copies applies to them.

    Returns:
        The chosen (chunk, score) pairs, and the number of candidates that each rule excluded.
    """
    nearest = max(cosine[chunk] for chunk in positives)
    ceiling = nearest - (1 - margin) * abs(nearest) if margin else np.inf
    seen = {first_copy.get(chunk, chunk) for chunk in positives}
    chosen, dropped = [], Counter(copies=0, margin=0, aligned=0)
    for chunk, score in candidates:
        if chunk in positives:
            continue
        if len(chosen) == keep:
            break
        original = first_copy.get(chunk, chunk)
        if original in seen:
            dropped["copies"] += 1
        elif cosine[chunk] > ceiling and chunk not in trusted:
            dropped["margin"] += 1
        elif chunk in spared and chunk not in trusted:
            dropped["aligned"] += 1
        else:
            chosen.append((chunk, score))
            seen.add(original)
    return chosen, dropped


def first_copies(texts: Iterable[str]) -> dict[int, int]:
    """Maps the position of every repeated text to that of the first one, ignoring case and spacing.

    The positions of first texts are not included. Memory holds 16 bytes of a digest for each text.
    """
    digests = bytearray()
    for text in texts:
        digests += hashlib.sha256(_normalised(text).encode()).digest()[:16]
    _, first, number = np.unique(
        np.frombuffer(digests, "S16"), return_index=True, return_inverse=True
    )
    original = first[number]
    copies = np.flatnonzero(original != np.arange(len(original)))
    return dict(zip(copies.tolist(), original[copies].tolist(), strict=True))


def contains_answer(text: str, answers: Sequence[str]) -> bool:
    """Whether a text contains an answer as whole words, ignoring case and spacing."""
    normalised = _normalised(text)
    return any(re.search(whole_word_pattern(_normalised(answer)), normalised) for answer in answers)


def _normalised(text: str) -> str:
    """The text with folded case and single blanks."""
    return " ".join(text.casefold().split())
