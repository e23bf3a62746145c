"""InfoNCE, distillation, Matryoshka, margins and lists, against plain loops and other libraries."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ark_jax import layout
from ark_jax.recipes.ark import alignment
from ark_jax.recipes.ark.config import ark
from ark_jax.train import batches, losses
from ark_jax.train.batches import Example

B, C, E = 8, 24, 6


def unit_vectors(rng: np.random.Generator, n: int) -> np.ndarray:
    """Random vectors of unit length, `[n e]`."""
    x = rng.normal(size=(n, E)).astype(np.float32)
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def random_batch(seed: int = 0) -> dict[str, np.ndarray]:
    """Random vectors and masks.

    Question 2 has no positive, question 5 no negative, and the last chunks are padding.
    """
    rng = np.random.default_rng(seed)
    positive = rng.random((B, C)) < 0.15
    negative = (rng.random((B, C)) < 0.5) & ~positive
    positive[2], negative[5], positive[5, 3] = False, False, True
    positive[:, -4:] = negative[:, -4:] = False
    return {
        "queries": unit_vectors(rng, B),
        "passages": unit_vectors(rng, C),
        "positive": positive,
        "negative": negative,
    }


def info_nce_by_loops(queries, passages, positive, negative, temperature: float) -> float:
    """Equations 7 and 8, pair by pair, in double precision."""
    values, scores = [], queries.astype(np.float64) @ passages.astype(np.float64).T / temperature
    for q, c in np.argwhere(positive):
        rivals = [n for n in np.flatnonzero(negative[q]) if n != c]
        denominator = np.exp(scores[q, c]) + np.exp(scores[q, rivals]).sum()
        values.append(-np.log(np.exp(scores[q, c]) / denominator))
    return float(np.mean(values)) if values else 0.0


def info_nce(inputs: dict, temperature: float = 0.05) -> jax.Array:
    return jax.jit(losses.info_nce, static_argnames="temperature")(
        **jax.tree.map(layout.rows, inputs), temperature=temperature
    )


@pytest.mark.parametrize("temperature", [0.05, 1.0])
def test_info_nce_equals_plain_loops(temperature, any_mesh):
    inputs = random_batch()
    assert float(info_nce(inputs, temperature)) == pytest.approx(
        info_nce_by_loops(**inputs, temperature=temperature), rel=1e-5
    )


def test_positives_of_one_question_can_be_negatives_of_each_other(mesh):
    """Only where both masks hold them; a positive is in its own denominator once."""
    inputs = random_batch()
    masked = float(info_nce(inputs))
    inputs["negative"] = inputs["negative"] | inputs["positive"]
    assert (inputs["positive"].sum(1) > 1).any()
    assert float(info_nce(inputs)) == pytest.approx(
        info_nce_by_loops(**inputs, temperature=0.05), rel=1e-5
    )
    assert float(info_nce(inputs)) > masked + 0.1


@pytest.mark.parametrize("stage", [1, 2])
def test_pairs_have_the_loss_of_the_paper(stage, mesh):
    """ARK, eq. 7 (stage 1: all positives of the batch) and eq. 8 (own hard negatives), by sums.

    Two questions have two positives each, which are chunks 0 to 3, and two hard ones of 4 to 7.
    """
    rows = [Example("p", "d", ("0", "1"), ("4", "5")), Example("q", "d", ("2", "3"), ("6", "7"))]
    pairs = batches.number_chunks(batches.split_pairs(rows), "01234567", use_negatives=stage > 1)
    chunks = batches.distinct_numbers(pairs)
    positive, negative = batches.pair_masks(
        pairs, chunks, use_negatives=stage > 1, denominator=ark("paper").train.denominator
    )
    rng = np.random.default_rng(3)
    queries, passages = np.repeat(unit_vectors(rng, 2), 2, axis=0), unit_vectors(rng, 8)
    e = np.exp(queries.astype(np.float64) @ passages.astype(np.float64).T / 0.05)
    rivals = [[0, 1, 2, 3]] * 4 if stage == 1 else [[0, 4, 5], [1, 4, 5], [2, 6, 7], [3, 6, 7]]
    literal = np.mean([-np.log(e[i, i] / e[i, rivals[i]].sum()) for i in range(4)])
    masks = {"positive": positive, "negative": negative}
    got = info_nce({"queries": queries, "passages": passages[chunks], **masks})
    assert float(got) == pytest.approx(literal, rel=1e-5)


@pytest.mark.parametrize("hard", [0, 2])
def test_info_nce_and_its_gradient_match_sentence_transformers(
    hard, sentence_transformers_losses, mesh
):
    torch, peer_losses = sentence_transformers_losses
    rng = np.random.default_rng(1)
    columns = [
        unit_vectors(rng, B) for _ in range(2 + hard)
    ]  # question, its positive, its hard negatives
    peer_columns = [torch.tensor(x, requires_grad=True) for x in columns]
    reference = peer_losses.MultipleNegativesRankingLoss(None, scale=20.0)
    expected = reference.compute_loss_from_embeddings(peer_columns, None)
    expected.backward()
    positive = np.concatenate([np.eye(B, dtype=bool), *[np.zeros((B, B), bool)] * hard], axis=1)
    passages = np.concatenate(columns[1:])

    def own_loss(queries, passages):
        queries, passages = (
            x / jnp.linalg.norm(x, axis=1, keepdims=True) for x in (queries, passages)
        )  # it takes cosines
        return losses.info_nce(
            queries, passages, layout.rows(positive), layout.rows(~positive), temperature=0.05
        )

    value, (d_queries, d_passages) = jax.value_and_grad(own_loss, (0, 1))(
        layout.rows(columns[0]), layout.rows(passages)
    )
    assert float(value) == pytest.approx(expected.item(), rel=1e-5)
    np.testing.assert_allclose(d_queries, peer_columns[0].grad.numpy(), atol=1e-5)
    np.testing.assert_allclose(
        d_passages, np.concatenate([x.grad.numpy() for x in peer_columns[1:]]), atol=1e-5
    )


def test_two_positives_match_two_rows_in_sentence_transformers(sentence_transformers_losses, mesh):
    """The peer takes one positive a row, and the second is a negative of the first.

    That is denominator="all" here.
    """
    torch, peer_losses = sentence_transformers_losses
    rng = np.random.default_rng(2)
    queries, passages = unit_vectors(rng, B), unit_vectors(rng, 2 * B)
    rows = [torch.tensor(x) for x in (np.repeat(queries, 2, axis=0), passages)]
    expected = (
        peer_losses.MultipleNegativesRankingLoss(None, scale=20.0)
        .compute_loss_from_embeddings(rows, None)
        .item()
    )
    positive = np.arange(2 * B) // 2 == np.arange(B)[:, None]
    loss = lambda negative: info_nce(
        {"queries": queries, "passages": passages, "positive": positive, "negative": negative}
    )
    assert float(loss(np.ones_like(positive))) == pytest.approx(expected, rel=1e-5)
    assert float(loss(~positive)) < expected - 0.05


def test_a_loss_on_whole_arrays_equals_the_sharded_loss(any_mesh):
    """The same loss, with a plain product of vectors that lie on several devices."""

    def plain_nce(queries, passages, positive, negative, *, temperature):
        scores = queries @ passages.T / temperature
        floored = jnp.where(negative, scores, -1e30)
        others = jax.nn.logsumexp(floored, axis=1, keepdims=True)
        value = jnp.where(positive, jnp.logaddexp(scores, others) - scores, 0)
        return value.sum() / positive.sum()

    batch = random_batch()
    arrays = [layout.rows(array) for array in batch.values()]
    both = [
        jax.jit(jax.value_and_grad(functools.partial(loss, temperature=0.05)))(*arrays)
        for loss in (losses.info_nce, losses.on_whole_arrays(plain_nce))
    ]
    np.testing.assert_allclose(both[1][0], both[0][0], rtol=1e-6)
    np.testing.assert_allclose(both[1][1], both[0][1], atol=1e-5)


@pytest.mark.parametrize("widths", [(), (4, 1), (5,)])
def test_the_matryoshka_loss_is_the_mean_over_widths(widths, any_mesh):
    inputs = random_batch()
    first = lambda x, n: x[:, :n] / np.linalg.norm(x[:, :n], axis=1, keepdims=True)
    losses_by_width = [
        info_nce_by_loops(
            first(inputs["queries"], n),
            first(inputs["passages"], n),
            inputs["positive"],
            inputs["negative"],
            0.05,
        )
        for n in (E, *widths)
    ]
    own_loss = jax.jit(functools.partial(losses.matryoshka, widths=widths, temperature=0.05))
    assert float(own_loss(**jax.tree.map(layout.rows, inputs))) == pytest.approx(
        np.mean(losses_by_width), rel=1e-5
    )


def test_the_matryoshka_loss_and_its_gradient_match_sentence_transformers(
    sentence_transformers_losses, mesh
):
    torch, peer_losses = sentence_transformers_losses

    class Linear(torch.nn.Module):
        def __init__(self, weight):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.tensor(weight))

        def forward(self, features):
            return {"sentence_embedding": features["x"] @ self.weight}

        def get_embedding_dimension(self):
            return E

    rng = np.random.default_rng(3)
    columns, weight = (
        [rng.normal(size=(B, 5)).astype(np.float32) for _ in range(3)],
        rng.normal(size=(5, E)).astype(np.float32),
    )
    model = Linear(weight)
    peer_columns = peer_losses.MatryoshkaLoss(
        model, peer_losses.MultipleNegativesRankingLoss(model, scale=20.0), [E, 4, 2]
    )
    expected = peer_columns([{"x": torch.tensor(x)} for x in columns], None)
    expected.backward()
    positive = jnp.eye(B, 2 * B, dtype=bool)

    def own_loss(weight):
        vectors = [jnp.asarray(x) @ weight for x in (columns[0], np.concatenate(columns[1:]))]
        vectors = [x / jnp.linalg.norm(x, axis=1, keepdims=True) for x in vectors]
        return losses.matryoshka(*vectors, positive, ~positive, widths=(4, 2), temperature=0.05)

    value, gradient = jax.value_and_grad(own_loss)(weight)
    assert float(value) == pytest.approx(
        expected.item() / 3, rel=1e-5
    )  # they add up, we take the mean
    np.testing.assert_allclose(gradient, model.weight.grad.numpy() / 3, atol=1e-5)


def test_questions_without_positives_do_not_change_the_loss(mesh):
    inputs = random_batch()
    expected = float(info_nce(inputs))
    inputs["queries"][2] = -inputs["queries"][2]  # question 2 has no positive
    assert float(info_nce(inputs)) == pytest.approx(expected, rel=1e-6)
    rows = [0, 1, 3, 4, 5, 6, 7]
    without = {name: x if name == "passages" else x[rows] for name, x in inputs.items()}
    assert float(info_nce(without)) == pytest.approx(expected, rel=1e-6)


def test_chunks_that_are_padding_do_not_change_the_loss(mesh):
    inputs = random_batch()
    expected = float(info_nce(inputs))
    inputs["passages"][-4:] = 1e3  # they are in no mask
    assert float(info_nce(inputs)) == pytest.approx(expected, rel=1e-6)


def test_a_question_without_negatives_has_loss_zero(mesh):
    inputs = random_batch()
    fifth = {name: x if name == "passages" else x[5:6] for name, x in inputs.items()}
    assert float(info_nce(fifth)) == 0.0


def test_a_batch_without_positives_has_loss_zero(mesh):
    inputs = random_batch() | {"positive": np.zeros((B, C), bool)}
    assert float(info_nce(inputs)) == 0.0


@pytest.mark.parametrize("temperature", [1e-3, 0.05])
def test_the_gradient_of_info_nce_is_finite(temperature, mesh):
    inputs = jax.tree.map(layout.rows, random_batch())
    gradient = jax.grad(
        lambda q, p: losses.info_nce(
            q, p, inputs["positive"], inputs["negative"], temperature=temperature
        ),
        (0, 1),
    )
    d_queries, d_passages = gradient(inputs["queries"], inputs["passages"])
    assert np.isfinite(d_queries).all() and np.isfinite(d_passages).all()
    assert not np.any(d_queries[2]) and not np.any(d_queries[5]) and np.any(d_queries[0])
    assert not np.any(d_passages[-4:])


def two_margins_by_loops(queries, triples, positive, neighbour, negative, margins) -> float:
    """Equations 4 and 5 of GPR, question by question, in double precision."""
    scores = queries.astype(np.float64) @ triples.astype(np.float64).T
    values = []
    for q in np.flatnonzero(positive.any(1)):
        p = scores[q, positive[q]].max()
        n = scores[q, neighbour[q]].max() if neighbour[q].any() else None
        g = scores[q, negative[q]].max() if negative[q].any() else None
        value = 0.0
        if n is not None:
            value += max(0, margins[0] + n - p)
            value += 0 if g is None else max(0, margins[1] + g - n)
        elif g is not None:
            value += max(0, sum(margins) + g - p)
        values.append(value)
    return float(np.mean(values))


def graded_batch() -> dict[str, np.ndarray]:
    """Three levels; question 1 has no neighbour, 2 no positive, 3 no negative, 4 only a triple."""
    rng = np.random.default_rng(4)
    masks = [np.zeros((B, C), bool) for _ in range(3)]
    for q in range(B):
        for mask, columns in zip(masks, ([q], [q + B], [q + 2 * B - 2, 0]), strict=True):
            mask[q, columns] = True
    positive, neighbour, negative = masks
    negative &= ~positive
    positive[2] = neighbour[1] = neighbour[4] = negative[3] = negative[4] = False
    vectors = {"queries": unit_vectors(rng, B), "triples": unit_vectors(rng, C)}
    return vectors | {"positive": positive, "neighbour": neighbour, "negative": negative}


def two_margins(inputs: dict, margins: tuple[float, float]) -> jax.Array:
    return jax.jit(losses.two_margins, static_argnames="margins")(
        **jax.tree.map(layout.rows, inputs), margins=margins
    )


@pytest.mark.parametrize("margins", [(0.5, 0.5), (0.1, 0.35)])
def test_the_two_margin_loss_equals_plain_loops(margins, any_mesh):
    inputs = graded_batch()
    assert float(two_margins(inputs, margins)) == pytest.approx(
        two_margins_by_loops(**inputs, margins=margins), rel=1e-5
    )


def test_the_two_margin_loss_equals_two_triplet_losses_of_torch(sentence_transformers_losses, mesh):
    """With one neighbour and one negative each, eq. 5 is two of torch's triplet losses."""
    torch, _ = sentence_transformers_losses
    inputs = graded_batch()
    eye = lambda shift: np.eye(B, C, shift, dtype=bool)
    inputs |= {"positive": eye(0), "neighbour": eye(B), "negative": eye(2 * B)}
    questions, triples = map(torch.tensor, (inputs["queries"], inputs["triples"]))
    positives, neighbours, negatives = triples.split(B)

    def cosine_distance(a, b):
        return 1 - torch.nn.functional.cosine_similarity(a, b)

    def triplet_loss(near, far, margin):
        return torch.nn.functional.triplet_margin_with_distance_loss(
            questions, near, far, distance_function=cosine_distance, margin=margin
        )

    wanted = triplet_loss(positives, neighbours, 0.2) + triplet_loss(neighbours, negatives, 0.4)
    assert float(two_margins(inputs, (0.2, 0.4))) == pytest.approx(float(wanted), rel=1e-5)


