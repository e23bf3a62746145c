"""The loss against plain loops and against sentence-transformers, encoding in pieces, the optimizer."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from ark_jax import layout
from ark_jax.models import decoder, encoder
from ark_jax.train import loss, optim

B, C, E = 8, 24, 6


def unit(rng: np.random.Generator, n: int) -> np.ndarray:
    x = rng.normal(size=(n, E)).astype(np.float32)
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def batch(seed: int = 0) -> dict[str, np.ndarray]:
    """Random vectors and masks; question 2 has no positive, question 5 no negative, the last chunks are padding."""
    rng = np.random.default_rng(seed)
    positive = rng.random((B, C)) < 0.15
    negative = (rng.random((B, C)) < 0.5) & ~positive
    positive[2], negative[5], positive[5, 3] = False, False, True
    positive[:, -4:] = negative[:, -4:] = False
    return {"queries": unit(rng, B), "passages": unit(rng, C), "positive": positive, "negative": negative}


def by_loops(queries, passages, positive, negative, temperature: float) -> float:
    """Equations 7 and 8, pair by pair, in double precision."""
    losses = []
    score = lambda q, c: float(np.dot(queries[q].astype(np.float64), passages[c].astype(np.float64))) / temperature
    for q in range(len(queries)):
        for c in range(len(passages)):
            if positive[q, c]:
                against = [np.exp(score(q, n)) for n in range(len(passages)) if negative[q, n]]
                losses.append(-np.log(np.exp(score(q, c)) / (np.exp(score(q, c)) + sum(against))))
    return float(np.mean(losses)) if losses else 0.0


def info_nce(given: dict, temperature: float = 0.05) -> jax.Array:
    return jax.jit(loss.info_nce, static_argnames="temperature")(**jax.tree.map(layout.rows, given), temperature=temperature)


@pytest.mark.parametrize("temperature", [0.05, 1.0])
def test_info_nce_is_two_loops(temperature, any_mesh):
    given = batch()
    assert float(info_nce(given, temperature)) == pytest.approx(by_loops(**given, temperature=temperature), rel=1e-5)


@pytest.mark.parametrize("hard", [0, 2])
def test_info_nce_is_sentence_transformers(hard, mesh):
    torch = pytest.importorskip("torch", reason="the reference implementation needs torch: pip install 'ark-jax[reference]'")
    losses = pytest.importorskip("sentence_transformers.losses", reason="pip install 'ark-jax[reference]'")
    rng = np.random.default_rng(1)
    columns = [unit(rng, B) for _ in range(2 + hard)]  # question, its positive, its hard negatives
    theirs = [torch.tensor(x, requires_grad=True) for x in columns]
    reference = losses.MultipleNegativesRankingLoss(None, scale=20.0)
    expected = reference.compute_loss_from_embeddings(theirs, None)
    expected.backward()
    positive = np.concatenate([np.eye(B, dtype=bool), *[np.zeros((B, B), bool)] * hard], axis=1)
    passages = np.concatenate(columns[1:])

    def ours(queries, passages):
        queries, passages = (x / jnp.linalg.norm(x, axis=1, keepdims=True) for x in (queries, passages))  # it takes cosines
        return loss.info_nce(queries, passages, layout.rows(positive), layout.rows(~positive), temperature=0.05)

    value, (d_queries, d_passages) = jax.value_and_grad(ours, (0, 1))(layout.rows(columns[0]), layout.rows(passages))
    assert float(value) == pytest.approx(expected.item(), rel=1e-5)
    np.testing.assert_allclose(d_queries, theirs[0].grad.numpy(), atol=1e-5)
    np.testing.assert_allclose(d_passages, np.concatenate([x.grad.numpy() for x in theirs[1:]]), atol=1e-5)


def test_who_counts_for_nothing(mesh):
    given = batch()
    whole = float(info_nce(given))
    # Question 2 has no positive: whatever its vector, and with or without it, the mean is the same.
    given["queries"][2] = -given["queries"][2]
    assert float(info_nce(given)) == pytest.approx(whole, rel=1e-6)
    others = [0, 1, 3, 4, 5, 6, 7]
    assert float(info_nce({k: x if k == "passages" else x[others] for k, x in given.items()})) == pytest.approx(whole, rel=1e-6)
    # Nor do chunks that are in no mask: padding.
    given["passages"][-4:] = 1e3
    assert float(info_nce(given)) == pytest.approx(whole, rel=1e-6)


def test_a_question_without_negatives_has_loss_zero(mesh):
    given = batch()
    alone = {k: x if k == "passages" else x[5:6] for k, x in given.items()}
    assert float(info_nce(alone)) == 0.0
    nobody = {**given, "positive": np.zeros((B, C), bool)}
    assert float(info_nce(nobody)) == 0.0


@pytest.mark.parametrize("temperature", [1e-3, 0.05])
def test_the_gradient_is_finite(temperature, mesh):
    given = jax.tree.map(layout.rows, batch())
    gradient = jax.grad(lambda q, p: loss.info_nce(q, p, given["positive"], given["negative"], temperature=temperature), (0, 1))
    d_queries, d_passages = gradient(given["queries"], given["passages"])
    assert np.isfinite(d_queries).all() and np.isfinite(d_passages).all()
    assert not np.any(d_queries[2]) and not np.any(d_queries[5]) and np.any(d_queries[0])
    assert not np.any(d_passages[-4:])


# --- in pieces -------------------------------------------------------------------------------------------------------

def toy(weights, tokens, mask):
    """An encoder: two matrices, a nonlinearity, a mean over visible tokens."""
    x = layout.lookup(weights["embed"], tokens)
    x = jnp.tanh(layout.einsum("btd,df->btf", x, weights["out"]))
    x = jnp.einsum("bte,bt->be", x, mask.astype(x.dtype)) / mask.sum(1, keepdims=True)
    return x / jnp.linalg.norm(x, axis=1, keepdims=True)


def passages_and_loss(chunks: int):
    """Loss and passage vectors under the current mesh, 32 passages in so many pieces, and the gradient."""
    rng = np.random.default_rng(0)
    weights = {"embed": rng.normal(size=(32, 16)).astype(np.float32), "out": rng.normal(size=(16, 8)).astype(np.float32)}
    tokens, mask = rng.integers(0, 32, (32, 5)), np.arange(5) < rng.integers(1, 6, (32, 1))
    positive = np.arange(32) // 4 == np.arange(8)[:, None]

    def value(weights):
        queries = toy(weights, layout.rows(tokens[::4]), layout.rows(mask[::4]))
        passages = loss.in_chunks(lambda *x: toy(weights, *x), chunks)(layout.rows(tokens), layout.rows(mask))
        return loss.info_nce(queries, passages, layout.rows(positive), layout.rows(~positive), temperature=0.5), passages

    sides = {"embed": "v e", "out": "d f"}
    placed = {name: jax.device_put(w, layout.weight_spec(sides[name])) for name, w in weights.items()}
    return jax.tree.map(np.asarray, jax.jit(jax.value_and_grad(value, has_aux=True))(placed))


@functools.cache
def whole():
    with jax.set_mesh(layout.make_mesh((1, 1, 1))):
        return passages_and_loss(1)


@pytest.mark.parametrize("chunks", [1, 2, 4])
def test_pieces_give_the_gradient_of_the_whole(chunks, any_mesh):
    (expected, plain), exact = whole()
    (found, passages), gradient = passages_and_loss(chunks)
    np.testing.assert_allclose(passages, plain, atol=1e-5)  # in the order they came
    assert found == pytest.approx(expected, abs=1e-5) and expected > 0.5
    for name in exact:
        np.testing.assert_allclose(gradient[name], exact[name], atol=1e-5)
        assert np.abs(exact[name]).max() > 1e-3


# --- the optimizer ---------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("steps, warmup, expected", [
    (10, 0.2, [0.5, 0.75, 1, 0.875, 0.75, 0.625, 0.5, 0.375, 0.25, 0.125, 0]),
    (4, 0.0, [1, 0.75, 0.5, 0.25, 0]),
    (1, 0.1, [1, 0]),
    (3, 1.0, [0.5, 0.75, 1, 0]),
])
def test_the_rate_rises_and_falls_to_zero(steps, warmup, expected):
    rate = optim.schedule(8e-6, steps, warmup)
    assert [float(rate(i)) / 8e-6 for i in range(steps + 1)] == pytest.approx(expected, abs=1e-6)
    assert max(float(rate(i)) for i in range(steps)) == pytest.approx(8e-6) and float(rate(steps - 1)) > 0


BERT = encoder.Config(vocab=32, width=16, layers=2, heads=2, ffn=8, positions=8, pad=None, segments=1, norm_eps=1e-6,
                      dtype="float32", compute="float32")
QWEN = decoder.Config(vocab=32, width=16, layers=2, heads=4, kv_heads=2, head_dim=4, ffn=8, rope_theta=1e4, rope_llama3=None,
                      norm_eps=1e-6, qk_norm=True, qkv_bias=True, tied=False, dtype="float32", compute="float32")


@pytest.mark.parametrize("kind, cfg, matrices, others", [
    (encoder.Encoder, BERT, "embed position segment q k v o up down",
     "embed_norm embed_norm_bias q_bias k_bias v_bias o_bias up_bias down_bias attn_norm attn_norm_bias ffn_norm ffn_norm_bias"),
    (decoder.Decoder, QWEN, "embed head q k v o gate up down", "norm q_norm k_norm attn_norm ffn_norm q_bias k_bias v_bias"),
])
def test_matrices_decay_and_vectors_do_not(kind, cfg, matrices, others, mesh):
    """Layers are stacked, so a bias has two axes as well: axes do not tell them apart."""
    shapes = jax.eval_shape(lambda: kind(cfg, rngs=nnx.Rngs(0)))
    filled = lambda value: jax.tree.map(lambda x: np.full(x.shape, value, np.float32), shapes)
    optimizer = optim.adamw(weight_decay=0.25, clip=1.0)
    updates = jax.jit(lambda gradient, model: optimizer.update(gradient, optimizer.init(model), model)[0])(filled(0), filled(1))
    decayed = {}
    for path, x in jax.tree_util.tree_leaves_with_path(updates):
        name = jax.tree_util.keystr(path, simple=True, separator=".").removesuffix(".value").rsplit(".", 1)[-1]
        decayed[name] = tuple(np.unique(x).tolist())
    assert decayed == {**dict.fromkeys(matrices.split(), (0.25,)), **dict.fromkeys(others.split(), (0.0,))}


def test_adamw_is_the_published_recursion(mesh):
    """Two steps of Loshchilov and Hutter's AdamW on one matrix, the second gradient clipped."""
    x, m, v = np.array([[1.0, -2.0]]), 0.0, 0.0
    optimizer = optim.adamw(weight_decay=0.01, clip=1.0)
    params = {"w": jnp.asarray(x, jnp.float32)}
    state = optimizer.init(params)
    for t, gradient in enumerate((np.array([[0.3, -0.4]]), np.array([[6.0, 8.0]])), 1):
        updates, state = optimizer.update({"w": jnp.asarray(gradient, jnp.float32)}, state, params)
        params = optax.apply_updates(params, {"w": -0.1 * updates["w"]})
        clipped = gradient / max(np.linalg.norm(gradient), 1.0)
        m, v = 0.9 * m + 0.1 * clipped, 0.999 * v + 0.001 * clipped**2
        x = x - 0.1 * (m / (1 - 0.9**t) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8) + 0.01 * x)
    np.testing.assert_allclose(params["w"], x, rtol=1e-5)
