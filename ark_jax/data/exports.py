"""Training examples as the JSONL rows that other trainers read."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # its module starts tensorflow-datasets
    from ark_jax.data.curriculum import Example

FORMATS = ("sentence-transformers", "flagembedding", "ms-swift")


def rows(form: str, examples: "Sequence[Example]", questions: Mapping[str, str], passages: Mapping[str, str]) -> Iterator[dict]:
    """One stage's examples in the form of FORMATS, in their order; texts carry no prompt, as these trainers add their own.

    sentence-transformers: `anchor, positive, negative_1 ... negative_n`, a row a positive, texts only, since every column is
        trained on. All rows have as many columns: fewer negatives are repeated from the hardest on.
    flagembedding: `query, pos, neg`, a row a question, and the ids `question_id, pos_id, neg_id`.
    ms-swift: `messages, positive_messages, negative_messages` (its InfoNCE, which takes one positive a row), a row a positive,
        and the ids `question_id, positive_id, negative_id`.

    Raises:
        ValueError: an unknown form.
    """
    if form not in FORMATS:
        raise ValueError(f"format {form!r}: must be one of {', '.join(FORMATS)}")
    most = max((len(e.negatives) for e in examples), default=0)
    said = lambda text: [{"role": "user", "content": text}]
    for e in trainable(form, examples):
        question, pos, neg = questions[e.question], [passages[id] for id in e.positives], [passages[id] for id in e.negatives]
        if form == "flagembedding":
            yield {"query": question, "pos": pos, "neg": neg,
                   "question_id": e.question, "pos_id": list(e.positives), "neg_id": list(e.negatives)}
            continue
        for id, positive in zip(e.positives, pos, strict=True):
            if form == "sentence-transformers":
                hard = itertools.islice(itertools.cycle(neg), most)
                yield {"anchor": question, "positive": positive, **{f"negative_{i}": text for i, text in enumerate(hard, 1)}}
            else:
                yield {"messages": said(question), "positive_messages": [said(positive)],
                       **({"negative_messages": [said(text) for text in neg]} if neg else {}),
                       "question_id": e.question, "positive_id": id, "negative_id": list(e.negatives)}


def trainable(form: str, examples: "Sequence[Example]") -> "list[Example]":
    """Those that the form can hold: beside others that have hard negatives, an example without one fits ms-swift alone."""
    hard = any(e.negatives for e in examples)
    return [e for e in examples if e.negatives or not hard or form == "ms-swift"]
