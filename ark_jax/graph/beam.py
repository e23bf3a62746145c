"""Beam search for relation paths, for many questions at once."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from ark_jax.graph.steps import END, Steps, remove_node

# The last digits of a float32 score depend on the rest of its batch. Scores are rounded, so that
# equal candidates stay equal and the order of relations decides.
DIGITS = 3

Pairs = list[tuple[str, str]]  # of question and path
Candidate = tuple[int, ...]  # the steps of a path, which is done if the last one is END


class Scorer(Protocol):
    """Scores pairs of texts, as a `CrossEncoder` does: float `[pairs]`."""

    def score(self, pairs: Pairs) -> np.ndarray: ...


@dataclasses.dataclass(frozen=True)
class BeamRules:
    """Limits of a beam search.

    Attributes:
        beam: how many candidates of a question and topic are kept at each hop.
        hops: most steps of a path.
        keep: a prefilter scores the candidates of a question and topic if there are more, and the
            scorer gets this many of them.
    """

    beam: int = 5
    hops: int = 3
    keep: int = 64

    def __post_init__(self) -> None:
        for name, value in dataclasses.asdict(self).items():
            if value < 1:
                raise ValueError(f"{name}={value}: must be at least 1")


class FoundPath(NamedTuple):
    """A path by the numbers of its topic and steps, and its score."""

    topic: int
    steps: tuple[int, ...]
    score: float


@dataclasses.dataclass
class BeamResult:
    """The paths that a beam search found, and its cost.

    Attributes:
        paths: of each question, best first; none where no topic has an edge.
        pairs: how many pairs the scorer scored.
        prefiltered: how many pairs the prefilter scored.
        cuts: how many sets of nodes had more than `Steps.hub` nodes, so that steps from the others
            were left out.
    """

    paths: list[list[FoundPath]]
    pairs: int = 0
    prefiltered: int = 0
    cuts: int = 0


@dataclasses.dataclass
class _Beam:
    """The search of one question from one topic."""

    question: str
    topic: int
    paths: list[Candidate] = dataclasses.field(default_factory=lambda: [()])
    candidates: list[Candidate] = dataclasses.field(default_factory=list)
    ended: list[FoundPath] = dataclasses.field(default_factory=list)


def search(
    questions: Sequence[str],
    topics: Sequence[Sequence[int]],
    steps: Steps,
    scorer: Scorer,
    rules: BeamRules,
    prefilter: Scorer | None = None,
) -> BeamResult:
    """The paths from the topics of each question that the scorer ranks best.

    Each topic has a beam of its own, which begins with the empty path. At each hop, every path of
    the beam is extended by every step that leaves the nodes it leads to, and by END if it leads to
    any node but the topic. After `rules.hops` steps there is END alone. The best `rules.beam`
    candidates are kept, and those with END are done. A beam stops once END scores highest.
    The final score of a path is the score of its text with END.

    All candidates of a hop, of all questions, are scored in one call. A beam is not scored if all
    its candidates would be kept whatever their scores, as at the first hop of a topic with few
    relations. Scores are rounded to three digits. Equal scores go by topic, in the order given, and
    by steps; END goes first.

    Args:
        topics: nodes for each question; a repeated one counts once.
        steps: the relations of the graph.
        scorer: scores pairs of a question and a path's text, higher is better.
        prefilter: a cheaper scorer, for candidates of more than `rules.keep`; None: all are scored
            by `scorer`. It never drops END.

    Raises:
        IndexError: there is no such node.
        ValueError: the numbers of questions and of lists of topics differ.
    """
    if len(topics) != len(questions):
        raise ValueError(
            f"{len(questions)} questions and {len(topics)} lists of topics: give one each"
        )
    for topic in (topic for listed in topics for topic in listed):
        steps.check(topic)
    beams_by_question = [
        [_Beam(question, topic) for topic in dict.fromkeys(listed)]
        for question, listed in zip(questions, topics, strict=True)
    ]
    result = BeamResult([])
    running = [beam for beams in beams_by_question for beam in beams]
    for hop in range(rules.hops + 1):
        for beam in running:
            beam.candidates, cuts = _extensions(beam, steps, may_go_on=hop < rules.hops)
            result.cuts += cuts
        unsure = [beam for beam in running if not _kept_unscored(beam, rules.beam)]
        if prefilter:
            result.prefiltered += _prefilter_candidates(unsure, steps, prefilter, rules.keep)
        scores, pairs = _score_paths(unsure, steps, scorer, lambda beam: beam.candidates)
        result.pairs += pairs
        for beam, beam_scores in zip(unsure, scores, strict=True):
            _keep_best(beam, beam_scores, rules.beam)
        running = [beam for beam in running if beam.paths]
    result.paths = [_ranked_paths(beams) for beams in beams_by_question]
    return result


def _extensions(beam: _Beam, steps: Steps, *, may_go_on: bool) -> tuple[list[Candidate], int]:
    """The candidates that extend a beam's paths, and `cuts` of `BeamResult` for these paths."""
    candidates, cuts = [], 0
    for path in beam.paths:
        # The nodes are computed again at each hop: those of all beams would fill the memory.
        nodes = steps.walk(beam.topic, path)
        if path and len(remove_node(nodes, beam.topic)):
            candidates.append((*path, END))
        if may_go_on:
            candidates += [(*path, step) for step in steps.options(nodes).tolist()]
            cuts += steps.is_cut(nodes)
    return candidates, cuts


