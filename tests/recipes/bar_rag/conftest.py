"""One small run for all tests of BAR-RAG."""

import pytest
from support import bar_world

from ark_jax.pipeline import engine
from ark_jax.pipeline.stage import Context
from ark_jax.recipes.bar_rag.recipe import stages


@pytest.fixture(scope="session")
def world(tmp_path_factory):
    return bar_world.make_world(tmp_path_factory.mktemp("bells"))


@pytest.fixture(scope="session")
def run(world) -> Context:
    """A finished run of all stages."""
    context = bar_world.context_of(world, world / "run")
    engine.run(stages(context.config), context)
    return context
