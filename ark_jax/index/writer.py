"""A language model behind one call: on the devices of this process, or at an endpoint."""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ark_jax.evaluate.reading import ReadingPrompt
from ark_jax.llm import complete
from ark_jax.models.replies import write_replies
from ark_jax.pipeline.fingerprints import model_digest
from ark_jax.text import prompts

if TYPE_CHECKING:
    from ark_jax.models.language import LanguageModel

FREE = ReadingPrompt("{question}", cite=True)  # a turn of a chat, whose reply may have many lines
MAX_NEW_TOKENS = 256  # of a local model
_ENDPOINT_TOKENS = 1024  # since its model may think first
_SETTINGS = complete.LLMSettings(
    backend="openai",
    model="",
    base_url="",
    key_env="",
    temperature=0.0,
    max_tokens=_ENDPOINT_TOKENS,
    concurrency=8,
    requests_per_minute=0,
    tokens_per_minute=0,
    timeout=120.0,
    retries=4,
    reasks=1,
    price=(),
    max_cost=0.0,
    replies="",
)


@dataclasses.dataclass(frozen=True)
class Writer:
    """Replies greedily to prompts. A file keeps the replies, so that no prompt is sent twice.

    Attributes:
        lm: None at an endpoint.
    """

    settings: complete.LLMSettings
    cache: Path
    lm: "LanguageModel | None" = None

    @classmethod
    def local(cls, name_or_folder: str, cache: Path) -> "Writer":
        """A model on the devices of this process. The digest of its files is part of the keys.

        Raises:
            FileNotFoundError, ValueError: as `LanguageModel.from_pretrained`.
        """
        from ark_jax.models.language import LanguageModel

        lm = LanguageModel.from_pretrained(name_or_folder)
        model = model_digest(str(lm.folder))
        return cls(dataclasses.replace(_SETTINGS, backend="local", model=model), cache, lm)

    @classmethod
    def endpoint(
        cls, base_url: str, model: str, cache: Path, *, key_env: str = "OPENAI_API_KEY"
    ) -> "Writer":
        """A model behind an OpenAI-compatible address.

        Args:
            base_url: empty: OpenAI's.
            cache: the file of replies.
            key_env: the environment variable that holds the key.
        """
        named = {"model": model, "base_url": base_url, "key_env": key_env}
        return cls(dataclasses.replace(_SETTINGS, **named), cache)

    @property
    def name(self) -> str:
        """The name that the endpoint knows, or that of the model's folder."""
        return self.lm.folder.name if self.lm else self.settings.model

    def ask(
        self,
        filled: Iterable[str],
        label: str,
        *,
        form: ReadingPrompt = FREE,
        max_new_tokens: int = MAX_NEW_TOKENS,
        accept: Callable[[list[str]], str | None] = lambda texts: None,
        partial: Callable[[str], None] | None = None,
    ) -> tuple[dict[str, list[str]], dict[str, str]]:
        """prompt -> its reply and, if that was wrong, the next one; and refused prompt -> why.

        Args:
            filled: prompts, of which equal ones are sent once.
            label: of the progress line, and the kind of the calls.
            form: of the prompts.
            max_new_tokens: of a reply of a local model.
            accept: texts of the replies so far -> what is wrong with them, or None.
            partial: is called with the reply of an endpoint to a single prompt so far.

        Raises:
            RuntimeError: the endpoint cannot be used; the replies so far are kept.
        """
        settings, generate = self.settings, None
        if self.lm:
            name = f"{settings.model} {form.chat} {form.stop}"
            settings = dataclasses.replace(settings, model=name, max_tokens=max_new_tokens)
            generate = functools.partial(self._generate, form, max_new_tokens, label)
        calls = {x: complete.Call(f"{label}/{prompts.text_digest(x)}", label, (x,)) for x in filled}
        check = lambda call, texts, is_cut: accept(texts)
        try:
            done = complete.complete(
                list(calls.values()), settings, self.cache, label, check, generate, partial
            )
        except RuntimeError as error:
            error.args = (str(error).replace("config.llm.base_url", "--endpoint"),)
            raise
        refused = {x: done.rejected[y.item] for x, y in calls.items() if y.item in done.rejected}
        return {x: done.texts[y.item] for x, y in calls.items() if x not in refused}, refused

    def write(self, filled: Sequence[str]) -> list[str]:
        """The reply to each prompt; empty for one that the model refuses."""
        replies, _ = self.ask(filled, "write")
        return [replies[prompt][-1] if prompt in replies else "" for prompt in filled]

    def _generate(
        self,
        form: ReadingPrompt,
        max_new_tokens: int,
        label: str,
        conversations: Sequence[tuple[str, ...]],
        receive: Callable[[int, dict], None],
    ) -> None:
        """The replies of the local model, each handed over as soon as it has ended."""
        write_replies(
            self.lm,
            [form.for_model(self.lm, turns[-1]) for turns in conversations],
            receive,
            max_new_tokens=max_new_tokens,
            fix="shorten the prompt",
            stop=form.stop,
            label=label,
        )
