"""Policy gradients: advantages within a group of answers, and the clipped loss of their tokens.

Pure functions. Advantages are computed on the host, in float64, from the rewards of a step; the
loss inside the compiled step. Equations are BAR-RAG's (arXiv 2602.03689).
"""

import dataclasses
from typing import NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Shaped

from ark_jax.train.config import GrpoConfig

SCALES = ("sd", "none", "leave_one_out")
MEANS = ("token", "sequence", "constant")
RATIOS = ("none", "token", "sequence", "output")
LARGEST_LOG_RATIO = 60.0  # of an output; its exponential is finite in float32
KLS = ("none", "k2", "k3")


def advantages(
    rewards: Shaped[np.ndarray, " n"],
    groups: Shaped[np.ndarray, " n"],
    *,
    scale: str = "sd",
    eps: float = 1e-6,
    live: Bool[np.ndarray, " groups"] | None = None,
) -> Float[np.ndarray, " n"]:
    """How much better each answer is than the others of its group, float32.

    Args:
        rewards: of each answer.
        groups: the number of each answer's group, counted from 0.
        scale: "sd": (reward - mean) / (sd + eps), the sd with n - 1 (eq. 11). "none": reward -
            mean (Dr. GRPO, arXiv 2503.20783). "leave_one_out": reward - mean of the others (RLOO,
            arXiv 2402.14740).
        live: which groups teach, see `live_groups`; None: all. The answers of the others get
            0. With all groups, "sd" turns rewards that differ by 1e-4 into advantages of 1.

    Raises:
        ValueError: a reward is not finite, or a live group has one answer.
    """
    rewards, groups, count = _checked_arrays(rewards, groups, live)
    if scale not in SCALES:
        raise ValueError(f"scale={scale!r}: must be one of {', '.join(SCALES)}")
    live = np.ones(len(count), bool) if live is None else np.asarray(live)
    if single := np.flatnonzero((count == 1) & live).tolist():
        raise ValueError(
            f"group {single[0]} has one answer: an advantage compares at least two; draw more "
            "answers, or mark the group as not live"
        )
    total = lambda x: np.bincount(groups, x, len(count))
    deviations = rewards - (total(rewards) / np.maximum(count, 1))[groups]
    if scale == "sd":
        sd = np.sqrt(total(deviations**2) / np.maximum(count - 1, 1))
        deviations = deviations / (sd + eps)[groups]
    elif scale == "leave_one_out":
        deviations = deviations * (count / np.maximum(count - 1, 1))[groups]
    # Rounding leaves equal rewards at a distance of 1e-17 from their mean.
    varies = live & live_groups(rewards, groups, len(count))
    return np.where(varies[groups], deviations, 0).astype(np.float32)


def live_groups(
    outcomes: Shaped[np.ndarray, " n"], groups: Shaped[np.ndarray, " n"], count: int = 0
) -> Bool[np.ndarray, " groups"]:
    """The groups whose answers differ in their outcome, so that there is something to learn.

    Args:
        outcomes: what the answers are for, such as exact match. A shaped reward that adds
            relevance or format differs where no answer is better than another.
        groups: as in `advantages`.
        count: number of groups; 0: up to the last one that is named.
    """
    outcomes, groups, counts = _checked_arrays(outcomes, groups, None)
    highest = np.full(max(count, len(counts)), -np.inf)
    lowest = -highest
    np.maximum.at(highest, groups, outcomes)
    np.minimum.at(lowest, groups, outcomes)
    return highest > lowest