def test_the_two_margin_gradient_is_finite_without_some_levels(mesh):
    inputs = jax.tree.map(layout.rows, graded_batch())
    of_vectors = lambda queries, triples: losses.two_margins(
        **inputs | {"queries": queries, "triples": triples}, margins=(0.5, 0.5)
    )
    gradients = jax.jit(jax.grad(of_vectors, (0, 1)))(inputs["queries"], inputs["triples"])
    assert all(np.isfinite(g).all() and np.abs(g).max() > 0 for g in map(np.asarray, gradients))
    assert not np.asarray(gradients[0])[[2, 4]].any()


def listed_batch() -> dict[str, np.ndarray]:
    """Lists of unequal length and weights; list 2 is padding, list 5 has no negative."""
    rng = np.random.default_rng(6)
    present = rng.random((B, 5)) < 0.7
    present[:, 0], present[2], present[5, 1:] = True, False, False
    return {
        "scores": 3 * rng.normal(size=(B, 5)).astype(np.float32),
        "present": present,
        "weights": rng.uniform(0.5, 2, (B, 5)).astype(np.float32),
    }


def weighted_lists_by_loops(scores, present, weights) -> float:
    """Equation 5 of STAR, list by list, in double precision."""
    values, scores = [], scores.astype(np.float64)
    for k in np.flatnonzero(present[:, 0]):
        rivals = [weights[k, i] * np.exp(scores[k, i]) for i in np.flatnonzero(present[k]) if i]
        positive = np.exp(scores[k, 0])
        values.append(-weights[k, 0] * np.log(positive / (positive + sum(rivals))))
    return float(np.mean(values)) if values else 0.0


