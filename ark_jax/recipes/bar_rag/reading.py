"""A reader's prompts, answers and rewards, and p of a set of passages."""

import dataclasses
import hashlib
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ark_jax.evaluate.reading import ReadingPrompt
from ark_jax.pipeline.stage import Context
from ark_jax.recipes.bar_rag.rollout_engine import Sample, sampler
from ark_jax.recipes.bar_rag.rollouts import (
    Answer,
    DrawnSet,
    RewardedSet,
    Rollout,
    compare_in_groups,
    load_reader,
    mean,
    stage_seed,
)
from ark_jax.recipes.documents.corpus import Passages, stored_chunks
from ark_jax.recipes.documents.reader_training import (
    PooledQuestion,
    reading_prompts,
    reply_log_probs,
)
from ark_jax.select import zone
from ark_jax.text import prompts
from ark_jax.text.cited import CitedAnswer
from ark_jax.train.rewards import AnswerReward, usable_references

if TYPE_CHECKING:  # these modules start jax
    from ark_jax.models.language import LanguageModel
    from ark_jax.models.rollout import Rollouts
    from ark_jax.train.groups import Group


def reading_prompt(config) -> ReadingPrompt:
    """The form of the prompts of a run's readers."""
    name = "cite" if config.read.cite else "read"
    template = prompts.load_template(name, config.prompts[name])
    return ReadingPrompt(template, config.read.chat, config.read.cite)


def answer_reward(config) -> AnswerReward:
    """The reward of an answer (eq. 17); citations count if the reader cites."""
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
    """The largest number that counts as a citation, for a prompt with `shown` passages."""
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
    """The probability that a reader replies with one of the references, float64 `[n]`.

    It is the sum over references that differ in their tokens, at most 1. Exact match of answers
    that are drawn at temperature 1 has about this mean; it also accepts other spellings.

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
    """The parsed reply to each prompt, by default greedy.

    Args:
        documents: the number of passages that each prompt shows.
        max_new_tokens, temperature, seed, batch_tokens, label: as in `LanguageModel.generate`.
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


EvidenceSet = tuple[PooledQuestion, Sequence[str]]  # a question and chunk ids, in order


@dataclasses.dataclass(frozen=True)
class Rule:
    """How answers are drawn and which are right, if p is the share of right ones."""

    right_at: float
    temperature: float
    top_p: float

    @classmethod
    def of_training(cls, config) -> "Rule":
        return cls(config.success.right_at, config.read.temperature, config.read.top_p)

    @classmethod
    def of_filter(cls, config) -> "Rule":
        """The rule of the filter; fields that are 0 there are as in training."""
        training, changes = cls.of_training(config), config.filter
        return cls(
            changes.right_at or training.right_at,
            changes.temperature or training.temperature,
            changes.top_p or training.top_p,
        )


