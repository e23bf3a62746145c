"""The likelihood of the reference answers as replies of a reader, which need not be written."""

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ark_jax.data.records import Question
from ark_jax.evaluate.answers import LIKELIHOOD
from ark_jax.evaluate.reading import ReadingPrompt
from ark_jax.pipeline.parts import stored_rows
from ark_jax.recipes.common.reader_training import reply_ids

if TYPE_CHECKING:  # its module starts jax
    from ark_jax.models.language import LanguageModel


def reference_replies(
    lm: "LanguageModel", form: ReadingPrompt, references: Sequence[str]
) -> list[tuple[int, ...]]:
    """The tokens of each reference as a reply, with the one that ends it; no reply comes twice."""
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

    Raises:
        PairError: a prompt, by its number, whose likelihood is not finite or that is too long.
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


def scored_references(question: Question) -> list[str]:
    """The reference answers whose likelihood is computed: all that are not blank."""
    return [answer for answer in question.answers if answer.strip()]


def answer_likelihoods(
    lm: "LanguageModel",
    form: ReadingPrompt,
    filled: Mapping[tuple[str, str], str],
    questions: Sequence[Question],
    folder: Path,
    batch_tokens: int,
) -> dict[tuple[str, str], float]:
    """(system, question) -> the mean log p of a token of the likeliest reference answer, in nats.

    Those of a system are stored in `folder`: a kill loses no more. A prompt that several systems
    share is scored once, so that their values are equal. Questions without a reference are left
    out.

    Args:
        filled: (system, question) -> the prompt, from `form.fill`.

    Raises:
        ValueError: a question whose prompt and reference do not fit the reader, or whose
            likelihood is not finite.
    """
    references = {question.id: scored_references(question) for question in questions}
    scored: dict[tuple[str, str], float] = {}  # (question, prompt) -> its value
    likelihoods = {}

    def rows(prompts: Mapping[str, str]) -> list[dict]:
        """A row of each question, scored where no system before had the same prompt."""
        new = {id: prompt for id, prompt in prompts.items() if (id, prompt) not in scored}
        of_new = {id: references[id] for id in new}
        values = _best_means(lm, form, new, of_new, batch_tokens) if new else {}
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


def _best_means(
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
