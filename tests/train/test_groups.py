"""Groups as arrays: every completion once behind its prompt, on any mesh; what is refused."""

import dataclasses

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ark_jax import layout
from ark_jax.train.groups import BatchShape, Group, check_groups
from ark_jax.train.likelihood import group_arrays

MESHES = [(1, 1, 1), (2, 2, 2), (1, 8, 1)]
IDS = lambda most: st.lists(st.integers(0, 3), min_size=1, max_size=most)


@st.composite
def steps(draw) -> list[tuple]:
    """What groups are made of; some have the same prompt, and some no completion."""
    groups = []
    for name in range(draw(st.integers(0, 5))):
        completions = draw(st.lists(IDS(9), max_size=4))
        numbers = [[float(name + token) for token in ids] for ids in completions]
        advantages = [name + i / 8 for i in range(len(completions))]
        groups.append((draw(IDS(3)), completions, advantages, numbers, numbers))
    return groups


def rows_of(groups: list[Group]) -> list[tuple]:
    """(prompt, completion, advantage, old) of every completion, sorted."""
    return sorted(
        (tuple(group.prompt_ids), tuple(ids), float(advantage), tuple(old))
        for group in groups
        for ids, advantage, old in zip(group.completions, group.advantages, group.old, strict=True)
    )


def rows_in(arrays) -> list[tuple]:
    """The same, read from a step's arrays as the forward pass reads them."""
    arrays = jax.tree.map(np.asarray, arrays)
    devices = layout.batch_multiple()
    prompts, rows = len(arrays.prompt_mask) // devices, len(arrays.labels) // devices
    token_rows = []
    suffixes = arrays.completions
    for device in range(devices):
        row = device * rows
        for number in range(device * prompts, (device + 1) * prompts):
            place = device * prompts + suffixes.prefix_indices[number]
            head = arrays.prompt_tokens[place][arrays.prompt_mask[place]]
            left = suffixes.tokens_per_prefix[number].sum()
            while left:
                visible = suffixes.mask[row]
                inputs, labels = suffixes.tokens[row][visible], arrays.labels[row][visible]
                assert (inputs[1:] == labels[:-1]).all()
                assert suffixes.prefix_lengths[row] == len(head)
                assert (arrays.policy_reference[row] == arrays.old[row]).all()
                prompt = (*head.tolist(), int(inputs[0]))
                old = tuple(arrays.old[row][visible].tolist())
                advantage = float(arrays.advantages[row])
                token_rows.append((prompt, tuple(labels.tolist()), advantage, old))
                left -= len(inputs)
                row += 1
        assert not suffixes.mask[row : (device + 1) * rows].any()
    return sorted(token_rows)


@settings(max_examples=40)
@given(steps(), steps(), st.sampled_from(MESHES))
def test_every_completion_is_placed_once_after_its_prompt(groups, others, mesh):
    groups, others = ([Group(*fields) for fields in step] for step in (groups, others))
    with jax.set_mesh(layout.make_mesh(mesh)):
        full = BatchShape.full(prompts=2, samples=2, prompt_tokens=2, completion_tokens=4)
        for shape in (BatchShape.holding([others, groups]), full.shrunk(groups)):
            arrays = group_arrays(groups, shape)
            if groups:
                assert rows_in(arrays) == rows_of(groups)
            else:
                assert not arrays.mask.any() and arrays.old is None
            prompts = {tuple(group.prompt_ids) for group in groups if group.completions}
            assert int(arrays.completions.tokens_per_prefix.any(1).sum()) == len(prompts)
            devices = layout.batch_multiple()
            for mask, room in ((arrays.prompt_mask, shape.prompt_room), (arrays.mask, shape.room)):
                assert np.asarray(mask).reshape(devices, -1).sum(1).max() <= room


def test_the_steps_of_a_run_have_few_shapes(mesh):
    random = np.random.default_rng(0)
    full = BatchShape.full(prompts=4, samples=8, prompt_tokens=512, completion_tokens=32)
    assert full == BatchShape(4, 512, 2048, 32, 32, 256, 1024)

    def step(longest: int) -> list[Group]:
        lengths = random.integers(longest // 2, longest, (4, 8))
        prompts = random.integers(0, 9, (4, 448 + int(random.integers(64))))
        return [
            Group(prompt, [[1] * n for n in row], [1.0] * 8)
            for prompt, row in zip(prompts, lengths, strict=True)
        ]

    shapes = {full.shrunk(step(longest)) for longest in (8, 16, 32) for _ in range(40)}
    assert len(shapes) <= 10 and all(shape.rows == 32 for shape in shapes)
    small = full.shrunk(step(8))
    assert small.room < full.room // 4 and small.tokens_per_prompt < full.tokens_per_prompt // 4
    assert full.shrunk(step(512)).tokens >= 511  # a step that exceeds the full one
    assert full.shrunk([]).room <= 16


GROUP = Group([1, 2], [[3, 4], [5]], [1.0, -1.0], name="q7")
LOGS = [[0.0, 0.0], [0.0]]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prompt_ids": []}, r"group 0 \(q7\): its prompt has no token"),
        (
            {"completions": [[3], []]},
            r"\(q7\), completion 1 has no token; keep the token that ends",
        ),
        ({"advantages": [1.0]}, "1 advantages of 2 completions"),
        ({"ended": [True]}, "1 ended of 2 completions"),
        ({"advantages": [1.0, np.nan]}, "its advantages are .*nan"),
        (
            {"completions": [[3] * 7, [5]]},
            "completion 0: 9 tokens with its prompt, the model takes 8",
        ),
        ({"old": [[0.0], [0.0]]}, "completion 0: 1 numbers in `old` for 2 tokens"),
        ({"policy_reference": [[0.0, 0.0]]}, "1 policy_reference of 2 completions"),
        ({"completions": [[3, 16], [5]]}, "token id 16, the model has 16 ids"),
        ({"prompt_ids": [-1]}, "token id -1"),
    ],
)
def test_an_invalid_group_is_refused(changes, message):
    check_groups([GROUP, dataclasses.replace(GROUP)], 8, 16)
    with pytest.raises(ValueError, match=message):
        check_groups([dataclasses.replace(GROUP, **changes)], 8, 16)


def test_groups_of_a_step_with_different_fields_are_refused():
    with pytest.raises(ValueError, match="some groups of the step have `old`, others have not"):
        check_groups([GROUP, dataclasses.replace(GROUP, old=LOGS)], 8, 16)


def test_completions_that_were_cut_off_can_be_dropped():
    group = dataclasses.replace(GROUP, old=LOGS, ended=[False, True])
    rest = group.without_cut_off()
    assert (rest.completions, rest.advantages, rest.old) == ([[5]], [-1.0], [[0.0]])
    assert rest.policy_reference is None and rest.name == "q7"


def test_dropping_completions_of_unknown_end_is_refused():
    with pytest.raises(ValueError, match="q7: `ended` is missing, so cut-off completions"):
        GROUP.without_cut_off()


def test_a_group_without_advantages_is_dead():
    assert dataclasses.replace(GROUP, advantages=[0.0, 0.0]).is_dead and not GROUP.is_dead
