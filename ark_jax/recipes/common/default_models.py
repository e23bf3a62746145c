"""What a config leaves to the device: models that it does not name, and floating-point types."""

from ark_jax.runtime.accelerator import find_device, float_type
from ark_jax.runtime.log import say

# Roles -> hub names on an accelerator. On a CPU the demo's models serve, which every published
# figure is about.
ON_ACCELERATOR = {
    "retriever": "Qwen/Qwen3-Embedding-0.6B",
    "generator": "HuggingFaceTB/SmolLM2-135M-Instruct",
}
TYPES = {"retriever": "compute", "generator": "dtype"}  # fields that may be "auto"


def suit_device(config) -> None:
    """Fills the config's empty models and "auto" types with what suits the device.

    The types decide results, so stages are known by the type that was computed in.
    """
    name_models(config)
    for role, field in TYPES.items():
        if role in config and field in config[role]:
            config[role][field] = float_type(config[role][field], find_device())


def name_models(config) -> None:
    """Fills empty paths of `retriever` and `generator`, and prints a line for each.

    It fetches nothing: the folder of a demo model may not exist yet.
    """
    for role in ON_ACCELERATOR:
        if getattr(config.get(role), "path", None) != "":
            continue
        name, path, reason = _default(role)
        config[role].path = path
        say(f"{role}: {name}, since this run has {reason}; --config.{role}.path=... names another")


def default_path(role: str) -> str:
    """The folder or hub name of the retriever or generator of a config that names none."""
    return _default(role)[1]


def _default(role: str) -> tuple[str, str, str]:
    """The published name of a role's default model, its folder or hub name, and why it is it."""
    if find_device().platform != "cpu":
        return ON_ACCELERATOR[role], ON_ACCELERATOR[role], "an accelerator"
    from ark_jax.demo import models

    return models.DEMO[role].published, str(models.model_folder(role)), "no accelerator"


def fetch_demo_models(paths) -> None:
    """Makes the folders among `paths` that belong to the demo's models; leaves other paths alone.

    Raises:
        RuntimeError: pip, network, gguf or disk space is missing. The message says the fix.
    """
    from ark_jax.demo import models
    from ark_jax.runtime.storage import cache_folder

    for path in paths:
        if model := models.demo_model_at(path):
            models.prepare(model, cache_folder())
