"""Plans how shared prefixes, and the suffixes behind them, are batched.

Token ids in, host arrays out. A suffix is what a row holds behind its prefix.

Each shape of these arrays is a program to be compiled. So shapes come from a small ladder, which
the budget and the length of the texts decide: calls with like texts share their programs.
"""

import dataclasses
import itertools
import math
from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from ark_jax.models.prefix_groups import PrefixGroup, Rows, group_by_prefix
from ark_jax.text import tokens as tk

# Tokens of a call, as parts of the budget. Large calls are faster; small ones take what is left.
PREFIX_PARTS = (1, 4)
SUFFIX_PARTS = (1, 3, 8, 20)
# Tokens of the narrowest slot. Each slot copies its prefix's keys; that costs as much as 14 tokens.
NARROWEST = 64


class Span(NamedTuple):
    """Where a device's stream of tokens holds a suffix."""

    device: int
    start: int
    end: int


@dataclasses.dataclass(frozen=True)
class SuffixBatch:
    """Suffixes of one call, in slots: array rows that hold suffixes of one prefix, side by side.

    Each device has the suffixes of its own prefixes, so that no key or value is sent.
    """

    spans: dict[int, Span]  # by row
    tokens: np.ndarray  # int32 [b t]
    positions: np.ndarray  # int32 [b t]: of each token in its row
    texts: np.ndarray  # int32 [b t]: number of the token's text in its slot, from 1; 0: padding
    prefix_indices: np.ndarray  # int32 [b]: the slot's prefix, counted within its device
    capacity: int  # at least the tokens of any device


@dataclasses.dataclass(frozen=True)
class PrefixBatch:
    """Prefixes that are computed together, and the batches of their suffixes."""

    tokens: np.ndarray  # int32 [prefixes s]
    mask: np.ndarray  # bool [prefixes s]
    capacity: int  # at least the tokens of any device
    suffix_batches: list[SuffixBatch]


class Slot(NamedTuple):
    """The rows whose suffixes are in a slot, side by side."""

    prefix: int  # counted within its device
    members: list[int]


