"""The mine stage: which paths are learned, and against which others."""

import collections
import dataclasses
import functools
import itertools
import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from ark_jax.graph.steps import END, END_TEXT, GoldPath, Steps, f1
from ark_jax.pipeline import own_functions
from ark_jax.pipeline.stage import Context
from ark_jax.pipeline.tables import load_rows, save_rows
from ark_jax.recipes.core import own_parts
from ark_jax.recipes.core.models import encode, load_base_scorer
from ark_jax.recipes.star.data import PathQuestion, load_paths, load_questions, load_steps
from ark_jax.runtime import distributed
from ark_jax.train.lists import PairList

# Kinds of negatives: the end of the path; a step that leaves the nodes reached, as search meets it;
# a step of the whole graph that is near the right one, or drawn.
KINDS = ("end", "frontier", "near", "drawn")
FILLED = ("near", "drawn")
CANDIDATES = 15  # of each kind at a step; RD-P's and SRTK's number of negatives


@dataclasses.dataclass(frozen=True)
class PathList:
    """One step of a gold path, and the steps that are wrong in its place.

    Attributes:
        topic: the node where the path begins.
        path: all steps of the gold path.
        taken: how many of them come before the right step, which is the next one, or END.
        negatives: steps, or END, which is always kept, then the best first.
        kinds: of each negative, see KINDS.
        count: how many gold paths of all questions have these steps.
        counts: of each negative, how many lists have it after the same steps.
        share: F1 of what the gold path reaches, as a share of that of the question's best path.
    """

    question: str
    topic: int
    path: tuple[int, ...]
    taken: int
    negatives: tuple[int, ...]
    kinds: tuple[str, ...]
    count: int = 0
    counts: tuple[int, ...] = ()
    share: float = 1.0

    @property
    def prefix(self) -> tuple[int, ...]:
        """The steps before the right one."""
        return self.path[: self.taken]

    @property
    def positive(self) -> int:
        """The right step, or END after the last one."""
        return self.path[self.taken] if self.taken < len(self.path) else END

    @property
    def candidates(self) -> list[tuple[int, ...]]:
        """The steps of the positive and of each negative, from the topic on."""
        return [(*self.prefix, step) for step in (self.positive, *self.negatives)]


@dataclasses.dataclass(frozen=True)
class ListRules:
    """How lists are made; most fields have the names of `config.mine`.

    Attributes:
        pool: "graph", steps that leave the nodes reached come first; "all", they do not.
        similar: whether the k nearest to the right step are candidates, beside k drawn ones.
        spare: a step is spared if at least this share of what it leads to is right.
        hops: most steps of a path.
        weighted: whether positives have shares, see `PathList`.
    """

    negatives: int
    pool: str
    similar: bool
    k: int
    spare: float
    hops: int
    seed: int
    weighted: bool = False


