"""AdamW with clipped gradients; a learning rate with linear warm-up and linear or cosine decay."""

import functools
import re
from typing import Any

import jax
import optax

DECAYS = ("linear", "cosine")


def schedule(
    peak: float, steps: int, warmup: float, *, decay: str = "linear", floor: float = 0.0
) -> optax.Schedule:
    """Rises linearly over the first `warmup` share of the steps, then falls to `floor` · peak.

    Args:
        decay: "linear", or "cosine" for half a period of it.
    """
    if decay not in DECAYS or not 0 <= floor <= 1:
        raise ValueError(
            f"decay={decay!r}, floor={floor}: must be one of {', '.join(DECAYS)}, and in [0, 1]"
        )
    rising_steps = min(round(warmup * steps), steps - 1)
    falling_steps = steps - rising_steps
    rise = optax.linear_schedule(peak / max(rising_steps, 1), peak, max(rising_steps, 1))
    if decay == "linear":
        fall = optax.linear_schedule(peak, floor * peak, falling_steps)
    else:
        fall = optax.cosine_decay_schedule(peak, falling_steps, floor)
    return optax.join_schedules([rise, fall], [rising_steps])


@functools.cache
def adamw(*, weight_decay: float, clip: float) -> optax.GradientTransformation:
    """AdamW for a learning rate of 1, after clipping the global norm.

    The caller multiplies its updates by the rate, so that runs with different schedules share one
    compiled step. Matrices decay; norms and biases do not. Cached, because jit compares optimizers
    by identity.
    """
    return optax.chain(
        optax.clip_by_global_norm(clip),
        optax.scale_by_adam(),
        optax.add_decayed_weights(weight_decay, mask=_decay_mask),
    )


def _decay_mask(params: Any) -> Any:
    """True for each leaf that decays.

    Names decide, because a bias that is stacked over layers has two axes as well.
    """
    return jax.tree_util.tree_map_with_path(
        lambda path, _: not re.search("norm|bias", jax.tree_util.keystr(path)), params
    )
