"""HyDE in a run: passages that the language model of `llm` writes for held-out questions."""

import functools
from collections.abc import Sequence

from ark_jax.data.records import Question
from ark_jax.llm import complete
from ark_jax.pipeline.stage import Context
from ark_jax.recipes.common.ask import ask
from ark_jax.recipes.common.models import encode
from ark_jax.retrieval.hyde import NAME, Hyde
from ark_jax.runtime import distributed
from ark_jax.text import prompts


def embedding(context: Context, questions: Sequence[Question]) -> Hyde:
    """What embeds these questions by the base retriever; every process must call it."""
    embed = lambda texts, kind: encode(context, "base", texts, kind, f"embed {kind}s, {NAME}")
    return Hyde(functools.partial(_write, context, questions), embed, _template(context))


def passage_calls(context: Context, questions: Sequence[Question]) -> list[complete.Call]:
    """A call for each question."""
    filled = [prompts.fill(_template(context), question=x.question) for x in questions]
    return _calls(questions, filled)


def _template(context: Context) -> str:
    return prompts.load_template(NAME, context.config.prompts.hyde)


def _calls(questions: Sequence[Question], filled: Sequence[str]) -> list[complete.Call]:
    pairs = zip(questions, filled, strict=True)
    return [complete.Call(f"{NAME}/{question.id}", NAME, (prompt,)) for question, prompt in pairs]


def _write(context: Context, questions: Sequence[Question], filled: Sequence[str]) -> list[str]:
    """The replies to the prompts of questions; empty where the model gives none."""
    calls = _calls(questions, filled)

    def replies() -> list[str]:
        answers = ask(context, calls, "write passages", complete.accept_all)
        text = lambda item: "" if item in answers.rejected else answers.texts[item][-1]
        return [text(call.item) for call in calls]

    local = context.config.llm.backend == "local"
    return replies() if local else distributed.on_first_process(replies)
