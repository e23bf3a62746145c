"""What decides the replies of a run's own model."""

import pytest

from ark_jax.recipes.ark import config
from ark_jax.recipes.common.ask import llm_settings


@pytest.mark.parametrize("role", ["llm", "reader", "judge"])
def test_our_own_models_replies_hang_on_its_type_and_draws_on_the_seed(role, tmp_path):
    c = config.ark()
    c.generator.path, c[role].backend, c[role].temperature = str(tmp_path), "local", 0.0
    key = lambda: llm_settings(c, role).key(("x",))
    greedy = key()
    c.seed = 7
    assert key() == greedy
    c.generator.dtype = "bfloat16"
    assert key() != greedy
    c[role].temperature = 0.7
    drawn, c.seed = key(), 8
    assert key() != drawn
