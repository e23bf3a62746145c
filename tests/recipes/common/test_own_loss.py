"""GPR and STAR train by a loss of the user's own."""

import json

import pytest
from support import gpr_world, star_world

from ark_jax.pipeline import engine
from ark_jax.pipeline.manifest import read_manifest
from ark_jax.pipeline.recipe import load_recipe
from ark_jax.pipeline.stage import Context
from ark_jax.recipes.common import default_models
from ark_jax.runtime.log import Metrics

LOSSES = """
import jax
import jax.numpy as jnp


def softmax(queries, triples, positive, negative, *, temperature):
    scores = jnp.where(positive | negative, queries @ triples.T / temperature, -1e30)
    losses = jax.nn.logsumexp(scores, 1) - jnp.where(positive, scores, 0).sum(1) / positive.sum(1)
    return jnp.where(positive.any(1), losses, 0).sum() / positive.any(1).sum()


def margins(scores, present, weights):
    gaps = jnp.where(present, scores - scores[:, :1] + 1, 0)[:, 1:]
    return jnp.maximum(gaps, 0).sum() / present[:, 0].sum()


def vector(queries, triples, positive, negative, *, temperature):
    return queries.sum(1)
"""


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    folder = tmp_path_factory.mktemp("own")
    (folder / "my_graph_losses.py").write_text(LOSSES)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield folder


def run(world, root, loss: str):
    """The training of a recipe on its tiny world, by this loss."""
    world.make_world(root)
    config = world.tiny_config(root)
    config.train.loss = f"my_graph_losses:{loss}"
    default_models.suit_device(config)
    recipe = load_recipe(config.recipe)
    recipe.check(config)
    names = [stage.name for stage in recipe.stages(config)]
    until = recipe.stages(config)[: names.index("train") + 1]
    engine.run(until, Context(config, root / "w", Metrics(root / "w" / "metrics.jsonl")))
    return root / "w" / "train"


@pytest.mark.parametrize(("world", "loss"), [(gpr_world, "softmax"), (star_world, "margins")])
def test_it_is_minimised_and_its_file_is_recorded(world, loss, own, tmp_path):
    folder = run(world, tmp_path, loss)
    manifest = read_manifest(folder)
    assert "function train.loss" in manifest["external"]
    curve = [json.loads(line)["loss"] for line in (folder / "curve.jsonl").read_text().splitlines()]
    third = len(curve) // 3
    assert 0 < sum(curve[-third:]) < sum(curve[:third])


def test_a_loss_that_is_no_number_is_named(own, tmp_path):
    with pytest.raises(ValueError, match=r"my_graph_losses:vector' returned an array of shape"):
        run(gpr_world, tmp_path, "vector")


def test_a_loss_of_other_parameters_is_refused_before_any_work(own, tmp_path):
    with pytest.raises(ValueError, match=r"is called with \(scores, present, weights\)"):
        run(star_world, tmp_path, "softmax")
    assert not (tmp_path / "w").exists()