class ListMaker:
    """Makes the lists of gold paths. What it leaves out is counted in `left_out`.

    Args:
        near: for each step, and for END at the end, all steps of the graph, the nearest first;
            int64 `[steps + 1, steps]`, or less of them.
    """

    def __init__(self, steps: Steps, near: np.ndarray, rules: ListRules):
        self.steps, self.near, self.rules = steps, near, rules
        self.left_out: collections.Counter[str] = collections.Counter()

    def lists_of(
        self,
        question: str,
        positives: Sequence[GoldPath],
        gold: Sequence[GoldPath],
        answers: Sequence[int],
    ) -> list[PathList]:
        """A list for each step of each positive path, the last step being END.

        END is a negative of every step but the last and the first, in whose place search never
        offers it: without it a scorer learns to end too early. The steps of another gold path are
        never negatives, nor what leads to right answers by itself.

        Args:
            positives: the paths to learn.
            gold: all paths of the question, also those that are not learned.
        """
        lists, unique = [], np.unique(answers)
        f1_of = lambda path: f1(path.correct, path.reached, len(unique))
        best = max(map(f1_of, gold))
        for path in positives:
            right = {
                (*gold_path.steps, END)[: n + 1]
                for gold_path in gold
                if gold_path.topic == path.topic
                for n in range(len(gold_path.steps) + 1)
            }
            share = f1_of(path) / best if self.rules.weighted else 1.0
            for taken in range(len(path.steps) + 1):
                path_list = self._step_list(question, path, taken, right, unique)
                if path_list.negatives:
                    lists.append(dataclasses.replace(path_list, share=share))
                else:
                    self.left_out["lists_without_negative"] += 1
        return lists

    def _step_list(
        self, question: str, path: GoldPath, taken: int, right: set, answers: np.ndarray
    ) -> PathList:
        """The list of the step after `taken` steps of a path; it may have no negatives."""
        prefix = path.steps[:taken]
        positive = path.steps[taken] if taken < len(path.steps) else END
        nodes = self.steps.walk(path.topic, prefix)
        key = zlib.crc32(repr((question, path.topic, path.steps, taken)).encode())
        rng = np.random.default_rng([self.rules.seed, key])
        chosen: dict[int, str] = {}
        seen = {positive}
        for step, kind in self._candidates(nodes, taken, positive, rng):
            # Others are filled in only where those that leave the nodes reached are too few.
            full = self.rules.pool == "graph" and len(chosen) >= self.rules.negatives
            if step in seen or (kind in FILLED and full):
                continue
            seen.add(step)
            if (*prefix, step) in right:
                self.left_out["of_other_gold_paths"] += 1
            elif self._is_right(path.topic, nodes, step, answers):
                self.left_out["spared"] += 1
            else:
                chosen[step] = kind
        return PathList(
            question, path.topic, path.steps, taken, tuple(chosen), tuple(chosen.values())
        )

    def _candidates(
        self, nodes: np.ndarray, taken: int, positive: int, rng: np.random.Generator
    ) -> Iterator[tuple[int, str]]:
        """(step, kind) of what may be a negative; a step may come several times."""
        k, similar = self.rules.k, self.rules.similar
        if taken and positive != END:
            yield END, "end"
        near = self.near[positive]  # END is -1, the last row
        if self.rules.pool == "graph" and taken < self.rules.hops:
            frontier = self.steps.options(nodes)
            closest = near[np.isin(near, frontier)][: k if len(frontier) > 2 * k else 0]
            frontier = np.concatenate([closest, rng.permutation(frontier)])
            yield from (
                (step, "frontier") for step in list(dict.fromkeys(frontier.tolist()))[: 2 * k]
            )
        if similar:
            yield from ((int(step), "near") for step in near[:k])
        drawn = rng.choice(len(self.steps), min(2 * k, len(self.steps)), replace=False)
        yield from ((int(step), "drawn") for step in drawn[: k if similar else None])

    def _is_right(self, topic: int, nodes: np.ndarray, step: int, answers: np.ndarray) -> bool:
        """Whether at least the share `spare` of the nodes that a step leads to are answers."""
        reached = nodes if step == END else self.steps.follow(nodes, step)
        reached = reached[reached != topic]
        if not len(reached):
            return False
        return bool(np.isin(reached, answers).mean() >= self.rules.spare)


def with_order(
    path_list: PathList, scores: Sequence[float], rules: ListRules, limit: int
) -> PathList:
    """Sorts the negatives by score, and keeps the first ones.

    END comes first. With the pool "graph", steps that leave the nodes reached come before those
    that were filled in, which search does not meet.

    Args:
        scores: of each negative; the highest comes first, equal ones stay in order.
        limit: how many are kept; 0 for all.
    """

    def sort_key(place: int) -> tuple[int, float]:
        kind = path_list.kinds[place]
        is_filled = rules.pool == "graph" and kind in FILLED
        return (0 if kind == "end" else 1 + is_filled, -scores[place])

    order = sorted(range(len(path_list.negatives)), key=sort_key)
    return with_negatives(path_list, order[: limit or None])


def with_negatives(path_list: PathList, places: Sequence[int]) -> PathList:
    """The list with some of its negatives, by their places in it."""
    return dataclasses.replace(
        path_list,
        negatives=tuple(path_list.negatives[place] for place in places),
        kinds=tuple(path_list.kinds[place] for place in places),
    )


def with_counts(lists: Sequence[PathList]) -> list[PathList]:
    """The lists with how often their paths come in all of them.

    A positive counts by the whole gold path, once for each question and topic that has it; a
    negative by the steps up to the wrong one.
    """
    gold = {(path_list.question, path_list.topic, path_list.path) for path_list in lists}
    paths = collections.Counter(path for _, _, path in gold)
    wrong = collections.Counter(steps for path_list in lists for steps in path_list.candidates[1:])
    return [
        dataclasses.replace(
            path_list,
            count=paths[path_list.path],
            counts=tuple(wrong[steps] for steps in path_list.candidates[1:]),
        )
        for path_list in lists
    ]


