"""The prompt of a reader, and how its reply is parsed."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

from ark_jax.evaluate import answers
from ark_jax.text import cited, prompts

READING_PROMPT = "reading_prompt.json"


@dataclasses.dataclass(frozen=True)
class ReadingPrompt:
    """The form in which a reader gets question and passages, and in which it replies.

    A tuned reader answers in the form that it was trained on, which the file
    reading_prompt.json of its folder gives.
    """

    template: str  # with the slots {question} and {passages}
    chat: bool = True  # the user's turn of a chat; otherwise a text that the model continues
    cite: bool = False  # passages have numbers, and the reply has the tags of `text.cited`

    @classmethod
    def read(cls, folder: str | Path) -> "ReadingPrompt | None":
        """The form of the model in a folder or the hub; None if it has no such file.

        Raises:
            ValueError: the file is damaged.
        """
        from ark_jax.models import hf

        path = hf.resolve(str(folder)) / READING_PROMPT
        if not path.is_file():
            return None
        values = hf.read_json(path)
        fields = {field.name: values.get(field.name) for field in dataclasses.fields(cls)}
        kinds = dict.fromkeys(fields, bool) | {"template": str}
        if wrong := [name for name, kind in kinds.items() if not isinstance(fields[name], kind)]:
            raise ValueError(
                f"{path}: {wrong[0]}={fields[wrong[0]]!r}: must be "
                f"{'a text' if wrong[0] == 'template' else 'true or false'}; fetch the file again"
            )
        missing = [slot for slot in ("{question}", "{passages}") if slot not in fields["template"]]
        if missing:
            raise ValueError(f"{path}: the template has no slot {missing[0]}; fetch the file again")
        return cls(**fields)

    def write(self, folder: Path) -> None:
        """Writes the form as reading_prompt.json, which `read` finds."""
        text = json.dumps(dataclasses.asdict(self), indent=2, ensure_ascii=False)
        (folder / READING_PROMPT).write_text(text + "\n", encoding="utf-8")

    def join(self, passages: Sequence[str]) -> str:
        """The passages as the prompt shows them."""
        return "\n\n".join(cited.number_passages(passages) if self.cite else passages)

    def fill(self, question: str, passages: str) -> str:
        """The prompt, to which `for_model` adds a chat template.

        Args:
            passages: what `join` returns, or the beginning of it.
        """
        return prompts.fill(self.template, question=question, passages=passages)

    def for_model(self, lm, prompt: str) -> str:
        """The prompt for a local model: in its chat template, or unchanged."""
        return lm.chat(prompt) if self.chat else lm.as_data(prompt)

    @property
    def stop(self) -> tuple[str, ...]:
        """Strings before which a reply ends."""
        # A continued text often has a line break before its first word, so it does not stop there.
        return ("\n",) if self.chat and not self.cite else ()

    def parse(self, reply: str, documents: int) -> cited.CitedAnswer:
        """The answer in a reply, and what it cites.

        Args:
            documents: how many were shown.
        """
        if self.cite:
            return cited.parse_answer(reply, documents)
        answer = answers.first_line(reply)
        return cited.CitedAnswer(answer, "", (), (), "" if answer else "no answer")
