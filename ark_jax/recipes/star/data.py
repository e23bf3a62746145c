"""The stages data and paths: graph and questions, and the relation paths between them."""

import collections
import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path

from ark_jax.graph.linked_questions import Linked, link
from ark_jax.graph.steps import GoldPath, PathLimits, Steps, shortest_paths
from ark_jax.graph.triple_questions import TripleQuestion, read_questions
from ark_jax.graph.triples import Triples
from ark_jax.pipeline.stage import Context
from ark_jax.pipeline.tables import load_rows, save_rows
from ark_jax.recipes import graphs
from ark_jax.recipes.core.split import uniform
from ark_jax.runtime.log import say

PARTS = ("train", "test")  # whose paths are looked for; "validation" has questions alone
HEADLINE = "hit@1"  # the metric that messages speak of


@dataclasses.dataclass(frozen=True)
class PathQuestion:
    """A question that relation paths may answer.

    Attributes:
        group: what results are broken down by.
        answers: as texts.
        topics, answer_nodes: nodes of the graph.
        absent: answers that the graph lacks; each counts as a miss.
    """

    id: str
    question: str
    group: str
    answers: tuple[str, ...]
    topics: tuple[int, ...]
    answer_nodes: tuple[int, ...]
    absent: int


def ingest(context: Context, folder: Path) -> dict:
    """Reads the graph, and parts questions to train on from held-out ones."""
    settings = context.config.data
    if not settings.questions:
        raise ValueError(
            "config.data.questions is empty: STAR learns from questions with answers; give "
            "--config.data.questions=FILE"
        )
    graph = graphs.read_graph(settings)
    counts = graphs.store_graph(graph, folder)
    read, findings = read_questions(settings.questions, settings.encoding)
    graphs.report_findings(findings, settings.tolerate)
    linked = _linked(read, graph)
    parts = _divide(linked, graph, context.config)
    if settings.test:
        parts["test"] = _read_test(read, graph, context.config)
    train, test = parts["train"], parts["test"]
    usable, validation = (
        [question for question in parts[part] if question.topics and question.answer_nodes]
        for part in ("train", "validation")
    )
    _check_parts(usable, validation, test, len(read), context.config)
    usable = _draw_few(usable, settings.few)
    if settings.few and validation:  # in proportion, or choosing would cost more than training
        odds = settings.validation / (1 - settings.validation)
        validation = _draw_few(validation, math.ceil(settings.few * odds))
    for part, questions in (("train", usable), ("test", test), ("validation", validation)):
        if questions or part in PARTS:
            save_rows(questions, folder / _questions_file(part), PathQuestion)
    if test:
        say(f"  {len(test):,} questions to measure with")
    else:
        say("  data.held_out is 0: nothing will be measured")
    return {
        **counts,
        "train_questions": len(usable),
        "train_without_topic": sum(not question.topics for question in train),
        "train_without_answer_in_graph": sum(
            bool(question.topics) and not question.answer_nodes for question in train
        ),
        **({"validation_questions": len(validation)} if validation else {}),
        "test_questions": len(test),
        "test_without_topic": sum(not question.topics for question in test),
        "test_without_answer_in_graph": sum(not question.answer_nodes for question in test),
    }


def _linked(questions: Sequence[TripleQuestion], graph: Triples) -> Linked:
    """The questions with their nodes; prints remarks."""
    linked = link(questions, graph)
    for remark in linked.remarks:
        say(f"  {remark}")
    return linked


def _read_test(trained: Sequence[TripleQuestion], graph: Triples, config) -> list[PathQuestion]:
    """The questions of `data.test`, at most `evaluate.questions` of each group."""
    settings = config.data
    read, findings = read_questions(settings.test, settings.encoding)
    graphs.report_findings(findings, settings.tolerate)
    if repeated := {question.id for question in trained} & {question.id for question in read}:
        raise ValueError(
            f"config.data.test: the question {min(repeated)!r} of {settings.test} is also in "
            f"{settings.questions}; what is tested must not be trained on"
        )
    linked = _linked(read, graph)
    numbers = (i for i, question in enumerate(linked.questions) if question.answers)
    answered = [_path_question(linked, number) for number in numbers]
    return graphs.first_of_groups(answered, config.evaluate.questions)


def _divide(linked: Linked, graph: Triples, config) -> dict[str, list[PathQuestion]]:
    """The questions with answers: those to train on, to choose an epoch, and to measure with."""
    share = 0.0 if config.data.test else config.data.held_out
    # Part "rest" takes its test questions from those that are not held out.
    low, high = (0.0, share)
    if config.evaluate.part == "rest":
        low, high = share, share + share * (1 - share)
    ends = {"test": high, "validation": high + config.data.validation * (1 - high), "train": 1.0}
    parts: dict[str, list[PathQuestion]] = {part: [] for part in ends}
    for number, question in enumerate(linked.questions):
        draw = _topic_draw(linked, number, graph)
        if question.answers and draw >= low:
            part = next((part for part, end in ends.items() if draw < end), "train")
            parts[part].append(_path_question(linked, number))
    return parts | {"test": graphs.first_of_groups(parts["test"], config.evaluate.questions)}