def _checked_arrays(
    values: Shaped[np.ndarray, " n"], groups: Shaped[np.ndarray, " n"], live: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(values in float64, groups in int64, number of answers of each group).

    Raises:
        ValueError: a value is not finite, or `live` lacks a group.
    """
    values, groups = np.asarray(values, np.float64), np.asarray(groups, np.int64)
    if (wrong := np.flatnonzero(~np.isfinite(values))).size:
        raise ValueError(
            f"answer {wrong[0]}: its reward is {values[wrong[0]]}; set an answer aside that could "
            "not be judged, with its whole group"
        )
    count = np.bincount(groups, minlength=0 if live is None else len(live))
    if live is not None and len(count) > len(live):
        raise ValueError(f"group {len(count) - 1} is not among the {len(live)} groups of `live`")
    return values, groups, count


@runtime_checkable
class TokenLoss(Protocol):
    """The loss of each token of a step, in place of the clipped ratio (eq. 18)."""

    def __call__(
        self,
        log_probs: Float[Array, "n t"],
        old: Float[Array, "n t"],
        advantages: Float[Array, " n"],
        mask: Bool[Array, "n t"],
    ) -> Float[Array, "n t"]:
        """Returns a number for each token, which jax must be able to trace.

        Args: as of `token_loss`. On policy, `old` is `log_probs` without a gradient.
        """


@dataclasses.dataclass(frozen=True)
class PolicyLoss:
    """How the tokens of a step become one number.

    Attributes:
        mean: "token": over all tokens of the step (DAPO). "sequence": over each completion, then
            over the completions (GRPO). "constant": the sum over tokens, divided by completions ·
            `constant` (Dr. GRPO).
        ratio: what the clip bounds. "token": p / p_old of a token. "sequence": its geometric mean
            over the completion (GSPO, arXiv 2507.18071). "output": its product, the ratio of the
            whole completion (eq. 12 and 18, with `mean="sequence"`). "none": no ratio, the loss is
            -advantage · log p (supervised training, REINFORCE).
        clip_low, clip_high: the ratio is clipped to [1 - clip_low, 1 + clip_high].
        kl: estimate of the distance to the reference policy that is added. With x =
            log p_reference - log p, "k2" is x² / 2, whose gradient is that of the KL divergence,
            "k3" is exp(x) - x - 1.
        kl_coefficient: factor of that estimate.
        constant: tokens, for `mean="constant"`.
        by_token: takes the place of the ratio, which then clips nothing; None: the ratio.
    """

    mean: str = "token"
    ratio: str = "token"
    clip_low: float = 0.2
    clip_high: float = 0.2
    kl: str = "none"
    kl_coefficient: float = 0.001
    constant: int = 1
    by_token: TokenLoss | None = None

    @classmethod
    def from_config(cls, config: GrpoConfig, by_token: TokenLoss | None = None) -> "PolicyLoss":
        """The loss that a config describes."""
        return cls(
            config.mean,
            config.ratio,
            config.clip_low,
            config.clip_high,
            config.kl,
            config.kl_coefficient,
            by_token=by_token,
        )

    def __post_init__(self):
        for name, choices in (("mean", MEANS), ("ratio", RATIOS), ("kl", KLS)):
            if getattr(self, name) not in choices:
                raise ValueError(
                    f"{name}={getattr(self, name)!r}: must be one of {', '.join(choices)}"
                )
        if not 0 <= self.clip_low <= 1 or self.clip_high < 0 or self.constant < 1:
            raise ValueError(
                f"clip_low={self.clip_low}, clip_high={self.clip_high}, constant={self.constant}: "
                "must be in [0, 1], at least 0, and at least 1"
            )


class Counts(NamedTuple):
    """The counts that a loss is divided by, at least 1."""

    rows: Int[Array, ""]  # completions with a visible token
    tokens: Int[Array, ""]  # that are trained on

    @classmethod
    def from_mask(cls, mask: Bool[Array, "*n t"]) -> "Counts":
        """Counts the rows and tokens for which the mask is true."""
        return cls(jnp.maximum(mask.any(-1).sum(), 1), jnp.maximum(mask.sum(), 1))


def token_loss(
    log_probs: Float[Array, "n t"],
    old: Float[Array, "n t"] | None,
    policy_reference: Float[Array, "n t"] | None,
    advantages: Float[Array, " n"],
    mask: Bool[Array, "n t"],
    settings: PolicyLoss,
    counts: Counts | None = None,
) -> tuple[Float[Array, ""], dict[str, Float[Array, ""]]]:
    """The loss of a step's completions, differentiable in `log_probs`.

    A completion without a visible token does not count. On policy, with `old=None`, the gradient of
    a ratio is that of the likelihood: advantage · gradient of log p.

    Args:
        log_probs: log-probabilities of the completions' tokens, in nats.
        old: log-probabilities by the policy that drew them; None: by this one.
        policy_reference: log-probabilities by the policy that a KL is measured to.
        mask: the tokens that are trained on.
        counts: of the step that these are a part of; None: these are all.

    Returns:
        The loss, and for the curve, as means over tokens: with `old` the share whose ratio the clip
        holds back (`clip_fraction`), with `policy_reference` the mean log p - log p_reference
        (`k1`).

    Raises:
        ValueError: a KL is asked for without a reference.
    """
    lengths = mask.sum(1)
    rows, tokens = counts or Counts.from_mask(mask)
    token_mean = lambda x: jnp.where(mask, x, 0).sum() / tokens
    gains = advantages[:, None]
    loss, metrics = -gains * log_probs, {}
    if old is None:
        old = jax.lax.stop_gradient(log_probs)
    if settings.by_token:
        loss = settings.by_token(log_probs, old, advantages, mask)
    elif settings.ratio != "none":
        log_ratio = jnp.where(mask, log_probs - old, 0)
        if settings.ratio in ("sequence", "output"):
            whole = log_ratio.sum(1, keepdims=True)
            if settings.ratio == "sequence":
                whole = whole / jnp.maximum(lengths, 1)[:, None]
            log_ratio = jnp.broadcast_to(jnp.minimum(whole, LARGEST_LOG_RATIO), mask.shape)
        ratio = jnp.exp(log_ratio)
        clipped = jnp.clip(ratio, 1 - settings.clip_low, 1 + settings.clip_high) * gains
        loss = -jnp.minimum(ratio * gains, clipped)
        metrics["clip_fraction"] = token_mean(clipped < ratio * gains)
    if settings.kl != "none" and policy_reference is None:
        raise ValueError(f"kl={settings.kl!r} needs the log-probabilities of a reference")
    if policy_reference is not None:
        x = jnp.where(mask, policy_reference - log_probs, 0)
        metrics["k1"] = -token_mean(x)
        if settings.kl != "none":
            kl = x**2 / 2 if settings.kl == "k2" else jnp.exp(x) - x - 1
            loss = loss + settings.kl_coefficient * kl
    loss = jnp.where(mask, loss, 0)
    if settings.mean == "token":
        return loss.sum() / tokens, metrics
    if settings.mean == "sequence":
        return (loss.sum(1) / jnp.maximum(lengths, 1)).sum() / rows, metrics
    return loss.sum() / (rows * settings.constant), metrics