def tail_weights(
    classes: Sequence[np.ndarray], low: float, high: float, *, scale: str = "log"
) -> list[np.ndarray]:
    """A weight for each path of each class, larger the rarer it is: from `high` to `low`.

    The raw weight is |class| / count, which "inverse" scales to the range in all classes together,
    as section 4.2 describes. Paths seen once then have nearly all of the range, and those seen 20
    and 200 times nearly the same weight. "log" scales its logarithm in each class by itself, where
    |class| cancels: counts in equal ratio differ by equal steps. Where all paths are equally rare,
    each weighs 1, or what of the range is nearest.

    Args:
        classes: of each class, how often each of its paths comes.
    """
    if scale == "log":
        return [_scaled(-np.log(np.asarray(counts, np.float64)), low, high) for counts in classes]
    raw = [len(counts) / np.asarray(counts, np.float64) for counts in classes]
    ends = np.cumsum([len(values) for values in raw])[:-1]
    return np.split(_scaled(np.concatenate(raw), low, high), ends)


def _scaled(raw: np.ndarray, low: float, high: float) -> np.ndarray:
    """Numbers from the smallest to the largest, as numbers from `low` to `high`."""
    spread = np.ptp(raw) if raw.size else 0.0
    if not spread:
        return np.full(raw.shape, min(max(1.0, low), high))
    return low + (high - low) * (raw - raw.min()) / spread


def pair_lists(
    lists: Sequence[PathList],
    questions: Mapping[str, str],
    steps: Steps,
    *,
    weights: str,
    weight_range: tuple[float, float],
    weight_scale: str,
) -> list[PairList]:
    """The lists as texts with weights.

    Args:
        weights: "both" classes are weighted, "positive" or "none".
        weight_range, weight_scale: see `tail_weights`.
    """
    counts = [
        np.array([path_list.count for path_list in lists]),
        np.array([count for path_list in lists for count in path_list.counts]),
    ]
    weighted = {"both": 2, "positive": 1, "none": 0}[weights]  # classes
    positive, negative = (
        *(tail_weights(counts[:weighted], *weight_range, scale=weight_scale) if weighted else ()),
        *(np.ones(len(values)) for values in counts[weighted:]),
    )
    ends = np.cumsum([len(path_list.negatives) for path_list in lists])[:-1]
    return [
        PairList(
            questions[path_list.question],
            tuple(steps.text(path_list.topic, path) for path in path_list.candidates),
            (float(gold) * path_list.share, *map(float, of_negatives)),
            required=path_list.kinds.count("end"),
        )
        for path_list, gold, of_negatives in zip(
            lists, positive, np.split(negative, ends), strict=True
        )
    ]


def hard_positives(similarities: Sequence[float]) -> list[bool]:
    """Whether each path of a question is learned: if it is at least as similar as their mean.

    Algorithm 1 of STAR. A millionth below the mean passes, since a mean of equal numbers may be
    rounded up.
    """
    mean = math.fsum(similarities) / max(len(similarities), 1)
    return [bool(similarity >= mean - 1e-6) for similarity in similarities]


LISTS_FILE = "lists.parquet"
NEAREST = 1000  # steps that are kept as near ones of each step


def mine_lists(context: Context, folder: Path) -> dict:
    """Puts wrong steps beside each right one, to train against."""
    config, steps = context.config, load_steps(context)
    questions, gold = load_questions(context, "train"), load_paths(context, "train")
    rules = ListRules(
        config.mine.negatives,
        config.mine.pool,
        config.mine.by != "random",
        CANDIDATES,
        config.mine.spare,
        config.paths.hops,
        config.seed,
        config.mine.positives == "weighted",
    )
    positives = _learned_paths(context, questions, gold, steps)
    maker = ListMaker(steps, _nearest_steps(context, steps, rules), rules)
    lists = [
        path_list
        for question in questions
        if question.id in gold
        for path_list in maker.lists_of(
            question.id, positives[question.id], gold[question.id], question.answer_nodes
        )
    ]
    if not lists:
        raise ValueError(
            "no step of a training path has a wrong one beside it, so there is nothing to learn: "
            "the graph has too few relations, or config.mine.spare spares them all"
        )
    lists = with_counts(_order_negatives(context, lists, questions, steps, rules))
    save_rows(lists, folder / LISTS_FILE, PathList)
    kinds = collections.Counter(kind for path_list in lists for kind in path_list.kinds)
    with_list = {path_list.question for path_list in lists}
    return {
        "lists": len(lists),
        "positive_paths": sum(map(len, positives.values())),
        "other_shortest_paths": sum(len(gold[id]) - len(positives[id]) for id in positives),
        **{f"negatives_{kind}": kinds[kind] for kind in KINDS},
        **{name: maker.left_out[name] for name in ("spared", "of_other_gold_paths")},
        "lists_without_negative": maker.left_out["lists_without_negative"],
        "questions_without_list": sum(question.id not in with_list for question in questions),
    }