def weighted_lists(inputs: dict) -> jax.Array:
    return jax.jit(losses.weighted_lists)(**jax.tree.map(layout.rows, inputs))


def test_weighted_lists_equal_plain_loops(any_mesh):
    inputs = listed_batch()
    expected = weighted_lists_by_loops(**inputs)
    assert float(weighted_lists(inputs)) == pytest.approx(expected, rel=1e-5)
    plain = inputs | {"weights": np.ones_like(inputs["weights"])}
    assert abs(weighted_lists_by_loops(**plain) - expected) > 0.05


def test_unweighted_lists_match_the_cross_entropy_of_torch(sentence_transformers_losses, mesh):
    torch, _ = sentence_transformers_losses
    inputs = listed_batch()
    inputs["weights"] = np.ones_like(inputs["weights"])
    keep = inputs["present"][:, 0]
    scores = torch.tensor(np.where(inputs["present"], inputs["scores"], -np.inf)[keep])
    wanted = torch.nn.functional.cross_entropy(scores, torch.zeros(int(keep.sum()), dtype=int))
    assert float(weighted_lists(inputs)) == pytest.approx(wanted.item(), rel=1e-5)


def test_absent_candidates_do_not_change_weighted_lists(mesh):
    inputs = listed_batch()
    expected = float(weighted_lists(inputs))
    for name, value in (("scores", 1e4), ("weights", 0.0)):
        inputs[name] = np.where(inputs["present"], inputs[name], value)
    assert float(weighted_lists(inputs)) == pytest.approx(expected, rel=1e-6)
    placed = jax.tree.map(layout.rows, inputs)
    gradient = jax.grad(lambda scores: losses.weighted_lists(**placed | {"scores": scores}))
    d_scores = np.asarray(gradient(placed["scores"]))
    assert np.isfinite(d_scores).all() and not d_scores[~inputs["present"]].any()
    assert not d_scores[[2, 5]].any() and d_scores[0].any()
    nothing = {name: np.zeros_like(value) for name, value in inputs.items()}
    assert float(weighted_lists(nothing)) == 0.0


