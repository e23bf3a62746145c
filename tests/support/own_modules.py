"""Modules of a user's own, which a config names as `module:function`."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from ark_jax.pipeline import engine
from ark_jax.pipeline.recipe import load_recipe
from ark_jax.pipeline.stage import Context
from ark_jax.recipes.core import models
from ark_jax.runtime.log import Metrics


@contextlib.contextmanager
def importable(folder: Path, name: str, source: str) -> Iterator[Path]:
    """The folder with a module of this source, from which Python imports inside the block."""
    (folder / f"{name}.py").write_text(source)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield folder


def train(world, root: Path, **changes) -> Context:
    """Runs a recipe on its tiny world up to its training, with these fields changed."""
    world.make_world(root)
    config = world.tiny_config(root)
    config.update_from_flattened_dict(changes)
    models.suit_device(config)
    recipe = load_recipe(config.recipe)
    recipe.check(config)
    names = [stage.name for stage in recipe.stages(config)]
    context = Context(config, root / "w", Metrics(root / "w" / "metrics.jsonl"))
    engine.run(recipe.stages(config)[: names.index("train") + 1], context)
    return context
