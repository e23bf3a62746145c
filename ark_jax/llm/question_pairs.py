"""Reads question-answer pairs from a model's reply, and finds their evidence in the passages."""

import dataclasses
import re
from collections.abc import Mapping, Sequence

from ark_jax.llm.reply_json import json_texts, json_values

_QUESTION_KEYS = ("question", "q", "query")
_ANSWER_KEYS = ("answer", "a", "answers")
_EVIDENCE_KEYS = ("evidence", "quote", "quotes", "sentences", "support")
_QUOTES = "\"'“”„‟‘’‚‛«»"


@dataclasses.dataclass(frozen=True)
class Pair:
    """A question with its answer, and the sentences that a model quoted as evidence."""

    question: str
    answer: str
    evidence: tuple[str, ...]


def parse_pairs(reply: str) -> list[Pair] | None:
    """The pairs of a reply. None: it has no list of pairs. Never raises.

    Text around the JSON, code fences, `<think>` blocks, a bare list and broken JSON are tolerated.
    A pair without question, answer or evidence is left out.
    """
    empty = None
    for value in json_values(reply):
        rows = _find_rows(value)
        if rows is None:
            continue
        pairs = [pair for row in rows if (pair := _parse_pair(row))]
        if pairs:
            return pairs
        if not rows:
            empty = []
    return empty


def _find_rows(value: object) -> list | None:
    """The list of rows in a JSON value: itself, or a list in its object. None if there is none.

    A single pair is a list of one.
    """
    if isinstance(value, Mapping):
        if _parse_pair(value):
            return [value]
        lists = [value.get("pairs"), *value.values()]
        value = next((x for x in lists if isinstance(x, list)), None)
    if not isinstance(value, list):
        return None
    return value if not value or any(isinstance(x, Mapping) for x in value) else None


def _parse_pair(row: object) -> Pair | None:
    """The pair of a row; None if question, answer or evidence is missing."""
    if not isinstance(row, Mapping):
        return None
    row = {str(key).lower(): value for key, value in row.items()}
    texts = [
        next((values for key in keys if (values := json_texts(row.get(key)))), [])
        for keys in (_QUESTION_KEYS, _ANSWER_KEYS, _EVIDENCE_KEYS)
    ]
    if not all(texts):
        return None
    question, answer, evidence = texts
    return Pair(" ".join(question[0].split()), " ".join(answer[0].split()), tuple(evidence))


def find_verbatim(quote: str, text: str) -> str | None:
    """The part of `text` that equals a quote, except for blanks and outer quotation marks.

    None if the text does not contain it.
    """
    for wanted in (quote, quote.strip().strip(_QUOTES)):
        words = wanted.split()
        match = words and re.search(r"\s+".join(map(re.escape, words)), text)
        if match:
            return match[0]
    return None


def find_evidence(pair: Pair, texts: Sequence[str]) -> list[str] | None:
    """The parts of texts that the pair quotes; None if a quote is in no text."""
    parts = [
        next((part for text in texts if (part := find_verbatim(quote, text))), None)
        for quote in pair.evidence
    ]
    return None if None in parts else list(dict.fromkeys(parts))