def list_cross_entropy(inputs: dict) -> tuple[jax.Array, np.ndarray]:
    """The value, and its gradient with respect to the scores."""
    scores, *masks = map(layout.rows, inputs.values())
    loss = lambda x: losses.list_cross_entropy(x, *masks)
    value, gradient = jax.jit(jax.value_and_grad(loss))(scores)
    return value, np.asarray(gradient)


def test_list_cross_entropy_equals_plain_loops(any_mesh):
    inputs, values = listed_batch(), []
    for k in np.flatnonzero(inputs["present"].any(1)):
        keep = inputs["present"][k]
        scores, targets = (
            inputs[name][k, keep].astype(np.float64) for name in ("scores", "weights")
        )
        logs = scores - np.log(np.exp(scores).sum())
        values.append(-(targets / targets.sum()) @ logs)
    assert float(list_cross_entropy(inputs)[0]) == pytest.approx(np.mean(values), rel=1e-5)
    assert len(values) == B - 1  # list 2 is padding


def test_list_cross_entropy_and_its_gradient_match_torch(sentence_transformers_losses, mesh):
    """With soft labels, and their gradients."""
    torch, _ = sentence_transformers_losses
    inputs = listed_batch()
    inputs["present"][:] = True
    targets = torch.tensor(inputs["weights"] / inputs["weights"].sum(1, keepdims=True))
    scores = torch.tensor(inputs["scores"], requires_grad=True)
    wanted = torch.nn.functional.cross_entropy(scores, targets)
    wanted.backward()
    value, gradient = list_cross_entropy(inputs)
    assert float(value) == pytest.approx(wanted.item(), rel=1e-5)
    np.testing.assert_allclose(gradient, scores.grad.numpy(), atol=1e-6)


