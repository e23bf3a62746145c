"""What the reader is given of what each system retrieves."""

from collections.abc import Mapping, Sequence

from ark_jax.data.records import Question
from ark_jax.evaluate.reading import ReadingPrompt
from ark_jax.pipeline.stage import Context
from ark_jax.recipes.common.corpus import load_documents
from ark_jax.recipes.common.models import load_generator, reader_path
from ark_jax.recipes.common.retrieve import Rankings
from ark_jax.runtime.log import say


def retrieved_passages(
    context: Context,
    rankings: dict[str, Rankings],
    questions: list[Question],
    texts: Mapping[str, str],
) -> dict[tuple[str, str], list[str]]:
    """(system, question) -> the passages to answer from, best first; for "full" whole documents."""
    documents = {x.id: x.text for x in load_documents(context)} if "full" in rankings else {}

    def passages(system: str, question: Question) -> list[str]:
        if system == "full":
            return [documents[document] for document in question.documents]
        ranked = rankings[system][question.id]
        return [texts[chunk_id] for chunk_id in ranked[: context.config.evaluate.passages]]

    return {
        (name, question.id): passages(name, question) for name in rankings for question in questions
    }


def passages_for_reader(
    context: Context,
    retrieved: Mapping[tuple[str, str], Sequence[str]],
    questions: list[Question],
    form: ReadingPrompt,
) -> tuple[dict[tuple[str, str], str], int]:
    """(system, question) -> the passages that the reader is given, cut at their end to fit it.

    Args:
        retrieved: what `retrieved_passages` returns.
        form: how the reader is asked.

    Returns:
        the passages, joined as the prompt shows them, and for how many questions some were cut.
    """
    config = context.config
    texts = {key: form.join(passages) for key, passages in retrieved.items()}
    # A reader behind an endpoint says itself if a text is too long.
    if not texts or config.reader.backend != "local":
        return texts, 0
    lm = load_generator(context, reader_path(context))
    question_texts = {question.id: question.question for question in questions}
    cut = set()
    for (name, question), joined in texts.items():
        fitting = fit_to_reader(
            lm, form, question_texts[question], joined, config.evaluate.max_new_tokens
        )
        if fitting != joined:
            texts[name, question] = fitting
            cut.add(question)
    if cut:
        say(
            f"  read answers: what is read for {len(cut):,} of {len(questions):,} questions does "
            "not fit the reader and is cut"
        )
    return texts, len(cut)


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
