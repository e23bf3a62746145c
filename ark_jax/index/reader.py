"""A reader answers questions from passages, and names the passages that support it."""

import dataclasses
import functools
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ark_jax.evaluate.reading import ReadingPrompt
from ark_jax.index.writer import MAX_NEW_TOKENS, Writer
from ark_jax.retrieval.bm25_index import STOP_WORDS
from ark_jax.text import cited, prompts
from ark_jax.text.sentences import sentence_spans
from ark_jax.text.word_boundaries import contains_words, is_unspaced

if TYPE_CHECKING:
    from ark_jax.models.language import LanguageModel

Partial = Callable[[str], None]  # is called with the text so far
# Words that say nothing by themselves.
_EMPTY = STOP_WORDS.union(
    re.findall(
        r"\w+",
        "answer been being can could did do does from had has have he her him his how i its may our"
        " she should so than them were what when where which who whom whose why would you your",
    )
)


@dataclasses.dataclass(frozen=True)
class Answer:
    """What a reader replied.

    Attributes:
        text: the answer; empty if the reply has none.
        sources: positions of the passages that the reply cites, or else `supported`.
        cited: whether the reply cites any.
        supported: those of the cited passages, or else of all that were read, that hold the content
            words of the answer in one sentence; see `holds`.
        read: how many passages the reader was shown, from the first; the others did not fit.
        reply: the whole reply.
    """

    text: str
    sources: tuple[int, ...]
    cited: bool
    read: int
    reply: str
    supported: tuple[int, ...] = ()


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
            replies, refused = writer.ask(filled, "ask", partial=partial)
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
            partial: is called with the answer so far.

        Raises:
            ValueError: not even the first passage fits, or there is none.
        """
        for read in range(len(passages), 0, -1):
            prompt = self.form.fill(question, self.form.join(passages[:read]))
            if self.fits(prompt):
                listeners = [functools.partial(_say, partial, self.form)] if partial else []
                reply = self.write([prompt], *listeners)[0]
                return parse_answer(self.form, reply, passages[:read], question)
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


def parse_answer(
    form: ReadingPrompt, reply: str, passages: Sequence[str], question: str = ""
) -> Answer:
    """The answer in a reply, with or without the tags of the form, and its sources."""
    parsed = form.parse(reply, len(passages))
    if form.cite and not parsed.answer:
        parsed = cited.parse_answer(reply, len(passages), in_tags=False)
    text = re.sub(r"</?\w+>", " ", parsed.answer).strip()
    cites = tuple(number - 1 for number in parsed.citations)
    read = range(len(passages))
    supported = tuple(i for i in cites or read if holds(passages[i], text, question))
    return Answer(text, cites or supported, bool(cites), len(read), reply, supported)


def _say(partial: Partial, form: ReadingPrompt, reply: str) -> None:
    """Passes on the answer in the beginning of a reply, unless a thought or tag is unfinished."""
    _, tag, said = reply.rpartition("<answer>")
    if tag or not (form.cite and reply.lstrip().startswith("<")):
        partial(re.split(r"<|\n", (said if tag else reply).lstrip())[0])


def holds(passage: str, answer: str, question: str = "") -> bool:
    """Whether one sentence of a passage holds the content words of an answer."""
    return support(passage, answer, question) is not None


def support(passage: str, answer: str, question: str = "") -> tuple[int, int] | None:
    """Start and end of the first sentence that holds the content words of an answer.

    Content words are stems without stop words; in a script without spaces, the whole answer. Those
    of the question do not count, if others are left: "The encoding is UTF-8." answers a question
    about an encoding by "UTF-8".
    """
    words = _content_words(answer)
    words = words - _content_words(question) or words
    whole = any(map(is_unspaced, answer))
    for start, end in sentence_spans(passage) if words or whole else ():
        sentence = passage[start:end]
        if contains_words(sentence, answer) if whole else words <= _content_words(sentence):
            return start, end
    return None


def _content_words(text: str) -> set[str]:
    """The stems of a text without stop words; "19,250" is 19250, "UTF-8" is two words."""
    import Stemmer

    plain = re.sub(r"(?<=\d),(?=\d{3}\b)", "", text.casefold().replace("’", "'"))
    words = [word for word in re.findall(r"\w+(?:[.']\w+)*", plain) if word not in _EMPTY]
    return set(Stemmer.Stemmer("english").stemWords(words))
