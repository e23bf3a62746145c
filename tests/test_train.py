"""The loss against plain loops and against sentence-transformers, encoding in pieces, batches of any size, the optimizer."""

import dataclasses
import functools
import re

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import tiny
from flax import nnx
from hypothesis import strategies as st

from ark_jax import layout
from ark_jax.data.curriculum import Example
from ark_jax.models import decoder, encoder
from ark_jax.models.retriever import Retriever
from ark_jax.train import loop, loss, optim

B, C, E = 8, 24, 6
BERT = encoder.Config(vocab=32, width=16, layers=2, heads=2, ffn=8, positions=8, pad=None, segments=1, norm_eps=1e-6,
                      dtype="float32", compute="float32")


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
                against = [np.exp(score(q, n)) for n in range(len(passages)) if negative[q, n] and n != c]
                losses.append(-np.log(np.exp(score(q, c)) / (np.exp(score(q, c)) + sum(against))))
    return float(np.mean(losses)) if losses else 0.0


def info_nce(given: dict, temperature: float = 0.05) -> jax.Array:
    return jax.jit(loss.info_nce, static_argnames="temperature")(**jax.tree.map(layout.rows, given), temperature=temperature)


@pytest.mark.parametrize("temperature", [0.05, 1.0])
def test_info_nce_is_two_loops(temperature, any_mesh):
    given = batch()
    assert float(info_nce(given, temperature)) == pytest.approx(by_loops(**given, temperature=temperature), rel=1e-5)


def test_siblings_may_be_negatives_of_each_other(mesh):
    """Only where both masks hold them; a positive is in its own denominator once."""
    some = batch()
    masked = float(info_nce(some))
    some["negative"] = some["negative"] | some["positive"]
    assert (some["positive"].sum(1) > 1).any()
    assert float(info_nce(some)) == pytest.approx(by_loops(**some, temperature=0.05), rel=1e-5)
    assert float(info_nce(some)) > masked + 0.1


@pytest.fixture
def reference():
    """torch and the losses of sentence-transformers."""
    torch = pytest.importorskip("torch", reason="the reference implementation needs torch: pip install 'ark-jax[reference]'")
    return torch, pytest.importorskip("sentence_transformers.sentence_transformer.losses",
                                      reason="pip install 'ark-jax[reference]'")


@pytest.mark.parametrize("hard", [0, 2])
def test_info_nce_is_sentence_transformers(hard, reference, mesh):
    torch, losses = reference
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


def test_a_question_of_two_positives_is_two_rows_of_sentence_transformers(reference, mesh):
    """Theirs knows one positive a row, so that the second is a negative of the first: denominator="all"."""
    torch, losses = reference
    rng = np.random.default_rng(2)
    queries, passages = unit(rng, B), unit(rng, 2 * B)
    rows = [torch.tensor(x) for x in (np.repeat(queries, 2, axis=0), passages)]
    expected = losses.MultipleNegativesRankingLoss(None, scale=20.0).compute_loss_from_embeddings(rows, None).item()
    positive = np.arange(2 * B) // 2 == np.arange(B)[:, None]
    found = lambda negative: info_nce({"queries": queries, "passages": passages, "positive": positive, "negative": negative})
    assert float(found(np.ones_like(positive))) == pytest.approx(expected, rel=1e-5)
    assert float(found(~positive)) < expected - 0.05


@pytest.mark.parametrize("widths", [(), (4, 1), (5,)])
def test_matryoshka_is_the_mean_over_widths(widths, any_mesh):
    some = batch()
    first = lambda x, n: x[:, :n] / np.linalg.norm(x[:, :n], axis=1, keepdims=True)
    each = [by_loops(first(some["queries"], n), first(some["passages"], n), some["positive"], some["negative"], 0.05)
            for n in (E, *widths)]
    ours = jax.jit(functools.partial(loss.matryoshka, widths=widths, temperature=0.05))
    assert float(ours(**jax.tree.map(layout.rows, some))) == pytest.approx(np.mean(each), rel=1e-5)


