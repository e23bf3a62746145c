"""p of sets of passages, the probability that a reader answers rightly: each is computed once."""

import dataclasses
import hashlib
from collections.abc import Iterable, Sequence

import numpy as np

from ark_jax.pipeline.stage import Context
from ark_jax.recipes.bar_rag.readers import load_reader
from ark_jax.recipes.bar_rag.reading import answer_reward, citable, likelihoods, reading_prompt
from ark_jax.recipes.bar_rag.rollouts import DrawnSet
from ark_jax.recipes.bar_rag.updates import stage_seed
from ark_jax.recipes.common.corpus import Passages, stored_chunks
from ark_jax.recipes.common.reader_training import PooledQuestion, reading_prompts
from ark_jax.select import zone

EvidenceSet = tuple[PooledQuestion, Sequence[str]]  # a question and ids of chunks, in order


@dataclasses.dataclass(frozen=True)
class Rule:
    """How answers are drawn, and which of them are right, where p is a share of answers."""

    right_at: float
    temperature: float
    top_p: float

    @classmethod
    def of_training(cls, config) -> "Rule":
        return cls(config.success.right_at, config.read.temperature, config.read.top_p)

    @classmethod
    def of_filter(cls, config) -> "Rule":
        """What the filter leaves open is as in training."""
        training, changes = cls.of_training(config), config.filter
        return cls(
            changes.right_at or training.right_at,
            changes.temperature or training.temperature,
            changes.top_p or training.top_p,
        )


class Success:
    """p of sets under one reader.

    What is drawn for a set follows from the seed, the reader's name, question and set, so that it
    is the same whenever it is asked for. While the reader is frozen, equal sets recur.
    """

    def __init__(self, context: Context, reader: str, rule: Rule | None = None):
        """`reader` is a name for `load_reader`; it is loaded when a set is new.

        Args:
            rule: None: that of training.
        """
        self._context, self._name = context, reader
        self._rule = rule
        self._passages = Passages(stored_chunks(context))
        self._known: dict[tuple[str, tuple[str, ...]], float] = {}

    def remember(self, sets: Iterable[DrawnSet]) -> None:
        """Takes over p of sets that was computed before, by the same reader and rule."""
        self._known |= {
            (one.question_id, tuple(one.chunk_ids)): one.p for one in sets if one.p is not None
        }

    def p(self, sets: Sequence[EvidenceSet], label: str = "") -> list[float]:
        """p of each set.

        Raises:
            ValueError: a question whose p is not finite, or which leaves no room for passages.
        """
        keys = [(pooled.id, tuple(chunks)) for pooled, chunks in sets]
        new = {
            key: evidence_set
            for key, evidence_set in zip(keys, sets, strict=True)
            if key not in self._known
        }
        if new:
            values = self._compute(list(new.values()), label)
            self._known |= dict(zip(new, values, strict=True))
        return [self._known[key] for key in keys]

    def _compute(self, sets: Sequence[EvidenceSet], label: str) -> list[float]:
        from ark_jax.models.language import PairError

        config, lm = self._context.config, load_reader(self._context, self._name)
        readings = [
            (pooled.question.question, [self._passages[chunk] for chunk in chunks])
            for pooled, chunks in sets
        ]
        form = reading_prompt(config)
        prompts = reading_prompts(lm, form, readings, config.read.max_new_tokens).texts
        options = {"batch_tokens": config.generator.batch_tokens, "label": label}
        if config.success.by == "samples":
            return self._shares(lm, sets, prompts, options)
        references = [pooled.question.answers for pooled, _ in sets]
        try:
            return likelihoods(lm, form, prompts, references, **options).tolist()
        except PairError as error:
            raise ValueError(f"question {sets[error.number][0].id}: {error.reason}") from None

    def _shares(
        self, lm, sets: Sequence[EvidenceSet], prompts: Sequence[str], options: dict
    ) -> list[float]:
        """For each set, the share of right answers among those that are sampled from it."""
        config = self._context.config
        n, reward, form = config.success.answers, answer_reward(config), reading_prompt(config)
        rule = self._rule or Rule.of_training(config)
        rollouts = lm.sample(
            prompts,
            n=n,
            max_new_tokens=config.read.max_new_tokens,
            temperature=rule.temperature,
            top_p=rule.top_p,
            seed=stage_seed(config, f"success {self._name}"),
            places=np.array([(pooled.number, _number(chunks)) for pooled, chunks in sets]),
            log_probs=False,
            **options,
        )
        shares = []
        for i, (pooled, chunks) in enumerate(sets):
            texts = rollouts.texts[i * n : (i + 1) * n]
            scores = [
                reward(
                    form.parse(text, citable(config, len(chunks))), pooled.question.answers
                ).reward
                for text in texts
            ]
            shares.append(zone.p_hat(scores, right_at=rule.right_at))
        return shares


def _number(chunks: Sequence[str]) -> int:
    """A number of an ordered set for random draws, from 0 to 2**31 - 1."""
    digest = hashlib.sha256("\n".join(chunks).encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1
