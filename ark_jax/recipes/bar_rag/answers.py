"""What a step of the reader's training draws: answers, what they earn and teach."""

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ark_jax.evaluate.reading import ReadingPrompt
from ark_jax.recipes.bar_rag.reading import answer_reward, citable
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
) -> list[dict]:
    """The rows of a step: what the model answers, and what that is worth.

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
    rows = reply_rows(
        rollouts,
        [item.ids for item in batch],
        frozen if settings.kl != "none" else None,
        config.generator.batch_tokens,
    )
    owners = [batch[i] for i in rollouts.prompts]
    return rewarded(rows, owners, rollouts.prompts, form, config)


def reply_rows(
    rollouts: "Rollouts",
    prompt_ids: Sequence[Sequence[int]],
    reference: "LanguageModel | None",
    batch_tokens: int,
) -> list[dict]:
    """A row of each sampled reply, with the log-probabilities that its update needs.

    Args:
        prompt_ids: of each prompt.
        reference: the model that a KL is measured to; None: there is no KL.
    """
    rows = [
        {"sample": int(sample), "ids": ids.tolist(), "text": text, "ended": bool(end)}
        for sample, ids, text, end in zip(
            rollouts.samples, rollouts.ids, rollouts.texts, rollouts.ended, strict=True
        )
    ]
    columns = {"old": rollouts.log_probs}
    if reference is not None:
        columns["reference"] = reference.token_log_likelihood(
            [prompt_ids[i] for i in rollouts.prompts], rollouts.ids, batch_tokens=batch_tokens
        )
    for name, values in columns.items():
        if values is not None:
            rows = [row | {name: x.tolist()} for row, x in zip(rows, values, strict=True)]
    return rows


def rewarded(
    rows: Sequence[dict], owners: Sequence[Asked], groups: np.ndarray, form: ReadingPrompt, config
) -> list[dict]:
    """The rows of answers with what each says, earns and is worth in its group.

    Args:
        owners: the question of each row.
        groups: the number of each row's group.
    """
    from ark_jax.train import policy

    settings, reward, judged = config.read, answer_reward(config), []
    for row, item in zip(rows, owners, strict=True):
        reply = form.parse(row["text"], citable(config, item.documents))
        score = reward(reply, item.pooled.question.answers)
        judged.append(
            {
                "question_id": item.pooled.id,
                **row,
                "answer": reply.answer,
                "well_formed": score.well_formed,
                "f1": score.f1,
                "em": score.exact_match,
                "citations": list(reply.citations),
                "reward": score.reward,
            }
        )
    outcomes = np.array([row["f1"] for row in judged])
    rewards = np.array([row["reward"] for row in judged])
    live = policy.live_groups(outcomes, groups)
    advantages = policy.advantages(rewards, groups, live=live if settings.outcome_decides else None)
    return [
        row | {"advantage": float(advantage), "live": bool(live[group])}
        for row, advantage, group in zip(judged, advantages, groups, strict=True)
    ]


def group_of(rows: Sequence[dict], prompt_ids: Sequence[int], name: str) -> "Group":
    """The replies to one prompt, from their rows, as an update takes them."""
    from ark_jax.train.groups import Group

    column = lambda field: [row[field] for row in rows] if field in rows[0] else None
    return Group(
        prompt_ids,
        [np.array(row["ids"], np.int32) for row in rows],
        column("advantage"),
        old=column("old"),
        reference=column("reference"),
        ended=column("ended"),
        name=name,
    )


def summary(rows: Sequence[dict]) -> dict[str, float]:
    """What the answers of a step are worth, in means and shares.

    `phantom` is the share of answers whose group has one outcome and several rewards.
    """
    rewards: dict[str, set[float]] = {}
    for row in rows:
        rewards.setdefault(row["question_id"], set()).add(row["reward"])
    column = lambda name: mean([row[name] for row in rows])
    return {
        **{name: column(name) for name in ("reward", "f1", "em", "well_formed", "ended", "live")},
        "phantom": mean([not row["live"] and len(rewards[row["question_id"]]) > 1 for row in rows]),
        "tokens": mean([len(row["ids"]) for row in rows]),
        "citations": mean([len(row["citations"]) for row in rows]),
    }
