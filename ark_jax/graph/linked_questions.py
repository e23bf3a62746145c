"""Questions over a graph of triples, whose topics and answers are found among its nodes."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from ark_jax.graph.name_search import Mentions, look_up, nearest
from ark_jax.graph.triple_questions import TripleQuestion
from ark_jax.graph.triples import Triples

LISTED = 5  # remarks of one kind; further ones are counted


@dataclasses.dataclass(frozen=True)
class Linked:
    """Questions whose answers and topics are nodes of a graph.

    Attributes:
        questions: as they were given.
        topics: for each question, the nodes of its topics, ascending. A name of several nodes
            gives all of them.
        answers: for each question and each of its answers, the nodes that it may be; none if it is
            not in the graph.
        counts: how many names were looked up and how many are absent, see `link`.
        remarks: sentences for the user, such as which names are absent.
    """

    questions: list[TripleQuestion]
    topics: list[tuple[int, ...]]
    answers: list[tuple[tuple[int, ...], ...]]
    counts: dict[str, int]
    remarks: list[str]

    def answer_nodes(self, question: int) -> np.ndarray:
        """All nodes that are an answer to a question, ascending: int64 [n]."""
        return np.unique(np.array([n for nodes in self.answers[question] for n in nodes], np.int64))

    def summary(self) -> str:
        """The counts, a line each."""
        return "\n".join(f"{name.replace('_', ' ')}: {n:,}" for name, n in self.counts.items())


def link(questions: Sequence[TripleQuestion], graph: Triples) -> Linked:
    """Finds the nodes of topics and answers.

    A given name is looked up by `name_search.look_up`. The topics of a question that names none are
    found in its text by the rule of `name_search.Mentions`.

    `counts` has, beside the number of questions:

    topics_given, topics_absent: names of topics, and how many of them are not in the graph.
    topics_from_text: questions whose topics were found in their text.
    without_topic: questions without a topic in the graph.
    answers, answers_absent: answers, and how many of them are not in the graph. An absent answer
        counts as a miss for every system.
    without_answer_in_graph: questions with answers none of which is in the graph.
    """
    questions = list(questions)
    searched_names = [name for q in questions for name in (*q.entities, *_answer_names(q))]
    lookup = look_up(searched_names, graph.nodes)
    nodes_of = lambda name: lookup.nodes.get(name, ())
    answers = [tuple(map(nodes_of, _answer_names(q))) for q in questions]
    without_names = [i for i, q in enumerate(questions) if not q.entities]
    mentions: list[dict[str, tuple[int, ...]]] = []
    if without_names:
        mentions = Mentions(graph.nodes).find([questions[i].question for i in without_names])
    topics = [_sorted_union(map(nodes_of, q.entities)) for q in questions]
    for i, names in zip(without_names, mentions, strict=True):
        topics[i] = _sorted_union(names.values())
    given_names = [name for q in questions for name in q.entities]
    all_answers = [nodes for question_answers in answers for nodes in question_answers]
    counts = {
        "questions": len(questions),
        "topics_given": len(given_names),
        "topics_absent": sum(not nodes_of(name) for name in given_names),
        "topics_from_text": sum(map(bool, mentions)),
        "without_topic": sum(not nodes for nodes in topics),
        "answers": len(all_answers),
        "answers_absent": sum(not nodes for nodes in all_answers),
        "without_answer_in_graph": sum(
            bool(question_answers) and not any(question_answers) for question_answers in answers
        ),
    }
    ambiguous = {name: nodes for name, nodes in lookup.nodes.items() if len(nodes) > 1}
    for names in mentions:
        ambiguous |= {name: nodes for name, nodes in names.items() if len(nodes) > 1}
    remarks = [
        *_absent_topics(questions, nodes_of, graph),
        *_absent_answers(questions, answers, counts),
        *_ambiguous_names(ambiguous, graph),
    ]
    if lookup.also_ids:
        examples = ", ".join(map(repr, lookup.also_ids[:3]))
        remarks.append(
            f"{len(lookup.also_ids):,} names are also ids of other nodes ({examples}); "
            "they are read as names"
        )
    return Linked(questions, topics, answers, counts, remarks)


def _answer_names(question: TripleQuestion) -> tuple[str, ...]:
    """The names or ids by which the answers of a question are looked up."""
    return question.answer_entities or question.answers


def _sorted_union(groups: Iterable[Iterable[int]]) -> tuple[int, ...]:
    return tuple(sorted({node for nodes in groups for node in nodes}))


def _absent_topics(
    questions: Sequence[TripleQuestion], nodes_of: Callable[[str], tuple[int, ...]], graph: Triples
) -> list[str]:
    """Remarks on topics that are not in the graph, with the most similar names."""
    first: dict[str, str] = {}
    for question in questions:
        for name in question.entities:
            if not nodes_of(name):
                first.setdefault(name, question.id)
    lines = []
    for name, id in list(first.items())[:LISTED]:
        nearest_names = ", ".join(map(repr, nearest(name, graph.nodes))) or "none"
        lines.append(
            f"topic {name!r} of question {id!r} is not in the graph; nearest: {nearest_names}"
        )
    return _with_count_of_rest(lines, len(first), "topics are not in the graph")


def _absent_answers(
    questions: Sequence[TripleQuestion],
    answers: Sequence[tuple[tuple[int, ...], ...]],
    counts: Mapping[str, int],
) -> list[str]:
    """Remarks on answers that are not in the graph."""
    if not counts["answers_absent"]:
        return []
    absent = (
        f"{name!r} of {q.id!r}"
        for q, nodes_by_answer in zip(questions, answers, strict=True)
        for name, nodes in zip(_answer_names(q), nodes_by_answer, strict=True)
        if not nodes
    )
    examples = ", ".join(name for name, _ in zip(absent, range(3), strict=False))
    lines = [
        f"{counts['answers_absent']:,} answers are not in the graph ({examples}); each counts as a "
        "miss"
    ]
    if 2 * counts["without_answer_in_graph"] > len(questions):
        lines.append(
            f"{counts['without_answer_in_graph']:,} of {len(questions):,} questions have no answer "
            "in the graph: check that they belong together"
        )
    return lines


def _ambiguous_names(names: Mapping[str, Sequence[int]], graph: Triples) -> list[str]:
    """Remarks on names of several nodes, all of which are taken."""
    lines = []
    for name, nodes in list(names.items())[:LISTED]:
        ids = ", ".join(graph.nodes.ids[node].as_py() for node in nodes[:LISTED])
        more = f" and {len(nodes) - LISTED:,} more" if len(nodes) > LISTED else ""
        lines.append(f"{name!r} may be {len(nodes):,} nodes, all are taken: {ids}{more}")
    return _with_count_of_rest(lines, len(names), "names lead to several nodes")


def _with_count_of_rest(lines: list[str], total: int, kind: str) -> list[str]:
    """Some remarks of a kind, and one that says how many more there are."""
    more = total - len(lines)
    return lines + ([f"{more:,} more {kind}"] if more else [])
