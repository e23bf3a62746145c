"""BAR-RAG trains its reader by a loss of the user's own, and measures an own reader beside it."""

import json

import jax
import jax.numpy as jnp
import pytest
from support import bar_world, own_modules

from ark_jax.pipeline.tables import load_rows
from ark_jax.recipes.bar_rag import evaluate, read
from ark_jax.recipes.bar_rag.recipe import RECIPE
from ark_jax.recipes.core import own_parts

PARTS = """
import jax.numpy as jnp


def reinforce(log_probs, old, advantages, mask):
    return -jnp.exp(log_probs - old) * advantages[:, None]


def number(log_probs, old, advantages, mask):
    return -(log_probs * advantages[:, None]).mean()


def metal(question, passages):
    return passages[0].rstrip(".").rpartition(" ")[2] if passages else ""


def page(question):
    return ""
"""


@pytest.fixture(scope="module", autouse=True)
def own(tmp_path_factory):
    with own_modules.importable(tmp_path_factory.mktemp("own"), "my_bar_parts", PARTS) as folder:
        yield folder


@pytest.mark.slow
def test_a_users_token_loss_trains_the_reader(run, world, tmp_path, mesh):
    """Nothing is clipped in the first update from answers, so this one is the built-in loss."""
    curves = {}
    for loss in ("clipped", "my_bar_parts:reinforce"):
        folder = tmp_path / loss.rpartition(":")[2]
        folder.mkdir()
        context = bar_world.context_of(world, run.workdir, **{"read.loss": loss})
        read.train_reader(context, folder, iteration=1)
        lines = (folder / "curve.jsonl").read_text().splitlines()
        curves[loss] = [json.loads(line) for line in lines]
        assert any(row["gradient_norm"] for row in curves[loss])
    for built_in, by_own in zip(*curves.values(), strict=True):
        assert by_own["loss"] == pytest.approx(built_in["loss"], abs=1e-5)
        assert by_own["gradient_norm"] == pytest.approx(built_in["gradient_norm"], rel=1e-3)
        assert "clip_fraction" in built_in and "clip_fraction" not in by_own


@pytest.mark.slow
def test_a_users_reader_is_listed_first(run, world, tmp_path, mesh):
    changes = {"reader.backend": "my_bar_parts:metal", "warm.steps": 0}
    context = bar_world.context_of(world, run.workdir, **changes)
    evaluate.measure_baselines(context, tmp_path)
    rows = load_rows(tmp_path / "sets.parquet")
    assert list(dict.fromkeys(row["system"] for row in rows)) == ["own", "untuned"]
    own_rows = [row for row in rows if row["system"] == "own"]
    needed = [row for row in own_rows if row["set"] == evaluate.NEEDED]
    assert needed and all(row["p"] == row["exact_match"] == 1 for row in needed)
    assert {row["answer"] for row in own_rows} <= {*bar_world.METALS, ""}
    alone = [row for row in own_rows if row["set"] == evaluate.CITED_ALONE]
    assert alone and all(row["chunk_ids"] for row in alone)


def test_user_functions_are_checked_before_a_run(tmp_path, mesh):
    context = bar_world.context_of(tmp_path, tmp_path)
    for field, function, message in (
        ("read.loss", "metal", r"is called with \(log_probs, old, advantages, mask\)"),
        ("reader.backend", "page", r"is called with \(question, passages\)"),
        ("reader.backend", "metals", "did you mean my_bar_parts:metal"),
    ):
        c = context.config.copy_and_resolve_references()
        c.update_from_flattened_dict({field: f"my_bar_parts:{function}"})
        with pytest.raises(ValueError, match=rf"config\.{field}='my_bar_parts:.*{message}"):
            RECIPE.check(c)


def test_a_token_loss_with_a_wrong_shape_is_refused(tmp_path, mesh):
    c = bar_world.tiny_config(tmp_path)
    c.read.loss = "my_bar_parts:number"
    ones = jnp.ones((2, 3))
    with pytest.raises(ValueError, match=r"an array of shape \(\), and .* return shape \(2, 3\)"):
        jax.jit(own_parts.load_token_loss(c))(ones, ones, ones[:, 0], ones > 0)
