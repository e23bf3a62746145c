"""Beam search for relation paths, for many questions at once."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from ark_jax.graph.steps import END, Steps, path_text, without

# Products of float32 differ in their last digits with what else is in a batch. Scores are rounded,
# so that equal candidates stay equal and the order of relations decides.
DIGITS = 3

Pairs = list[tuple[str, str]]  # of question and path
Candidate = tuple[int, ...]  # the steps of a path, which is done if the last one is END


class Scorer(Protocol):
    """What gives each pair of texts a score, such as a `CrossEncoder`: float `[pairs]`."""

    def score(self, pairs: Pairs) -> np.ndarray: ...


@dataclasses.dataclass(frozen=True)
class BeamRules:
    """How a beam search goes.

    Attributes:
        beam: how many candidates of a question and topic are kept at each hop.
        hops: most steps of a path.
        keep: a question and topic with more candidates than this has them scored by the prefilter
            first, and this many go on to the scorer.
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
    """What a beam search found, and what it cost.

    Attributes:
        paths: of each question, best first; none where no topic has an edge.
        pairs: how many pairs the scorer scored.
        prefiltered: how many pairs the prefilter scored.
        cuts: how many sets of nodes were too large for all to be asked for their steps, see `hub`
            of `Steps`.
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
    name: str
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
    The score of a path is that of its text with END, alone.

    All candidates of a hop, of all questions, are scored in one call; where all of a beam would be
    kept whatever their scores, as at the first hop of a topic with few relations, none is. Scores
    are rounded to three digits. Equal scores go by topic, in the order given, and by steps; END
    goes first.

    Args:
        questions: texts.
        topics: nodes for each question; one that comes again counts once.
        steps: of the graph.
        scorer: scores pairs of a question and a path's text, higher is better.
        rules: see `BeamRules`.
        prefilter: a cheaper scorer, for candidates of more than `rules.keep`; None: all are scored
            by `scorer`. It never drops END.

    Raises:
        IndexError: there is no such node.
        ValueError: there are more or fewer lists of topics than questions.
    """
    if len(topics) != len(questions):
        raise ValueError(
            f"{len(questions)} questions and {len(topics)} lists of topics: give one each"
        )
    for topic in (topic for listed in topics for topic in listed):
        steps.check(topic)
    name = steps.graph.nodes.name
    beams_of = [
        [_Beam(question, topic, name(topic)) for topic in dict.fromkeys(listed)]
        for question, listed in zip(questions, topics, strict=True)
    ]
    result = BeamResult([])
    running = [beam for beams in beams_of for beam in beams]
    for hop in range(rules.hops + 1):
        for beam in running:
            beam.candidates, cuts = _candidates(beam, steps, may_go_on=hop < rules.hops)
            result.cuts += cuts
        unsure = [beam for beam in running if not _goes_on_whole(beam, rules.beam)]
        if prefilter:
            result.prefiltered += _reduce(unsure, steps, prefilter, rules.keep)
        scores, pairs = _score(unsure, steps, scorer, lambda beam: beam.candidates)
        result.pairs += pairs
        for beam, beam_scores in zip(unsure, scores, strict=True):
            _settle(beam, beam_scores, rules.beam)
        running = [beam for beam in running if beam.paths]
    result.paths = [_ranked(beams) for beams in beams_of]
    return result


def _candidates(beam: _Beam, steps: Steps, *, may_go_on: bool) -> tuple[list[Candidate], int]:
    """All extensions of a beam's paths, and how many sets of nodes were too large."""
    candidates, cuts = [], 0
    for path in beam.paths:
        # The nodes are looked up again at each hop: those of all beams would fill the memory.
        nodes = steps.walk(beam.topic, path)
        if path and len(without(nodes, beam.topic)):
            candidates.append((*path, END))
        if may_go_on:
            candidates += [(*path, step) for step in steps.options(nodes).tolist()]
            cuts += steps.is_cut(nodes)
    return candidates, cuts


def _goes_on_whole(beam: _Beam, size: int) -> bool:
    """Lets all candidates go on unscored if no score could drop one or end the beam."""
    is_whole = len(beam.candidates) <= size and all(p[-1] != END for p in beam.candidates)
    if is_whole:
        beam.paths = beam.candidates
    return is_whole


def _reduce(beams: Sequence[_Beam], steps: Steps, prefilter: Scorer, keep: int) -> int:
    """Drops all but the best `keep` candidates of each beam, and END; returns the pairs scored."""
    unended = lambda beam: [path for path in beam.candidates if path[-1] != END]
    large_beams = [beam for beam in beams if len(beam.candidates) > keep]
    scores, pairs = _score(large_beams, steps, prefilter, unended)
    for beam, beam_scores in zip(large_beams, scores, strict=True):
        best = _best_first(unended(beam), beam_scores)[:keep]
        ended = [path for path in beam.candidates if path[-1] == END]
        beam.candidates = ended + [path for path, _ in best]
    return pairs


def _score(
    beams: Sequence[_Beam],
    steps: Steps,
    scorer: Scorer,
    paths_of: Callable[[_Beam], list[Candidate]],
) -> tuple[list[list[float]], int]:
    """The scores of each beam's paths, and how many different pairs were scored."""
    numbers: dict[tuple[str, str], int] = {}
    places = []
    for beam in beams:
        pairs = ((beam.question, _text(beam.name, path, steps)) for path in paths_of(beam))
        places.append([numbers.setdefault(pair, len(numbers)) for pair in pairs])
    if not numbers:
        return [[] for _ in beams], 0
    pairs = list(numbers)
    scores = np.asarray(scorer.score(pairs), np.float64)
    rounded = scores.round(DIGITS).tolist()
    return [[rounded[i] for i in numbers_of_beam] for numbers_of_beam in places], len(pairs)


def _text(name: str, path: Candidate, steps: Steps) -> str:
    ended = path[-1] == END
    relations = [steps.names[step] for step in (path[:-1] if ended else path)]
    return path_text(name, relations, ended)


def _best_first(
    paths: Sequence[Candidate], scores: Sequence[float]
) -> list[tuple[Candidate, float]]:
    return sorted(zip(paths, scores, strict=True), key=lambda scored: (-scored[1], scored[0]))


def _settle(beam: _Beam, scores: Sequence[float], size: int) -> None:
    """Keeps the best candidates: those with END as done, the others to go on unless END leads."""
    best = _best_first(beam.candidates, scores)[:size]
    beam.ended += [
        FoundPath(beam.topic, path[:-1], score) for path, score in best if path[-1] == END
    ]
    stops = best[0][0][-1] == END
    beam.paths = [] if stops else [path for path, _ in best if path[-1] != END]


def _ranked(beams: Sequence[_Beam]) -> list[FoundPath]:
    """The paths of all topics of a question, best first."""
    places = {beam.topic: place for place, beam in enumerate(beams)}
    paths = [path for beam in beams for path in beam.ended]
    return sorted(paths, key=lambda path: (-path.score, places[path.topic], path.steps))
