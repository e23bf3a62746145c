"""The rewrite stage: each question is asked anew through the entities of its communities."""

import dataclasses
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa

from ark_jax.data.records import Question
from ark_jax.llm import complete
from ark_jax.llm.reply_cache import repair_json, strip_thinking
from ark_jax.pipeline.stage import Context
from ark_jax.pipeline.tables import read_table, save_rows, save_stream, stream_rows
from ark_jax.recipes.common.ask import ask
from ark_jax.recipes.common.corpus import load_questions
from ark_jax.runtime import distributed
from ark_jax.text import prompts
from ark_jax.text.word_boundaries import contains_words

SCHEMA = pa.schema((name, pa.string()) for name in ("question", "size", "text"))


def rewriting_calls(
    context: Context, communities: Sequence[dict] | None = None
) -> Sequence[complete.Call]:
    """A call for every community; each is made on access.

    Args:
        communities: rows without entities, in place of those of the workdir: for estimates, before
            a graph exists.
    """
    from ark_jax.graph.store import KnowledgeGraph

    graph = None
    if communities is None:
        graph = KnowledgeGraph.load(context / "graph")
        table = _communities(context)
        row_at = lambda number: table.slice(number, 1).to_pylist()[0]
        communities = distributed.LazySequence(row_at, range(len(table)))
    questions = {question.id: question for question in load_questions(context, "train")}
    template = prompts.load_template("rewrite", context.config.prompts.rewrite)
    count = context.config.graph.rewrites

    def call(row: dict) -> complete.Call:
        question = questions[row["question"]]
        filled = prompts.fill(
            template,
            question=question.question,
            answer=question.answers[0],
            entities="\n".join(_describe(graph, node) for node in row["nodes"]),
            count=count,
        )
        names = [graph.names[node] for node in row["nodes"]]
        fields = {
            "question": question.question,
            "names": names,
            "count": count,
            "answers": question.answers,
        }
        return complete.Call(_item(row), "rewrite", (filled,), fields)

    return distributed.LazySequence(call, communities)


def rewrite(context: Context, folder: Path) -> dict:
    """Stores the rewritten questions of each community, and replies that could not be read.

    A version that holds the answer, where the original does not, would mine passages that hold it
    too: it is dropped. A question left without a version keeps its original words.
    """
    questions = {question.id: question for question in load_questions(context, "train")}
    count, calls = context.config.graph.rewrites, rewriting_calls(context)
    original = lambda call: questions[call.item.removeprefix("rewrite/").rsplit("/", 1)[0]]
    accept = lambda call, texts, cut: remark(parse_questions(*texts), original(call), count)
    answers = ask(context, calls, "rewrite", accept)
    communities = _communities(context)
    if len(communities):  # else it has no columns
        communities = communities.select(["question", "size"])
    quarantine, leaking, without = [], 0, 0

    def rows() -> Iterator[dict]:
        nonlocal leaking, without
        for community in stream_rows(communities):
            question, item = questions[community["question"]], _item(community)
            texts = answers.texts[item]
            parsed = parse_questions(*texts)
            problem = answers.rejected.get(item) or remark(parsed, question, count)
            if problem:
                quarantine.append({"item": item, "reason": problem, "text": "\n".join(texts)})
            new = [text for text in parsed if not same_question(text, question.question)]
            harmless = [text for text in new if not gives_away_answer(text, question)]
            leaking += len(new) - len(harmless)
            new = harmless[:count]
            without += not new
            for text in new or [question.question]:
                yield community | {"text": text}

    rewritten = save_stream(rows(), folder / "rewritten.parquet", SCHEMA)
    save_rows(quarantine, folder / "quarantine.parquet")
    return {
        "calls": len(calls),
        "rewritten": rewritten,
        "quarantined": len(quarantine),
        "dropped_with_the_answer": leaking,
        "not_rewritten": without,
        "drifted_prompts": len(answers.drifted),
        "llm": dataclasses.asdict(answers.usage),
    }


def _communities(context: Context) -> pa.Table:
    return read_table(context / "communities" / "communities.parquet")


def _describe(graph, node: int) -> str:
    return f"- {graph.names[node]} ({graph.types[node]}): {graph.descriptions.first(node)}"


def _item(community: dict) -> str:
    """What the call of a community is known by."""
    return f"rewrite/{community['question']}/{community['size']}"


def gives_away_answer(text: str, question: Question) -> bool:
    """Whether a version holds an answer that the original question does not hold."""
    return any(
        contains_words(text, answer) and not contains_words(question.question, answer)
        for answer in question.answers
    )


def parse_questions(*replies: str) -> list[str]:
    """The distinct, non-empty questions of one reply after the other."""
    questions: dict[str, str] = {}
    for reply in replies:
        for question in _parse_reply(reply):
            questions.setdefault(_normalise(question), question)
    return list(questions.values())


def same_question(a: str, b: str) -> bool:
    """Whether two questions differ in nothing but case, spacing and the last mark."""
    return _normalise(a) == _normalise(b)


def _normalise(question: str) -> str:
    return " ".join(question.casefold().split()).rstrip("?.! ")


def _parse_reply(reply: str) -> list[str]:
    """The questions of a reply's first JSON value with the key `questions`.

    Else they are those of the first value that holds strings; if no value is whole, it is mended.
    """
    text = strip_thinking(reply)
    starts = [match.start() for match in re.finditer(r"[{\[]", text)]
    fallback: list[str] = []
    for start in starts:
        try:
            value = json.JSONDecoder().raw_decode(text, start)[0]
        except ValueError:
            continue
        except RecursionError:  # it would come again from each of its thousand brackets
            break
        questions = _strings(value)
        if questions and isinstance(value, dict) and "questions" in value:
            return questions
        fallback = fallback or questions
    return fallback or (_strings(repair_json(text[starts[0] :])) if starts else [])


def _strings(value) -> list[str]:
    """The strings of a list, or of an object's list `questions`, or else of its first list."""
    if isinstance(value, dict):
        values = (value.get("questions"), *value.values())
        value = next((x for x in values if isinstance(x, list)), [])
    if not isinstance(value, list):
        return []
    return [" ".join(x.split()) for x in value if isinstance(x, str) and x.strip()]


def remark(questions: list[str], original: Question, count: int) -> str | None:
    """What the model is told about its reply; None if the reply will do."""
    new = [text for text in questions if not same_question(text, original.question)]
    if len(new) >= count:
        return None
    same = " One of them is the original question." if len(new) < len(questions) else ""
    return (
        f"{count} different questions were asked for, {len(new)} could be used.{same} Write "
        f"{count - len(new)} more that differ from one another and from the original; reply in "
        "the same JSON form only."
    )
