"""The weighted likelihood with shared prompts: values and gradients of a plain forward pass."""

import functools
import re
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import tiny
from support.decoders import open_model

from ark_jax import layout
from ark_jax.models import lora
from ark_jax.models.token_probabilities import token_log_probs
from ark_jax.train import likelihood
from ark_jax.train.groups import BatchShape, Group
from ark_jax.train.likelihood import LikelihoodObjective, group_arrays, step_flops
from ark_jax.train.policy import PolicyLoss, token_loss

SETTINGS = PolicyLoss(
    mean="sequence", ratio="token", clip_low=0.1, clip_high=0.3, kl="k3", kl_coefficient=0.2
)


def make_groups() -> list[Group]:
    """Prompts of 1 to 13 tokens, one of them twice, with 1 to 4 completions of 1 to 9 tokens."""
    random = np.random.default_rng(4)
    ids = lambda n: random.integers(5, tiny.VOCAB, n).tolist()
    prompt = ids(13)
    groups = []
    for head, lengths in (
        (prompt, [4, 7, 1]),
        (ids(1), [3, 5]),
        (ids(9), [6, 2, 2, 9]),
        (prompt, [5]),
    ):
        numbers = [random.normal(-6, 1, n).tolist() for n in lengths]
        closer = [(np.array(x) + random.normal(0, 0.2, len(x))).tolist() for x in numbers]
        advantages = random.normal(size=len(lengths))
        groups.append(Group(head, [ids(n) for n in lengths], advantages, numbers, closer))
    return groups


GROUPS = make_groups()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny.write(tmp_path_factory.mktemp("decoder"), "qwen3", tokenizer="chat")


def repeated(groups: list[Group]) -> dict[str, np.ndarray]:
    """Each completion behind a prompt of its own, and its numbers at its own tokens, `[n t]`."""
    rows = [(group, i) for group in groups for i in range(len(group.completions))]
    width = max(len(group.prompt_ids) + max(map(len, group.completions)) for group in groups)
    out = {
        "tokens": np.zeros((len(rows), width), np.int32),
        "advantages": np.array([group.advantages[i] for group, i in rows], np.float32),
        "mask": np.zeros((len(rows), width), bool),
        "visible": np.zeros((len(rows), width), bool),
        "old": np.zeros((len(rows), width), np.float32),
        "reference": np.zeros((len(rows), width), np.float32),
    }
    for row, (group, i) in enumerate(rows):
        start, end = len(group.prompt_ids), len(group.prompt_ids) + len(group.completions[i])
        out["tokens"][row, :end] = [*group.prompt_ids, *group.completions[i]]
        out["visible"][row, :end] = out["mask"][row, start:end] = True
        out["old"][row, start:end] = group.old[i]
        out["reference"][row, start:end] = group.policy_reference[i]
    return out


def plain_loss(model, cfg, x, log_probs=None):
    """The loss from one pass over repeated prompts, all logits at once unless given `log_probs`."""
    if log_probs is None:
        hidden = model(x["tokens"], x["visible"], cfg)
        logits = jax.vmap(lambda row: model.logits(row, cfg), in_axes=1, out_axes=1)(hidden)
        picked = jnp.take_along_axis(
            jax.nn.log_softmax(logits[:, :-1]), x["tokens"][:, 1:, None], axis=2
        )
        log_probs = jnp.pad(picked[..., 0], ((0, 0), (1, 0)))
    return token_loss(log_probs, x["old"], x["reference"], x["advantages"], x["mask"], SETTINGS)[0]


@functools.cache
def plain_gradient(folder):
    """Loss and gradient of the plain pass on one device."""
    with jax.set_mesh(layout.make_mesh((1, 1, 1))):
        lm, x = open_model(folder), jax.tree.map(layout.rows, repeated(GROUPS))
        f = jax.jit(jax.value_and_grad(plain_loss), static_argnums=1)
        return jax.tree.map(np.asarray, f(lm.model, lm.cfg, x))