class SuffixLadder(NamedTuple):
    """The arrays that suffixes may have on each device: slots of `width` tokens."""

    capacities: list[int]  # downwards
    width: int
    prefixes: int

    def slots(self, capacity: int) -> int:
        """Slots of a batch: more than its tokens fill, since texts leave some places empty.

        At most about twice as many. Short prefixes are many, and a wide slot for each would take
        more memory than anything else.
        """
        filled = -(-9 * capacity // (8 * self.width))
        return filled + min(self.prefixes // 4, capacity // self.width)


Suffix = tuple[int, int]  # a row, and the prefix that it continues, counted within its device


def plan_batches(rows: Rows, *, budget: int, devices: int) -> Iterator[PrefixBatch]:
    """Batches all prefixes and suffixes of `rows`, in few shapes.

    Args:
        budget: tokens of a call on each device. One text, or the rounding of its length, may take
            more.
        devices: the number of devices among which prefixes, with their suffixes, are divided.
    """
    groups = group_by_prefix(rows)
    if not groups:
        return
    groups.sort(key=lambda group: (-group.prefix_length, group.members))
    lengths = [group.prefix_length for group in groups]
    suffix_lengths = {
        i: len(rows[i][0]) - group.prefix_length for group in groups for i in group.members
    }
    queues = _divide_groups(groups, devices)
    longest = _round_to_eighth_octave(max(lengths[0], 1))
    prefixes, capacities = _prefix_ladder(lengths, longest, budget, max(map(len, queues)))
    ladder = _suffix_ladder(max(suffix_lengths.values()), budget, prefixes)
    tokens = [_tokens_by_rest([group.prefix_length for group in queue]) for queue in queues]
    while any(queues):
        most_tokens = max(counts[len(queue)] for counts, queue in zip(tokens, queues, strict=True))
        capacity = _next_capacity(capacities, most_tokens)
        taken = [_take_prefixes(queue, capacity, prefixes) for queue in queues]
        array_rows, ids = [], []
        for device, batch in enumerate(taken):
            for place, group in enumerate(batch, device * prefixes):
                array_rows.append(place)
                ids.append(rows[group.members[0]][0][: group.prefix_length])
        arrays = tk.pad_rows(ids, array_rows, devices * prefixes, longest)
        suffixes = [_order_suffixes(suffix_lengths, batch) for batch in taken]
        yield PrefixBatch(
            *arrays, capacity, list(_batch_suffixes(rows, suffix_lengths, suffixes, ladder))
        )


def _divide_groups(groups: Sequence[PrefixGroup], devices: int) -> list[deque[PrefixGroup]]:
    """A queue of groups for each device, with about as many prefix tokens each."""
    lengths = [group.prefix_length for group in groups]
    places, _ = tk.balance(lengths, devices, len(groups))
    queues: list[deque[PrefixGroup]] = [deque() for _ in range(devices)]
    for group, device in zip(groups, places // len(groups), strict=True):
        queues[device].append(group)
    return list(map(_alternate_ends, queues))


def _tokens_by_rest(lengths: Sequence[int]) -> list[int]:
    """For each n from 0 on, the tokens of the last n texts of a queue."""
    return [0, *itertools.accumulate(reversed(lengths))]


def _alternate_ends(groups: deque[PrefixGroup]) -> deque[PrefixGroup]:
    """Takes groups from both ends in turn, so that all neighbours have about as many tokens."""
    ordered: deque[PrefixGroup] = deque()
    while groups:
        ordered.append(groups.popleft() if len(ordered) % 2 == 0 else groups.pop())
    return ordered


def _prefix_ladder(
    lengths: Sequence[int], longest: int, budget: int, queue: int
) -> tuple[int, list[int]]:
    """The rows of a prefix array on each device, and its capacities in tokens, downwards.

    Args:
        lengths: tokens of each prefix.
        longest: the largest of them, rounded up.
        budget: tokens of a call on each device.
        queue: number of prefixes of the device that has most.
    """
    fullest = max(round(budget / longest), 1)
    capacity = fullest * longest
    # Attention pads each prefix to the longest. Products do not, so shorter ones can be more.
    sizes = [math.ceil(share * fullest) for share in (1.2, 2, 4)]
    mean = max(sum(lengths) / len(lengths), 1)
    prefixes = next((n for n in sizes if n * mean >= 0.9 * capacity), sizes[-1])
    # A call of a few pairs does not compute on arrays for hundreds.
    prefixes = min(prefixes, 1 << (queue - 1).bit_length())
    capacities = (max(capacity // part, longest) for part in PREFIX_PARTS)
    return prefixes, [min(capacity, prefixes * longest) for capacity in capacities]


def _suffix_ladder(longest: int, budget: int, prefixes: int) -> SuffixLadder:
    """The array sizes for suffixes of at most `longest` tokens; `prefixes` on each device."""
    width = 1 << (max(longest, min(NARROWEST, budget)) - 1).bit_length()
    return SuffixLadder([max(budget // part, width) for part in SUFFIX_PARTS], width, prefixes)


def _round_to_eighth_octave(n: int) -> int:
    """`n` rounded up to a multiple of 8, to one of eight values between powers of two."""
    return tk.round_up(n, max(8, 1 << (n - 1).bit_length() >> 4))


def _next_capacity(capacities: list[int], tokens: int) -> int:
    """The capacity of the next batch, if `tokens` are left.

    That is the smallest which holds them all, or the next smaller one if they would fill no more
    than 70 % of it.

    Args:
        capacities: downwards.
    """
    sufficient = [capacity for capacity in capacities if capacity >= tokens]
    smaller = [capacity for capacity in capacities if capacity < tokens]
    if sufficient and (not smaller or tokens > 0.7 * sufficient[-1]):
        return sufficient[-1]
    return smaller[0]


def _take_prefixes(queue: deque[PrefixGroup], capacity: int, prefixes: int) -> list[PrefixGroup]:
    """The next prefixes of a device's queue, as many as fit."""
    taken: list[PrefixGroup] = []
    while queue and len(taken) < prefixes and queue[0].prefix_length <= capacity:
        capacity -= queue[0].prefix_length
        taken.append(queue.popleft())
    return taken


def _order_suffixes(lengths: dict[int, int], groups: list[PrefixGroup]) -> deque[Suffix]:
    """A device's suffixes by prefix, and those of one prefix longest first.

    Args:
        lengths: tokens of each row's suffix.
        groups: the prefixes of the device.
    """
    return deque(
        (i, prefix)
        for prefix, group in enumerate(groups)
        for i in sorted(group.members, key=lambda i: (-lengths[i], i))
    )


def _batch_suffixes(
    rows: Rows, lengths: dict[int, int], queues: list[deque[Suffix]], ladder: SuffixLadder
) -> Iterator[SuffixBatch]:
    """Batches of the suffixes in the devices' queues, which it empties."""
    tokens = [_tokens_by_rest([lengths[i] for i, _ in queue]) for queue in queues]
    while any(queues):
        most_tokens = max(counts[len(queue)] for counts, queue in zip(tokens, queues, strict=True))
        capacity = _next_capacity(ladder.capacities, most_tokens)
        taken = [_take_suffixes(queue, lengths, capacity, ladder) for queue in queues]
        yield _suffix_batch(rows, lengths, taken, capacity, ladder)


def _take_suffixes(
    queue: deque[Suffix], lengths: dict[int, int], capacity: int, ladder: SuffixLadder
) -> list[Slot]:
    """The next suffixes of a device's queue, as many as fit, in slots."""
    slots: list[Slot] = []
    count = ladder.slots(capacity)
    room: list[int] = []  # tokens that each slot has room for
    first = 0  # slot of the newest prefix
    while queue:
        i, prefix = queue[0]
        if slots and slots[-1].prefix != prefix:
            first = len(slots)
        chosen = next((k for k in range(first, len(slots)) if room[k] >= lengths[i]), len(slots))
        if lengths[i] > capacity or chosen == count:
            return slots
        if chosen == len(slots):
            slots.append(Slot(prefix, []))
            room.append(ladder.width)
        slots[chosen].members.append(i)
        room[chosen] -= lengths[i]
        capacity -= lengths[i]
        queue.popleft()
    return slots


def _suffix_batch(
    rows: Rows,
    lengths: dict[int, int],
    taken: list[list[Slot]],
    capacity: int,
    ladder: SuffixLadder,
) -> SuffixBatch:
    """The arrays of a batch.

    Args:
        taken: the slots of each device.
    """
    count = ladder.slots(capacity)
    tokens, positions, texts = np.zeros((3, len(taken) * count, ladder.width), np.int32)
    prefix_indices, spans = np.zeros(len(tokens), np.int32), {}
    for device, slots in enumerate(taken):
        stream = 0
        for place, slot in enumerate(slots, device * count):
            prefix_indices[place] = slot.prefix
            start = 0
            for number, i in enumerate(slot.members, 1):
                ids, length = rows[i][0], lengths[i]
                columns = slice(start, start := start + length)
                tokens[place, columns] = ids[len(ids) - length :]
                positions[place, columns] = np.arange(len(ids) - length, len(ids))
                texts[place, columns] = number
                spans[i] = Span(device, stream, stream := stream + length)
    return SuffixBatch(spans, tokens, positions, texts, prefix_indices, capacity)
