"""Shared prefixes: each row once, on its prefix's device, few tokens computed twice, few shapes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ark_jax.models import prefix_groups, prefix_plan
from ark_jax.text import tokens as tk


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


def saved(groups: list[prefix_groups.PrefixGroup]) -> int:
    return sum((len(g.members) - 1) * g.prefix_length for g in groups)


@given(rows())
def test_every_row_is_in_one_group_with_its_common_prefix(texts):
    groups = prefix_groups.group_by_prefix(texts)
    assert sorted(i for g in groups for i in g.members) == list(range(len(texts)))
    for g in groups:
        assert len({tuple(texts[i][0][: g.prefix_length]) for i in g.members}) == 1
        assert g.prefix_length <= min(texts[i][1] for i in g.members)
        if len(g.members) > 1:
            assert 2 * g.prefix_length >= max(len(texts[i][0]) for i in g.members)


def test_questions_are_grouped_by_their_longest_common_prefix():
    """Chunks of 200 tokens follow an instruction of 40, with two questions each or one.

    The questions of a pair share their chunk, the others stand alone.
    """
    head, chunks = list(range(40)), [[100 + c] * 200 for c in range(6)]
    texts = [
        (head + chunk + [c, q] * 10, 239)
        for c, chunk in enumerate(chunks)
        for q in range(2 if c < 3 else 1)
    ]
    groups = prefix_groups.group_by_prefix(texts)
    assert sorted(len(g.members) for g in groups) == [1, 1, 1, 2, 2, 2]
    assert saved(groups) == 3 * 239


def test_a_common_few_shot_prompt_forms_one_group():
    texts = [([1] * 300 + [q] * 20, 315) for q in range(2, 12)]
    assert [(g.prefix_length, len(g.members)) for g in prefix_groups.group_by_prefix(texts)] == [
        (300, 10)
    ]


def planned(rows, budget=4096, devices=1) -> list[prefix_plan.PrefixBatch]:
    return list(prefix_plan.plan_batches(rows, budget=budget, devices=devices))


@given(rows(), st.sampled_from([1, 8, 64, 4096]), st.sampled_from([1, 2, 4]))
def test_a_plan_places_every_row_once_after_its_prefix(rows, budget, devices):
    held = []
    for call in planned(rows, budget, devices):
        each = len(call.tokens) // devices
        assert len(call.tokens) % devices == 0
        assert call.mask.reshape(devices, -1).sum(1).max() <= call.capacity
        for batch in call.suffix_batches:
            assert len(batch.tokens) % devices == 0
            is_token = batch.texts > 0
            assert is_token.reshape(devices, -1).sum(1).max() <= batch.capacity
            streams = [
                list(zip(*np.nonzero(part), strict=True)) for part in np.split(is_token, devices)
            ]
            for i, span in batch.spans.items():
                places = streams[span.device][span.start : span.end]
                (slot,) = {place[0] for place in places}
                row = slot + span.device * len(batch.tokens) // devices
                (text,) = {batch.texts[row, place[1]] for place in places}
                assert (batch.texts[row] == text).sum() == len(places) >= 1
                seat = span.device * each + batch.prefix_indices[row]  # on the slot's own device
                prefix = call.tokens[seat][call.mask[seat]].tolist()
                columns = [place[1] for place in places]
                ids = prefix + batch.tokens[row, columns].tolist()
                assert batch.positions[row, columns].tolist() == list(range(len(prefix), len(ids)))
                held.append((i, ids))
            assert sum(span.end - span.start for span in batch.spans.values()) == is_token.sum()
    assert sorted(held) == [(i, ids) for i, (ids, _) in enumerate(rows)]


def shapes(calls) -> set[tuple]:
    """Of the programs: one for prefixes, one for what follows them."""
    prefixes = {(call.tokens.shape, call.capacity) for call in calls}
    return prefixes | {
        (call.tokens.shape, batch.tokens.shape, batch.capacity)
        for call in calls
        for batch in call.suffix_batches
    }


def scored_rows(random: np.random.Generator, chunks: int) -> prefix_groups.Rows:
    """Two to eight questions behind each chunk of 150 to 200 tokens."""
    rows = []
    for c in range(chunks):
        chunk = [c] * int(random.integers(150, 201))
        for q in range(random.integers(2, 9)):
            tail = [1000 + q] * int(random.integers(8, 41))
            rows.append((chunk + tail, len(chunk)))
    return rows


def test_the_calls_of_a_stage_have_few_shapes():
    """Thirty shards of 20 to 90 chunks, whose questions differ in number and length."""
    random = np.random.default_rng(3)
    sizes = random.integers(20, 91, 30)
    calls = [call for n in sizes for call in planned(scored_rows(random, int(n)), 2048)]
    assert len(calls) > 150
    assert len(shapes(calls)) <= 8


def test_a_large_call_has_little_padding():
    rows = scored_rows(np.random.default_rng(4), 300)
    calls = planned(rows, 2048)
    used = sum(g.prefix_length for g in prefix_groups.group_by_prefix(rows))
    assert sum(call.capacity for call in calls) <= 1.1 * used
    batches = [batch for call in calls for batch in call.suffix_batches]
    used = sum(int((batch.texts > 0).sum()) for batch in batches)
    assert sum(batch.capacity for batch in batches) <= 1.2 * used
    assert sum(batch.tokens.size for batch in batches) <= 1.7 * used


@given(rows(), st.sampled_from([64, 4096]))
def test_arrays_stay_close_to_the_token_budget(rows, budget):
    """Tokens of a call are within it, but for one text and the rounding of its length."""
    for call in planned(rows, budget):
        longest = call.tokens.shape[1]
        assert call.capacity <= budget + longest
        assert call.tokens.size <= 4 * (budget + 2 * longest)
        for batch in call.suffix_batches:
            width = batch.tokens.shape[1]
            assert batch.capacity <= max(budget, width)
            assert batch.tokens.size <= 9 / 4 * max(budget, width) + width


def test_short_prefixes_do_not_enlarge_the_batches():
    """One token before each text, as for a perplexity: as many prefixes as fit would be hundreds.

    Slots for a part of them once filled the memory of a machine.
    """
    texts = [[0, *range(3, n)] for n in (450, 70, 9)]
    for rows in (texts, texts * 100):
        calls = planned([(ids, 1) for ids in rows], 2048)
        assert max(batch.tokens.size for call in calls for batch in call.suffix_batches) <= 5000
    (call,) = planned([(ids, 1) for ids in texts], 2048)
    assert call.tokens.size <= 4 * 8


@pytest.mark.parametrize("devices", [1, 4])
def test_devices_get_similar_amounts_of_work(devices):
    rng = np.random.default_rng(0)
    rows = [
        ([c] * int(n) + [50 + q] * 5, int(n))
        for c, n in enumerate(rng.integers(20, 200, 64))
        for q in range(4)
    ]
    calls = planned(rows, 1024, devices)
    work = sum(call.mask.reshape(devices, -1).sum(1) for call in calls)
    assert work.max() <= 1.05 * work.min()
    work = sum(
        (batch.texts > 0).reshape(devices, -1).sum(1)
        for call in calls
        for batch in call.suffix_batches
    )
    assert work.max() <= 1.2 * work.min()


def test_shapes_are_shared_while_cheaper_than_a_compilation():
    cost = lambda shape: shape[0] * 10**10
    assert list(tk.share_shapes([(8, 1), (7, 2), (6, 3)], cost, 5e10)) == [(8, 3)] * 3
    assert list(tk.share_shapes([(8, 1), (2, 1), (2, 1)], cost, 5e10)) == [(8, 1), (2, 1), (2, 1)]
    assert list(tk.share_shapes([], cost, 5e10)) == []
