"""Tokens are drawn as often as they are likely, by the seed alone."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.decoders import PROMPTS, STEPS, open_model

from ark_jax import layout
from ark_jax.models import sampling

LOGITS = np.log([0.4, 0.3, 0.2, 0.1])


@pytest.mark.parametrize(
    ("temperature", "top_p", "wanted"),
    [
        (1.0, None, [0.4, 0.3, 0.2, 0.1]),
        (0.5, None, np.array([16, 9, 4, 1]) / 30),
        (
            1.0,
            0.65,
            [4 / 7, 3 / 7, 0, 0],
        ),  # the likeliest whose sum reaches it; below, after the temperature
        (2.0, 0.8, np.array([0.4, 0.3, 0.2, 0]) ** 0.5 / (np.array([0.4, 0.3, 0.2]) ** 0.5).sum()),
    ],
)
@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 2, 2)], ids=str)
def test_token_frequencies_match_their_probabilities(temperature, top_p, wanted, shape):
    with jax.set_mesh(layout.make_mesh(shape)):
        check_draws(temperature, top_p, wanted)


def check_draws(temperature, top_p, wanted) -> None:
    n = 20_000
    logits = layout.rows(np.tile(LOGITS.astype(np.float32), (n, 1)))
    keys = layout.rows(np.asarray(sampling.row_keys(3, np.arange(n)[:, None])))
    draw = jax.jit(
        lambda logits, keys, made: sampling.next_tokens(
            logits,
            sampling.Sampling(keys, temperature, top_p),
            jnp.full_like(keys[:, 0], made, jnp.int32),
        )
    )
    shares = np.bincount(np.asarray(draw(logits, keys, 1)), minlength=4) / n
    np.testing.assert_allclose(shares, wanted, rtol=0, atol=0.015)  # four standard deviations
    assert (shares[np.array(wanted) == 0] == 0).all()
    other = np.asarray(draw(logits, keys, 2)) == np.asarray(draw(logits, keys, 1))
    assert other.mean() == pytest.approx(np.square(wanted).sum(), abs=0.02)  # each step draws anew


@pytest.mark.slow
def test_draws_depend_on_the_seed_but_not_on_the_batches(folder, mesh):
    lm = open_model(folder("plain"))
    draw = lambda **changes: lm.generate(
        PROMPTS * 2, **{"max_new_tokens": STEPS, "temperature": 1.0, "seed": 5} | changes
    )
    first = draw()
    assert draw(batch_tokens=64) == first
    assert draw(seed=6) != first
    assert first[: len(PROMPTS)] != first[len(PROMPTS) :]  # the same prompts, elsewhere in the list
    greedy_texts = lm.generate(PROMPTS * 2, max_new_tokens=STEPS)
    assert draw(top_p=1e-6) == draw(temperature=1e-7) == greedy_texts


@pytest.mark.parametrize(
    "changes", [{"max_new_tokens": 0}, {"temperature": -1.0}, {"top_p": 0.0}, {"top_p": 1.5}]
)
def test_invalid_sampling_settings_are_refused(changes, folder, mesh):
    with pytest.raises(ValueError, match=next(iter(changes))):
        open_model(folder("plain")).generate(PROMPTS, **{"max_new_tokens": 2} | changes)
