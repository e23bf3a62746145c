"""Hard negatives: what the retriever finds for the rewritten questions, minus the positives."""

from collections.abc import Mapping, Sequence

import numpy as np

from ark_jax.search import top_k


def mine(
    queries: Mapping[str, np.ndarray], chunks: Mapping[str, Sequence[int]], vectors: np.ndarray, ids: Sequence[str],
    positives: Mapping[str, Sequence[str]], *, top: int, keep: int,
) -> dict[str, list[tuple[str, float]]]:
    """question -> up to `keep` (chunk, best cosine), hardest first.

    Args:
        queries: question -> unit vectors `[r e]` of its rewritten versions.
        chunks: question -> indices into `vectors` of the chunks it may be answered from.
        vectors: unit vectors of all chunks `[n e]`; `ids` are their names.
        top: chunks taken per rewritten question, before their union loses the positives.
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
            hard = [(name, score) for name, score in best.items() if name not in set(positives[question])]
            out[question] = sorted(hard, key=lambda x: (-x[1], x[0]))[:keep]
    return out
