"""Encoding in pieces against encoding at once, and the rows that texts are given."""

import functools

import hypothesis
import jax
import numpy as np
import pytest
from hypothesis import strategies as st
from support.training import MESHES, place_weights, toy_encode, toy_inputs

from ark_jax import layout
from ark_jax.train import losses
from ark_jax.train.placement import TextGrid, encode_in_pieces


def passages_and_loss(pieces: int):
    """((loss, passage vectors), gradient) on the current mesh, of 64 passages in pieces."""
    weights, tokens, mask = toy_inputs(64)
    positive = np.arange(64) // 8 == np.arange(8)[:, None]

    def value(weights):
        queries = toy_encode(weights, layout.rows(tokens[::8]), layout.rows(mask[::8]))
        passages = encode_in_pieces(lambda *x: toy_encode(weights, *x), pieces)(
            layout.rows(tokens), layout.rows(mask)
        )
        return losses.info_nce(
            queries, passages, layout.rows(positive), layout.rows(~positive), temperature=0.5
        ), passages

    return jax.tree.map(
        np.asarray, jax.jit(jax.value_and_grad(value, has_aux=True))(place_weights(weights))
    )


@functools.cache
def without_pieces():
    with jax.set_mesh(layout.make_mesh((1, 1, 1))):
        return passages_and_loss(1)


@pytest.mark.parametrize("pieces", [1, 2, 8])
@pytest.mark.parametrize("shape", MESHES, ids=str)
def test_pieces_give_the_gradient_of_the_whole_batch(pieces, shape):
    (expected_loss, expected_vectors), expected_gradient = without_pieces()
    with jax.set_mesh(layout.make_mesh(shape)):
        (loss, vectors), gradient = passages_and_loss(pieces)
    np.testing.assert_allclose(vectors, expected_vectors, atol=1e-5)  # in the same order
    assert loss == pytest.approx(expected_loss, abs=1e-5) and expected_loss > 0.5
    for name, expected in expected_gradient.items():
        np.testing.assert_allclose(gradient[name], expected, atol=1e-5)
        assert np.abs(expected).max() > 1e-3


def test_gradients_in_pieces_match_sentence_transformers(sentence_transformers_losses, mesh):
    """CachedMultipleNegativesRankingLoss on the same encoder and three columns.

    It takes pieces of five rows; here there are four pieces.
    """
    torch, peer_losses = sentence_transformers_losses
    weights, tokens, mask = toy_inputs(48)

    class Toy(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weights = torch.nn.ParameterDict(
                {name: torch.nn.Parameter(torch.tensor(w)) for name, w in weights.items()}
            )

        def forward(self, features):
            seen = features["attention_mask"].float()
            x = torch.tanh(self.weights["embed"][features["input_ids"]] @ self.weights["out"])
            return {
                "sentence_embedding": torch.einsum("bte,bt->be", x, seen)
                / seen.sum(1, keepdim=True)
            }

    model = torch.nn.Sequential(Toy())
    columns = [
        {
            "input_ids": torch.tensor(tokens[i : i + 16]),
            "attention_mask": torch.tensor(mask[i : i + 16]),
        }
        for i in (0, 16, 32)
    ]
    expected = peer_losses.CachedMultipleNegativesRankingLoss(model, scale=20.0, mini_batch_size=5)(
        columns, None
    )
    expected.backward()
    positive = np.eye(16, 32, dtype=bool)

    def own_loss(weights):
        encode = lambda tokens, mask: toy_encode(weights, tokens, mask)
        queries = encode(layout.rows(tokens[:16]), layout.rows(mask[:16]))
        passages = encode_in_pieces(encode, 4)(layout.rows(tokens[16:]), layout.rows(mask[16:]))
        return losses.info_nce(
            queries, passages, layout.rows(positive), layout.rows(~positive), temperature=0.05
        )

    value, gradient = jax.jit(jax.value_and_grad(own_loss))(weights)
    assert float(value) == pytest.approx(expected.item(), rel=1e-5)
    for name, peer_weight in model[0].weights.items():
        np.testing.assert_allclose(gradient[name], peer_weight.grad.numpy(), atol=1e-5)


@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 8, 1)], ids=str)
@hypothesis.settings(deadline=None, max_examples=60)
@hypothesis.given(
    batches=st.lists(st.lists(st.integers(1, 40), min_size=1, max_size=30), min_size=1, max_size=4),
    pieces=st.integers(1, 9),
)
def test_every_text_gets_its_own_row_within_the_piece_size(shape, batches, pieces):
    with jax.set_mesh(layout.make_mesh(shape)):
        devices = layout.batch_multiple()
        grid = TextGrid.from_lengths(batches, pieces)
        assert grid.rows % (devices * pieces) == 0 and grid.length >= max(map(max, batches))
        for lengths in batches:
            rows = grid.assign_rows(lengths)
            assert len(set(rows.tolist())) == len(lengths) and set(rows) <= set(range(grid.rows))
            tokens = np.zeros(grid.rows, int)
            tokens[rows] = lengths
            # A device has a run of rows; `encode_in_pieces` takes every `pieces`-th into a piece.
            assert tokens.reshape(devices, -1, pieces).sum(1).max() <= grid.piece_tokens
