"""Training of a reader on reference answers, and the likelihood of these as its replies."""

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ark_jax.data.records import Question
from ark_jax.evaluate.answers import LIKELIHOOD
from ark_jax.evaluate.reading import ReadingPrompt
from ark_jax.pipeline.parts import stored_rows
from ark_jax.recipes.core.models import first_and_last_loss
from ark_jax.recipes.documents.reader import fit_to_reader
from ark_jax.text.cited import reply_in_tags
from ark_jax.train.config import LanguageModelConfig
from ark_jax.train.rewards import usable_references

if TYPE_CHECKING:  # these modules start jax
    from ark_jax.models.language import LanguageModel
    from ark_jax.train.fit import Run, Trained


@dataclasses.dataclass(frozen=True)
class PooledQuestion:
    """A question and its pool, best chunk first by the retriever."""

    number: int  # among the questions of its part; random draws depend on it
    question: Question  # some reference answer has a word
    chunk_ids: tuple[str, ...]
    cosines: tuple[float, ...]
    gold: tuple[tuple[str, ...], ...]  # needed passages, each as the chunks that hold it

    @property
    def id(self) -> str:
        return self.question.id

    def needed(self, limit: int) -> list[str]:
        """At most `limit` chunk ids: for each needed passage, the nearest chunk that holds it."""
        ranks = {chunk: rank for rank, chunk in enumerate(self.chunk_ids)}
        rank = lambda chunk: ranks.get(chunk, len(ranks))
        nearest = (min(holders, key=rank) for holders in self.gold if holders)
        return list(dict.fromkeys(nearest))[:limit]


@dataclasses.dataclass(frozen=True)
class Prompts:
    """Prompts of a reader, and how many of them had their passages cut to fit it."""

    texts: list[str]
    cut: int


def reading_prompts(
    lm: "LanguageModel",
    form: ReadingPrompt,
    readings: Sequence[tuple[str, Sequence[str]]],
    room: int,
) -> Prompts:
    """A prompt for each question with its passages, which are shown in their order.

    Args:
        room: tokens of the longest reply.
    """
    joined = [form.join(passages) for _, passages in readings]
    prompt = lambda question, passages: form.for_model(lm, form.fill(question, passages))
    texts = [prompt(question, text) for (question, _), text in zip(readings, joined, strict=True)]
    cut = 0
    for i, ids in enumerate(lm.prompt_ids(texts) if texts else []):
        if len(ids) + room >= lm.max_length:
            question = readings[i][0]
            texts[i] = prompt(question, fit_to_reader(lm, form, question, joined[i], room))
            cut += 1
    return Prompts(texts, cut)


def reply_ids(
    lm: "LanguageModel", form: ReadingPrompt, answer: str, thought: str = ""
) -> list[int]:
    """The tokens of a reply that a reader learns to give, with the end token.

    Args:
        thought: where replies have one.
    """
    text = reply_in_tags(thought, answer.strip()) if form.cite else answer.strip()
    # A plain prompt ends without the blank that belongs to the word after it.
    text = text if form.chat else f" {text}"
    return [*lm.tokenizer(text, add_special_tokens=False)["input_ids"], lm.end_id]


def questions_of_steps(count: int, batch: int, seed: int) -> Iterator[np.ndarray]:
    """Yields the numbers of each step's questions, endlessly; each pass has its own order.

    A step has `batch` questions, or all of them if they are fewer.
    """
    random, queue = np.random.default_rng(seed), np.zeros(0, int)
    batch = min(batch, count)
    while True:
        while len(queue) < batch:
            order = random.permutation(count)
            # No question may come twice in a step that spans two passes.
            order = [*(i for i in order if i not in queue), *(i for i in order if i in queue)]
            queue = np.concatenate([queue, np.array(order, int)])
        yield queue[:batch]
        queue = queue[batch:]


