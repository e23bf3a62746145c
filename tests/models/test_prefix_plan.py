"""Shared prefixes: each row once, on its prefix's device, few tokens computed twice, few shapes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ark_jax.models import prefix_plan
from ark_jax.text import tokens as tk
from ark_jax.text.tokens import LENGTHS


@st.composite
def rows(draw):
    """Token ids of which many begin alike, each with the length that a prefix may take."""
    out = []
    for _ in range(draw(st.integers(0, 6))):
        start = draw(st.lists(st.integers(0, 2), max_size=12))
        for _ in range(draw(st.integers(1, 5))):
            ids = start + draw(st.lists(st.integers(0, 9), min_size=1, max_size=8))
            out.append((ids, draw(st.integers(0, len(ids) - 1))))
    return draw(st.permutations(out))


def saved(groups: list[prefix_plan.PrefixGroup]) -> int:
    return sum((len(g.members) - 1) * g.prefix_length for g in groups)


@given(rows())
def test_a_group_begins_alike_and_every_row_is_in_one(some):
    groups = prefix_plan.group_by_prefix(some)
    assert sorted(i for g in groups for i in g.members) == list(range(len(some)))
    for g in groups:
        assert len({tuple(some[i][0][: g.prefix_length]) for i in g.members}) == 1
        assert g.prefix_length <= min(some[i][1] for i in g.members)
        if len(g.members) > 1:
            assert 2 * g.prefix_length >= max(len(some[i][0]) for i in g.members)


def test_what_a_chunk_shares_is_not_lost_for_what_all_share():
    """Chunks of 200 tokens follow an instruction of 40, with two questions each or one.

    The questions of a pair share their chunk, the others stand alone.
    """
    head, chunks = list(range(40)), [[100 + c] * 200 for c in range(6)]
    some = [
        (head + chunk + [c, q] * 10, 239)
        for c, chunk in enumerate(chunks)
        for q in range(2 if c < 3 else 1)
    ]
    groups = prefix_plan.group_by_prefix(some)
    assert sorted(len(g.members) for g in groups) == [1, 1, 1, 2, 2, 2]
    assert saved(groups) == 3 * 239


def test_few_shots_before_short_questions_are_shared_by_all():
    some = [([1] * 300 + [q] * 20, 315) for q in range(2, 12)]
    assert [(g.prefix_length, len(g.members)) for g in prefix_plan.group_by_prefix(some)] == [
        (300, 10)
    ]


def planned(
    some, budget=4096, parameters=1000, attention=10, devices=1
) -> list[prefix_plan.PrefixBatch]:
    return list(
        prefix_plan.plan_batches(
            some, budget=budget, parameters=parameters, attention=attention, devices=devices
        )
    )


@given(
    rows(), st.sampled_from([8, 64, 4096]), st.sampled_from([1, 10**9]), st.sampled_from([1, 2, 4])
)
def test_a_plan_holds_every_row_once_behind_its_prefix(some, budget, parameters, devices):
    """With programs dear beside tokens and tokens dear beside programs."""
    found = []
    for call in planned(some, budget, parameters, devices=devices):
        each = len(call.tokens) // devices
        assert len(call.tokens) % devices == 0 and call.tokens.shape[1] in LENGTHS
        assert call.mask.reshape(devices, -1).sum(1).max() <= call.capacity
        for batch in call.suffix_batches:
            b, t = batch.tokens.shape
            assert b == len(batch.members) and b % devices == 0 and t in LENGTHS
            assert batch.mask.reshape(devices, -1).sum(1).max() <= batch.capacity
            seats = batch.prefix_indices.reshape(devices, -1)
            for device in range(devices):
                row = device * (b // devices)
                for k, seat in enumerate(seats[device]):
                    g = device * seats.shape[1] + k
                    here = range(row, row := row + int(batch.rows_per_prefix[g].sum()))
                    assert batch.tokens_per_prefix[g].sum() == batch.mask[list(here)].sum()
                    for r in here:  # side by side, behind the prefix of a seat on their own device
                        prefix = call.tokens[device * each + seat][
                            call.mask[device * each + seat]
                        ].tolist()
                        assert batch.prefix_lengths[r] == len(prefix) and batch.mask[r].sum() >= 1
                        found.append(
                            (batch.members[r], prefix + batch.tokens[r][batch.mask[r]].tolist())
                        )
                assert all(i is None for i in batch.members[row : (device + 1) * (b // devices)])
    assert sorted(found) == [(i, ids) for i, (ids, _) in enumerate(some)]


def shapes(calls) -> set[tuple]:
    return {
        (
            call.tokens.shape,
            call.capacity,
            *(x.shape for x in (batch.tokens, batch.tokens_per_prefix, batch.rows_per_prefix)),
            batch.capacity,
        )
        for call in calls
        for batch in call.suffix_batches
    }


def test_padding_is_traded_against_programs():
    """Suffixes of 8 to 128 tokens follow two prefixes, in many batches.

    The more a program costs, the fewer shapes there are.
    """
    some = [([p] * 200 + [9 + n % 3] * n, 200) for p in range(2) for n in range(8, 129)]
    many, few, one = (planned(some, 512, parameters) for parameters in (10**12, 10**8, 1))
    assert len(shapes(many)) >= len(shapes(few)) >= len(shapes(one)) == 1
    assert len(shapes(many)) > 1
    rooms = lambda calls: sum(batch.capacity for call in calls for batch in call.suffix_batches)
    assert rooms(many) <= rooms(few) <= rooms(one)
    assert rooms(many) < 1.1 * sum(len(ids) - 200 for ids, _ in some)


@given(rows(), st.sampled_from([64, 4096]))
def test_no_array_is_much_larger_than_the_budget(some, budget):
    """Neither rows nor seats are padded to more than twice the budget.

    One row, or the grid of lengths, may take more.
    """
    for call in planned(some, budget, 10**12):
        for batch in call.suffix_batches:
            for count, size in (batch.tokens.shape, batch.tokens_per_prefix.shape):
                assert count * size <= max(2 * budget * 1.5**2, 64)


@pytest.mark.parametrize("devices", [1, 4])
def test_devices_are_given_like_work(devices):
    rng = np.random.default_rng(0)
    some = [
        ([c] * int(n) + [50 + q] * 5, int(n))
        for c, n in enumerate(rng.integers(20, 200, 32))
        for q in range(4)
    ]
    (call,) = planned(some, 10**6, devices=devices)
    for mask in (call.mask, *(batch.mask for batch in call.suffix_batches)):
        work = mask.reshape(devices, -1).sum(1)
        assert work.max() <= 1.1 * work.min()


def test_like_needs_share_a_shape_until_it_costs_more_than_a_compilation():
    cost = lambda shape: shape[0] * 10**10
    assert list(tk.share_shapes([(8, 1), (7, 2), (6, 3)], cost)) == [(8, 3)] * 3
    assert list(tk.share_shapes([(8, 1), (2, 1), (2, 1)], cost)) == [(8, 1), (2, 1), (2, 1)]
    assert list(tk.share_shapes([], cost)) == []