def test_absent_candidates_do_not_change_the_list_cross_entropy(mesh):
    inputs = listed_batch()
    expected = float(list_cross_entropy(inputs)[0])
    for name, value in (("scores", 1e4), ("weights", 9.0)):
        inputs[name] = np.where(inputs["present"], inputs[name], value)
    value, gradient = list_cross_entropy(inputs)
    assert float(value) == pytest.approx(expected, rel=1e-6)
    assert np.isfinite(gradient).all() and not gradient[~inputs["present"]].any()
    nothing = {name: np.zeros_like(value) for name, value in inputs.items()}
    assert float(list_cross_entropy(nothing)[0]) == 0.0


def distilled_batch() -> dict[str, np.ndarray]:
    """Random shares of candidates, and passages without a share that questions are told from.

    Question 2 has neither, question 5 no negative, and the last chunks are padding.
    """
    inputs, rng = random_batch(), np.random.default_rng(4)
    candidates = (rng.random((B, C)) < 0.2) | inputs.pop("positive")
    candidates[2], candidates[:, -4:] = False, False
    raw = np.where(candidates, rng.random((B, C), np.float32) + 0.01, 0)
    shares = raw / np.maximum(raw.sum(axis=1, keepdims=True), 1e-9)
    inputs["negative"][2] = False
    return inputs | {"shares": shares, "negative": inputs.pop("negative")}


