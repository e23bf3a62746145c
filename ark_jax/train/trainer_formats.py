"""Training examples as the JSONL rows that other trainers read."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # its module starts tensorflow-datasets
    from ark_jax.train.batches import Example

FORMATS = ("sentence-transformers", "flagembedding", "ms-swift")


def format_rows(
    format: str,
    examples: "Sequence[Example]",
    questions: Mapping[str, str],
    passages: Mapping[str, str],
) -> Iterator[dict]:
    """One stage's examples in a format of FORMATS, in their order.

    Texts carry no prompt, because these trainers add their own.

    sentence-transformers: a row for each positive, with `anchor, positive, negative_1 ...
        negative_n`. Rows hold texts only, since every column is trained on, and all have the same
        columns: a short list of negatives is repeated from the hardest on.
    flagembedding: a row for each question, with `query, pos, neg` and the ids `question_id, pos_id,
        neg_id`.
    ms-swift: a row for each positive, since its InfoNCE takes one, with `messages,
        positive_messages, negative_messages` and the ids `question_id, positive_id, negative_id`.

    Args:
        questions, passages: id -> text.

    Raises:
        ValueError: an unknown format.
    """
    if format not in FORMATS:
        raise ValueError(f"format {format!r}: must be one of {', '.join(FORMATS)}")
    columns = max((len(e.negatives) for e in examples), default=0)
    for example in usable_examples(format, examples):
        question = questions[example.question]
        if format == "flagembedding":
            yield _flagembedding_row(example, question, passages)
            continue
        for positive in example.positives:
            if format == "sentence-transformers":
                yield _sentence_transformers_row(example, positive, question, passages, columns)
            else:
                yield _ms_swift_row(example, positive, question, passages)


def usable_examples(format: str, examples: "Sequence[Example]") -> "list[Example]":
    """The examples that the format can hold.

    Where some examples have hard negatives, only ms-swift takes one without them.
    """
    any_negatives = any(e.negatives for e in examples)
    return [e for e in examples if e.negatives or not any_negatives or format == "ms-swift"]


def _flagembedding_row(example: "Example", question: str, passages: Mapping[str, str]) -> dict:
    return {
        "query": question,
        "pos": [passages[id] for id in example.positives],
        "neg": [passages[id] for id in example.negatives],
        "question_id": example.question,
        "pos_id": list(example.positives),
        "neg_id": list(example.negatives),
    }


def _sentence_transformers_row(
    example: "Example", positive: str, question: str, passages: Mapping[str, str], columns: int
) -> dict:
    """The row of a positive, with `columns` negatives; a short list is repeated."""
    negatives = itertools.islice(itertools.cycle(example.negatives), columns)
    texts = {f"negative_{i}": passages[id] for i, id in enumerate(negatives, 1)}
    return {"anchor": question, "positive": passages[positive], **texts}


def _ms_swift_row(
    example: "Example", positive: str, question: str, passages: Mapping[str, str]
) -> dict:
    def message(text: str) -> list[dict]:
        return [{"role": "user", "content": text}]

    row = {"messages": message(question), "positive_messages": [message(passages[positive])]}
    if example.negatives:
        row["negative_messages"] = [message(passages[id]) for id in example.negatives]
    return row | {
        "question_id": example.question,
        "positive_id": positive,
        "negative_id": list(example.negatives),
    }
