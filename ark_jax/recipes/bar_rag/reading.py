"""How a question with passages becomes a prompt, and what a reader makes of it."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ark_jax.evaluate.reading import ReadingPrompt
from ark_jax.recipes.common.answer_likelihood import reply_log_probs
from ark_jax.text import prompts
from ark_jax.text.cited import CitedAnswer
from ark_jax.train.rewards import AnswerReward, usable_references

if TYPE_CHECKING:  # their modules start jax
    from ark_jax.models.language import LanguageModel


def reading_prompt(config) -> ReadingPrompt:
    """How a run asks its readers."""
    name = "cite" if config.read.cite else "read"
    template = prompts.load_template(name, config.prompts[name])
    return ReadingPrompt(template, config.read.chat, config.read.cite)


def answer_reward(config) -> AnswerReward:
    """What an answer earns, eq. 17; citations count where a reader cites."""
    settings = config.read
    citation = settings.citation if settings.cite else 0.0
    return AnswerReward(
        answer_weight=1 - citation,
        citation_weight=citation,
        f1_weight=settings.f1,
        exact_weight=1 - settings.f1,
        citations=settings.citations,
    )


def citable(config, shown: int) -> int:
    """The largest number that counts as a citation where so many passages are shown."""
    return config.read.citable or shown


def likelihoods(
    lm: "LanguageModel",
    form: ReadingPrompt,
    prompts: Sequence[str],
    references: Sequence[Sequence[str]],
    *,
    batch_tokens: int = 0,
    label: str = "",
) -> np.ndarray:
    """The probability that a reader replies one of the references, float64 `[n]`.

    It is the sum over references that differ in their tokens, at most 1. It is what exact match has
    as its mean over answers that are drawn at temperature 1, but for other spellings of them.

    Args:
        prompts: from `reading_prompts`.
        references: those of each prompt's question.
        batch_tokens, label: as in `LanguageModel.log_likelihood`.

    Raises:
        ValueError: no reference of a question is usable.
        PairError: a prompt, by its number, whose likelihood is not finite or that is too long.
    """
    usable = list(map(usable_references, references))
    owners, log_probs = reply_log_probs(
        lm, form, prompts, usable, batch_tokens=batch_tokens, label=label
    )
    probabilities = np.exp([row.sum(dtype=np.float64) for row in log_probs])
    return np.minimum(np.bincount(owners, probabilities, len(prompts)), 1.0)


def best_answers(
    lm: "LanguageModel",
    form: ReadingPrompt,
    prompts: Sequence[str],
    documents: Sequence[int],
    *,
    max_new_tokens: int,
    temperature: float = 0.0,
    seed: int = 0,
    batch_tokens: int = 0,
    label: str = "",
) -> list[CitedAnswer]:
    """What a reader replies, by default greedily.

    Args:
        documents: how many each prompt shows.
        max_new_tokens, temperature, seed, batch_tokens, label: as of `LanguageModel.generate`.
    """
    texts = lm.generate(
        prompts,
        max_new_tokens=max_new_tokens,
        stop=form.stop,
        temperature=temperature,
        seed=seed,
        batch_tokens=batch_tokens,
        label=label,
    )
    return [form.parse(text, shown) for text, shown in zip(texts, documents, strict=True)]
