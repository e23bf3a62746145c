"""The golden file is what the installed TRL and google-tunix compute."""

import pytest
from support import policy_goldens

GOLDEN = policy_goldens.read()


def assert_same(computed, expected) -> None:
    if isinstance(expected, dict):
        assert computed.keys() == expected.keys()
        for name, value in expected.items():
            assert_same(computed[name], value)
    elif isinstance(expected, list):
        assert len(computed) == len(expected)
        for x, y in zip(computed, expected, strict=True):
            assert_same(x, y)
    else:
        assert computed == pytest.approx(expected, abs=1e-7)


def test_stored_losses_equal_those_of_trl():
    pytest.importorskip("trl", reason="pip install 'ark-jax[reference]'")
    assert_same(policy_goldens.trl_losses(), GOLDEN["trl"])


def test_stored_losses_and_advantages_equal_those_of_tunix():
    pytest.importorskip("tunix", reason="pip install google-tunix==0.1.7")
    assert_same(policy_goldens.tunix_losses(), GOLDEN["tunix"])
    assert_same(policy_goldens.tunix_advantages(), GOLDEN["advantages"])
