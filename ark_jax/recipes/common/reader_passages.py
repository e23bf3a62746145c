"""What the reader is given of what each system retrieves."""

from collections.abc import Iterable, Mapping

from ark_jax.data.records import Document, Question
from ark_jax.evaluate.reading import ReadingPrompt
from ark_jax.recipes.common.retrieve import Rankings
from ark_jax.runtime.log import say


def retrieved_passages(
    rankings: dict[str, Rankings],
    questions: list[Question],
    texts: Mapping[str, str],
    documents: Iterable[Document],
    count: int,
) -> dict[tuple[str, str], list[str]]:
    """(system, question) -> the first `count` passages; for "full" whole documents."""
    whole = {document.id: document.text for document in documents}

    def passages(system: str, question: Question) -> list[str]:
        if system == "full":
            return [whole[document] for document in question.documents]
        ranked = rankings[system][question.id]
        return [texts[chunk_id] for chunk_id in ranked[:count]]

    return {
        (name, question.id): passages(name, question) for name in rankings for question in questions
    }


def fit_all(
    lm,
    form: ReadingPrompt,
    questions: list[Question],
    texts: Mapping[tuple[str, str], str],
    max_new_tokens: int,
) -> tuple[dict[tuple[str, str], str], int]:
    """As `fit_to_reader`, of all (system, question), and for how many questions texts were cut."""
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
    """As much of the text, from its start, as fits the reader beside its prompt and the answer.

    Raises:
        ValueError: the prompt leaves no room for a text.
    """
    from ark_jax.text.tokens import token_chunks

    def excess() -> int:
        prompt = form.for_model(lm, form.fill(question, text))
        return len(lm.prompt_ids([prompt])[0]) + max_new_tokens - lm.max_length + 1

    if excess() <= 0:
        return text
    size = sum(span.tokens for span in token_chunks(text, lm.tokenizer, size=1 << 30, overlap=0))
    while (surplus := excess()) > 0:
        size -= surplus  # more than once if the rest is tokenised into more tokens
        if size < 1:
            raise ValueError(
                f"question {question[:60]!r}: with it, the prompt and {max_new_tokens} new tokens "
                f"leave no room in the {lm.max_length} that the reader takes; shorten the prompt "
                "or set max_new_tokens lower"
            )
        text = text[: token_chunks(text, lm.tokenizer, size=size, overlap=0)[0].end]
    return text
