"""Metrics of paths: hits, ways, errors and their biases."""

import functools
from collections.abc import Mapping, Sequence

import numpy as np

from ark_jax.graph.beam import FoundPath
from ark_jax.graph.steps import GoldPath, Steps
from ark_jax.recipes.star.data import PathQuestion
from ark_jax.recipes.star.search import count_paths

AT_K = ("hit", "path_hit", "detour")
OF_ALL = ("f1", "answer_coverage")
# Always measured, to compare runs by.
STANDARD = ("hit@1", "hit@3", "path_hit@1", "detour@1", "f1", "answer_coverage")
BIASES = ("wrong", "shortcut", "long_tail", "union")
RARE_SHARE = 0.2  # of the different training paths, those that fewest questions have
HEAD, TAIL = "paths frequent in training", "paths rare in training or unseen"


def parse_metric(name: str) -> tuple[str, int]:
    """("hit", 3) of "hit@3"; ("f1", 0) of "f1"."""
    kind, _, cutoff = name.partition("@")
    if name in OF_ALL:
        return name, 0
    if kind not in AT_K or not (cutoff.isascii() and cutoff.isdigit() and int(cutoff)):
        raise ValueError(
            f"config.evaluate.metrics: {name!r} is none of {', '.join(OF_ALL)}, or of "
            f"{', '.join(AT_K)} with @k"
        )
    return kind, int(cutoff)


def measure(
    steps: Steps,
    question: PathQuestion,
    gold: Sequence[GoldPath],
    paths: Sequence[FoundPath],
    metrics: Sequence[str],
) -> dict[str, float]:
    """The metrics of a question's paths, each from 0 to 1.

    - hit@k: 1 if one of the first k paths reaches an answer.
    - path_hit@k: 1 if one of them is a shortest path to an answer.
    - detour@k: 1 for a hit without a path hit: the answer was reached by another way.
    - f1: of the entities that the first path reaches against the answers.
    - answer_coverage: the share of the answers that all paths found reach.

    An answer that the graph lacks counts as not reached.
    """
    answers = np.array(question.answer_nodes, np.int64)
    reached = [steps.reach(path.topic, path.steps) for path in paths]
    hits = [bool(np.isin(nodes, answers).any()) for nodes in reached]
    shortest = {(path.topic, path.steps) for path in gold}
    path_hits = [(path.topic, path.steps) in shortest for path in paths]
    total = len(answers) + question.absent
    union = functools.reduce(np.union1d, reached, np.zeros(0, np.int64))
    first = reached[0] if reached else union
    right = int(np.isin(first, answers).sum())
    wholes = {
        "f1": 2 * right / (len(first) + total) if len(first) + total else 0.0,
        "answer_coverage": int(np.isin(union, answers).sum()) / total if total else 0.0,
    }
    values = {}
    for name in metrics:
        kind, k = parse_metric(name)
        hit, path_hit = any(hits[:k]), any(path_hits[:k])
        flags = {"hit": hit, "path_hit": path_hit, "detour": hit and not path_hit}
        values[name] = wholes[kind] if kind in wholes else float(flags[kind])
    return values


def measure_biases(
    hit: float, cosine: float | None, shortest: Sequence[float], similar_at: float, *, rare: bool
) -> dict[str, float]:
    """What STAR's figure 3 and table 3 count, of a question's first path, each 0 or 1.

    - similar: the path looks like the question: its cosine is at least `similar_at` or, if that is
      0, the mean of the shortest paths, which algorithm 1 demands of a positive.
    - rare: the question asks for a rare path, see `rarity_groups`.
    - wrong: no hit, the paper's error. shortcut, long_tail: an error that is similar, or rare;
      union: either.

    Args:
        hit: hit@1.
        cosine: of the first path with the question; None if no path was found.
        shortest: the cosines of the question's shortest paths; there may be none.
    """
    limit = similar_at or (float(np.mean(shortest)) if shortest else np.inf)
    similar = cosine is not None and cosine >= limit - 1e-6  # as in `mine.hard_positives`
    error = 1.0 - hit
    return {
        "similar": float(similar),
        "rare": float(rare),
        "wrong": error,
        "shortcut": error * similar,
        "long_tail": error * rare,
        "union": error * (similar or rare),
    }


def rarity_groups(
    questions: Sequence[PathQuestion],
    gold: Mapping[str, Sequence[GoldPath]],
    train: Mapping[str, Sequence[GoldPath]],
) -> dict[str, set[str]]:
    """HEAD and TAIL -> ids of questions.

    A path is rare if it is unseen in training, or among the fifth of the different training paths
    that fewest questions have; ties with the last one count as rare. A question is in the tail if
    all its shortest paths are rare. A question without a path is in neither.
    """
    counts = count_paths(train)
    limit = np.quantile(list(counts.values()), RARE_SHARE, method="lower")
    groups: dict[str, set[str]] = {HEAD: set(), TAIL: set()}
    for question in questions:
        if paths := gold.get(question.id):
            rare = all(counts[path.steps] <= limit for path in paths)
            groups[TAIL if rare else HEAD].add(question.id)
    return groups
