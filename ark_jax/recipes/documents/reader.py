"""The reader: its passages, its prompts and its answers."""

import dataclasses
import hashlib
from collections.abc import Iterable, Mapping, Sequence

from ark_jax.data.records import Document, Question
from ark_jax.evaluate.reading import ReadingPrompt
from ark_jax.llm import complete
from ark_jax.pipeline.stage import Context
from ark_jax.recipes.core.ask import ask
from ark_jax.recipes.core.models import trains_reader
from ark_jax.recipes.documents.retrieve import Rankings
from ark_jax.runtime import distributed
from ark_jax.runtime.log import say
from ark_jax.text import prompts
from ark_jax.text.thoughts import split_thought


def retrieved_passages(
    rankings: dict[str, Rankings],
    questions: list[Question],
    texts: Mapping[str, str],
    documents: Iterable[Document],
    count: int,
) -> dict[tuple[str, str], list[str]]:
    """(system, question) -> the first `count` passages; for "full" whole documents."""
    whole = {document.id: document.text for document in documents}

    def passages_of(system: str, question: Question) -> list[str]:
        if system == "full":
            return [whole[document] for document in question.documents]
        ranked = rankings[system][question.id]
        return [texts[chunk_id] for chunk_id in ranked[:count]]

    return {
        (name, question.id): passages_of(name, question)
        for name in rankings
        for question in questions
    }


def fit_all(
    lm,
    form: ReadingPrompt,
    questions: list[Question],
    texts: Mapping[tuple[str, str], str],
    max_new_tokens: int,
) -> tuple[dict[tuple[str, str], str], int]:
    """(system, question) -> its text cut by `fit_to_reader`; the number of cut questions."""
    asked = {question.id: question.question for question in questions}
    fit = lambda id, text: fit_to_reader(lm, form, asked[id], text, max_new_tokens)
    fitting = {(system, id): fit(id, text) for (system, id), text in texts.items()}
    cut = {id for system, id in texts if fitting[system, id] != texts[system, id]}
    if cut:
        say(
            f"  read answers: what is read for {len(cut):,} of {len(questions):,} questions does "
            "not fit the reader and is cut"
        )
    return fitting, len(cut)


def fit_to_reader(lm, form: ReadingPrompt, question: str, text: str, max_new_tokens: int) -> str:
    """As much of the text, from its start, as fits the reader beside its prompt and the answer."""
    from ark_jax.text.tokens import token_chunks

    def excess_tokens() -> int:
        """How many tokens the prompt has too many."""
        prompt = form.for_model(lm, form.fill(question, text))
        return len(lm.prompt_ids([prompt])[0]) + max_new_tokens - lm.max_length + 1

    if excess_tokens() <= 0:
        return text
    size = sum(span.tokens for span in token_chunks(text, lm.tokenizer, size=1 << 30, overlap=0))
    while (surplus := excess_tokens()) > 0:
        size -= surplus  # more than once if the rest is tokenised into more tokens
        if size < 1:
            raise ValueError(
                f"question {question[:60]!r}: with it, the prompt and {max_new_tokens} new tokens "
                f"leave no room in the {lm.max_length} that the reader takes; shorten the prompt "
                "or set max_new_tokens lower"
            )
        text = text[: token_chunks(text, lm.tokenizer, size=size, overlap=0)[0].end]
    return text


PLAIN = "plain"  # a packaged variant of the template `read`


def questions_to_answer(questions: Sequence[Question], limit: int) -> list[Question]:
    """At most `limit` questions with reference answers, drawn by a hash, in their order.

    Args:
        limit: negative: no limit.
    """
    questions = [question for question in questions if question.answers]
    if limit < 0:
        return questions
    by_hash = sorted(questions, key=lambda q: hashlib.sha256(q.id.encode()).digest())
    drawn = {question.id for question in by_hash[:limit]}
    return [question for question in questions if question.id in drawn]


def reading_prompt(config) -> ReadingPrompt:
    """The form of the reader's prompts.

    A tuned reader keeps the form that it was trained on; `config.prompts.read` may replace the
    template. A reader that this run trains continues a plain text, as those of BAR-RAG do, and so
    does one of `reader.form=text`. Any other gets the template `read` as a turn of a chat.
    """
    words = config.prompts.read or (PLAIN if trains_reader(config) else "")
    chat = not trains_reader(config) and not _continues_text(config)
    named = ReadingPrompt(prompts.load_template("read", words), chat=chat)
    if config.reader.backend != "local" or not config.reader.path:
        return named
    trained = ReadingPrompt.read(config.reader.path)
    if trained is None:
        return named
    return dataclasses.replace(trained, template=named.template) if config.prompts.read else trained


def _continues_text(config) -> bool:
    """Whether `reader.form`, which some recipes lack, is text."""
    return config.reader.get("form") == "text"


def answer_prompts(
    context: Context, filled: Iterable[str], form: ReadingPrompt | None = None
) -> tuple[dict[str, str], dict]:
    """prompt -> answer, and the counts `unanswered` and `llm`.

    Equal prompts are asked once, since systems often retrieve the same passages. What the reply
    cache of the workdir holds is not asked again. A prompt without a reply has an empty answer.

    Args:
        form: of the prompts and replies. None: a chat, whose whole reply is the answer.
    """
    stop = form.stop if form else ()
    local = context.config.reader.backend == "local"
    calls = [
        complete.Call(f"read/{prompts.text_digest(prompt)}", "read", (prompt,))
        for prompt in dict.fromkeys(filled)
    ]
    accept = lambda call, texts, cut: None

    def ask_reader() -> dict:
        answers = ask(context, calls, "read answers", accept, role="reader", stop=stop, form=form)
        usage = dataclasses.asdict(answers.usage)
        return {"texts": answers.texts, "rejected": answers.rejected, "llm": usage}

    result = ask_reader() if local else distributed.on_first_process(ask_reader)
    if result["rejected"] and local:
        raise ValueError(
            f"{len(result['rejected']):,} of {len(calls):,} prompts do not fit the reader, the "
            f"first having {next(iter(result['rejected'].values()))}, or config.evaluate.passages"
        )
    shorten = (lambda reply: form.parse(reply, 0).answer) if form else str.strip
    if form and _continues_text(context.config):
        shorten = lambda reply: split_thought(reply).answer.strip()
    answers = {call.turns[0]: shorten(result["texts"][call.item][-1]) for call in calls}
    return answers, {"unanswered": len(result["rejected"]), "llm": result["llm"]}
