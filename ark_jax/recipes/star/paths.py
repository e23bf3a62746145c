"""The paths stage: the shortest relation paths from each question's topics to its answers."""

import collections
import dataclasses
from collections.abc import Sequence
from pathlib import Path

from ark_jax.graph.relation_paths import GoldPath, PathLimits, shortest_paths
from ark_jax.graph.steps import Steps
from ark_jax.pipeline.stage import Context
from ark_jax.pipeline.tables import load_rows, save_rows
from ark_jax.recipes.star.data import PARTS, PathQuestion, load_questions, load_steps
from ark_jax.runtime.log import say

PATHS_FILE = "paths.parquet"
SHOWN = 3  # questions of which a limit is told


@dataclasses.dataclass(frozen=True)
class QuestionPath:
    """A shortest path of a question.

    Attributes:
        part: "train" or "test".
        question: its id.
        topic, steps, reached, correct: see `graph.relation_paths.GoldPath`.
    """

    part: str
    question: str
    topic: int
    steps: tuple[int, ...]
    reached: int
    correct: int

    @property
    def gold(self) -> GoldPath:
        return GoldPath(self.topic, self.steps, self.reached, self.correct)


def find_paths(context: Context, folder: Path) -> dict:
    """Stores a row for each shortest path of each question.

    Raises:
        ValueError: no training question has a path.
    """
    steps, settings = load_steps(context), context.config.paths
    limits = PathLimits(settings.hops, settings.seconds)
    rows, counts = [], {}
    for part in PARTS:
        questions = load_questions(context, part)
        by_question, tally = _paths_of(questions, steps, limits)
        rows += [
            QuestionPath(part, id, *dataclasses.astuple(path))
            for id, paths in by_question.items()
            for path in paths
        ]
        counts |= {f"{part}_{name}": count for name, count in tally.items()}
    if not counts["train_paths"]:
        raise ValueError(
            f"no training question's answer lies within config.paths.hops={settings.hops} of its "
            "topic: set it higher, or config.paths.inverse=True, or look whether graph and "
            "questions belong together"
        )
    save_rows(rows, folder / PATHS_FILE, QuestionPath)
    return counts


def _paths_of(
    questions: Sequence[PathQuestion], steps: Steps, limits: PathLimits
) -> tuple[dict[str, list[GoldPath]], dict[str, int]]:
    """The paths by question, and counts of those without any or with too many."""
    by_question, tally, cuts = {}, collections.Counter(), []
    for question in questions:
        by_question[question.id], cut = shortest_paths(
            steps, question.topics, question.answer_nodes, limits
        )
        if cut:
            cuts.append(f"  question {question.id!r}: {cut}")
        if by_question[question.id] or not (question.topics and question.answer_nodes):
            continue
        # A topic is no answer of its own: no path leads to it.
        only_topic = set(question.answer_nodes) <= set(question.topics)
        tally["topic_is_answer" if only_topic else "out_of_reach"] += 1
    for line in cuts[:SHOWN]:
        say(line)
    if len(cuts) > SHOWN:
        say(f"  {len(cuts) - SHOWN:,} more questions whose paths a limit cuts")
    return by_question, {
        "paths": sum(map(len, by_question.values())),
        "different_paths": len({path.steps for paths in by_question.values() for path in paths}),
        "topic_is_answer": tally["topic_is_answer"],
        "out_of_reach": tally["out_of_reach"],
        "cut_by_limits": len(cuts),
    }


def load_paths(context: Context, part: str) -> dict[str, list[GoldPath]]:
    """question -> its shortest paths, for each question of a part that has some."""
    out: dict[str, list[GoldPath]] = {}
    for row in load_rows(context / "paths" / PATHS_FILE, QuestionPath):
        if row.part == part:
            out.setdefault(row.question, []).append(row.gold)
    return out
