"""The reader: answers from retrieved passages."""

import dataclasses
import hashlib
from collections.abc import Iterable, Sequence

from ark_jax.data.records import Question
from ark_jax.evaluate.reading import ReadingPrompt
from ark_jax.llm import complete
from ark_jax.pipeline.stage import Context
from ark_jax.recipes.common.ask import ask
from ark_jax.recipes.common.models import trains_reader
from ark_jax.runtime import distributed
from ark_jax.text import prompts

PLAIN = "plain"  # a packaged variant of the template `read`


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


def reading_prompt(config) -> ReadingPrompt:
    """How the reader is asked.

    A tuned reader is asked in the form that it was trained on, though perhaps in the words of
    `config.prompts.read`. Any other gets the template `read` as a turn of a chat. A reader that the
    run trains itself continues a plain text, as those of BAR-RAG do.
    """
    words = config.prompts.read or (PLAIN if trains_reader(config) else "")
    named = ReadingPrompt(prompts.load_template("read", words), chat=not trains_reader(config))
    if config.reader.backend != "local" or not config.reader.path:
        return named
    trained = ReadingPrompt.read(config.reader.path)
    if trained is None:
        return named
    return dataclasses.replace(trained, template=named.template) if config.prompts.read else trained


def answer_prompts(
    context: Context, filled: Iterable[str], form: ReadingPrompt | None = None
) -> tuple[dict[str, str], dict]:
    """prompt -> answer, and the counts `unanswered` and `llm`.

    Equal prompts are asked once, since systems often retrieve the same passages. What the reply
    cache of the workdir holds is not asked again. A prompt without a reply has an empty answer.

    Args:
        form: how the reader is asked, and where its answer stands. None: in a chat, and all of the
            reply is the answer.

    Raises:
        ValueError: a prompt is too long for a local reader.
    """
    stop = form.stop if form else ()
    local = context.config.reader.backend == "local"
    calls = [
        complete.Call(f"read/{prompts.text_digest(prompt)}", "read", (prompt,))
        for prompt in dict.fromkeys(filled)
    ]
    accept = lambda call, texts, cut: None

    def replies() -> dict:
        answers = ask(context, calls, "read answers", accept, role="reader", stop=stop, form=form)
        usage = dataclasses.asdict(answers.usage)
        return {"texts": answers.texts, "rejected": answers.rejected, "llm": usage}

    result = replies() if local else distributed.on_first_process(replies)
    if result["rejected"] and local:
        raise ValueError(
            f"{len(result['rejected']):,} of {len(calls):,} prompts do not fit the reader, the "
            f"first having {next(iter(result['rejected'].values()))}, or config.evaluate.passages"
        )
    shorten = (lambda reply: form.parse(reply, 0).answer) if form else str.strip
    answers = {call.turns[0]: shorten(result["texts"][call.item][-1]) for call in calls}
    return answers, {"unanswered": len(result["rejected"]), "llm": result["llm"]}
