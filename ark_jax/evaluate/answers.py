"""Answers read from retrieved passages, and their token F1 against the references."""

import collections
import re
import string
from collections.abc import Sequence
from pathlib import Path

from ark_jax.log import append_row, read_rows
from ark_jax.models.language import LanguageModel
from ark_jax.text import prompts


def normalise(text: str) -> list[str]:
    """SQuAD's tokens: lower case, no punctuation, no articles."""
    bare = "".join(c for c in text.lower() if c not in string.punctuation)
    return re.sub(r"\b(a|an|the)\b", " ", bare).split()


def f1(given: str, references: Sequence[str]) -> float:
    """Token F1, the best over the references."""
    return max((_f1(normalise(given), normalise(reference)) for reference in references), default=0.0)


def exact_match(given: str, references: Sequence[str]) -> float:
    """1 if the normalised answer equals a normalised reference."""
    return float(any(normalise(given) == normalise(reference) for reference in references))


def _f1(given: list[str], reference: list[str]) -> float:
    common = sum((collections.Counter(given) & collections.Counter(reference)).values())
    if not common:
        return 0.0
    precision, recall = common / len(given), common / len(reference)
    return 2 * precision * recall / (precision + recall)


def ask(lm: LanguageModel, template: str, question: str, passages: Sequence[str]) -> str:
    """The reader's prompt, in the model's chat form."""
    return lm.chat(prompts.fill(template, question=question, passages="\n\n".join(passages)))


def read(lm: LanguageModel, asked: Sequence[str], *, kept: Path, max_new_tokens: int, batch_tokens: int,
         label: str) -> dict[str, str]:
    """Greedy answers by prompt, first line only. Equal prompts (systems often agree) are read once.

    Answers are appended to the file `kept` as they come; those already there are not read again.
    """
    known = dict(row for row in read_rows(kept) if isinstance(row, list) and len(row) == 2)
    todo = [prompt for prompt in dict.fromkeys(asked) if prompt not in known]

    def done(i: int, text: str) -> None:
        known[todo[i]] = text.strip()
        append_row([todo[i], text.strip()], kept)

    lm.generate(todo, max_new_tokens=max_new_tokens, stop=("\n",), batch_tokens=batch_tokens, label=label, done=done)
    return known
