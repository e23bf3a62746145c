"""Alignment: how well each chunk explains an answer (eq. 3 to 6), and the positives chosen by it."""

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from ark_jax.data.records import Chunk, Question
from ark_jax.models.language import LanguageModel
from ark_jax.text import prompts

SCHEMA = pa.schema([
    ("question", pa.string()), ("chunk", pa.string()), ("answer", pa.int32()),  # which reference answer
    ("forward", pa.float32()), ("forward_tokens", pa.int32()),  # mean log p(answer | question, chunk), nats
    ("backward", pa.float32()), ("backward_tokens", pa.int32()),  # mean log p(question | answer, chunk), nats
    ("retriever", pa.float32()), ("chunk_tokens", pa.int32()),  # cosine under the base retriever
    ("cut", pa.bool_()),  # whether the chunk was shortened to fit the model
])


@dataclasses.dataclass(frozen=True)
class Weighing:
    """How raw scores become one (eq. 6)."""

    answers: str
    normalise: str
    forward: float
    backward: float
    retriever: float
    short_chunk: int


def align(
    lm: LanguageModel, templates: Mapping[str, str], questions: Sequence[Question],
    candidates: Mapping[str, Sequence[tuple[Chunk, float]]], *, references: int, batch_tokens: int, label: str,
) -> pa.Table:
    """Raw scores of every candidate chunk of every question.

    Args:
        templates: the "forward" and "backward" prompt; each ends in its scored target.
        candidates: question id -> (chunk, cosine) pairs.
        references: how many of a question's answers are scored; 0: all.
    """
    rows, pairs = [], []
    for question in questions:
        for chunk, cosine in candidates[question.id]:
            for i, answer in enumerate(question.answers[: references or None]):
                filled = {"question": question.question, "answer": answer}
                passage = _fit(lm, templates, chunk.text, filled, question.id)
                pairs += prompts.directions(templates, passage=passage, **filled)
                rows.append({"question": question.id, "chunk": chunk.id, "answer": i, "retriever": cosine,
                             "chunk_tokens": chunk.tokens, "cut": passage != chunk.text})
    scores = lm.log_likelihood(pairs, batch_tokens=batch_tokens, label=label)
    for i, row in enumerate(rows):
        for offset, name in enumerate(prompts.TARGET):
            row[name] = float(scores.mean[2 * i + offset])
            row[f"{name}_tokens"] = int(scores.tokens[2 * i + offset])
    return pa.Table.from_pylist(rows, schema=SCHEMA)


def _fit(lm: LanguageModel, templates: Mapping[str, str], passage: str, filled: dict[str, str], question: str) -> str:
    """The passage, shortened at its end if the whole prompt would not fit: question and answer are never cut."""
    # A token is at least one character, so short texts need no tokenising.
    if len(passage) + sum(map(len, filled.values())) + max(map(len, templates.values())) < lm.max_length:
        return passage
    longest = max(len(lm.tokenizer(prompts.fill(templates[name], passage="", **filled))["input_ids"])
                  for name in prompts.TARGET)
    room = lm.max_length - longest - 8  # tokens may split anew where the passage ends
    if room < 1:
        raise ValueError(f"question {question!r}: with an answer and the prompt it takes {longest} of the {lm.max_length} tokens "
                         "that generator.path reads, which leaves none for a passage; leave it out or take a longer model")
    ends = lm.tokenizer(passage, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
    return passage if len(ends) <= room else passage[: ends[room - 1][1]]


def unify(table: pa.Table, weighing: Weighing) -> list[dict]:
    """One row a (question, chunk): S(chunk) of eq. 6 and its parts, from raw scores. A re-weighing costs no model call.

    Of several reference answers, both the largest and the mean log-likelihood are given, whichever is weighed.
    """
    by_question: dict[str, dict[str, list[dict]]] = {}
    for row in table.to_pylist():
        by_question.setdefault(row["question"], {}).setdefault(row["chunk"], []).append(row)
    over = {"first": lambda x: x[0], "max": max, "mean": lambda x: float(np.mean(x))}
    if weighing.answers not in over:
        raise ValueError(f"score.answers={weighing.answers!r}: must be one of {', '.join(over)}")
    if weighing.normalise not in ("none", "minmax"):
        raise ValueError(f"score.normalise={weighing.normalise!r}: must be 'none' or 'minmax'")
    out = []
    for question, chunks in by_question.items():
        parts = {name: np.array([over[weighing.answers]([r[name] for r in rows]) for rows in chunks.values()])
                 for name in ("forward", "backward", "retriever")}
        if weighing.normalise == "minmax":
            parts = {name: _minmax(values) for name, values in parts.items()}
        score = (weighing.forward * parts["forward"] + weighing.backward * parts["backward"]
                 + weighing.retriever * parts["retriever"])
        if weighing.short_chunk:
            # Down to the least a score can be, so that a negative one is not raised by a factor below one.
            least = 0.0 if weighing.normalise == "minmax" else score.min()
            tokens = np.array([rows[0]["chunk_tokens"] for rows in chunks.values()])
            score = least + (score - least) * np.minimum(tokens / weighing.short_chunk, 1)
        for (chunk, rows), value in zip(chunks.items(), score.tolist(), strict=True):
            of = lambda how, name, rows=rows: over[how]([row[name] for row in rows])
            out.append({"question": question, "chunk": chunk, "score": value, "retriever": rows[0]["retriever"]}
                       | {f"{name}_{how}": of(how, name) for name in ("forward", "backward") for how in ("max", "mean")})
    return out


def _minmax(values: np.ndarray) -> np.ndarray:
    spread = values.max() - values.min()
    return (values - values.min()) / spread if spread > 1e-12 else np.full_like(values, 0.5)


def decided(rows: Sequence[Mapping], chosen: Mapping[str, Sequence[str]], keep: float) -> dict[str, list[str]]:
    """Of `chosen`, the share `keep` of the questions whose positives lead by most: the last of them the best chunk that is none.

    Where several chunks explain an answer equally well, none may be needed for it. A question without any other chunk leads
    by most; the smaller id among equals.
    """
    if not 0 < keep <= 1:
        raise ValueError(f"config.score.keep={keep}: must be above 0 and at most 1, a share of the questions")
    inside: dict[str, float] = {}
    outside: dict[str, float] = {}
    for row in rows:
        question, score = row["question"], row["score"]
        if row["chunk"] in chosen[question]:
            inside[question] = min(inside.get(question, np.inf), score)
        else:
            outside[question] = max(outside.get(question, -np.inf), score)
    order = sorted(chosen, key=lambda q: (outside.get(q, -np.inf) - inside[q], q))
    wanted = set(order[: math.ceil(keep * len(order))])
    return {question: list(some) for question, some in chosen.items() if question in wanted}


def select(rows: Sequence[Mapping], m: int | None = None) -> dict[str, list[str]]:
    """question -> its top M chunks, or all, best first; the smaller chunk id among equals."""
    out: dict[str, list[str]] = {}
    for row in sorted(rows, key=lambda r: (r["question"], -r["score"], r["chunk"])):
        out.setdefault(row["question"], []).append(row["chunk"])
    return {question: chunks[:m] for question, chunks in out.items()}