def distil(inputs: dict, temperature: float = 0.05) -> tuple[jax.Array, tuple]:
    """The value, and its gradients with respect to questions and passages."""
    queries, passages, *masks = map(layout.rows, inputs.values())
    loss = lambda q, p: losses.distil(q, p, *masks, temperature=temperature)
    return jax.jit(jax.value_and_grad(loss, (0, 1)))(queries, passages)


def test_the_distillation_loss_equals_plain_loops(any_mesh):
    """Its two terms by loops, and the entropy of the shares."""
    inputs, values = distilled_batch(), []
    cosines = inputs["queries"].astype(np.float64) @ inputs["passages"].astype(np.float64).T
    for k in np.flatnonzero(inputs["shares"].any(1)):
        candidates, rivals = inputs["shares"][k] > 0, inputs["negative"][k]
        shares, weights = inputs["shares"][k, candidates], np.exp(cosines[k] / 0.05)
        mass = weights[candidates].sum()
        divergence = (shares * np.log(shares / (weights[candidates] / mass))).sum()
        entropy = -(shares * np.log(shares)).sum()
        values.append(divergence + entropy - np.log(mass / weights[candidates | rivals].sum()))
    assert len(values) == B - 1  # list 2 is padding
    assert float(distil(inputs)[0]) == pytest.approx(np.mean(values), rel=1e-5)


def test_distillation_with_a_single_share_equals_info_nce(any_mesh):
    inputs = random_batch()
    inputs["positive"] = np.eye(B, C, dtype=bool)
    inputs["negative"] &= ~inputs["positive"]
    expected = float(info_nce(inputs))
    shares = inputs.pop("positive").astype(np.float32)
    inputs = inputs | {"shares": shares, "negative": inputs.pop("negative")}
    assert float(distil(inputs)[0]) == pytest.approx(expected, rel=1e-6)


def test_the_distillation_loss_matches_sentence_transformers(sentence_transformers_losses, mesh):
    """Without other passages. The peer subtracts the entropy and multiplies by the temperature²."""
    torch, peer_losses = sentence_transformers_losses
    rng, ways = np.random.default_rng(5), 3
    columns = [unit_vectors(rng, B) for _ in range(1 + ways)]
    scores = rng.normal(-2, 1, (B, ways)).astype(np.float32)
    peer_columns = [torch.tensor(x, requires_grad=True) for x in columns]
    peer = peer_losses.DistillKLDivLoss(None, student_temperature=0.05, teacher_temperature=0.7)
    wanted = peer.compute_loss_from_embeddings(peer_columns, torch.tensor(scores))
    wanted.backward()
    shares, entropy = np.zeros((B, B * ways), np.float32), 0.0
    for k in range(B):
        teacher = np.array(alignment.shares(scores[k].tolist(), 0.7))
        shares[k, k::B] = teacher
        entropy -= (teacher * np.log(teacher)).sum() / B
    inputs = {
        "queries": columns[0],
        "passages": np.concatenate(columns[1:]),
        "shares": shares,
        "negative": np.zeros_like(shares, bool),
    }
    value, gradients = distil(inputs)
    assert float(value) - entropy == pytest.approx(wanted.item() / 0.05**2, rel=1e-5)
    for ours, parts in zip(gradients, (peer_columns[:1], peer_columns[1:]), strict=True):
        expected = np.concatenate([x.grad.numpy() for x in parts]) / 0.05**2
        np.testing.assert_allclose(ours, expected, atol=1e-5)


