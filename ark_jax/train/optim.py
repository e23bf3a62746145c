"""The optimizer of one stage: AdamW, clipped, warm-up then linear decay to zero."""

import re

import jax
import optax


def schedule(peak: float, steps: int, warmup: float) -> optax.Schedule:
    """Rises linearly over the first `warmup` share of the steps, then falls linearly to zero."""
    rising = min(round(warmup * steps), steps - 1)
    return optax.join_schedules(
        [optax.linear_schedule(peak / max(rising, 1), peak, max(rising, 1)), optax.linear_schedule(peak, 0, steps - rising)],
        [rising])


def adamw(*, weight_decay: float, clip: float) -> optax.GradientTransformation:
    """AdamW for a learning rate of 1, after clipping the global norm; the caller scales its updates.

    Matrices decay; norms and biases are left alone. The rate stays outside so that stages with different
    schedules share one compiled step.
    """
    matrices = lambda model: jax.tree_util.tree_map_with_path(
        lambda path, _: not re.search("norm|bias", jax.tree_util.keystr(path)), model)
    return optax.chain(optax.clip_by_global_norm(clip), optax.scale_by_adam(),
                       optax.add_decayed_weights(weight_decay, mask=matrices))
