"""Filters of written questions: the passage must help and be found, no question comes twice.

A question that fails a filter gets a reason, and skips the later filters.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from pathlib import Path

from ark_jax.data.records import Chunk, Question
from ark_jax.pipeline.parts import FOLDER, stored_rows
from ark_jax.pipeline.stage import Context
from ark_jax.recipes.core.models import encode, load_generator
from ark_jax.recipes.documents.corpus import given_questions, passages_of, stored_chunks, views_of
from ark_jax.recipes.documents.retrieve import WORDS, searcher_of
from ark_jax.retrieval.searcher import Fused
from ark_jax.text import prompts
from ark_jax.text.token_vectors import Vectors

SHARD = 64  # questions scored between two saves
DEPTH = 100  # chunks of each ranking that are fused
NO_MARGIN = -100.0  # of `questions.margin`: nothing is scored
COPY_COSINE = 0.95  # above it two questions with one answer are the same


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A written question on its way through the filters.

    Attributes:
        part: train or held_out.
        chunks: the passages that it was written from.
        reason: why it was dropped; empty: it was not.
        with_passage: mean log p(answer | question, passage) of a token, nats; None: not computed.
        without_passage: the same with an empty passage.
        rank: of its best passage in the round trip, from 1; None: not found, or not searched.
    """

    question: Question
    part: str
    chunks: tuple[Chunk, ...]
    reason: str = ""
    with_passage: float | None = None
    without_passage: float | None = None
    rank: int | None = None

    @property
    def passage(self) -> str:
        return "\n\n".join(chunk.passage for chunk in self.chunks)

    def row(self) -> dict:
        """A row of questions.parquet and dropped.parquet."""
        names = ("part", "reason", "with_passage", "without_passage", "rank")
        question = dataclasses.asdict(self.question)
        del question["negatives"]  # a written question has none
        return {
            **question,
            **{name: getattr(self, name) for name in names},
            "chunks": [chunk.id for chunk in self.chunks],
        }


def filter_candidates(
    context: Context, folder: Path, candidates: Sequence[Candidate]
) -> list[Candidate]:
    """The candidates in their order, with the reasons and measures of all filters."""
    input_questions = [*given_questions(context, "train"), *given_questions(context, "held_out")]
    candidates = drop_repeated(candidates, input_questions)
    if context.config.questions.margin > NO_MARGIN:
        candidates = _apply_filter(
            candidates, lambda undropped: drop_helpless(context, folder, undropped)
        )
    if context.config.questions.round_trip:
        candidates = _apply_filter(candidates, lambda undropped: drop_unfound(context, undropped))
    return _apply_filter(
        candidates, lambda undropped: drop_copies(context, undropped, input_questions)
    )


def _apply_filter(
    candidates: Sequence[Candidate], narrow: Callable[[list[Candidate]], list[Candidate]]
) -> list[Candidate]:
    """Applies a filter to candidates without a reason; the others stay as they are."""
    undropped = [x for x in candidates if not x.reason]
    narrowed = iter(narrow(undropped) if undropped else [])
    return [x if x.reason else next(narrowed) for x in candidates]


def drop_repeated(
    candidates: Sequence[Candidate], input_questions: Sequence[Question]
) -> list[Candidate]:
    """Drops questions that equal an earlier or a given one but for case, blanks and punctuation."""
    known = {_normalise(question.question) for question in input_questions}
    checked = []
    for x in candidates:
        words = _normalise(x.question.question)
        if not x.reason and words in known:
            x = dataclasses.replace(x, reason="the question is asked already")
        elif not x.reason:
            known.add(words)
        checked.append(x)
    return checked


def _normalise(text: str) -> str:
    return " ".join("".join(c if c.isalnum() else " " for c in text.casefold()).split())


def drop_helpless(context: Context, folder: Path, candidates: list[Candidate]) -> list[Candidate]:
    """Drops questions whose passage raises the answer's likelihood by less than `questions.margin`.

    Scores are stored shard by shard, so that a killed run goes on.
    """
    margin = context.config.questions.margin
    shards = folder / FOLDER
    shards.mkdir(exist_ok=True)
    scores = _answer_likelihoods(context, shards, candidates)
    checked = []
    for x in candidates:
        helped, alone = scores[x.question.id]
        reason = ""
        if helped is None:
            reason = "too long for the scorer"
        elif helped - alone < margin:
            reason = "the passage does not help"
        x = dataclasses.replace(x, reason=reason, with_passage=helped, without_passage=alone)
        checked.append(x)
    return checked


