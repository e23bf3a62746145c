"""What each system finds for each test question, by beam search or by counts of training paths.

Then the metrics of paths: hits, ways, errors and their biases.
"""

import collections
import dataclasses
import functools
import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from ark_jax.graph.beam import BeamRules, FoundPath, Scorer, search
from ark_jax.graph.steps import GoldPath, Steps, f1
from ark_jax.pipeline.parts import is_whole, store_part
from ark_jax.pipeline.stage import Context
from ark_jax.pipeline.tables import load_json, save_json
from ark_jax.recipes.core.models import load_base_scorer
from ark_jax.recipes.star.data import PathQuestion, load_paths, load_questions, load_steps
from ark_jax.runtime import distributed
from ark_jax.runtime.log import say

BASE, TUNED = "base", "star"
Paths = dict[str, list[FoundPath]]  # question -> its paths, best first; it may have none


@dataclasses.dataclass(frozen=True)
class Found:
    """What a system found for the test questions, and what that cost.

    Attributes:
        pairs: pairs that the scorer read.
        prefiltered: pairs that the prefilter scored by their cosine.
        cuts: sets of entities that were cut to `graph.steps.HUB` to look up their relations.
    """

    paths: Paths
    pairs: int = 0
    prefiltered: int = 0
    cuts: int = 0

    @property
    def counts(self) -> dict[str, int]:
        """The counts for the manifest."""
        return {
            "pairs": self.pairs,
            "prefiltered_pairs": self.prefiltered,
            "large_sets_cut": self.cuts,
        }


def untrained(config) -> list[str]:
    """Names of the systems that no training changes, in the order of the table."""
    return [BASE, *config.evaluate.baselines]


@dataclasses.dataclass(frozen=True)
class _BatchedScorer:
    """A `CrossEncoder` with the batch size of the config."""

    scorer: Scorer
    batch_tokens: int
    label: str

    def score(self, pairs: Sequence[tuple[str, str]]) -> np.ndarray:
        return self.scorer.score(pairs, batch_tokens=self.batch_tokens, label=self.label)


def search_untrained(context: Context, folder: Path) -> dict[str, Found]:
    """What each untrained system finds, which is stored too."""
    questions, steps = load_questions(context, "test"), load_steps(context)
    train_paths = load_paths(context, "train")
    base = search_once(
        folder, BASE, lambda: beam_search(context, questions, steps, load_base_scorer(context))
    )
    followed = {
        name: search_once(
            folder,
            name,
            functools.partial(_follow_training_paths, context, questions, steps, train_paths, name),
        )
        for name in context.config.evaluate.baselines
    }
    return {BASE: base, **followed}


def search_tuned(context: Context, folder: Path, load_tuned: Callable) -> Found:
    """What the trained scorer finds."""
    questions, steps = load_questions(context, "test"), load_steps(context)
    find = lambda: beam_search(context, questions, steps, load_tuned(context))
    return search_once(folder, TUNED, find)


def beam_search(context: Context, questions: Sequence[PathQuestion], steps: Steps, scorer) -> Found:
    """The paths of each question by beam search, the first `search.k`.

    Args:
        scorer: a `CrossEncoder`; before one that reads pairs, cosines prefilter.
    """
    config, begun = context.config, time.monotonic()
    prefilter = load_base_scorer(context) if scorer.cfg.reads_pairs else None
    budget = config.retriever.batch_tokens
    result = search(
        [question.question for question in questions],
        [question.topics for question in questions],
        steps,
        _BatchedScorer(scorer, budget, "score paths"),
        BeamRules(config.search.beam, config.paths.hops, config.search.keep),
        prefilter and _BatchedScorer(prefilter, budget, "prefilter paths"),
    )
    paths = {
        question.id: listed[: config.search.k]
        for question, listed in zip(questions, result.paths, strict=True)
    }
    seconds = (time.monotonic() - begun) / max(len(questions), 1)
    say(f"  searched {len(questions):,} questions together, in {seconds:.3f} s each")
    return Found(paths, result.pairs, result.prefiltered, result.cuts)


def count_paths(train_paths: Mapping[str, Sequence[GoldPath]]) -> collections.Counter:
    """steps of a training path -> the number of questions that have it."""
    return collections.Counter(
        steps for paths in train_paths.values() for steps in {path.steps for path in paths}
    )


def _follow_training_paths(
    context: Context,
    questions: Sequence[PathQuestion],
    steps: Steps,
    train_paths: Mapping[str, Sequence[GoldPath]],
    baseline: str,
) -> Found:
    """The first training paths that exist from a question's topics, in the baseline's order."""
    counts = count_paths(train_paths)
    by_count = lambda path: (-counts[path], len(path), path)
    by_length = lambda path: (len(path), -counts[path], path)
    order = sorted(counts, key=by_count if baseline == "frequent" else by_length)

    def existing_paths(question: PathQuestion) -> Iterator[FoundPath]:
        for path in order:
            for topic in question.topics:
                if len(steps.reach(topic, path)):
                    yield FoundPath(topic, path, float(counts[path]))

    k = context.config.search.k
    return Found({q.id: list(itertools.islice(existing_paths(q), k)) for q in questions})


def search_once(folder: Path, system: str, find: Callable[[], Found]) -> Found:
    """What a system found: stored in a file of the folder, and read from there later."""
    path = _found_file(folder, system)
    if not is_whole(path):
        write = functools.partial(save_json, dataclasses.asdict(find()))
        distributed.on_first_process(lambda: store_part(path, write))
    return load_found(folder, system)


def load_found(folder: Path, system: str) -> Found:
    """What `search_once` stored of a system."""
    value = load_json(_found_file(folder, system))
    paths = {
        question: [FoundPath(topic, tuple(steps), score) for topic, steps, score in listed]
        for question, listed in value.pop("paths").items()
    }
    return Found(paths, **value)


def _found_file(folder: Path, system: str) -> Path:
    return folder / f"found-{system}.json"


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
    correct = [np.count_nonzero(np.isin(nodes, answers)) for nodes in reached]
    shortest = {(path.topic, path.steps) for path in gold}
    path_hits = [(path.topic, path.steps) in shortest for path in paths]
    total = len(answers) + question.absent
    union = functools.reduce(np.union1d, reached, np.zeros(0, np.int64))
    wholes = {
        "f1": f1(correct[0], len(reached[0]), total) if reached else 0.0,
        "answer_coverage": int(np.isin(union, answers).sum()) / total if total else 0.0,
    }
    values = {}
    for name in metrics:
        kind, k = parse_metric(name)
        hit, path_hit = any(correct[:k]), any(path_hits[:k])
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
