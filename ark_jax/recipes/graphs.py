"""What recipes over triples share: the graph, the draw of questions, the reader's answers."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from ark_jax.data import readers
from ark_jax.evaluate import answer_lists
from ark_jax.graph.triple_questions import TripleQuestion
from ark_jax.graph.triples import Triples, triple_texts
from ark_jax.pipeline import own_functions
from ark_jax.pipeline.stage import Context
from ark_jax.recipes.core import own_parts
from ark_jax.recipes.core.models import load_generator
from ark_jax.recipes.core.split import uniform
from ark_jax.recipes.documents import reader
from ark_jax.runtime.log import say
from ark_jax.text import prompts

GRAPH = "graph"  # a folder in that of the data stage


def read_graph(settings) -> Triples:
    """The graph that a config's `data` names."""
    graph, findings = Triples.examine(
        [settings.path], settings.names or None, settings.relation_names or None, settings.encoding
    )
    report_findings(findings, settings.tolerate)
    return graph


def report_findings(findings, tolerate: float) -> None:
    """Prints remarks and tolerated problems; raises BadInput for other problems."""
    for line in readers.tolerated(findings.problems, findings.remarks, tolerate):
        say(f"  {line}")


def store_graph(graph: Triples, folder: Path) -> dict[str, int]:
    """Stores the graph in the folder of the data stage; returns counts for the manifest."""
    graph.save(folder / GRAPH)
    counts = graph.summary()
    counts.pop("hubs")
    return counts


def load_graph(context: Context) -> Triples:
    return Triples.load(context / "data" / GRAPH)


def texts_of(graph: Triples, config, rows: np.ndarray | None = None) -> list[str]:
    """The texts of all triples, or of those at `rows`, as encoders and BM25 read them."""
    rows = np.arange(len(graph)) if rows is None else rows
    return triple_texts(graph, rows, config.data.relations)


def topic_draw(question: TripleQuestion) -> float:
    """A number in [0, 1) from a hash of a question's topics, or of its text if it names none."""
    return uniform(f"topic {' '.join(question.entities) or question.question}")


def first_of_groups(questions: Sequence[TripleQuestion], limit: int) -> list[TripleQuestion]:
    """At most `limit` questions of each group, drawn by a hash; all if it is 0."""
    if not limit:
        return list(questions)
    groups: dict[str, list] = {}
    for question in questions:
        groups.setdefault(question.group, []).append(question)
    drawn = {
        question.id
        for group in groups.values()
        for question in sorted(group, key=lambda x: uniform(f"draw {x.id}"))[:limit]
    }
    return [question for question in questions if question.id in drawn]


def unused_sections(config) -> list[str]:
    """The config sections that a run ignores if it answers no question."""
    if config.evaluate.read:
        return []
    return ["reader"] if config.llm.backend == "local" else ["reader", "generator"]


def describe_graph(config) -> str:
    """The size of the graph that a config names, in one line."""
    graph = read_graph(config.data)
    return f"{len(graph):,} triples, {len(graph.nodes):,} entities"


def graph_size(data: Mapping[str, int]) -> str:
    """The size of a graph in words, from the counts of the data stage."""
    nodes, relations = data["nodes"], data["relations"]
    return f"{data['triples']:,} triples, {nodes:,} entities, {relations:,} relations"


Scores = dict[tuple[str, str], dict]  # (system, question) -> reply and its scores
# Scores of a list of answers -> columns; publications call either hit "Hit".
LISTS = {
    "accuracy": "answer_accuracy",
    "precision": "list_precision",
    "recall": "list_recall",
    "f1": "list_f1",
    "hit": "any_hit",
    "hit@1": "first_hit",
}
SHOWN = ("f1", "hit", "hit@1")
ALONE = "reader alone"  # the row of a reader that gets no facts


