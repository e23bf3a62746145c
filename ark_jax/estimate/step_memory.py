"""How training steps would be computed and what they would hold, for `ark-jax plan`."""

import math
from collections.abc import Callable, Mapping, Sequence

from ark_jax import layout
from ark_jax.estimate.device_time import trainable_parameters
from ark_jax.estimate.device_work import WeightlessModel
from ark_jax.text import tokens as tk
from ark_jax.train import memory

WEIGHT = 4  # bytes of a trained parameter


def even_texts(count: float, length: float) -> memory.Texts:
    """A step's texts on one device, as if all had one length."""
    rows = math.ceil(count / layout.batch_multiple())
    return memory.Texts(rows, tk.round_length(math.ceil(length)), math.ceil(rows * length))


def choose(
    model: WeightlessModel,
    settings,
    texts_of: Callable[[int], Sequence[memory.Texts]],
    *,
    most_pieces: int = 1,
    towers: int = 1,
) -> memory.Choice:
    """`memory.choose` for a model that is not loaded.

    Args:
        settings: `config.train`.
        texts_of, most_pieces: see `memory.choose`.
        towers: models that are trained at once.
    """
    size = WEIGHT / (layout.mesh_size("fsdp") * layout.mesh_size("tensor"))
    adapted = settings.get("lora_rank", 0) > 0
    trained = trainable_parameters(model, settings) if adapted else towers * model.parameters
    return memory.choose(
        model.cfg,
        settings.remat,
        settings.get("chunks", 1),
        texts_of,
        trained=size * trained,
        frozen=size * model.parameters if adapted else 0,
        most_pieces=most_pieces,
    )


def notes(choices: Mapping[str, memory.Choice]) -> list[str]:
    """A line for each way that stages are trained.

    Args:
        choices: by stage.
    """
    stages: dict[str, list[str]] = {}
    for stage, choice in choices.items():
        stages.setdefault(choice.describe(), []).append(stage)
    return [f"memory of {', '.join(names)}: {text}" for text, names in stages.items()]
