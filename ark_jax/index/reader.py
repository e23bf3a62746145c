"""A reader answers questions from passages, and names the passages that support it."""

import dataclasses
import functools
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ark_jax.evaluate.answers import normalise
from ark_jax.evaluate.reading import ReadingPrompt
from ark_jax.index.writer import MAX_NEW_TOKENS, Writer
from ark_jax.text import cited, prompts

if TYPE_CHECKING:
    from ark_jax.models.language import LanguageModel

Partial = Callable[[str], None]  # is called with the text so far


@dataclasses.dataclass(frozen=True)
class Answer:
    """What a reader replied.

    Attributes:
        text: the answer; empty if the reply has none.
        sources: positions of the passages that support it: those that the reply cites, or else
            those that hold the answer word for word.
        cited: whether the reply cites them.
        read: how many passages the reader was shown, from the first; the others did not fit.
        reply: the whole reply.
    """

    text: str
    sources: tuple[int, ...]
    cited: bool
    read: int
    reply: str


@dataclasses.dataclass(frozen=True)
class Reader:
    """A language model that answers questions from passages, greedily.

    Attributes:
        write: prompts -> replies; may call a second argument with what a reply says so far.
        fits: whether a prompt and its reply fit the model.
        form: the form of prompts and replies.
    """

    write: Callable[..., list[str]]
    fits: Callable[[str], bool]
    form: ReadingPrompt

    @classmethod
    def local(cls, name_or_folder: str) -> "Reader":
        """A model on the devices of this process; a tuned reader is asked as it was trained.

        Raises:
            FileNotFoundError, ValueError: as `LanguageModel.from_pretrained`.
        """
        from ark_jax.models.language import LanguageModel

        lm = LanguageModel.from_pretrained(name_or_folder)
        form = ReadingPrompt.read(name_or_folder) or _citing_form()
        write = functools.partial(_generate, lm, form)
        return cls(write, functools.partial(_fits_model, lm, form), form)

    @classmethod
    def endpoint(
        cls, base_url: str, model: str, cache: Path, *, key_env: str = "OPENAI_API_KEY"
    ) -> "Reader":
        """A model behind an OpenAI-compatible address, which refuses a prompt that is too long.

        Args:
            base_url: empty: OpenAI's.
            cache: the file of replies; a prompt with a reply there is not sent again.
            key_env: the environment variable that holds the key.

        Raises:
            RuntimeError: the endpoint gives no reply; `write` and `answer` raise it.
        """
        writer = Writer.endpoint(base_url, model, cache, key_env=key_env)

        def write(filled: Sequence[str], partial: Partial | None = None) -> list[str]:
            replies, refused = writer.ask(filled, "ask")
            if refused:
                reason = next(iter(refused.values()))
                raise RuntimeError(f"{model} gives no reply: {reason}")
            return [replies[prompt][-1] for prompt in filled]

        return cls(write, lambda prompt: True, _citing_form())

    def answer(
        self, question: str, passages: Sequence[str], partial: Partial | None = None
    ) -> Answer:
        """Answers a question from the first passages that fit the model.

        Args:
            partial: is called with the answer so far, if the model is local.

        Raises:
            ValueError: not even the first passage fits, or there is none.
        """
        for read in range(len(passages), 0, -1):
            prompt = self.form.fill(question, self.form.join(passages[:read]))
            if self.fits(prompt):
                says = partial and functools.partial(_say, partial, self.form, read)
                reply = self.write([prompt], *filter(None, [says]))[0]
                return parse_answer(self.form, reply, passages[:read])
        raise ValueError(
            f"question {question[:60]!r}: no passage fits the reader; take one that reads more, or "
            "an index of shorter chunks"
            if passages
            else f"question {question[:60]!r}: no passage was retrieved"
        )


def _citing_form() -> ReadingPrompt:
    """The form of a reader that was not tuned: it cites passages by number."""
    return ReadingPrompt(prompts.load_template("cite"), cite=True)


def _generate(
    lm: "LanguageModel", form: ReadingPrompt, filled: Sequence[str], partial: Partial | None = None
) -> list[str]:
    """The replies of a local model to prompts that `ReadingPrompt.fill` made."""
    texts = [form.for_model(lm, prompt) for prompt in filled]
    says = (lambda i, text: partial(text)) if partial else None
    return lm.generate(texts, max_new_tokens=MAX_NEW_TOKENS, stop=form.stop, partial=says)


def _fits_model(lm: "LanguageModel", form: ReadingPrompt, prompt: str) -> bool:
    """Whether a prompt and the longest reply fit the model's context."""
    return len(lm.prompt_ids([form.for_model(lm, prompt)])[0]) + MAX_NEW_TOKENS < lm.max_length


def parse_answer(form: ReadingPrompt, reply: str, passages: Sequence[str]) -> Answer:
    """The answer in a reply, with or without the tags of the form, and its sources."""
    parsed = form.parse(reply, len(passages))
    if form.cite and not parsed.answer:
        parsed = cited.parse_answer(reply, len(passages), in_tags=False)
    text = re.sub(r"</?\w+>", " ", parsed.answer).strip()
    if parsed.citations:
        return Answer(text, tuple(n - 1 for n in parsed.citations), True, len(passages), reply)
    words = " ".join(normalise(text))
    holders = (
        i for i, passage in enumerate(passages) if words and words in " ".join(normalise(passage))
    )
    return Answer(text, tuple(holders), False, len(passages), reply)


def _say(partial: Partial, form: ReadingPrompt, passages: int, reply: str) -> None:
    """Hands over the answer in the beginning of a reply; empty while a tag is not finished."""
    _, tag, said = reply.rpartition("<answer>")
    if not tag and reply.lstrip().startswith("<") and form.cite:
        return partial("")
    said = said if tag else cited.parse_answer(reply, passages, in_tags=False).answer
    return partial(said.split("<")[0])
