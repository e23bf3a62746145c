"""A step in parts: each completion once, and the gradient of the whole."""

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import tiny

from ark_jax import layout
from ark_jax.models.language import LanguageModel
from ark_jax.train import parts
from ark_jax.train.groups import BatchShape, Group
from ark_jax.train.likelihood import LikelihoodObjective, group_arrays, step_arrays
from ark_jax.train.policy import PolicyLoss


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny.write(tmp_path_factory.mktemp("parts"), "llama", tokenizer="plain")


def step(prompts: int, seed: int = 0) -> list[Group]:
    random = np.random.default_rng(seed)
    ids = lambda count: random.integers(3, tiny.VOCAB, count).tolist()
    groups = []
    for _ in range(prompts):
        completions = [ids(random.integers(1, 6)) for _ in range(random.integers(1, 4))]
        numbers = lambda: [random.normal(-3, 0.3, len(x)) for x in completions]  # noqa: B023
        worth = random.normal(size=len(completions))
        groups.append(Group(ids(random.integers(1, 9)), completions, worth, numbers(), numbers()))
    return groups


@settings(max_examples=30)
@given(st.integers(1, 9), st.integers(1, 4), st.booleans())
def test_every_completion_is_in_one_part(count, prompts, repeat):
    groups = step(count)
    groups += [groups[0]] * repeat
    with jax.set_mesh(layout.make_mesh((1, 1, 1))):
        split_groups = parts.split(groups, prompts)
    rows = lambda groups: sorted(tuple(x) for group in groups for x in group.completions)
    assert rows(group for part in split_groups for group in part) == rows(groups)
    for part in split_groups:
        assert part and len({tuple(group.prompt_ids) for group in part}) <= prompts


# Two of the means divide by rows. Eight devices take all five prompts in one part.
@pytest.mark.parametrize(
    ("any_mesh", "mean"),
    [
        ((1, 1, 1), "token"),
        ((2, 2, 2), "sequence"),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (((1, 1, 1), "constant"), ((4, 1, 2), "token"), ((1, 8, 1), "token"))
        ),
    ],
    ids=str,
    indirect=["any_mesh"],
)
def test_the_gradient_in_parts_equals_that_of_the_whole_step(folder, any_mesh, mean):
    lm, groups = LanguageModel.from_pretrained(folder), step(5)
    loss = PolicyLoss(mean=mean, kl="k3", kl_coefficient=0.1, constant=4)
    objective = LikelihoodObjective(lm.cfg, loss, entropy=True)
    compute = jax.jit(jax.value_and_grad(lambda *x: objective(*x), has_aux=True))
    at_once = compute(lm.model, None, group_arrays(groups, BatchShape.holding([groups])))
    in_parts = parts.split(groups, 1)
    assert len(in_parts) == max(-(-5 // layout.batch_multiple()), 1)
    batch = step_arrays(in_parts, BatchShape.holding(in_parts))
    of_parts = compute(lm.model, None, batch)
    for a, b in zip(jax.tree.leaves(of_parts), jax.tree.leaves(at_once), strict=True):
        largest = max(float(np.abs(b).max()), 1e-3)
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), atol=2e-6 * largest, rtol=2e-5)


def test_a_part_has_about_as_many_tokens_as_the_budget(mesh):
    shape = BatchShape.full(prompts=4, samples=8, prompt_tokens=512, completion_tokens=32)
    assert parts.prompts_of_part(shape, 1024) == 1
    assert parts.prompts_of_part(shape, 1500) == 2
    assert parts.prompts_of_part(shape, 16384) == 4
    short = BatchShape.full(prompts=8, samples=1, prompt_tokens=130, completion_tokens=2)
    assert parts.prompts_of_part(short, 1024) == 8  # hardly more than a budget
