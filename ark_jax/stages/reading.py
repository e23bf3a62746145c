"""The reader: answers from retrieved passages."""

import dataclasses
import hashlib
from collections.abc import Iterable, Sequence

from ark_jax import hosts
from ark_jax.data.records import Question
from ark_jax.evaluate.answers import first_line
from ark_jax.pipeline import Context
from ark_jax.stages.files import ask
from ark_jax.text import llm, prompts


def answered(questions: Sequence[Question], most: int) -> list[Question]:
    """Those that are answered, in their order: all if `most` is negative."""
    if most < 0:
        return list(questions)
    by_hash = sorted(questions, key=lambda q: hashlib.sha256(q.id.encode()).digest())
    wanted = {q.id for q in by_hash[:most]}
    return [q for q in questions if q.id in wanted]


def read(context: Context, asked: Iterable[str]) -> tuple[dict[str, str], dict]:
    """Answers by prompt, and counts: replies that the reader owes (their answers are empty), and what all of them took.

    Equal prompts (systems often agree) are asked once, and what is in the workdir's replies is not asked again.

    Raises:
        ValueError: prompts too long for a local reader.
    """
    reader = context.config.reader
    calls = [llm.Call(f"read/{prompts.digest(prompt)}", "read", (prompt,)) for prompt in dict.fromkeys(asked)]

    def replies() -> dict:
        found = ask(context, calls, "read answers", lambda call, texts, cut: None, role="reader", stop=("\n",))
        return {"texts": found.texts, "rejected": found.rejected, "llm": dataclasses.asdict(found.usage)}

    told = replies() if reader.backend == "local" else hosts.first(replies)
    if told["rejected"] and reader.backend == "local":
        raise ValueError(f"{len(told['rejected']):,} of {len(calls):,} prompts do not fit the reader, the first having "
                         f"{next(iter(told['rejected'].values()))}, or config.evaluate.passages")
    answers = {call.turns[0]: first_line(told["texts"][call.item][-1]) for call in calls}
    return answers, {"unanswered": len(told["rejected"]), "llm": told["llm"]}
