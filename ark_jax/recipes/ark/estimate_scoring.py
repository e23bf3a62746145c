"""What scoring the alignment of questions and chunks computes, for `ark-jax plan`."""

import dataclasses
import itertools
import random
from collections.abc import Sequence

import numpy as np

from ark_jax.data.records import Chunk, Question
from ark_jax.recipes.common import estimate


@dataclasses.dataclass(frozen=True)
class Draw:
    """Chunks of a question, drawn at random, as many as models will choose."""

    candidates: list[Chunk]
    positives: list[str]
    negatives: list[str]

    @classmethod
    def from_chunks(cls, question: Question, chunks: Sequence[Chunk], config) -> "Draw":
        order = random.Random(f"{config.seed} {question.id}").sample(chunks, len(chunks))
        candidates = order[: config.score.candidates or None]
        positives = [chunk.id for chunk in candidates[: config.score.positives]]
        others = [chunk.id for chunk in order if chunk.id not in positives]
        negatives = min(config.mine.negatives, config.mine.top * config.graph.rewrites)
        return cls(candidates, positives, others[:negatives])


def scoring_work(
    lm,
    model,
    templates: dict[str, str],
    questions: Sequence[Question],
    draws: dict[str, Draw],
    config,
) -> tuple[float, np.ndarray]:
    """Tokens and FLOPs of all candidates' likelihoods; prefixes are shared as the scorer does."""
    from ark_jax.estimate import device_time
    from ark_jax.recipes.ark import alignment

    references = config.score.references
    pairs = {
        q.id: 2 * len(draws[q.id].candidates) * len(q.answers[: references or None])
        for q in questions
    }
    every = max(-(-sum(pairs.values()) // estimate.SAMPLE), 1)
    tokens, flops, scored = 0.0, np.zeros(2), 0
    for group in _prefix_groups(questions, pairs)[::every]:
        candidates = {q.id: [(chunk, 0.0) for chunk in draws[q.id].candidates] for q in group}
        alignment.align(
            lm, templates, group, candidates, references=references, batch_tokens=0, label=""
        )
        scored += len(lm.rows)
        group_tokens, group_flops = device_time.shared_prefix_work(model, lm.rows)
        tokens, flops = tokens + group_tokens, flops + group_flops
    scale = sum(pairs.values()) / max(scored, 1)
    return tokens * scale, flops * scale


def _prefix_groups(questions: Sequence[Question], pairs: dict[str, int]) -> list[list[Question]]:
    """Questions over the same documents, in groups of at most estimate.SAMPLE pairs.

    Questions over different documents share no prefix.
    """
    ordered = sorted(questions, key=lambda q: (q.documents, q.id))
    groups: list[list[Question]] = []
    for _, same_documents in itertools.groupby(ordered, key=lambda q: q.documents):
        groups.append([])
        size = 0
        for question in same_documents:
            if groups[-1] and size + pairs[question.id] > estimate.SAMPLE:
                groups.append([])
                size = 0
            groups[-1].append(question)
            size += pairs[question.id]
    return groups