def _answer_likelihoods(
    context: Context, folder: Path, candidates: list[Candidate]
) -> dict[str, tuple[float | None, float | None]]:
    """question id -> mean log p of its answer with and without the passage, nats per token.

    None is a pair that is too long for the model.
    """
    rows = []
    for number, start in enumerate(range(0, len(candidates), SHARD), 1):
        shard = candidates[start : start + SHARD]
        digest = prompts.text_digest(" ".join(x.question.id for x in shard))
        make_rows = functools.partial(_score_shard, context, shard, number)
        rows += stored_rows(folder / f"scored-{digest}.parquet", make_rows)
    return {row["question"]: (row["with_passage"], row["without_passage"]) for row in rows}


def _score_shard(context: Context, shard: list[Candidate], number: int) -> list[dict]:
    """A row for each candidate: `question`, its id; `with_passage` and `without_passage`."""
    lm = load_generator(context)
    pairs = [pair for x in shard for pair in scored_pairs(context, x)]
    pairs = [tuple(map(lm.as_data, pair)) for pair in pairs]
    lengths = lm.token_counts([prompt + target for prompt, target in pairs])
    fits = [length <= lm.max_length for length in lengths]
    means = []
    if any(fits):
        means = lm.log_likelihood(
            [pair for pair, fit in zip(pairs, fits, strict=True) if fit],
            batch_tokens=context.config.generator.batch_tokens,
            label=f"score written questions {number}",
        ).mean.tolist()
    scores = iter(means)
    values = [next(scores) if fit else None for fit in fits]
    return [
        {"question": x.question.id, "with_passage": helped, "without_passage": alone}
        for x, helped, alone in zip(shard, values[::2], values[1::2], strict=True)
    ]


def scored_pairs(context: Context, candidate: Candidate) -> list[tuple[str, str]]:
    """(prompt, answer) with the passage and without it."""
    template = prompts.load_template("forward", context.config.prompts.forward, target="answer")
    fields = {"question": candidate.question.question, "answer": candidate.question.answers[0]}
    return [
        prompts.split_target(template, "answer", passage=passage, **fields)
        for passage in (candidate.passage, "")
    ]


def drop_unfound(context: Context, candidates: list[Candidate]) -> list[Candidate]:
    """Drops questions if base retriever and BM25, fused, find none of their passages."""
    limit = context.config.questions.round_trip
    chunks = views_of(stored_chunks(context))
    texts = passages_of(chunks)
    parts = [searcher_of(context, system, texts, "round trip") for system in ("base", WORDS)]
    found = Fused(parts, DEPTH).search([x.question.question for x in candidates], limit)
    checked = []
    for x, ranking in zip(candidates, found, strict=True):
        sources = {chunk.id for chunk in x.chunks}
        best = [chunks[i].id for i in ranking.ids]
        rank = next((i for i, id in enumerate(best, 1) if id in sources), None)
        reason = "" if rank else "the passage is not found"
        checked.append(dataclasses.replace(x, reason=reason, rank=rank))
    return checked


def drop_copies(
    context: Context, candidates: list[Candidate], input_questions: Sequence[Question]
) -> list[Candidate]:
    """Drops questions that are very similar to an earlier or given one with the same answer.

    Of two written ones, that of the test is kept.
    """
    order = sorted(range(len(candidates)), key=lambda i: candidates[i].part != "held_out")
    questions = [*input_questions, *(candidates[i].question for i in order)]
    texts = [question.question for question in questions]
    vectors = encode(context, "base", texts, "query", "compare questions")
    earlier: dict[str, list[int]] = {}
    copies = set()
    for position, question in enumerate(questions):
        answers = {_normalise(answer) for answer in question.answers}
        earlier_places = [place for answer in answers for place in earlier.get(answer, ())]
        is_written = position >= len(input_questions)
        if (
            is_written
            and earlier_places
            and _largest_cosine(vectors, position, earlier_places) > COPY_COSINE
        ):
            copies.add(order[position - len(input_questions)])
            continue
        for answer in answers:
            earlier.setdefault(answer, []).append(position)
    mark = lambda i: "a near copy" if i in copies else ""
    return [dataclasses.replace(x, reason=mark(i)) for i, x in enumerate(candidates)]


def _largest_cosine(vectors: Vectors, position: int, positions: list[int]) -> float:
    """The largest cosine of the vector at `position` with those at `positions`."""
    from ark_jax.retrieval.late import nearest

    return float(nearest(vectors[[position]], vectors[positions], 1)[1][0, 0])
