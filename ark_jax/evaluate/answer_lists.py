"""Replies that list several answers: the prompt that asks for one, its items, and their scores."""

import re
from collections.abc import Sequence

from ark_jax.evaluate.answers import normalise
from ark_jax.text import prompts
from ark_jax.text.thoughts import split_thought

METRICS = ("accuracy", "precision", "recall", "f1", "hit", "hit@1")
_BULLET = re.compile(r"^\s*(?:[-*•–]|\(?\d{1,3}[.)])\s+")
_NUMBER = re.compile(r"(?:^|\s)\(?\d{1,3}[.)]\s+")  # in front of each item of one line
_LABEL = re.compile(r"^\W*(?:the )?(?:final )?answers?(?: is| are)?\s*:\W*", re.IGNORECASE)


def facts_prompt(template: str, question: str, facts: Sequence[str]) -> str:
    """The prompt that asks for a list of answers from facts, one a line, without repeats.

    Args:
        template: as `prompts.load_template("triple_reader")`.
        question: the question.
        facts: texts of triples, best first, as `triple_texts` or `TripleRetriever.facts` give them.
    """
    passages = "\n".join(dict.fromkeys(facts))
    return prompts.fill(template, question=question, passages=passages)


def split_list(reply: str, names: Sequence[str] = ()) -> list[str]:
    """The different answers that a reply lists, in its order, without bullets and numbers.

    Each line is an answer. A single line is divided at its numbers, else at semicolons, else at
    commas.

    Args:
        reply: may hold thoughts, which are left out.
        names: names that are not divided, such as "Washington, D.C.".
    """
    lines = [line.strip() for line in split_thought(reply).answer.splitlines()]
    lines = [line for line in lines if line and not line.endswith(":")]
    if lines:
        lines[0] = _LABEL.sub("", lines[0])
    if len(lines) == 1:
        parts = _NUMBER.split(lines[0])
        lines = parts if len(parts) > 2 else _split_at_separators(_BULLET.sub("", lines[0]), names)
    items: dict[tuple[str, ...], str] = {}
    for line in lines:
        item = _BULLET.sub("", line).strip().rstrip(",;").strip("*`\"'")
        if item:
            items.setdefault(tuple(_normalised_words(item)), item)
    return list(items.values())


def _split_at_separators(line: str, names: Sequence[str]) -> list[str]:
    """Splits a line at semicolons, else at commas, but not inside the given names."""
    names = sorted((name for name in names if re.search("[,;]", name)), key=len, reverse=True)
    for name in names:
        hidden = lambda match: match[0].replace(",", "\0").replace(";", "\1")
        line = re.sub(re.escape(name), hidden, line, flags=re.IGNORECASE)
    parts = line.split(";" if ";" in line else ",")
    return [part.replace("\0", ",").replace("\1", ";") for part in parts]


def list_scores(reply: str, answers: Sequence[str]) -> dict[str, float]:
    """The scores of one reply, 0 to 1 each; without answers all are 0.

    An item is right if it contains the words of an answer, side by side, after `normalise`.

    - accuracy: the share of the answers that occur anywhere in the reply.
    - precision: the share of the items that are right.
    - recall: the share of the answers that an item holds.
    - f1: the harmonic mean of precision and recall.
    - hit: 1 if any answer occurs anywhere in the reply. RoG reports this as Hit and as Hits@1.
    - hit@1: 1 if the first item is right.

    RoG compares letters, so that "Ann" is found in "Joanna", and divides the number of answers
    found by that of lines, which gives precisions above 1. Here whole words count.
    """
    text = split_thought(reply).answer
    items = [_normalised_words(item) for item in split_list(reply, answers)]
    answer_words = [_normalised_words(answer) for answer in answers]
    right = [any(_contains_answer(item, answer) for answer in answer_words) for item in items]
    listed = [any(_contains_answer(item, answer) for item in items) for answer in answer_words]
    words = _normalised_words(text)
    occurring = [
        is_listed or _contains_answer(words, answer)
        for is_listed, answer in zip(listed, answer_words, strict=True)
    ]
    precision, recall = _share_of_true(right), _share_of_true(listed)
    total = precision + recall
    scores = (
        _share_of_true(occurring),
        precision,
        recall,
        2 * precision * recall / total if total else 0.0,
        float(any(occurring)),
        float(any(right[:1])),
    )
    return dict(zip(METRICS, scores, strict=True))


def _normalised_words(text: str) -> list[str]:
    """The normalised words, or the text itself if none are left, as for "The The"."""
    return normalise(text) or [text.strip().lower()]


def _contains_answer(words: Sequence[str], answer: Sequence[str]) -> bool:
    """Whether `words` contain the answer's words as a contiguous part."""
    n = len(answer)
    return any(words[i : i + n] == answer for i in range(len(words) - n + 1))


def _share_of_true(flags: Sequence[bool]) -> float:
    return sum(flags) / len(flags) if flags else 0.0
