"""What a step of the reader's training draws: answers, what they earn and teach."""

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ark_jax.evaluate.reading import ReadingPrompt
from ark_jax.recipes.bar_rag.reading import answer_reward, citable
from ark_jax.recipes.bar_rag.rollouts import Answer, RewardedSet, Rollout
from ark_jax.recipes.bar_rag.updates import mean
from ark_jax.recipes.common.reader_training import PooledQuestion

if TYPE_CHECKING:  # their modules start jax
    from ark_jax.models.language import LanguageModel
    from ark_jax.models.rollout import Rollouts
    from ark_jax.train.groups import Group


@dataclasses.dataclass(frozen=True)
class Asked:
    """A question with its set, as the reader gets it."""

    pooled: PooledQuestion
    documents: int  # that the prompt shows
    prompt: str
    ids: np.ndarray  # int32, of the prompt


def draw_answers(
    model: "LanguageModel",
    frozen: "LanguageModel",
    form: ReadingPrompt,
    batch: Sequence[Asked],
    config,
    *,
    seed: int,
    step: int,
) -> list[Answer]:
    """What the model answers in a step, and what that is worth.

    Args:
        frozen: the reader before the stage, which a KL is measured to.
    """
    settings = config.read
    rollouts = model.sample(
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
    replies = read_replies(
        rollouts,
        [item.pooled.id for item in batch],
        [item.ids for item in batch],
        frozen if settings.kl != "none" else None,
        config.generator.batch_tokens,
    )
    owners = [batch[i] for i in rollouts.prompts]
    return rewarded(replies, owners, rollouts.prompts, form, config)


def read_replies(
    rollouts: "Rollouts",
    question_ids: Sequence[str],
    prompt_ids: Sequence[Sequence[int]],
    policy_reference: "LanguageModel | None",
    batch_tokens: int,
) -> list[Rollout]:
    """The sampled replies, with the log-probabilities that an update needs.

    Args:
        question_ids, prompt_ids: of each prompt.
        policy_reference: the model that a KL is measured to; None: there is no KL.
    """
    nothing, references = [None] * len(rollouts.ids), None
    if policy_reference is not None:
        references = policy_reference.token_log_likelihood(
            [prompt_ids[i] for i in rollouts.prompts], rollouts.ids, batch_tokens=batch_tokens
        )
    as_list = lambda values: None if values is None else values.tolist()
    return [
        Rollout(
            question_id=question_ids[prompt],
            sample=int(rollouts.samples[i]),
            ids=rollouts.ids[i].tolist(),
            text=rollouts.texts[i],
            ended=bool(rollouts.ended[i]),
            old=as_list((rollouts.log_probs or nothing)[i]),
            policy_reference=as_list((references or nothing)[i]),
        )
        for i, prompt in enumerate(rollouts.prompts)
    ]


def rewarded(
    replies: Sequence[Rollout],
    owners: Sequence[Asked],
    groups: np.ndarray,
    form: ReadingPrompt,
    config,
) -> list[Answer]:
    """What each reply says, earns and is worth in its group.

    Args:
        owners: the question of each reply.
        groups: the number of each reply's group.
    """
    from ark_jax.train import policy

    settings, reward = config.read, answer_reward(config)
    parsed = [
        form.parse(reply.text, citable(config, item.documents))
        for reply, item in zip(replies, owners, strict=True)
    ]
    scores = [
        reward(said, item.pooled.question.answers)
        for said, item in zip(parsed, owners, strict=True)
    ]
    outcomes = np.array([getattr(score, settings.outcome) for score in scores])
    rewards = np.array([score.reward for score in scores])
    live = policy.live_groups(outcomes, groups)
    advantages = policy.advantages(
        rewards, groups, scale=settings.scale, live=live if settings.outcome_decides else None
    )
    return [
        Answer(
            **vars(reply),
            answer=said.answer,
            well_formed=score.well_formed,
            f1=score.f1,
            em=score.exact_match,
            citations=list(said.citations),
            reward=score.reward,
            advantage=float(advantage),
            live=bool(live[group]),
        )
        for reply, said, score, advantage, group in zip(
            replies, parsed, scores, advantages, groups, strict=True
        )
    ]


def group_of(
    rollouts: Sequence[Answer | RewardedSet], prompt_ids: Sequence[int], name: str
) -> "Group":
    """The replies to one prompt, as an update takes them."""
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
    """What the answers of a step are worth, in means and shares.

    `phantom` is the share of answers whose group has one outcome and several rewards.
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
