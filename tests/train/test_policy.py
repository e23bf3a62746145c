"""Advantages and the token loss: TRL's and tunix's numbers, definitions, groups that are dead."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import policy_goldens

from ark_jax.train.policy import PolicyLoss, advantages, live_groups, token_loss

GOLDEN = policy_goldens.read()
GIVEN = policy_goldens.inputs()
LOSSES = [(library, name) for library in ("trl", "tunix") for name in GOLDEN[library]]


def settings_of(library: str, name: str) -> PolicyLoss:
    """The settings that "mean ratio kl" names, all else unlike the defaults."""
    mean, ratio, kl = name.split()
    return PolicyLoss(
        mean=mean,
        ratio=ratio,
        clip_low=policy_goldens.CLIP_LOW,
        clip_high=policy_goldens.CLIP_HIGH,
        kl=kl,
        kl_coefficient=policy_goldens.KL_COEFFICIENT,
        constant=policy_goldens.CONSTANTS[library],
    )


@functools.partial(jax.jit, static_argnums=1)
@functools.partial(jax.value_and_grad, has_aux=True)
def differentiate(log_probs, settings, old, reference, gains, mask):
    return token_loss(log_probs, old, reference, gains, mask, settings)


def compute(settings: PolicyLoss, **changes):
    """(loss, metrics) and the gradient of the golden step, some of its inputs changed."""
    x = {name: None if v is None else jnp.asarray(v) for name, v in (GIVEN | changes).items()}
    return differentiate(
        x["log_probs"], settings, x["old"], x["reference"], x["advantages"], x["mask"]
    )


def assert_equal_to(golden: dict, settings: PolicyLoss) -> None:
    (loss, _), gradient = compute(settings)
    assert float(loss) == pytest.approx(golden["loss"], abs=5e-7)
    np.testing.assert_allclose(gradient, golden["gradient"], atol=1e-8)


@pytest.mark.parametrize(("library", "name"), LOSSES)
def test_losses_and_gradients_match_trl_and_tunix(library, name):
    assert_equal_to(GOLDEN[library][name], settings_of(library, name))


def test_the_stored_losses_differ_between_settings():
    losses = [GOLDEN[library][name]["loss"] for library, name in LOSSES]
    same = len({name for _, name in LOSSES if not name.startswith("constant")})
    constant = sum(name.startswith("constant") for _, name in LOSSES)
    assert len(set(np.round(losses, 5))) == same + constant


@pytest.mark.parametrize("scale", ["sd", "none", "leave_one_out"])
def test_advantages_match_tunix(scale):
    groups = np.repeat([0, 1], policy_goldens.SAMPLES)
    ours = advantages(GIVEN["rewards"], groups, scale=scale)
    np.testing.assert_allclose(ours, GOLDEN["advantages"][scale], atol=2e-7)


# Rewards whose float64 sums are exact, so that equal means are equal.
REWARDS = st.integers(-8, 8).map(lambda x: x / 8)
STEPS = st.lists(st.tuples(st.integers(0, 4), REWARDS), min_size=2, max_size=24)


@given(STEPS, st.sampled_from(["sd", "none", "leave_one_out"]), st.randoms())
def test_advantages_depend_only_on_their_group(step, scale, random):
    step = [*step, *step]  # no group of one
    groups, rewards = map(np.array, zip(*step, strict=True))
    ours = advantages(rewards, groups, scale=scale, eps=1e-3)
    for group in np.unique(groups):
        group_rewards = rewards[groups == group]
        expected = group_rewards - group_rewards.mean()
        if scale == "sd":
            expected = expected / (group_rewards.std(ddof=1) + 1e-3)
        elif scale == "leave_one_out":
            expected = [r - np.delete(group_rewards, i).mean() for i, r in enumerate(group_rewards)]
        np.testing.assert_allclose(ours[groups == group], expected, rtol=1e-6, atol=1e-7)
        assert abs(ours[groups == group].sum()) < 1e-4
    order = random.sample(range(len(step)), len(step))
    again = advantages(rewards[order], groups[order], scale=scale, eps=1e-3)
    np.testing.assert_allclose(again, ours[order], rtol=1e-6, atol=1e-7)


@given(STEPS)
def test_equal_rewards_give_zero_advantages(step):
    groups = np.array([group for group, _ in step] * 2)
    for value in (0.1, 1 / 3, 0.7):
        assert not advantages(np.full(len(groups), value), groups).any()


GROUPS = np.repeat(np.arange(4), 3)
OUTCOME = np.array([0, 1, 1, 0, 0, 0, 1, 1, 1, 0, 0, 0])
# The second group differs in relevance only, by what eq. 7 makes of close cosines.
REWARDS = OUTCOME + 2e-4 * np.array([0, 0, 0, 1, 2, 3, 5, 5, 5, 0, 0, 0])


def test_only_groups_with_different_outcomes_are_live():
    assert live_groups(OUTCOME, GROUPS).tolist() == [True, False, False, False]


def test_only_live_groups_have_advantages():
    gated = advantages(REWARDS, GROUPS, live=live_groups(OUTCOME, GROUPS))
    # Of 0, 1, 1: less their mean 2/3, over their standard deviation 1/sqrt(3).
    assert gated[:3].tolist() == pytest.approx([-1.1547, 0.5774, 0.5774], abs=1e-4)
    assert not gated[3:].any()


def test_without_the_gate_a_small_difference_has_full_advantages():
    assert advantages(REWARDS, GROUPS)[3:6].tolist() == pytest.approx([-1, 0, 1], abs=0.01)
    unscaled = advantages(REWARDS, GROUPS, scale="none")
    assert unscaled[3:6].tolist() == pytest.approx([-2e-4, 0, 2e-4])


def test_groups_that_are_not_live_have_no_gradient():
    gated = advantages(REWARDS, GROUPS, live=live_groups(OUTCOME, GROUPS))
    padded = np.array([*gated[3:6], *[0] * 5], np.float32)
    (_, _), gradient = compute(PolicyLoss(), advantages=padded)
    assert not gradient.any()


@pytest.mark.parametrize(
    ("rewards", "groups", "changes", "message"),
    [
        ([0, np.nan], [0, 0], {}, "answer 1: its reward is nan"),
        ([0, np.inf], [0, 0], {}, "answer 1: its reward is inf"),
        ([0, 1, 1], [0, 0, 1], {}, "group 1 has one answer"),
        ([0, 1, 1], [0, 0, 2], {"live": np.ones(2, bool)}, "group 2 is not among the 2 groups"),
        (
            [0, 1],
            [0, 0],
            {"scale": "batch"},
            "scale='batch': must be one of sd, none, leave_one_out",
        ),
    ],
)
def test_invalid_rewards_are_refused(rewards, groups, changes, message):
    with pytest.raises(ValueError, match=message):
        advantages(np.array(rewards), np.array(groups), **changes)


def test_a_dead_group_may_have_a_single_answer():
    live = np.array([True, False])
    ours = advantages(np.array([0, 1, 1]), np.array([0, 0, 1]), live=live)
    assert ours[2] == 0 and ours[0] == -ours[1] != 0


@pytest.mark.parametrize("mean", ["token", "sequence", "constant"])
@pytest.mark.parametrize("ratio", ["token", "sequence"])
def test_on_policy_ratios_have_the_gradient_of_the_likelihood(mean, ratio):
    """A sequence's ratio spreads its gradient evenly, with 1 / length."""
    settings = PolicyLoss(mean=mean, ratio=ratio, constant=5)
    likelihood = PolicyLoss(mean=mean, ratio="none", constant=5)
    (_, metrics), on_policy = compute(settings, old=None, reference=None)
    _, expected = compute(likelihood, old=None, reference=None)
    if ratio == "token":
        np.testing.assert_allclose(on_policy, expected, atol=1e-8)
    else:
        spread = expected.sum(1, keepdims=True) / GIVEN["mask"].sum(1, keepdims=True)
        np.testing.assert_allclose(on_policy, spread * GIVEN["mask"], atol=1e-8)
    assert metrics == {"clip_fraction": 0}