def test_matryoshka_is_sentence_transformers(reference, mesh):
    torch, losses = reference

    class Linear(torch.nn.Module):
        def __init__(self, weight):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.tensor(weight))

        def forward(self, features):
            return {"sentence_embedding": features["x"] @ self.weight}

        def get_embedding_dimension(self):
            return E

    rng = np.random.default_rng(3)
    columns, weight = [rng.normal(size=(B, 5)).astype(np.float32) for _ in range(3)], rng.normal(size=(5, E)).astype(np.float32)
    model = Linear(weight)
    theirs = losses.MatryoshkaLoss(model, losses.MultipleNegativesRankingLoss(model, scale=20.0), [E, 4, 2])
    expected = theirs([{"x": torch.tensor(x)} for x in columns], None)
    expected.backward()
    positive = np.eye(B, 2 * B, dtype=bool)

    def ours(weight):
        vectors = [jnp.asarray(x) @ weight for x in (columns[0], np.concatenate(columns[1:]))]
        vectors = [x / jnp.linalg.norm(x, axis=1, keepdims=True) for x in vectors]
        return loss.matryoshka(*vectors, positive, ~positive, widths=(4, 2), temperature=0.05)

    value, gradient = jax.value_and_grad(ours)(weight)
    assert float(value) == pytest.approx(expected.item() / 3, rel=1e-5)  # they add up, we take the mean
    np.testing.assert_allclose(gradient, model.weight.grad.numpy() / 3, atol=1e-5)


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

MESHES = [(1, 1, 1), (2, 1, 1), (1, 2, 1), (1, 8, 1), (2, 2, 2)]  # of one, two and eight devices


def toy(weights, tokens, mask):
    """An encoder: two matrices, a nonlinearity, a mean over visible tokens."""
    x = layout.lookup(weights["embed"], tokens)
    x = jnp.tanh(layout.einsum("btd,df->btf", x, weights["out"]))
    x = jnp.einsum("bte,bt->be", x, mask.astype(x.dtype)) / jnp.maximum(mask.sum(1, keepdims=True), 1)
    return x * jax.lax.rsqrt(jnp.maximum((x * x).sum(1, keepdims=True), 1e-24))


def toy_inputs(rows: int) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    weights = {"embed": rng.normal(size=(32, 16)).astype(np.float32), "out": rng.normal(size=(16, 8)).astype(np.float32)}
    return weights, rng.integers(0, 32, (rows, 5)), np.arange(5) < rng.integers(1, 6, (rows, 1))


def placed(weights: dict[str, np.ndarray]) -> dict[str, jax.Array]:
    sides = {"embed": "v e", "out": "d f"}
    return {name: jax.device_put(w, layout.weight_spec(sides[name])) for name, w in weights.items()}


def passages_and_loss(chunks: int):
    """Loss and passage vectors under the current mesh, 64 passages in so many pieces, and the gradient."""
    weights, tokens, mask = toy_inputs(64)
    positive = np.arange(64) // 8 == np.arange(8)[:, None]

    def value(weights):
        queries = toy(weights, layout.rows(tokens[::8]), layout.rows(mask[::8]))
        passages = loss.in_chunks(lambda *x: toy(weights, *x), chunks)(layout.rows(tokens), layout.rows(mask))
        return loss.info_nce(queries, passages, layout.rows(positive), layout.rows(~positive), temperature=0.5), passages

    return jax.tree.map(np.asarray, jax.jit(jax.value_and_grad(value, has_aux=True))(placed(weights)))


@functools.cache
def whole():
    with jax.set_mesh(layout.make_mesh((1, 1, 1))):
        return passages_and_loss(1)


@pytest.mark.parametrize("chunks", [1, 2, 8])
@pytest.mark.parametrize("shape", MESHES, ids=str)
def test_pieces_give_the_gradient_of_the_whole(chunks, shape):
    (expected, plain), exact = whole()
    with jax.set_mesh(layout.make_mesh(shape)):
        (found, passages), gradient = passages_and_loss(chunks)
    np.testing.assert_allclose(passages, plain, atol=1e-5)  # in the order they came
    assert found == pytest.approx(expected, abs=1e-5) and expected > 0.5
    for name in exact:
        np.testing.assert_allclose(gradient[name], exact[name], atol=1e-5)
        assert np.abs(exact[name]).max() > 1e-3