def assert_same_gradient(ours, expected) -> None:
    (loss, gradient), (other_loss, other) = ours, expected
    assert float(loss) == pytest.approx(float(other_loss), rel=1e-5)
    largest = max(np.abs(x).max() for x in jax.tree.leaves(other))
    for x, y in zip(jax.tree.leaves(gradient), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(x, y, atol=3e-5 * largest)
        assert np.any(y)


def differentiate(objective, trainable, frozen, arrays):
    f = jax.jit(jax.value_and_grad(objective, has_aux=True))
    (loss, metrics), gradient = f(trainable, frozen, arrays)
    return (loss, gradient), {name: float(value) for name, value in metrics.items()}


def test_shared_prompts_give_the_gradient_of_repeated_prompts(folder, any_mesh):
    lm = open_model(folder)
    arrays = group_arrays(GROUPS, BatchShape.holding([GROUPS]))
    gradient, metrics = differentiate(
        LikelihoodObjective(lm.cfg, SETTINGS, True), lm.model, None, arrays
    )
    assert_same_gradient(gradient, plain_gradient(folder))
    assert metrics["completions"] == 10 and 0 < metrics["clip_fraction"] < 1
    assert 0 < metrics["entropy"] < np.log(tiny.VOCAB)


def test_packed_and_padded_prompts_have_the_same_gradient(folder, mesh):
    lm, x = open_model(folder), jax.tree.map(layout.rows, repeated(GROUPS))

    def loss(model):
        log_probs = token_log_probs(model, lm.cfg, x["tokens"], x["visible"], capacity=160)
        return plain_loss(model, lm.cfg, x, log_probs)

    gradient = jax.jit(jax.value_and_grad(loss))(lm.model)
    assert_same_gradient(gradient, plain_gradient(folder))


def test_the_gradient_of_an_adapter_equals_that_of_the_merged_model(folder, mesh):
    lm = open_model(folder)
    settings = {"lora_alpha": 5.0, "lora_targets": ("v", "down")}
    split = lambda rank: lora.split_weights(
        lm.model, lm.cfg, folder, SimpleNamespace(lora_rank=rank, **settings), seed=1
    )
    adapter, frozen = split(3)
    random = np.random.default_rng(0)
    adapter = jax.tree.map(lambda x: jnp.asarray(random.normal(0, 0.1, x.shape), x.dtype), adapter)
    arrays = group_arrays(GROUPS, BatchShape.holding([GROUPS]))
    gradient, _ = differentiate(LikelihoodObjective(lm.cfg, SETTINGS), adapter, frozen, arrays)
    x = jax.tree.map(layout.rows, repeated(GROUPS))
    loss = lambda adapter: plain_loss(lora.merge(frozen, adapter), lm.cfg, x)
    expected = jax.jit(jax.value_and_grad(loss))(adapter)
    assert_same_gradient(gradient, expected)
    assert split(0) == (lm.model, None)


def test_log_probabilities_and_entropy_equal_those_of_a_plain_softmax(folder, mesh):
    lm = open_model(folder)
    arrays = group_arrays(GROUPS, BatchShape.holding([GROUPS]))
    log_probs, entropy = jax.jit(
        lambda model, batch: likelihood.completion_log_probs(model, lm.cfg, batch, entropy=True)
    )(lm.model, arrays)
    x = repeated(GROUPS)
    tokens, visible = layout.rows(x["tokens"]), layout.rows(x["visible"])

    @jax.jit
    def all_logits(model):
        hidden = model(tokens, visible, lm.cfg)
        return jax.vmap(lambda row: model.logits(row, lm.cfg), in_axes=1, out_axes=1)(hidden)

    logs = np.asarray(jax.nn.log_softmax(all_logits(lm.model)), np.float64)
    predicted = x["mask"][:, 1:]
    picked = np.take_along_axis(logs[:, :-1], x["tokens"][:, 1:, None], 2)[..., 0]
    entropies = -(np.exp(logs) * logs).sum(-1)[:, :-1]
    mask = np.asarray(arrays.mask)
    assert not np.asarray(log_probs)[~mask].any() and not np.asarray(entropy)[~mask].any()
    for ours, expected in ((log_probs, picked), (entropy, entropies)):
        # The two groups of one prompt stand side by side in the arrays.
        np.testing.assert_allclose(
            np.sort(np.asarray(ours)[mask]), np.sort(expected[predicted]), rtol=2e-5, atol=1e-5
        )


def test_the_gradient_holds_the_logits_of_one_block_at_a_time(folder, mesh, monkeypatch):
    lm, objective = open_model(folder), LikelihoodObjective(open_model(folder).cfg, SETTINGS, True)
    arrays = group_arrays(GROUPS, BatchShape.holding([GROUPS]))
    for block in (8, 16):
        monkeypatch.setattr(likelihood, "LOGIT_BLOCK", block)
        gradient = jax.jit(jax.grad(lambda *args: objective(*args)[0]))
        text = gradient.lower(lm.model, None, arrays).as_text()
        shapes = re.findall(rf"tensor<([0-9x]+)x{tiny.VOCAB}xf32>", text)
        rows = {int(np.prod(list(map(int, shape.split("x"))))) for shape in shapes}
        assert max(rows - {tiny.WIDTH}) == block  # the head's gradient may be transposed


def test_flops_count_each_prompt_once(folder, mesh):
    cfg = open_model(folder).cfg
    tokens, work = step_flops(cfg, GROUPS, 0)
    heads = 12 + 0 + 8
    assert tokens == heads + 44
    alone, separate = step_flops(cfg, [Group([1], [[1] * 9], [1.0])], 0)
    assert alone == 9
    per_token = 6 * (sum(x.size for x in jax.tree.leaves(open_model(folder).model.blocks)))
    assert separate == pytest.approx(9 * (per_token + 6 * cfg.vocab * cfg.width), rel=0.05)
    assert 0 < step_flops(cfg, GROUPS, 10)[1] < work
