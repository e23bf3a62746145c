"""A new adapter for a run, as the run's settings say."""

from pathlib import Path
from typing import Any

import jax

from ark_jax.models import lora


def new_adapter(base: Path, cfg: Any, settings: Any) -> lora.Adapter:
    """An adapter that changes nothing yet.

    Args:
        base: the folder of the model that is adapted.
        cfg: that model's configuration.
        settings: has `lora_rank`, `lora_alpha`, `lora_targets` and `seed`.

    Raises:
        ValueError: the model has no such matrix.
    """
    rows = lora.target_weights(base, settings.lora_targets)

    @jax.jit
    def create() -> lora.Adapter:
        return lora.init(
            rows,
            cfg,
            rank=settings.lora_rank,
            alpha=settings.lora_alpha,
            key=jax.random.key(settings.seed),
        )

    return create()