def test_pieces_are_those_of_sentence_transformers(reference, mesh):
    """CachedMultipleNegativesRankingLoss on the same encoder: three columns, theirs in pieces of five rows, ours in four."""
    torch, losses = reference
    weights, tokens, mask = toy_inputs(48)

    class Toy(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weights = torch.nn.ParameterDict({name: torch.nn.Parameter(torch.tensor(w)) for name, w in weights.items()})

        def forward(self, features):
            seen = features["attention_mask"].float()
            x = torch.tanh(self.weights["embed"][features["input_ids"]] @ self.weights["out"])
            return {"sentence_embedding": torch.einsum("bte,bt->be", x, seen) / seen.sum(1, keepdim=True)}

    model = torch.nn.Sequential(Toy())
    columns = [{"input_ids": torch.tensor(tokens[i : i + 16]), "attention_mask": torch.tensor(mask[i : i + 16])}
               for i in (0, 16, 32)]
    expected = losses.CachedMultipleNegativesRankingLoss(model, scale=20.0, mini_batch_size=5)(columns, None)
    expected.backward()
    positive = np.eye(16, 32, dtype=bool)

    def ours(weights):
        encode = lambda tokens, mask: toy(weights, tokens, mask)
        queries = encode(layout.rows(tokens[:16]), layout.rows(mask[:16]))
        passages = loss.in_chunks(encode, 4)(layout.rows(tokens[16:]), layout.rows(mask[16:]))
        return loss.info_nce(queries, passages, layout.rows(positive), layout.rows(~positive), temperature=0.05)

    value, gradient = jax.jit(jax.value_and_grad(ours))(weights)
    assert float(value) == pytest.approx(expected.item(), rel=1e-5)
    for name, theirs in model[0].weights.items():
        np.testing.assert_allclose(gradient[name], theirs.grad.numpy(), atol=1e-5)


# --- batches of any size ---------------------------------------------------------------------------------------------

PLAN = loop.Plan(epochs=2, learning_rate=1e-3, warmup=0.2, weight_decay=0.01, clip=1.0, batch=3, chunks=1, temperature=0.05,
                 matryoshka=(), denominator="batch", order="question", save_every=100, remat="products", seed=1,
                 use_negatives=True, lora_rank=0, lora_alpha=1.0, lora_targets=())


def plan(**changes) -> loop.Plan:
    return dataclasses.replace(PLAN, **changes)


def ragged(questions: int) -> tuple[list[Example], dict[str, dict[str, list[int]]]]:
    """Examples of one to three positives and up to four negatives, some shared, and tokens of one to eight."""
    rng = np.random.default_rng(questions)
    name = lambda k: f"c{k % (2 * questions + 1)}"
    examples = [Example(f"q{i}", "d", tuple(name(2 * i + k) for k in range(i % 3 + 1)),
                        tuple(name(2 * i + 7 + k) for k in range((i + 2) % 5))) for i in range(questions)]
    texts = lambda names: {x: rng.integers(0, 32, rng.integers(1, 9)).tolist() for x in names}
    return examples, {"query": texts([e.question for e in examples]), "document": texts(map(name, range(2 * questions + 1)))}


def value_and_gradient(questions: int, chunks: int, shape: tuple[int, int, int]):
    """Of the loss over one batch, laid out as a training step has it."""
    with jax.set_mesh(layout.make_mesh(shape)):
        examples, ids = ragged(questions)
        how = plan(batch=questions, chunks=chunks)
        given = loop._batch(examples, ids, how, loop._sides([range(questions)], examples, ids, how))

        def value(weights):
            encode = functools.partial(toy, weights)
            queries, passages = encode(*given["queries"]), loss.in_chunks(encode, chunks)(*given["passages"])
            return loss.info_nce(queries, passages, given["positive"], given["negative"], temperature=0.5)

        return jax.tree.map(np.asarray, jax.jit(jax.value_and_grad(value))(placed(toy_inputs(0)[0])))


whole_batch = functools.cache(functools.partial(value_and_gradient, chunks=1, shape=(1, 1, 1)))


@pytest.mark.parametrize("questions", [5, *[pytest.param(n, marks=pytest.mark.slow) for n in (1, 13)]])
@pytest.mark.parametrize("chunks", [1, 2, 8])
@pytest.mark.parametrize("shape", MESHES, ids=str)
def test_a_batch_of_any_size_in_any_pieces_on_any_devices(questions, chunks, shape):
    """Neither questions nor passages divide by devices or pieces."""
    value, gradient = value_and_gradient(questions, chunks, shape)
    expected, exact = whole_batch(questions)
    assert value == pytest.approx(expected, abs=1e-5) and expected > 0.1
    for name in exact:
        np.testing.assert_allclose(gradient[name], exact[name], atol=1e-5)
        assert np.abs(exact[name]).max() > 1e-3


def test_matryoshka_reaches_the_training_step(mesh):
    """Its loss is the mean of those of models with fewer components."""
    examples, ids = ragged(5)
    sides = loop._sides([range(5)], examples, ids, plan(batch=5))
    given, model = loop._batch(examples, ids, PLAN, sides), encoder.Encoder(BERT, rngs=nnx.Rngs(0))

    def value(width: int, matryoshka: tuple[int, ...]) -> float:
        rooms = tuple(side.room for side in sides)
        objective = loop.Objective(BERT, "mean", width, 1, rooms, 0.05, 0.0, 1.0, matryoshka)
        return float(jax.jit(objective.loss, compiler_options={"xla_backend_optimization_level": 0})(model, given))

    each = [value(width, ()) for width in (BERT.width, 4)]
    assert value(BERT.width, (4,)) == pytest.approx(np.mean(each), rel=1e-5) and abs(np.diff(each)) > 1e-2


@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 8, 1)], ids=str)
@hypothesis.settings(deadline=None, max_examples=60)
@hypothesis.given(batches=st.lists(st.lists(st.integers(1, 40), min_size=1, max_size=30), min_size=1, max_size=4),
                  pieces=st.integers(1, 9))