def _learned_paths(
    context: Context,
    questions: Sequence[PathQuestion],
    gold: Mapping[str, list[GoldPath]],
    steps: Steps,
) -> dict[str, list[GoldPath]]:
    """question -> its paths that are learned."""
    answerable = [question for question in questions if question.id in gold]
    if context.config.mine.positives != "similar":
        return {question.id: gold[question.id] for question in answerable}
    cosines = similarities(
        context,
        [
            (question.question, steps.text(path.topic, path.steps))
            for question in answerable
            for path in gold[question.id]
        ],
        "positive paths",
    )
    ends = np.cumsum([len(gold[question.id]) for question in answerable])[:-1]
    return {
        question.id: [
            path
            for path, learned in zip(gold[question.id], hard_positives(values), strict=True)
            if learned
        ]
        for question, values in zip(answerable, np.split(cosines, ends), strict=True)
    }


def _nearest_steps(context: Context, steps: Steps, rules: ListRules) -> np.ndarray:
    """The steps nearest to each one, and to END, by the cosine of their texts.

    int64 `[steps + 1, near]`, see `ListMaker`; nothing is near if negatives are drawn at random.
    """
    if not rules.similar:
        return np.zeros((len(steps) + 1, 0), np.int64)
    vectors = encode(context, "base", [*steps.names, END_TEXT], "document")
    near = []
    for number, vector in enumerate(vectors):
        order = np.argsort(-(vectors[:-1] @ vector), kind="stable")
        near.append(order[order != number][:NEAREST])
    width = min(map(len, near))
    return np.array([row[:width] for row in near])


def _order_negatives(
    context: Context,
    lists: Sequence[PathList],
    questions: Sequence[PathQuestion],
    steps: Steps,
    rules: ListRules,
) -> list[PathList]:
    """The lists with their best negatives, best first; all if the scorer chooses them later."""
    judge = context.config.mine.by
    limit = 0 if judge == "previous" else rules.negatives
    if not rules.similar:
        return [
            with_order(path_list, [0.0] * len(path_list.negatives), rules, limit)
            for path_list in lists
        ]
    texts = {question.id: question.question for question in questions}
    if own_functions.is_own(judge):
        return _choose_by_own(context, lists, texts, steps, limit)
    scores = similarities(
        context,
        [
            (texts[path_list.question], steps.text(path_list.topic, path))
            for path_list in lists
            for path in path_list.candidates[1:]
        ],
        "negative paths",
    )
    ends = np.cumsum([len(path_list.negatives) for path_list in lists])[:-1]
    return [
        with_order(path_list, values.tolist(), rules, limit)
        for path_list, values in zip(lists, np.split(scores, ends), strict=True)
    ]


def _choose_by_own(
    context: Context,
    lists: Sequence[PathList],
    questions: Mapping[str, str],
    steps: Steps,
    limit: int,
) -> list[PathList]:
    """The lists with END and the negatives that a function of the user's own chooses.

    Lists without any are left out.
    """
    from ark_jax.retrieval.mining import MiningTask

    starts = list(
        itertools.accumulate((len(path_list.negatives) for path_list in lists), initial=0)
    )
    texts = [
        steps.text(path_list.topic, path)
        for path_list in lists
        for path in path_list.candidates[1:]
    ]
    asked = encode(context, "base", list(questions.values()), "query", "questions")
    vectors = dict(zip(questions, asked, strict=True))
    task = MiningTask(
        questions={str(i): questions[path_list.question] for i, path_list in enumerate(lists)},
        pools={str(i): range(*bounds) for i, bounds in enumerate(itertools.pairwise(starts))},
        texts=texts,
        query_vectors={str(i): vectors[path_list.question] for i, path_list in enumerate(lists)},
        chunk_vectors=encode(context, "base", texts, "document", "negative paths"),
        top=limit,
    )
    find_negatives = functools.partial(
        own_parts.mine_by_own, "mine.by", context.config.mine.by, task
    )
    mined = distributed.on_first_process(find_negatives).values()
    chosen = []
    for path_list, start, indices in zip(lists, starts[:-1], mined, strict=True):
        end_places = [place for place, kind in enumerate(path_list.kinds) if kind == "end"]
        places = dict.fromkeys([*end_places, *(index - start for index in indices)])
        chosen.append(with_negatives(path_list, list(places)[:limit]))
    return [path_list for path_list in chosen if path_list.negatives]


def similarities(context: Context, pairs: Sequence[tuple[str, str]], label: str) -> np.ndarray:
    """The cosine of each (question, path) by the retriever before training, float32 `[n]`."""
    scorer = load_base_scorer(context)
    budget = context.config.retriever.batch_tokens
    return scorer.score(pairs, batch_tokens=budget, label=label) / scorer.cfg.scale


def load_lists(context: Context) -> list[PathList]:
    """The lists that are trained on."""
    return load_rows(context / "mine" / LISTS_FILE, PathList)
