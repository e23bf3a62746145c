"""Shared prefixes: every row once, on its prefix's device, few tokens computed twice, few shapes."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ark_jax.models import sharing
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


@given(rows(), st.sampled_from([8, 64, 4096]), st.sampled_from([0, 30, 1e6]), st.sampled_from([1, 2, 4]))
def test_a_plan_holds_every_row_once_behind_its_prefix(some, budget, slack, devices):
    found = []
    shapes = set()
    for prefixes, longest, batches in sharing.plan(some, budget, slack, devices):
        assert len(prefixes) % devices == 0 and longest in LENGTHS
        each = len(prefixes) // devices
        for batch in batches:
            b, t = batch.tokens.shape
            assert b == len(batch.members) and b % devices == 0 and t in LENGTHS
            assert batch.seen.shape == (len(prefixes), longest)
            shapes.add((len(prefixes), longest, b))
            for r, i in enumerate(batch.members):
                if i is None:
                    continue
                seat = r // (b // devices) * each + batch.owner[r]  # on the row's own device
                assert batch.seen[seat].sum() == len(prefixes[seat])
                assert batch.mask[r].sum() == len(some[i][0]) - len(prefixes[seat]) >= 1
                found.append((i, prefixes[seat] + batch.tokens[r][batch.mask[r]].tolist()))
    assert sorted(found) == [(i, ids) for i, (ids, _) in enumerate(some)]
    assert len(shapes) <= 1  # only the length of a batch may vary


def test_padding_is_traded_against_programs():
    """Suffixes of 8 to 128 tokens behind two prefixes: no slack, a length for each batch; all slack, one for all."""
    some = [([p] * 200 + [9] * n, 200) for p in range(2) for n in range(8, 129, 4)]
    lengths = lambda slack: {batch.tokens.shape for _, _, batches in sharing.plan(some, 4096, slack, 1) for batch in batches}
    padded = lambda slack: sum(batch.tokens.size for _, _, batches in sharing.plan(some, 4096, slack, 1) for batch in batches)
    assert len(lengths(0)) == 4 > len(lengths(600)) > len(lengths(1e9)) == 1
    assert padded(0) < padded(600) < padded(1e9)
    real = sum(len(ids) - 200 for ids, _ in some)
    assert padded(0) < 1.25 * real


@pytest.mark.parametrize("devices", [1, 4])
def test_devices_are_given_like_work(devices):
    rng = np.random.default_rng(0)
    some = [([c] * int(n) + [50 + q] * 5, int(n)) for c, n in enumerate(rng.integers(20, 200, 32)) for q in range(4)]
    (_, _, batches), = sharing.plan(some, 10**6, 0, devices)
    work = np.zeros(devices)
    for batch in batches:
        work += batch.mask.reshape(devices, -1).sum(1)
    assert work.max() <= 1.1 * work.min()
    assert all(batch.members.count(None) == 0 for batch in itertools.islice(batches, len(batches) - 1))