def sets_with_gold(
    questions: Sequence[PooledQuestion], steps: int, batch: int, size: int, seed: int
) -> list[tuple[PooledQuestion, list[str]]]:
    """Each question with the chunk ids of its set, for all steps one after the other.

    A set has a chunk of each needed passage and drawn ones of the pool, in a random order.

    Args:
        questions: each has a needed passage.
        size: chunks of a set; fewer if the pool is smaller.
    """
    random, sets = np.random.default_rng([seed, 1]), []
    for numbers in itertools.islice(questions_of_steps(len(questions), batch, seed), steps):
        for pooled in (questions[i] for i in numbers):
            needed = pooled.needed(size)
            holding = {chunk for holders in pooled.gold for chunk in holders}
            unneeded = [chunk for chunk in pooled.chunk_ids if chunk not in holding]
            count = min(size - len(needed), len(unneeded))
            drawn = [unneeded[i] for i in random.choice(len(unneeded), count, replace=False)]
            chosen = [*needed, *drawn]
            sets.append((pooled, [chosen[i] for i in random.permutation(len(chosen))]))
    return sets


def teach(
    reader: "LanguageModel",
    form: ReadingPrompt,
    sets: Sequence[tuple[PooledQuestion, Sequence[str]]],
    passages: Mapping[str, str],
    config: LanguageModelConfig,
    run: "Run",
    *,
    batch: int,
    learning_rate: float,
    seed: int,
) -> tuple["Trained", dict]:
    """Trains a copy of a reader on a reference answer to each set, each once.

    Returns:
        what `tuning.sft` returns, and counts for the manifest.
    """
    from ark_jax.train import tuning

    replies = [_taught_reply(reader, form, pooled, chunks) for pooled, chunks in sets]
    prompts = reading_prompts(
        reader,
        form,
        [(pooled.question.question, [passages[x] for x in chunks]) for pooled, chunks in sets],
        room=max(map(len, replies)),
    )
    demonstrations = [
        tuning.Demonstration(ids, reply, name=pooled.id)
        for ids, reply, (pooled, _) in zip(
            reader.prompt_ids(prompts.texts), replies, sets, strict=True
        )
    ]
    trained = tuning.sft(
        reader, demonstrations, config, run, batch=batch, learning_rate=learning_rate, seed=seed
    )
    return trained, {
        "steps": len(trained.curve),
        "questions": len({pooled.id for pooled, _ in sets}),
        **first_and_last_loss(trained.curve),
        **({"cut_prompts": prompts.cut} if prompts.cut else {}),
    }


def _taught_reply(
    reader, form: ReadingPrompt, pooled: PooledQuestion, chunks: Sequence[str]
) -> list[int]:
    """The tokens of the first usable reference, and of a thought that cites the chunks with it."""
    reference = usable_references(pooled.question.answers)[0]
    holding = {chunk for holders in pooled.gold for chunk in holders}
    cited = [f"Doc [{i}]" for i, chunk in enumerate(chunks, 1) if chunk in holding]
    thought = f"The answer is in {' and '.join(cited)}." if cited else "No document says it."
    return reply_ids(reader, form, reference, thought)


def reference_replies(
    lm: "LanguageModel", form: ReadingPrompt, references: Sequence[str]
) -> list[tuple[int, ...]]:
    """The different replies that are references, as sorted tokens with the end token."""
    return sorted({tuple(reply_ids(lm, form, text)) for text in references})