def test_only_clipped_tokens_have_no_gradient():
    settings = PolicyLoss(clip_low=0.15, clip_high=0.32)
    (_, metrics), gradient = compute(settings)
    ratio, gains = np.exp(GIVEN["log_probs"] - GIVEN["old"]), GIVEN["advantages"][:, None]
    held = np.where(gains > 0, ratio > 1.32, ratio < 0.85) & GIVEN["mask"]
    assert 0 < held.sum() < GIVEN["mask"].sum()
    assert ((gradient == 0) == (held | ~GIVEN["mask"])).all()
    assert float(metrics["clip_fraction"]) == pytest.approx(held.sum() / GIVEN["mask"].sum())
    k1 = (GIVEN["log_probs"] - GIVEN["reference"])[GIVEN["mask"]].mean()
    assert float(metrics["k1"]) == pytest.approx(k1, rel=1e-5)


@pytest.mark.parametrize("mean", ["token", "sequence", "constant"])
@pytest.mark.parametrize("kl", ["none", "k2", "k3"])
def test_masked_tokens_do_not_count(mean, kl):
    """Neither its value, be it NaN, nor its place in a denominator."""
    settings = PolicyLoss(mean=mean, kl=kl, kl_coefficient=0.3, constant=9)
    empty = np.where([[True]] * 6 + [[False]] * 2, GIVEN["mask"], False)
    wild = {
        name: np.where(empty, GIVEN[name], np.nan) for name in ("log_probs", "old", "reference")
    }
    (loss, metrics), gradient = compute(settings, mask=empty, **wild)
    alone = {name: x[:6] for name, x in GIVEN.items()}
    (expected, others), slope = compute(settings, **alone)
    assert float(loss) == pytest.approx(float(expected), rel=1e-6)
    np.testing.assert_allclose(gradient[:6], slope, atol=1e-8)
    assert not gradient[6:].any() and metrics.keys() == others.keys()
    for name, value in others.items():
        assert float(metrics[name]) == pytest.approx(float(value), rel=1e-5)