def _topic_draw(linked: Linked, number: int, graph: Triples) -> float:
    """As `topic_draw`; topics that were found in the text count if the question names none."""
    question, topics = linked.questions[number], linked.topics[number]
    if question.entities or not topics:
        return graphs.topic_draw(question)
    return uniform(f"topic {' '.join(graph.nodes.name(topic) for topic in topics)}")


def _path_question(linked: Linked, number: int) -> PathQuestion:
    """The question with this number."""
    question = linked.questions[number]
    return PathQuestion(
        question.id,
        question.question,
        question.group,
        question.answers,
        linked.topics[number],
        tuple(linked.answer_nodes(number).tolist()),
        sum(not nodes for nodes in linked.answers[number]),
    )


def _check_parts(
    train: Sequence[PathQuestion],
    validation: Sequence[PathQuestion],
    test: Sequence[PathQuestion],
    read: int,
    config,
) -> None:
    source = f"{config.data.questions}: none of {read:,} questions"
    if not train:
        raise ValueError(
            f"{source} is left to train on, which takes a topic and an answer in the graph; see "
            "the remarks above, or set config.data.held_out lower"
        )
    if config.data.validation and not validation:
        raise ValueError(
            f"{source} is left to choose an epoch with, which takes a topic and an answer in the "
            "graph; set config.data.validation higher, or to 0 to keep the last epoch"
        )
    if config.data.held_out and not test:
        raise ValueError(
            f"{source} with answers is left to measure with; set config.data.held_out higher, or "
            "to 0 to measure nothing"
        )


def _draw_few(questions: Sequence[PathQuestion], count: int) -> list[PathQuestion]:
    """`count` questions, drawn by a hash evenly over the groups; all if it is 0.

    A larger draw holds all of a smaller one.
    """
    if not count:
        return list(questions)
    places: dict[str, int] = collections.defaultdict(int)
    ranks = {}
    for question in sorted(questions, key=lambda x: uniform(f"draw {x.id}")):
        ranks[question.id] = (places[question.group], len(ranks))
        places[question.group] += 1
    drawn = set(sorted(ranks, key=ranks.__getitem__)[:count])
    return [question for question in questions if question.id in drawn]


def _questions_file(part: str) -> str:
    return f"questions_{part}.parquet"


def load_questions(context: Context, part: str) -> list[PathQuestion]:
    """The questions of "train", "validation" or "test"."""
    return load_rows(context / "data" / _questions_file(part), PathQuestion)


def load_steps(context: Context) -> Steps:
    """The stored graph's relations as steps."""
    config = context.config
    graph = graphs.load_graph(context)
    return Steps(graph, inverse=config.paths.inverse, by=config.data.relations)


PATHS_FILE = "paths.parquet"
SHOWN = 3  # questions whose cut paths are printed one by one


@dataclasses.dataclass(frozen=True)
class QuestionPath:
    """A shortest path of a question.

    Attributes:
        part: "train" or "test".
        topic, steps, reached, correct: see `graph.steps.GoldPath`.
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
    """Finds the shortest paths from the topics of each question to its answers."""
    steps, settings = load_steps(context), context.config.paths
    limits = PathLimits(settings.hops, settings.seconds)
    rows, counts = [], {}
    for part in PARTS:
        questions = load_questions(context, part)
        by_question, tally = _find_shortest_paths(questions, steps, limits)
        rows += [
            QuestionPath(part, id, *dataclasses.astuple(path))
            for id, paths in by_question.items()
            for path in paths
        ]
        counts |= {f"{part}_{name}": count for name, count in tally.items()}
    if not counts["train_paths"]:
        raise ValueError(
            f"no training question's answer lies within config.paths.hops={settings.hops} of its "
            "topic: set it higher, or config.paths.inverse=True, or check that graph and "
            "questions belong together"
        )
    save_rows(rows, folder / PATHS_FILE, QuestionPath)
    return counts


def _find_shortest_paths(
    questions: Sequence[PathQuestion], steps: Steps, limits: PathLimits
) -> tuple[dict[str, list[GoldPath]], dict[str, int]]:
    """question -> its shortest paths; and counts of paths and of questions without them."""
    by_question, tally, cuts = {}, collections.Counter(), []
    for question in questions:
        by_question[question.id], cut = shortest_paths(
            steps, question.topics, question.answer_nodes, limits
        )
        if cut:
            cuts.append(f"  question {question.id!r}: {cut}")
        if by_question[question.id] or not (question.topics and question.answer_nodes):
            continue
        # No path leads from a topic to itself.
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
    paths: dict[str, list[GoldPath]] = {}
    for row in load_rows(context / "paths" / PATHS_FILE, QuestionPath):
        if row.part == part:
            paths.setdefault(row.question, []).append(row.gold)
    return paths