def _kept_unscored(beam: _Beam, size: int) -> bool:
    """Keeps all candidates if no score could drop one or end the beam; whether it did."""
    are_kept = len(beam.candidates) <= size and all(path[-1] != END for path in beam.candidates)
    if are_kept:
        beam.paths = beam.candidates
    return are_kept


def _prefilter_candidates(
    beams: Sequence[_Beam], steps: Steps, prefilter: Scorer, keep: int
) -> int:
    """Drops all but the `keep` best candidates of each beam, never END; returns how many pairs
    were scored."""
    unended = lambda beam: [path for path in beam.candidates if path[-1] != END]
    large_beams = [beam for beam in beams if len(beam.candidates) > keep]
    scores, pairs = _score_paths(large_beams, steps, prefilter, unended)
    for beam, beam_scores in zip(large_beams, scores, strict=True):
        best = _best_first(unended(beam), beam_scores)[:keep]
        ended = [path for path in beam.candidates if path[-1] == END]
        beam.candidates = ended + [path for path, _ in best]
    return pairs


def _score_paths(
    beams: Sequence[_Beam],
    steps: Steps,
    scorer: Scorer,
    select_paths: Callable[[_Beam], list[Candidate]],
) -> tuple[list[list[float]], int]:
    """The scores of each beam's paths, and how many different pairs were scored."""
    rows: dict[tuple[str, str], int] = {}  # pair -> its place among the scores
    rows_by_beam = []
    for beam in beams:
        texts = (steps.text(beam.topic, path) for path in select_paths(beam))
        rows_by_beam.append([rows.setdefault((beam.question, text), len(rows)) for text in texts])
    if not rows:
        return [[] for _ in beams], 0
    scores = np.asarray(scorer.score(list(rows)), np.float64).round(DIGITS).tolist()
    return [[scores[row] for row in beam_rows] for beam_rows in rows_by_beam], len(rows)


def _best_first(
    paths: Sequence[Candidate], scores: Sequence[float]
) -> list[tuple[Candidate, float]]:
    """Paths and their scores, the highest score first; equal scores go by steps, END first."""
    return sorted(zip(paths, scores, strict=True), key=lambda scored: (-scored[1], scored[0]))


def _keep_best(beam: _Beam, scores: Sequence[float], size: int) -> None:
    """Ends the paths of the `size` best candidates that have END; the others go on, unless END is
    the best."""
    best = _best_first(beam.candidates, scores)[:size]
    beam.ended += [
        FoundPath(beam.topic, path[:-1], score) for path, score in best if path[-1] == END
    ]
    stops = best[0][0][-1] == END
    beam.paths = [] if stops else [path for path, _ in best if path[-1] != END]


def _ranked_paths(beams: Sequence[_Beam]) -> list[FoundPath]:
    """The paths of all topics of a question, best first."""
    places = {beam.topic: place for place, beam in enumerate(beams)}
    paths = [path for beam in beams for path in beam.ended]
    return sorted(paths, key=lambda path: (-path.score, places[path.topic], path.steps))
