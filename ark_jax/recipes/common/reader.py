"""The reader: answers from retrieved passages."""

import dataclasses
import hashlib
from collections.abc import Iterable, Sequence

from ark_jax.data.records import Question
from ark_jax.evaluate.answers import first_line
from ark_jax.llm import complete
from ark_jax.pipeline.stage import Context
from ark_jax.recipes.common.ask import ask
from ark_jax.runtime import distributed
from ark_jax.text import prompts


def questions_to_answer(questions: Sequence[Question], limit: int) -> list[Question]:
    """The first `limit` questions by a hash of their ids, in their own order; all if negative.

    Questions without a reference answer are left out.
    """
    questions = [question for question in questions if question.answers]
    if limit < 0:
        return questions
    by_hash = sorted(questions, key=lambda q: hashlib.sha256(q.id.encode()).digest())
    drawn = {question.id for question in by_hash[:limit]}
    return [question for question in questions if question.id in drawn]


def answer_prompts(
    context: Context, filled: Iterable[str], *, lists: bool = False
) -> tuple[dict[str, str], dict]:
    """prompt -> answer, and the counts `unanswered` and `llm`.

    Equal prompts are asked once, since systems often retrieve the same passages. What the reply
    cache of the workdir holds is not asked again. A prompt without a reply has an empty answer.

    Args:
        lists: whether an answer has several lines; otherwise it is the first one.

    Raises:
        ValueError: a prompt is too long for a local reader.
    """
    stop, shorten = ((), str.strip) if lists else (("\n",), first_line)
    local = context.config.reader.backend == "local"
    calls = [
        complete.Call(f"read/{prompts.text_digest(prompt)}", "read", (prompt,))
        for prompt in dict.fromkeys(filled)
    ]
    accept = lambda call, texts, cut: None

    def replies() -> dict:
        answers = ask(context, calls, "read answers", accept, role="reader", stop=stop)
        usage = dataclasses.asdict(answers.usage)
        return {"texts": answers.texts, "rejected": answers.rejected, "llm": usage}

    result = replies() if local else distributed.on_first_process(replies)
    if result["rejected"] and local:
        raise ValueError(
            f"{len(result['rejected']):,} of {len(calls):,} prompts do not fit the reader, the "
            f"first having {next(iter(result['rejected'].values()))}, or config.evaluate.passages"
        )
    answers = {call.turns[0]: shorten(result["texts"][call.item][-1]) for call in calls}
    return answers, {"unanswered": len(result["rejected"]), "llm": result["llm"]}
