"""A retriever of relation paths: from the topics of questions to the entities that answer them."""

import dataclasses
import functools
import json
import typing
from collections.abc import Sequence
from pathlib import Path as FilePath
from typing import NamedTuple

from ark_jax.graph.beam import BeamResult, BeamRules, FoundPath, Scorer, search
from ark_jax.graph.linked_questions import Mentions, look_up, nearest
from ark_jax.graph.steps import HUB, Steps
from ark_jax.graph.triples import By, Triples
from ark_jax.models import hf
from ark_jax.models.pairs import CrossEncoder
from ark_jax.runtime.shown import Records, one_line, record_html

STEP_SETTINGS = "path_steps.json"


class Path(NamedTuple):
    """A path by names, or by ids where a node or relation has no name.

    Attributes:
        topic: where it begins.
        relations: one for each step; "inverse of" precedes one that is followed backward.
        entities: all that it leads to, in order of the graph, without the topic.
        score: the scorer's, for question and path.
    """

    topic: str
    relations: tuple[str, ...]
    entities: tuple[str, ...]
    score: float
    _repr_html_ = record_html


@dataclasses.dataclass(frozen=True)
class StepSettings:
    """The settings of `Steps` for the paths that a scorer was trained on.

    They are stored in path_steps.json in the scorer's folder.
    """

    inverse: bool = True
    by: By = "last"

    @classmethod
    def read(cls, folder: FilePath) -> "StepSettings":
        """The settings of a folder; the defaults if it has none.

        Raises:
            ValueError: the file is damaged.
        """
        path = folder / STEP_SETTINGS
        if not path.is_file():
            return cls()
        values = hf.read_json(path)
        inverse, relations = values.get("inverse"), values.get("relations")
        if not isinstance(inverse, bool) or relations not in typing.get_args(By):
            raise ValueError(
                f"{path}: inverse={inverse!r}, relations={relations!r}: must be true or false, and "
                '"last" or "whole"; fetch the file again'
            )
        return cls(inverse, relations)

    def write(self, folder: FilePath) -> None:
        text = json.dumps({"inverse": self.inverse, "relations": self.by}, indent=2)
        (folder / STEP_SETTINGS).write_text(text + "\n", encoding="utf-8")


@dataclasses.dataclass(frozen=True)
class PathRetriever:
    """Searches a graph from the topics of questions; see `beam.search`.

    Attributes:
        scorer: scores pairs of question and path.
        steps: of the graph, written as the scorer has learned them.
        prefilter: a cheaper scorer for the candidates of large beams, or None.
    """

    scorer: Scorer
    steps: Steps
    prefilter: Scorer | None = None
    __repr__ = one_line("scorer", "steps")

    @classmethod
    def from_pretrained(
        cls,
        name_or_folder: str | FilePath,
        graph: Triples | str | FilePath,
        *,
        inverse: bool | None = None,
        by: By | None = None,
        hub: int = HUB,
    ) -> "PathRetriever":
        """Opens a pair scorer and a graph.

        Args:
            name_or_folder: as in `CrossEncoder.from_pretrained`.
            graph: the triples, or a path that `Triples.read` reads.
            inverse, by: as in `Steps`. None takes the settings that the STAR recipe stored in the
                folder; a folder without them gives True and "last".
            hub: as in `Steps`.

        Raises:
            BadInput: the graph's file has problems.
            FileNotFoundError: there is no such model.
            ValueError: the model is not a pair scorer, or its path_steps.json is damaged.
        """
        graph = graph if isinstance(graph, Triples) else Triples.read(graph)
        folder = hf.resolve(str(name_or_folder))
        trained = StepSettings.read(folder)
        inverse = trained.inverse if inverse is None else inverse
        scorer = CrossEncoder.from_pretrained(folder)
        steps = Steps(graph, inverse=inverse, by=by or trained.by, hub=hub)
        return cls(scorer, steps)

    def search(
        self,
        questions: Sequence[str],
        topics: Sequence[Sequence[str]] | None = None,
        *,
        k: int = 5,
        beam: int = 5,
        hops: int = 3,
        keep: int = 64,
    ) -> list[list[Path]]:
        """At most k paths for each question, best first.

        Args:
            topics: names, aliases or ids for each question. A name of several nodes gives all of
                them. None: they are looked for in the questions, see `topics_in`.
            k: how many paths; a narrow beam may end with fewer.
            beam, hops, keep: as in `BeamRules`.

        Raises:
            ValueError: k is below 1, or a topic is not in the graph; it lists similar names.
        """
        if k < 1:
            raise ValueError(f"k={k}: must be at least 1")
        nodes = (
            self.topics_in(questions) if topics is None else self._topic_nodes(questions, topics)
        )
        result = self.search_paths(questions, nodes, rules=BeamRules(beam, hops, keep))
        return [Records(map(self.path, paths[:k])) for paths in result.paths]

    def search_paths(
        self, questions: Sequence[str], topics: Sequence[Sequence[int]], *, rules: BeamRules
    ) -> BeamResult:
        """All paths of the beams as numbers, best first, and their cost; see `beam.search`.

        Args:
            topics: nodes for each question.
        """
        return search(questions, topics, self.steps, self.scorer, rules, self.prefilter)

    def topics_in(self, questions: Sequence[str]) -> list[tuple[int, ...]]:
        """The nodes whose names are in each question, ascending, by the rule of `Mentions`."""
        return self._mentions.nodes_in(questions)

    @functools.cached_property
    def _mentions(self) -> Mentions:
        return Mentions(self.steps.graph.nodes)

    def _topic_nodes(
        self, questions: Sequence[str], topics: Sequence[Sequence[str]]
    ) -> list[tuple[int, ...]]:
        """The nodes of each question's topics; ValueError for a topic that is not in the graph."""
        if any(isinstance(names, str) for names in topics):
            raise ValueError('topics holds a string; give a list for each question: [["Kismet"]]')
        terms = self.steps.graph.nodes
        lookup = look_up([name for names in topics for name in names], terms).nodes
        for question, names in zip(questions, topics, strict=False):
            for name in names:
                if name not in lookup:
                    nearest_names = ", ".join(map(repr, nearest(name, terms))) or "none"
                    raise ValueError(
                        f"topic {name!r} of question {question!r} is not in the graph; give one "
                        f"that is; nearest: {nearest_names}"
                    )
        return [tuple(dict.fromkeys(n for name in names for n in lookup[name])) for names in topics]

    def path(self, path: FoundPath) -> Path:
        """Translates a path of numbers into one of names."""
        graph = self.steps.graph
        entities = self.steps.reach(path.topic, path.steps).tolist()
        return Path(
            graph.nodes.name(path.topic),
            tuple(map(self.steps.relation_name, path.steps)),
            tuple(map(graph.nodes.name, entities)),
            path.score,
        )
