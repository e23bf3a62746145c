"""Hard negatives: what the retriever finds for the rewritten questions, minus what is or may well be a positive."""

import hashlib
import random
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np

from ark_jax.data.words import whole
from ark_jax.evaluate.systems import bm25
from ark_jax.search import top_k


def mine(
    queries: Mapping[str, np.ndarray], chunks: Mapping[str, Sequence[int]], vectors: np.ndarray, ids: Sequence[str], *, top: int
) -> dict[str, list[tuple[str, float]]]:
    """question -> (chunk, best cosine) of all that its rewritten versions find, hardest first; the smaller id among equals.

    Args:
        queries: question -> unit vectors `[r e]` of its rewritten versions.
        chunks: question -> indices into `vectors` of the chunks it may be answered from.
        vectors: unit vectors of all chunks `[n e]`; `ids` are their names.
        top: chunks taken per rewritten question.
    """
    out: dict[str, list[tuple[str, float]]] = {}
    # Questions over the same documents are searched together.
    shared: dict[tuple[int, ...], list[str]] = {}
    for question in queries:
        shared.setdefault(tuple(chunks[question]), []).append(question)
    for where, questions in shared.items():
        stacked = np.concatenate([queries[q] for q in questions])
        found, scores = top_k(stacked, vectors[list(where)], top)
        at = 0
        for question in questions:
            best: dict[str, float] = {}
            for i, score in zip(found[at : at + len(queries[question])].ravel(),
                                scores[at : at + len(queries[question])].ravel(), strict=True):
                name = ids[where[i]]
                best[name] = max(best.get(name, -1.0), float(score))
            at += len(queries[question])
            out[question] = sorted(best.items(), key=lambda x: (-x[1], x[0]))
    return out


def unlearned(by: str, questions: Mapping[str, str], chunks: Mapping[str, Sequence[int]], texts: Sequence[str], *,
              top: int) -> dict[str, list[int]]:
    """question -> indices of `top` chunks, hardest first, that no retriever chose: what ARK's negatives are compared with.

    Args:
        by: "bm25", those that share the question's words; "random", drawn by the question's id.
        chunks: question -> indices into `texts` of the chunks it may be answered from.
    """
    if by == "bm25":
        return dict(zip(questions, bm25(list(questions.values()), texts, [chunks[q] for q in questions], top), strict=True))
    return {q: random.Random(q).sample(list(chunks[q]), min(top, len(chunks[q]))) for q in questions}


def choose(
    found: Sequence[tuple[str, float]], positives: Sequence[str], *, cosine: Mapping[str, float], originals: Mapping[str, str],
    holding: Callable[[str], bool], margin: float, spared: Collection[str], drop_answers: bool, keep: int,
) -> tuple[list[tuple[str, float]], Counter]:
    """The first `keep` of what `mine` found for a question that may serve as negatives, and how many each rule took.

    A positive never serves, nor a copy of one or of a chunk chosen already.

    Args:
        cosine: chunk -> its similarity to the question itself, of what was found and of the positives.
        originals: of chunks that are copies, the first one of the same text.
        holding: whether a chunk holds an answer; with `drop_answers` such a chunk is not taken.
        margin: the share of the most similar positive's cosine up to which a chunk is taken (NV-Retriever's filter, there
            0.95); what comes nearer is likely a positive that nobody marked. 0: all are taken.
        spared: chunks that are not taken, because they explain the answer nearly as well as the positives.
    """
    nearest = max(cosine[chunk] for chunk in positives)
    most = nearest - (1 - margin) * abs(nearest) if margin else np.inf
    original = lambda chunk: originals.get(chunk, chunk)
    seen = set(map(original, positives))
    kept, dropped = [], Counter(copies=0, margin=0, aligned=0, answers=0)
    for chunk, score in found:
        if chunk in positives:
            continue
        if len(kept) == keep:
            break
        if original(chunk) in seen:
            dropped["copies"] += 1
        elif cosine[chunk] > most:
            dropped["margin"] += 1
        elif chunk in spared:
            dropped["aligned"] += 1
        elif drop_answers and holding(chunk):
            dropped["answers"] += 1
        else:
            kept.append((chunk, score))
            seen.add(original(chunk))
    return kept, dropped


def originals(texts: Mapping[str, str]) -> dict[str, str]:
    """chunk -> the first chunk of the same text, but for case and spacing; of chunks that are not the first themselves."""
    first: dict[bytes, str] = {}
    seen = ((chunk, first.setdefault(hashlib.sha256(_plain(text).encode()).digest(), chunk)) for chunk, text in texts.items())
    return {chunk: other for chunk, other in seen if other != chunk}


def holds(text: str, answers: Sequence[str]) -> bool:
    """Whether a text holds an answer, but for case and spacing, and not inside of a longer word."""
    return any(re.search(whole(_plain(answer)), _plain(text)) for answer in answers)


def _plain(text: str) -> str:
    return " ".join(text.casefold().split())