def test_only_k2_has_the_gradient_of_the_divergence():
    """In expectation over the policy's own draws, on an alphabet of three (arXiv 2510.01555)."""
    logits, reference = jnp.array([0.3, -0.8, 1.1]), jnp.log(jnp.array([0.5, 0.2, 0.3]))
    policy = jax.nn.softmax(logits)

    def expected(kl):
        def term(logits, draw):
            log_prob = jax.nn.log_softmax(logits)[draw]
            settings = PolicyLoss(ratio="none", kl=kl, kl_coefficient=1.0)
            args = (reference[draw][None, None], jnp.zeros(1), jnp.ones((1, 1), bool))
            return token_loss(log_prob[None, None], None, *args, settings)[0]

        gradients = jax.jit(jax.vmap(jax.grad(term), (None, 0)))(logits, jnp.arange(3))
        return policy @ gradients

    divergence = lambda x: (jax.nn.softmax(x) * (jax.nn.log_softmax(x) - reference)).sum()
    true = jax.grad(divergence)(logits)
    np.testing.assert_allclose(expected("k2"), true, atol=1e-6)
    assert np.abs(expected("k3") - true).max() > 0.01


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mean": "batch"}, "mean='batch': must be one of token, sequence, constant"),
        ({"ratio": "word"}, "ratio='word': must be one of none, token, sequence"),
        ({"kl": "k1"}, "kl='k1': must be one of none, k2, k3"),
        ({"clip_low": 1.5}, r"clip_low=1.5, .* must be in \[0, 1\]"),
        ({"constant": 0}, "constant=0: .* at least 1"),
    ],
)
def test_invalid_loss_settings_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        PolicyLoss(**changes)


def test_a_divergence_without_a_reference_is_refused():
    with pytest.raises(ValueError, match="kl='k3' needs the log-probabilities of a reference"):
        compute(PolicyLoss(kl="k3"), reference=None)
