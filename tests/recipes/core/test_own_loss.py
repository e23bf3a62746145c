"""GPR and STAR train by a loss of the user's own."""

import json

import pytest
from support import gpr_world, own_modules, star_world

from ark_jax.pipeline.manifest import read_manifest

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
    with own_modules.importable(folder, "my_graph_losses", LOSSES):
        yield folder


def run(world, root, loss: str):
    """The training of a recipe on its tiny world, by this loss."""
    context = own_modules.train(world, root, **{"train.loss": f"my_graph_losses:{loss}"})
    return context.workdir / "train"


@pytest.mark.parametrize(("world", "loss"), [(gpr_world, "softmax"), (star_world, "margins")])
def test_a_users_loss_is_minimised_and_recorded(world, loss, own, tmp_path):
    folder = run(world, tmp_path, loss)
    manifest = read_manifest(folder)
    assert "function train.loss" in manifest["external"]
    curve = [json.loads(line)["loss"] for line in (folder / "curve.jsonl").read_text().splitlines()]
    third = len(curve) // 3
    assert 0 < sum(curve[-third:]) < sum(curve[:third])


def test_a_loss_that_returns_an_array_is_refused(own, tmp_path):
    with pytest.raises(ValueError, match=r"my_graph_losses:vector' returned an array of shape"):
        run(gpr_world, tmp_path, "vector")


def test_a_loss_with_wrong_parameters_is_refused_before_training(own, tmp_path):
    with pytest.raises(ValueError, match=r"is called with \(scores, present, weights\)"):
        run(star_world, tmp_path, "softmax")
    assert not (tmp_path / "w").exists()
