"""Shared prefixes: every row once, on its prefix's device, few tokens computed twice, few shapes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ark_jax.models import sharing
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


def saved(groups: list[sharing.Group]) -> int:
    return sum((len(g.members) - 1) * g.prefix for g in groups)


@given(rows())
def test_a_group_begins_alike_and_every_row_is_in_one(some):
    groups = sharing.share(some)
    assert sorted(i for g in groups for i in g.members) == list(range(len(some)))
    for g in groups:
        assert len({tuple(some[i][0][: g.prefix]) for i in g.members}) == 1
        assert g.prefix <= min(some[i][1] for i in g.members)
        if len(g.members) > 1:
            assert 2 * g.prefix >= max(len(some[i][0]) for i in g.members)


def test_what_a_chunk_shares_is_not_lost_for_what_all_share():
    """Chunks of 200 tokens behind an instruction of 40, two or one question each: the pairs share, the others stand alone."""
    head, chunks = list(range(40)), [[100 + c] * 200 for c in range(6)]
    some = [(head + chunk + [c, q] * 10, 239) for c, chunk in enumerate(chunks) for q in range(2 if c < 3 else 1)]
    groups = sharing.share(some)
    assert sorted(len(g.members) for g in groups) == [1, 1, 1, 2, 2, 2]
    assert saved(groups) == 3 * 239


def test_few_shots_before_short_questions_are_shared_by_all():
    some = [([1] * 300 + [q] * 20, 315) for q in range(2, 12)]
    assert [(g.prefix, len(g.members)) for g in sharing.share(some)] == [(300, 10)]


def planned(some, budget=4096, parameters=1000, attention=10, devices=1) -> list[sharing.Call]:
    return list(sharing.plan(some, budget=budget, parameters=parameters, attention=attention, devices=devices))


@given(rows(), st.sampled_from([8, 64, 4096]), st.sampled_from([1, 10**9]), st.sampled_from([1, 2, 4]))
def test_a_plan_holds_every_row_once_behind_its_prefix(some, budget, parameters, devices):
    """With programs dear beside tokens and tokens dear beside programs."""
    found = []
    for call in planned(some, budget, parameters, devices=devices):
        each = len(call.tokens) // devices
        assert len(call.tokens) % devices == 0 and call.tokens.shape[1] in LENGTHS
        assert call.mask.reshape(devices, -1).sum(1).max() <= call.room
        for batch in call.batches:
            b, t = batch.tokens.shape
            assert b == len(batch.members) and b % devices == 0 and t in LENGTHS
            assert batch.mask.reshape(devices, -1).sum(1).max() <= batch.room
            seats = batch.seats.reshape(devices, -1)
            for device in range(devices):
                row = device * (b // devices)
                for k, seat in enumerate(seats[device]):
                    g = device * seats.shape[1] + k
                    here = range(row, row := row + int(batch.rows_of[g].sum()))
                    assert batch.tokens_of[g].sum() == batch.mask[list(here)].sum()
                    for r in here:  # side by side, behind the prefix of a seat on their own device
                        prefix = call.tokens[device * each + seat][call.mask[device * each + seat]].tolist()
                        assert batch.start[r] == len(prefix) and batch.mask[r].sum() >= 1
                        found.append((batch.members[r], prefix + batch.tokens[r][batch.mask[r]].tolist()))
                assert all(i is None for i in batch.members[row : (device + 1) * (b // devices)])
    assert sorted(found) == [(i, ids) for i, (ids, _) in enumerate(some)]


def shapes(calls) -> set[tuple]:
    return {(call.tokens.shape, call.room, *(x.shape for x in (batch.tokens, batch.tokens_of, batch.rows_of)), batch.room)
            for call in calls for batch in call.batches}


def test_padding_is_traded_against_programs():
    """Rests of 8 to 128 tokens behind two prefixes, in many batches: the dearer a program, the fewer shapes."""
    some = [([p] * 200 + [9 + n % 3] * n, 200) for p in range(2) for n in range(8, 129)]
    many, few, one = (planned(some, 512, parameters) for parameters in (10**12, 10**8, 1))
    assert len(shapes(many)) >= len(shapes(few)) >= len(shapes(one)) == 1
    assert len(shapes(many)) > 1
    rooms = lambda calls: sum(batch.room for call in calls for batch in call.batches)
    assert rooms(many) <= rooms(few) <= rooms(one)
    assert rooms(many) < 1.1 * sum(len(ids) - 200 for ids, _ in some)


@given(rows(), st.sampled_from([64, 4096]))
def test_no_array_is_much_larger_than_the_budget(some, budget):
    """Neither rows nor seats are padded to more than twice the budget, but for what one row or the grid of lengths takes."""
    for call in planned(some, budget, 10**12):
        for batch in call.batches:
            for count, size in (batch.tokens.shape, batch.tokens_of.shape):
                assert count * size <= max(2 * budget * 1.5**2, 64)


@pytest.mark.parametrize("devices", [1, 4])
def test_devices_are_given_like_work(devices):
    rng = np.random.default_rng(0)
    some = [([c] * int(n) + [50 + q] * 5, int(n)) for c, n in enumerate(rng.integers(20, 200, 32)) for q in range(4)]
    call, = planned(some, 10**6, devices=devices)
    for mask in (call.mask, *(batch.mask for batch in call.batches)):
        work = mask.reshape(devices, -1).sum(1)
        assert work.max() <= 1.1 * work.min()


def test_like_needs_share_a_shape_until_it_costs_more_than_a_compilation():
    cost = lambda shape: shape[0] * 10**10
    assert list(tk.alike([(8, 1), (7, 2), (6, 3)], cost)) == [(8, 3)] * 3
    assert list(tk.alike([(8, 1), (2, 1), (2, 1)], cost)) == [(8, 1), (2, 1), (2, 1)]
    assert list(tk.alike([], cost)) == []