class Success:
    """p of sets under one reader: the probability that it answers rightly. Known values are kept.

    Random draws depend only on the seed, the reader's name, the question and the set, so that p of
    a set is always the same.
    """

    def __init__(self, context: Context, reader: str, rule: Rule | None = None):
        """Loads no reader before p of a new set is asked for.

        Args:
            reader: a name for `load_reader`.
            rule: None: that of training.
        """
        self._context, self._name = context, reader
        self._rule = rule
        self._passages = Passages(stored_chunks(context))
        self._known: dict[tuple[str, tuple[str, ...]], float] = {}

    def remember(self, sets: Iterable[DrawnSet]) -> None:
        """Keeps p of sets that was computed before, by the same reader and rule."""
        self._known |= {
            (drawn_set.question_id, tuple(drawn_set.chunk_ids)): drawn_set.p
            for drawn_set in sets
            if drawn_set.p is not None
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
            values = self._compute_p(list(new.values()), label)
            self._known |= dict(zip(new, values, strict=True))
        return [self._known[key] for key in keys]

    def _compute_p(self, sets: Sequence[EvidenceSet], label: str) -> list[float]:
        """p of new sets, by likelihoods or by samples."""
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
            return self._right_shares(lm, sets, prompts, options)
        references = [pooled.question.answers for pooled, _ in sets]
        try:
            return likelihoods(lm, form, prompts, references, **options).tolist()
        except PairError as error:
            raise ValueError(f"question {sets[error.number][0].id}: {error.reason}") from None

    def _right_shares(
        self, lm, sets: Sequence[EvidenceSet], prompts: Sequence[str], options: dict
    ) -> list[float]:
        """For each set, the share of right answers among sampled ones."""
        config = self._context.config
        n, reward, form = config.success.answers, answer_reward(config), reading_prompt(config)
        rule = self._rule or Rule.of_training(config)
        rollouts = sampler(self._context)(
            lm,
            prompts,
            n=n,
            max_new_tokens=config.read.max_new_tokens,
            temperature=rule.temperature,
            top_p=rule.top_p,
            seed=stage_seed(config, f"success {self._name}"),
            places=np.array([(pooled.number, _set_number(chunks)) for pooled, chunks in sets]),
            log_probs=False,
            **options,
        )
        shares = []
        for i, (pooled, chunks) in enumerate(sets):
            texts = rollouts.texts[i * n : (i + 1) * n]
            answers = [form.parse(text, citable(config, len(chunks))) for text in texts]
            rewards = [reward(answer, pooled.question.answers).reward for answer in answers]
            shares.append(zone.p_hat(rewards, right_at=rule.right_at))
        return shares


def _set_number(chunks: Sequence[str]) -> int:
    """A hash of an ordered set, from 0 to 2**31 - 1; random draws depend on it."""
    digest = hashlib.sha256("\n".join(chunks).encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1


@dataclasses.dataclass(frozen=True)
class Asked:
    """A question with its set, as the reader gets it."""

    pooled: PooledQuestion
    documents: int  # passages that the prompt shows
    prompt: str
    ids: np.ndarray  # the prompt's tokens, int32


def draw_answers(
    sample: Sample,
    model: "LanguageModel",
    frozen: "LanguageModel",
    form: ReadingPrompt,
    batch: Sequence[Asked],
    config,
    *,
    seed: int,
    step: int,
) -> list[Answer]:
    """The answers that the model draws in a step, with their rewards.

    Args:
        sample: from `sampler`.
        frozen: the reader before the stage, for a KL.
    """
    settings = config.read
    rollouts = sample(
        model,
        [item.prompt for item in batch],
        n=settings.samples,
        max_new_tokens=settings.max_new_tokens,
        seed=seed,
        temperature=settings.temperature,
        top_p=settings.top_p,
        places=np.array([(step, item.pooled.number) for item in batch]),
        log_probs=settings.updates > 1,
        batch_tokens=config.generator.batch_tokens,
    )
    replies = rollout_rows(
        rollouts,
        [item.pooled.id for item in batch],
        [item.ids for item in batch],
        frozen if settings.kl != "none" else None,
        config.generator.batch_tokens,
    )
    owners = [batch[i] for i in rollouts.prompts]
    return reward_replies(replies, owners, rollouts.prompts, form, config)


def rollout_rows(
    rollouts: "Rollouts",
    question_ids: Sequence[str],
    prompt_ids: Sequence[Sequence[int]],
    policy_reference: "LanguageModel | None",
    batch_tokens: int,
) -> list[Rollout]:
    """The sampled replies, with the log-probabilities that an update needs.

    Args:
        question_ids, prompt_ids: for each prompt, the id of its question and its tokens.
        policy_reference: the model of the KL; None: there is no KL.
    """
    unknown = [None] * len(rollouts.ids)
    references = None
    if policy_reference is not None:
        references = policy_reference.token_log_likelihood(
            [prompt_ids[i] for i in rollouts.prompts], rollouts.ids, batch_tokens=batch_tokens
        )
    old = rollouts.log_probs or unknown
    references = references or unknown
    as_list = lambda values: None if values is None else values.tolist()
    return [
        Rollout(
            question_id=question_ids[prompt],
            sample=int(rollouts.samples[i]),
            ids=rollouts.ids[i].tolist(),
            text=rollouts.texts[i],
            ended=bool(rollouts.ended[i]),
            old=as_list(old[i]),
            policy_reference=as_list(references[i]),
        )
        for i, prompt in enumerate(rollouts.prompts)
    ]


def reward_replies(
    replies: Sequence[Rollout],
    owners: Sequence[Asked],
    groups: np.ndarray,
    form: ReadingPrompt,
    config,
) -> list[Answer]:
    """The answers in the replies, with their rewards and advantages.

    Args:
        owners: the question of each reply.
        groups: the number of each reply's group.
    """
    from ark_jax.train import policy

    settings, reward = config.read, answer_reward(config)
    answers = [
        form.parse(reply.text, citable(config, item.documents))
        for reply, item in zip(replies, owners, strict=True)
    ]
    scores = [
        reward(answer, item.pooled.question.answers)
        for answer, item in zip(answers, owners, strict=True)
    ]
    outcomes = np.array([getattr(score, settings.outcome) for score in scores])
    live = policy.live_groups(outcomes, groups)
    columns = compare_in_groups(scores, groups, live, settings)
    return [
        Answer(
            **vars(reply),
            answer=answer.answer,
            well_formed=score.well_formed,
            f1=score.f1,
            em=score.exact_match,
            citations=list(answer.citations),
            **compared,
        )
        for reply, answer, score, compared in zip(replies, answers, scores, columns, strict=True)
    ]


def group_of(
    rollouts: Sequence[Answer | RewardedSet], prompt_ids: Sequence[int], name: str
) -> "Group":
    """The draws for one prompt in the form of a policy update; `name` is for errors."""
    from ark_jax.train.groups import Group

    column = lambda field: [getattr(rollout, field) for rollout in rollouts]
    known = lambda field: None if getattr(rollouts[0], field) is None else column(field)
    return Group(
        prompt_ids,
        [np.array(ids, np.int32) for ids in column("ids")],
        column("advantage"),
        old=known("old"),
        policy_reference=known("policy_reference"),
        ended=known("ended"),
        name=name,
    )


def summary(answers: Sequence[Answer]) -> dict[str, float]:
    """Means and shares over the answers of a step.

    `phantom` is the share of answers whose group has one outcome but different rewards.
    """
    rewards: dict[str, set[float]] = {}
    for answer in answers:
        rewards.setdefault(answer.question_id, set()).add(answer.reward)
    column = lambda name: mean([getattr(answer, name) for answer in answers])
    return {
        **{name: column(name) for name in ("reward", "f1", "em", "well_formed", "ended", "live")},
        "phantom": mean([not x.live and len(rewards[x.question_id]) > 1 for x in answers]),
        "tokens": mean([len(answer.ids) for answer in answers]),
        "citations": mean([len(answer.citations) for answer in answers]),
    }
