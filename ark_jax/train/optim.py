"""AdamW with clipped gradients; a learning rate with linear warm-up and linear decay to zero."""

import functools
import re
from typing import Any

import jax
import optax


def schedule(peak: float, steps: int, warmup: float) -> optax.Schedule:
    """Rises linearly over the first `warmup` share of the steps, then falls linearly to zero."""
    rising_steps = min(round(warmup * steps), steps - 1)
    rise = optax.linear_schedule(peak / max(rising_steps, 1), peak, max(rising_steps, 1))
    fall = optax.linear_schedule(peak, 0, steps - rising_steps)
    return optax.join_schedules([rise, fall], [rising_steps])


@functools.cache
def adamw(*, weight_decay: float, clip: float) -> optax.GradientTransformation:
    """AdamW for a learning rate of 1, after clipping the global norm; the caller scales its
    updates.

    Matrices decay; norms and biases do not. The rate stays outside, so that runs with different
    schedules share one compiled step. Cached, because jit compares optimizers by identity.
    """
    return optax.chain(
        optax.clip_by_global_norm(clip),
        optax.scale_by_adam(),
        optax.add_decayed_weights(weight_decay, mask=_matrices),
    )


def _matrices(params: Any) -> Any:
    """True for each leaf that decays.

    Names decide, because a bias that is stacked over layers has two axes as well.
    """
    return jax.tree_util.tree_map_with_path(
        lambda path, _: not re.search("norm|bias", jax.tree_util.keystr(path)), params
    )
