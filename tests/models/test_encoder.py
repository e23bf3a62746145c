"""Encoders: positions of tokens. `test_hf.py` compares their outputs with transformers."""

import functools

import jax
import numpy as np
from support import tiny

from ark_jax.models import encoder


@functools.partial(jax.jit, static_argnums=2)
def positions(tokens, mask, cfg):
    return encoder.positions(tokens, mask, cfg)


def test_positions_count_the_tokens_that_are_no_padding(mesh):
    """RoBERTa's begin after the pad token's id, here 3, and stay there where a text spells that
    token out.
    """
    tokens = np.array([[0, 9, 3, 8, 1, 0], [0, 7, 1, 3, 3, 3]], np.int32)
    mask = np.array([[1, 1, 1, 1, 1, 0], [1, 1, 1, 0, 0, 0]], bool)
    read = lambda family: encoder.Config.from_hf(tiny.config(family))
    ours = positions(tokens, mask, read("roberta"))
    np.testing.assert_array_equal(ours, [[4, 5, 3, 6, 7, 3], [4, 5, 6, 3, 3, 3]])
    for family in ("bert", "distilbert"):
        np.testing.assert_array_equal(
            positions(tokens, mask, read(family)), [[0, 1, 2, 3, 4, 5]] * 2
        )
    assert [read(family).max_length for family in tiny.ENCODERS] == [640, 636, 634, 640]
