"""The models of a config that names none: small ones on a CPU, larger ones on an accelerator."""

from ark_jax.runtime.accelerator import has_accelerator
from ark_jax.runtime.log import say

# Roles -> hub names on an accelerator. On a CPU the demo's models serve, which every published
# figure is about.
ON_ACCELERATOR = {
    "retriever": "Qwen/Qwen3-Embedding-0.6B",
    "generator": "HuggingFaceTB/SmolLM2-135M-Instruct",
}


def name_models(config) -> None:
    """Fills empty paths of `retriever` and `generator`, and prints a line for each.

    It fetches nothing: the folder of a demo model may not exist yet.
    """
    for role, hub_name in ON_ACCELERATOR.items():
        if getattr(config.get(role), "path", None) != "":
            continue
        if has_accelerator():
            name, path, reason = hub_name, hub_name, "an accelerator"
        else:
            from ark_jax.demo import models

            name, path = models.DEMO[role].published, str(models.model_folder(role))
            reason = "no accelerator"
        config[role].path = path
        say(f"{role}: {name}, since this run has {reason}; --config.{role}.path=... names another")


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
