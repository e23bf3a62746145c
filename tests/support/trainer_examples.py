"""Examples with and without hard negatives, and rows made of them."""

import dataclasses

from ark_jax.train import trainer_formats
from ark_jax.train.batches import Example

QUESTIONS = {"q1": "who?", "q2": "ẅhere 🌊?", "q3": "why?"}


PASSAGES = {"a": "Text A", "b": "Text\nB", "c": "Text C", "d": "Text D", "e": "Text E"}


EXAMPLES = [
    Example("q1", "", ("b", "a"), ("e", "c", "d")),
    Example("q2", "", ("c",), ("a", "b")),
    Example("q3", "", ("d",), ()),
]


WITHOUT = [dataclasses.replace(e, negatives=()) for e in EXAMPLES]


def rows_in_form(form: str, examples=EXAMPLES) -> list[dict]:
    return list(trainer_formats.format_rows(form, examples, QUESTIONS, PASSAGES))