def test_every_text_has_a_row_of_its_own_and_no_piece_overflows(shape, batches, pieces):
    with jax.set_mesh(layout.make_mesh(shape)):
        devices = layout.batch_multiple()
        names = [[f"{i} {k}" for k in range(len(some))] for i, some in enumerate(batches)]
        ids = {name: [1] * n for some, lengths in zip(names, batches, strict=True) for name, n in zip(some, lengths, strict=True)}
        side = loop.Side.of(names, ids, pieces)
        assert side.rows % (devices * pieces) == 0 and side.length >= max(map(max, batches))
        for some in names:
            places = side.places([ids[name] for name in some])
            assert len(set(places.tolist())) == len(some) and set(places) <= set(range(side.rows))
            tokens = np.zeros(side.rows, int)
            tokens[places] = [len(ids[name]) for name in some]
            # `in_chunks` gives a piece every so-manieth row; a device has a run of rows.
            assert tokens.reshape(devices, -1, pieces).sum(1).max() <= side.room


@pytest.fixture(scope="module")
def retriever(tmp_path_factory):
    folder = tiny.write(tmp_path_factory.mktemp("retriever"), "bert", tokenizer="cls")
    with jax.set_mesh(layout.make_mesh((1, 1, 1))):
        return Retriever.from_pretrained(str(tiny.sentence_transformer(folder, pooling="mean")))


WORDS = ("tide", "lamp", "salt", "lathe", "wool", "pilot", "bell")
QUESTIONS = {f"q{i}": f"who kept the {word}?" for i, word in enumerate(WORDS)}
PASSAGES = {f"c{i}": f"every {word} was in the care of the clerk" for i, word in enumerate(WORDS)}
PAIRS = [Example(f"q{i}", "d", (f"c{i}",), ()) for i in range(len(WORDS))]


def test_the_rate_of_a_stage_ends_with_its_last_batch(retriever, mesh, tmp_path):
    """Two epochs of seven questions, three at a time: five steps, of which the last has two questions."""
    told = []
    _, _, curve = loop.train(retriever, PAIRS, QUESTIONS, PASSAGES, plan(), tmp_path, "stage", tell=told.append)
    assert told == curve
    rate = optim.schedule(1e-3, 5, 0.2)
    assert [row["step"] for row in curve] == [1, 2, 3, 4, 5]
    assert [row["learning_rate"] for row in curve] == pytest.approx([float(rate(i)) for i in range(5)])
    assert [row["learning_rate"] for row in curve] == pytest.approx([1e-3, 1e-3, 7.5e-4, 5e-4, 2.5e-4])


@pytest.mark.parametrize(("changes", "told"), [
    ({"matryoshka": (16, 32)}, "config.train.matryoshka: width 32, but vectors of this model have 32 components"),
    ({"matryoshka": (0,)}, "config.train.matryoshka: width 0"),
    ({"denominator": "sum"}, "config.train.denominator='sum': must be one of own, batch, all"),
])
def test_a_plan_that_cannot_be_is_refused_by_name(changes, told, retriever, mesh, tmp_path):
    with pytest.raises(ValueError, match=re.escape(told)):
        loop.train(retriever, PAIRS, QUESTIONS, PASSAGES, plan(**changes), tmp_path, "stage")


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
