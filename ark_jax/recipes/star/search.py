"""What each system finds for each test question: by beam search, or by counts of training paths."""

import collections
import dataclasses
import functools
import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from ark_jax.graph.beam import BeamRules, FoundPath, Scorer, search
from ark_jax.graph.steps import GoldPath, Steps
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
        cuts: sets of entities that were cut to `paths.hub` before their relations were looked up.
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
