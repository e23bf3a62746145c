"""A walk refuses what it does not know, and costs one collective a step."""

import re

import jax
import numpy as np
import pytest
from support.graphs import numbered
from support.matrices import random_matrix

from ark_jax.graph import pagerank
from ark_jax.graph.walk import Walk
from ark_jax.layout import make_mesh


def test_a_walk_needs_at_most_one_collective_per_step():
    with jax.set_mesh(make_mesh((2, 2, 2))):
        for shard, expected in (("nodes", ["all-gather"]), ("seeds", [])):
            walk = Walk(random_matrix(200, 600, True), shard=shard)
            rows, columns = (pagerank._spec(shard == "nodes", axes) for axes in (2, 1))
            arguments = (
                walk.edges("float32"),
                jax.device_put(np.ones((len(walk.strength), 8), np.float32), rows),
                1.0,
                jax.device_put(np.ones(8, np.float32), columns),
                0.85,
                100,
            )
            text = (
                pagerank._iterate.lower(*arguments, spread=shard == "nodes", reversible=True)
                .compile()
                .as_text()
            )
            collectives = re.findall(
                r" (all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter)"
                r"(?:-start)?\(",
                text,
            )
            assert collectives == expected


def test_invalid_arguments_of_a_walk_are_refused(mesh):
    with pytest.raises(ValueError, match="shard='edges': must be seeds or nodes"):
        Walk(numbered(1, []), shard="edges")