def token_vectors(rng: np.random.Generator, texts: int, length: int) -> np.ndarray:
    """Unit vectors of one to `length` tokens of each text, then zeros: `[n t e]`."""
    x = rng.normal(size=(texts, length, E)).astype(np.float32)
    x /= np.linalg.norm(x, axis=2, keepdims=True)
    x[np.arange(length) >= rng.integers(1, length + 1, texts)[:, None]] = 0
    return x


def maxsim_by_loops(queries: np.ndarray, texts: np.ndarray) -> np.ndarray:
    """Mean over a query's tokens of the largest product with a token of a text, `[b c]`."""
    real = lambda vectors: vectors[np.any(vectors != 0, axis=1)].astype(np.float64)
    pair = lambda query, text: (real(query) @ real(text).T).max(axis=1).mean()
    return np.array([[pair(query, text) for text in texts] for query in queries])


def test_info_nce_of_token_vectors_uses_maxsim(any_mesh):
    """Also where all products of a token are negative, which padding must not win."""
    rng = np.random.default_rng(5)
    inputs = random_batch() | {
        "queries": token_vectors(rng, B, 3),
        "passages": token_vectors(rng, C, 4),
    }
    inputs["passages"][0], inputs["passages"][0, 0] = 0, -inputs["queries"][0, 0]
    scores = maxsim_by_loops(inputs["queries"], inputs["passages"])
    assert scores[0, 0] < 0
    masks = inputs["positive"], inputs["negative"]
    expected = info_nce_by_loops(scores, np.eye(C), *masks, temperature=0.05)
    assert float(info_nce(inputs)) == pytest.approx(expected, rel=1e-5)


def test_the_gradient_of_maxsim_reaches_only_the_best_tokens(any_mesh):
    rng = np.random.default_rng(6)
    inputs = random_batch() | {
        "queries": token_vectors(rng, B, 3),
        "passages": token_vectors(rng, C, 4),
    }
    masks = [layout.rows(inputs[name]) for name in ("positive", "negative")]

    def value(queries, passages):
        return losses.info_nce(queries, passages, *masks, temperature=0.5)

    def with_the_chosen(queries, passages):
        """As if each token had been given its passage token: a product without a maximum."""
        dots = np.einsum("bte,cse->bcts", inputs["queries"], inputs["passages"])
        dots[:, :, :, :] = np.where(np.any(inputs["passages"] != 0, 2)[None, :, None], dots, -2)
        best = dots.argmax(-1)
        chosen = passages[np.arange(C)[None, :, None], best]
        asks = np.any(inputs["queries"] != 0, 2)
        sums = jnp.einsum("bte,bcte->bct", queries, chosen) * asks[:, None]
        scores = sums.sum(-1) / asks.sum(1)[:, None] / 0.5
        negative, positive = inputs["negative"], inputs["positive"]
        others = jax.nn.logsumexp(jnp.where(negative, scores, -1e30), axis=1, keepdims=True)
        return jnp.where(positive, jnp.logaddexp(scores, others) - scores, 0).sum() / positive.sum()

    vectors = inputs["queries"], inputs["passages"]
    ours = jax.jit(jax.grad(value, (0, 1)))(*map(layout.rows, vectors))
    with jax.set_mesh(layout.make_mesh((1, 1, 1))):
        expected = jax.grad(with_the_chosen, (0, 1))(*map(jnp.asarray, vectors))
    for gradient, exact in zip(ours, expected, strict=True):
        np.testing.assert_allclose(gradient, exact, atol=1e-5)
        assert np.abs(exact).max() > 1e-3
