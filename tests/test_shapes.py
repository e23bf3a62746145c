"""Annotated shapes and types are checked at every call of the numeric modules (`conftest.py`)."""

import ast
import importlib
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import TypeCheckError

from ark_jax.evaluate import significance
from ark_jax.graph import pagerank
from ark_jax.models import decoder, pooling
from ark_jax.retrieval import dense
from ark_jax.train import losses

NUMERIC = (
    "layout",
    "models.attention",
    "models.decoder",
    "models.encoder",
    "models.generate",
    "models.packing",
    "models.prefix",
    "models.prefix_attention",
    "models.rotary",
    "models.sampling",
    "models.pooling",
    "train.losses",
    "retrieval.dense",
    "graph.walk",
    "graph.pagerank",
    "evaluate.significance",
)


@pytest.mark.parametrize("module", NUMERIC)
def test_the_shapes_of_every_numeric_module_are_checked(module):
    loader = importlib.import_module(f"ark_jax.{module}").__spec__.loader
    assert type(loader).__module__ == "jaxtyping._import_hook"


@pytest.mark.parametrize("module", NUMERIC)
def test_no_function_has_three_unannotated_parameters(module):
    source = Path(importlib.import_module(f"ark_jax.{module}").__file__).read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef):
            parameters = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            bare = [p.arg for p in parameters if p.annotation is None and p.arg != "self"]
            assert len(bare) < 3, f"{module}.{node.name}: {', '.join(bare)}"


def test_axes_with_the_same_letter_must_have_the_same_size():
    x, mask = jnp.zeros((2, 3, 4)), jnp.ones((2, 5), bool)
    with pytest.raises(TypeCheckError, match="parameter 'mask'"):
        pooling.pool(x, mask, "mean")


def test_a_missing_axis_is_refused():
    with pytest.raises(TypeCheckError, match="parameter 'scale'"):
        decoder.rms_norm(jnp.zeros((2, 3, 4)), jnp.ones((1, 4)), 1e-6)


def test_another_element_type_is_refused():
    vectors, pairs = jnp.zeros((2, 4)), jnp.zeros((2, 2))
    with pytest.raises(TypeCheckError, match="parameter 'positive'"):
        losses.info_nce(vectors, vectors, pairs, pairs, temperature=1.0)


def test_the_shape_of_a_numpy_array_is_checked():
    with pytest.raises(TypeCheckError, match="parameter 'differences'"):
        significance.sign_flip(np.zeros(3), draws=10, seed=0)


def test_the_type_of_a_number_is_checked():
    with pytest.raises(TypeCheckError, match="parameter 'threshold'"):
        dense.near_pairs(np.eye(3), "0.5")
    with pytest.raises(TypeCheckError, match=r"pagerank\.personalized_pagerank"):
        pagerank.personalized_pagerank([], [], teleport="half", tolerance=1e-6)