def reply_log_probs(
    lm: "LanguageModel",
    form: ReadingPrompt,
    prompts: Sequence[str],
    references: Sequence[Sequence[str]],
    *,
    batch_tokens: int = 0,
    label: str = "",
) -> tuple[list[int], list[np.ndarray]]:
    """log p of the tokens of `reference_replies`, each reply after its prompt.

    Args:
        prompts: as the model gets them; see `ReadingPrompt.for_model`.
        references: those of each prompt's question.
        batch_tokens, label: as in `LanguageModel.log_likelihood`.

    Returns:
        for each reply the number of its prompt, and a float32 array of log p in nats.
    """
    from ark_jax.models.language import PairError

    pairs, owners = [], []
    for i, (ids, texts) in enumerate(zip(lm.prompt_ids(prompts), references, strict=True)):
        replies = reference_replies(lm, form, texts)
        pairs += [(ids, reply) for reply in replies]
        owners += [i] * len(replies)
    try:
        log_probs = lm.token_log_likelihood(
            [prompt for prompt, _ in pairs],
            [reply for _, reply in pairs],
            batch_tokens=batch_tokens,
            label=label,
        )
    except PairError as error:
        raise PairError(owners[error.number], error.reason) from None
    return owners, log_probs


def answer_likelihoods(
    lm: "LanguageModel",
    form: ReadingPrompt,
    filled: Mapping[tuple[str, str], str],
    questions: Sequence[Question],
    folder: Path,
    batch_tokens: int,
) -> dict[tuple[str, str], float]:
    """(system, question) -> the mean log p of a token of the likeliest reference answer, in nats.

    The values of each system are stored in `folder`, so a killed run repeats one system at most.
    A prompt that several systems share is scored once, so that their values are equal. Questions
    without a reference are left out.

    Args:
        filled: (system, question) -> the prompt, from `form.fill`.
    """
    references = {x.id: [text for text in x.answers if text.strip()] for x in questions}
    scored: dict[tuple[str, str], float] = {}  # (question, prompt) -> its value
    likelihoods = {}

    def rows(prompts: Mapping[str, str]) -> list[dict]:
        """A row of each question, scored where no system before had the same prompt."""
        new = {id: prompt for id, prompt in prompts.items() if (id, prompt) not in scored}
        new_references = {id: references[id] for id in new}
        values = {}
        if new:
            values = _likeliest_reference_means(lm, form, new, new_references, batch_tokens)
        return [
            {"question": id, LIKELIHOOD: values[id] if id in values else scored[id, prompt]}
            for id, prompt in prompts.items()
        ]

    for system in dict.fromkeys(name for name, _ in filled):
        prompts = {id: filled[system, id] for id, texts in references.items() if texts}
        path = folder / f"likelihood-{system}.parquet"
        for row in stored_rows(path, functools.partial(rows, prompts)):
            id, value = row["question"], row[LIKELIHOOD]
            likelihoods[system, id] = scored[id, prompts[id]] = value
    return likelihoods


def _likeliest_reference_means(
    lm: "LanguageModel",
    form: ReadingPrompt,
    prompts: Mapping[str, str],
    references: Mapping[str, Sequence[str]],
    batch_tokens: int,
) -> dict[str, float]:
    """question -> the mean log p of a token of its likeliest reference, in nats."""
    from ark_jax.models.language import PairError

    ids = list(prompts)
    texts = [form.for_model(lm, prompt) for prompt in prompts.values()]
    options = {"batch_tokens": batch_tokens, "label": "answer likelihoods"}
    try:
        owners, log_probs = reply_log_probs(lm, form, texts, list(references.values()), **options)
    except PairError as error:
        id, text = ids[error.number], texts[error.number]
        longest = max(map(len, reference_replies(lm, form, references[id])))
        total, reason = len(lm.prompt_ids([text])[0]) + longest, error.reason
        if total > lm.max_length:
            reason = (
                f"prompt and reference answer have {total:,} tokens, and the reader takes "
                f"{lm.max_length:,}; set config.evaluate.max_new_tokens={longest} or more: "
                "passages are cut to leave so much room"
            )
        raise ValueError(f"question {id!r}: {LIKELIHOOD} cannot be computed: {reason}") from None
    best = np.full(len(ids), -np.inf)
    np.maximum.at(best, owners, [row.mean(dtype=np.float64) for row in log_probs])
    return dict(zip(ids, best.tolist(), strict=True))