def read_facts(
    context: Context, systems: Sequence[str], questions: Sequence, facts_of: Callable, folder: Path
) -> tuple[Scores, dict]:
    """The reader's replies with their scores, and counts for the manifest; both may be empty.

    A model is asked without facts, too: the system `ALONE`.

    Args:
        questions: all; `evaluate.read` of them are answered.
        facts_of: `facts_of(system, question)` gives facts, best first. A local reader gets as many
            of them as it can read.
        folder: of the stage; answers of a reader of the user's own are stored there.
    """
    sample = reader.questions_to_answer(questions, context.config.evaluate.read)
    if not sample:
        return {}, {}
    if own_functions.is_own(backend := context.config.reader.backend):
        pairs = [(system, question) for system in systems for question in sample]
        facts = {(system, question.id): facts_of(system, question) for system, question in pairs}
        answers = own_parts.answer_all(backend, facts, sample, folder)
        unanswered = sum(not answer for answer in answers.values())
        return _score_answers(answers, sample), {"unanswered": unanswered}
    template = prompts.load_template("triple_reader", context.config.prompts.triple_reader)
    filled, cut = {}, set()
    for system in (*systems, ALONE):
        for question in sample:
            facts = [] if system == ALONE else facts_of(system, question)
            prompt, fitting = _fitting_prompt(context, template, question.question, facts)
            filled[system, question.id] = prompt
            if fitting < len(facts):
                cut.add(question.id)
    replies, counts = reader.answer_prompts(context, filled.values())
    answers = {key: replies[prompt] for key, prompt in filled.items()}
    cut_counts = {"cut_to_fit_the_reader": len(cut)} if cut else {}
    return _score_answers(answers, sample), counts | cut_counts


def _score_answers(answers: Mapping[tuple[str, str], str], questions: Sequence) -> Scores:
    """The answers, (system, question) -> text, with their `answer_lists.list_scores`."""
    references = {question.id: question.answers for question in questions}
    return {
        (system, id): {"answer": answer} | answer_lists.list_scores(answer, references[id])
        for (system, id), answer in answers.items()
    }


def reply_columns(reply: Mapping | None) -> dict:
    """A reply and its scores by column; all None if the question was not answered."""
    scores = reply or {}
    return {"answer": scores.get("answer")} | {
        column: scores.get(name) for name, column in LISTS.items()
    }


def with_reader_alone(rows: Sequence[dict], replies: Scores) -> list[dict]:
    """The rows of systems, and after the first system those of `ALONE`, if it was asked.

    It retrieves nothing, so it has no figures of retrieval.
    """
    if all(system != ALONE for system, _ in replies):
        return list(rows)
    first = [row for row in rows if row["system"] == rows[0]["system"]]
    alone = [
        {name: [] if isinstance(value, list | tuple) else None for name, value in row.items()}
        | {"system": ALONE, "question": row["question"], "group": row["group"]}
        | reply_columns(replies.get((ALONE, row["question"])))
        for row in first
    ]
    return [*first, *alone, *rows[len(first) :]]


def _fitting_prompt(
    context: Context, template: str, question: str, facts: Sequence[str]
) -> tuple[str, int]:
    """A prompt with as many of the first facts as the reader can read, and their number."""
    prompt = answer_lists.facts_prompt(template, question, facts)
    # An endpoint reports a prompt that is too long.
    if context.config.reader.backend != "local":
        return prompt, len(facts)
    lm = load_generator(context, context.config.reader.path)
    count, room = len(facts), lm.max_length - context.config.evaluate.max_new_tokens
    while len(lm.prompt_ids([lm.chat(prompt)])[0]) > room:
        if not count:
            raise ValueError(
                f"question {question[:60]!r}: with it and prompt triple_reader, no fact fits the "
                f"{lm.max_length} tokens that the reader takes; set config.evaluate.max_new_tokens "
                "lower or shorten the prompt"
            )
        count -= 1
        prompt = answer_lists.facts_prompt(template, question, facts[:count])
    return prompt, count
