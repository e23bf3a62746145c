"""Plans which texts share a prefix, and how prefixes and suffixes are batched.

Token ids in, host arrays out. A suffix is what a row holds behind its prefix.
"""

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from ark_jax.text import tokens as tk

TokenIds = Sequence[int] | np.ndarray
# Token ids, and the longest prefix that the row may share, which is shorter than the row.
Rows = Sequence[tuple[TokenIds, int]]


@dataclasses.dataclass(frozen=True)
class PrefixGroup:
    """Rows that share their first `prefix_length` tokens."""

    prefix_length: int
    members: list[int]


@dataclasses.dataclass(frozen=True)
class SuffixBatch:
    """Suffixes of one call: array row r is row `members[r]` without its prefix, or empty (None).

    Each device has the suffixes of its own prefixes, so that no key or value travels. Suffixes of
    one prefix lie side by side. g counts the prefixes in use, over all devices.
    """

    members: list[int | None]
    tokens: np.ndarray  # int32 [b t]
    mask: np.ndarray  # bool [b t]
    prefix_lengths: np.ndarray  # int32 [b]
    prefix_indices: np.ndarray  # int32 [g]: the prefixes in use, counted within their device
    tokens_per_prefix: np.ndarray  # bool [g r]: one true for each token behind the prefix
    rows_per_prefix: np.ndarray  # bool [g j]: one true for each row behind the prefix
    capacity: int  # the most tokens that any device has, rounded up


@dataclasses.dataclass(frozen=True)
class PrefixBatch:
    """Prefixes that are computed together, and the batches of their suffixes."""

    tokens: np.ndarray  # int32 [prefixes s]
    mask: np.ndarray  # bool [prefixes s]
    capacity: int  # the most tokens that any device has, rounded up
    suffix_batches: list[SuffixBatch]


Placed = dict[int, PrefixGroup]  # by the row of the prefix array
Members = tuple[int, list[int]]  # a prefix, counted within its device, and rows that continue it


def plan_batches(
    rows: Rows, *, budget: int, parameters: int, attention: int, devices: int
) -> Iterator[PrefixBatch]:
    """Batches all prefixes and suffixes of `rows`, in few shapes.

    Args:
        budget: tokens of a call on each device.
        parameters: multiply-adds of a token.
        attention: multiply-adds of a pair of tokens.
        devices: the number of devices among which prefixes, with their suffixes, are divided.
    """
    groups = sorted(group_by_prefix(rows), key=lambda g: (-g.prefix_length, g.members))
    if not groups:
        return
    longest = tk.round_length(max(groups[0].prefix_length, 1))
    full = devices * max(1, budget // longest)
    height = min(full, tk.round_rows(-(-len(groups) // -(-len(groups) // full)), devices))
    each = height // devices  # device d holds the prefixes from row d * each on
    placements: list[Placed] = []
    needs = []
    for first in range(0, len(groups), height):
        batch = groups[first : first + height]
        places, most = tk.balance([group.prefix_length for group in batch], devices, each)
        placements.append(dict(zip(places.tolist(), batch, strict=True)))
        needs.append((tk.round_room(most),))
    capacities = tk.share_shapes(needs, lambda shape: devices * shape[0] * parameters)

    def suffix_cost(shape: tuple[int, ...]) -> int:
        height, length, prefixes, prefix_tokens, capacity, _ = shape
        pairs = height * length**2 + prefixes * prefix_tokens * longest
        return devices * (capacity * parameters + attention * pairs)

    cuts = [_cut(rows, placed, each, devices, budget) for placed in placements]
    needs = [
        _suffix_shape(rows, placed, each, parts)
        for placed, batches in zip(placements, cuts, strict=True)
        for parts in batches
    ]
    shapes = tk.share_shapes(needs, suffix_cost)
    for placed, batches, (capacity,) in zip(placements, cuts, capacities, strict=True):
        prefixes = [_prefix_ids(rows, placed.get(place)) for place in range(height)]
        tokens, mask = tk.pad_rows(prefixes, range(height), height, longest)
        suffixes = [_suffix_batch(rows, placed, each, parts, next(shapes)) for parts in batches]
        yield PrefixBatch(tokens, mask, capacity, suffixes)


def _prefix_ids(rows: Rows, group: PrefixGroup | None) -> TokenIds:
    return rows[group.members[0]][0][: group.prefix_length] if group else []


def _cut(
    rows: Rows, placed: Placed, each: int, devices: int, budget: int
) -> list[list[list[Members]]]:
    """Divides the suffixes into batches: for each device some prefixes, each with some of its rows.

    A device has at most `budget` tokens. The arrays that attention is computed in, one row a suffix
    or one row a prefix, have at most twice as many places.
    """
    batches: list[list[list[Members]]] = []
    for device in range(devices):
        parts = _cut_for_device(_longest_suffixes_first(rows, placed, each, device), budget)
        batches += [[[] for _ in range(devices)] for _ in range(len(parts) - len(batches))]
        for batch, part in zip(batches, parts, strict=False):
            batch[device] = part
    return batches


def _longest_suffixes_first(
    rows: Rows, placed: Placed, each: int, device: int
) -> list[tuple[int, dict[int, int]]]:
    """A device's prefixes, most suffix tokens first: (index within it, {row: suffix length})."""
    queue = []
    for place, group in placed.items():
        if place // each == device:
            lengths = {i: len(rows[i][0]) - group.prefix_length for i in group.members}
            queue.append((place % each, dict(sorted(lengths.items(), key=lambda x: (-x[1], x[0])))))
    return sorted(queue, key=lambda x: (-sum(x[1].values()), x[0]))


def _cut_for_device(queue: list[tuple[int, dict[int, int]]], budget: int) -> list[list[Members]]:
    """The batches of one device, filled in the order of the queue."""
    parts: list[list[Members]] = []
    count = tokens = longest = fullest = 0  # rows, tokens, longest row, most tokens of a prefix
    for prefix, lengths in queue:
        prefix_tokens = 0  # of this prefix in this batch
        for i, n in lengths.items():
            fits = parts and budget >= max(
                tokens + n,
                (count + 1) * max(longest, n) / 2,
                (len(parts[-1]) + (not prefix_tokens)) * max(fullest, prefix_tokens + n) / 2,
            )
            if not fits:
                parts.append([])
                count = tokens = longest = fullest = prefix_tokens = 0
            if not prefix_tokens:
                parts[-1].append((prefix, []))
            parts[-1][-1][1].append(i)
            count, tokens, longest = count + 1, tokens + n, max(longest, n)
            prefix_tokens += n
            fullest = max(fullest, prefix_tokens)
    return parts


def _suffix_lengths(
    rows: Rows, placed: Placed, each: int, parts: list[list[Members]]
) -> list[list[list[int]]]:
    """By device and prefix."""
    return [
        [
            [len(rows[i][0]) - placed[device * each + prefix].prefix_length for i in members]
            for prefix, members in part
        ]
        for device, part in enumerate(parts)
    ]


def _suffix_shape(
    rows: Rows, placed: Placed, each: int, parts: list[list[Members]]
) -> tuple[int, ...]:
    """The most of any device, rounded: rows, row length, prefixes, tokens per prefix, tokens, rows
    per prefix."""
    lengths = _suffix_lengths(rows, placed, each, parts)
    by_prefix = [group for part in lengths for group in part]
    return (
        tk.round_rows(max(sum(map(len, part)) for part in lengths), 1),
        tk.round_length(max(map(max, by_prefix))),
        tk.round_rows(max(map(len, lengths)), 1),
        tk.round_room(max(map(sum, by_prefix))),
        tk.round_room(max(sum(map(sum, part)) for part in lengths)),
        tk.round_rows(max(map(len, by_prefix)), 1),
    )


def _suffix_batch(
    rows: Rows, placed: Placed, each: int, parts: list[list[Members]], shape: tuple[int, ...]
) -> SuffixBatch:
    height, length, width, prefix_tokens, capacity, prefix_rows = shape
    members: list[int | None] = []
    starts, indices, token_counts, row_counts = [], [], [], []
    all_lengths = _suffix_lengths(rows, placed, each, parts)
    for device, (part, lengths) in enumerate(zip(parts, all_lengths, strict=True)):
        numbers = [i for _, group in part for i in group]
        surplus, empty = height - len(numbers), [0] * (width - len(part))
        members += numbers + [None] * surplus
        for prefix, group in part:
            starts += [placed[device * each + prefix].prefix_length] * len(group)
        starts += [0] * surplus
        indices += [prefix for prefix, _ in part] + empty
        token_counts += [*map(sum, lengths), *empty]
        row_counts += [*map(len, lengths), *empty]
    places = [place for place, i in enumerate(members) if i is not None]
    suffixes = [rows[members[place]][0][starts[place] :] for place in places]
    tokens, mask = tk.pad_rows(suffixes, places, len(members), length)
    return SuffixBatch(
        members,
        tokens,
        mask,
        np.array(starts, np.int32),
        np.array(indices, np.int32),
        _first(token_counts, prefix_tokens),
        _first(row_counts, prefix_rows),
        capacity,
    )


def _first(counts: list[int], size: int) -> np.ndarray:
    """Bool `[counts size]`, the first n of each row true."""
    return np.arange(size) < np.array(counts)[:, None]


def group_by_prefix(rows: Rows) -> list[PrefixGroup]:
    """Groups rows by shared prefix, so that few tokens are computed twice.

    The common prefixes of sorted neighbours make a binary tree. From the leaves up, a branch
    becomes one group where that saves more tokens than its two parts save. A prefix shorter than
    half of a row is not shared: padding would cost what it saves.
    """
    # As big-endian bytes, ids sort as the lists they are, at a fraction of the memory.
    ids = [np.asarray(row, ">u4") for row, _ in rows]
    order = sorted(range(len(rows)), key=lambda i: ids[i].tobytes())
    common = [_common_length(ids[a], ids[b]) for a, b in itertools.pairwise(order)]
    tree = {(k, k): _Branch(0, rows[i][1], len(rows[i][0]), ()) for k, i in enumerate(order)}
    # The first leaf of the branch that ends at a leaf, and the last of the one that begins there.
    first, last = list(range(len(order))), list(range(len(order)))
    for k in sorted(range(len(common)), key=lambda k: (-common[k], k)):
        left, right = (first[k], k), (k + 1, last[k + 1])
        span = left[0], right[1]
        tree[span] = _join(tree, left, right, common[k])
        first[span[1]], last[span[0]] = span
    groups, stack = [], [(0, len(order) - 1)] if order else []
    while stack:
        span = stack.pop()
        branch = tree[span]
        if branch.parts:
            stack += branch.parts
        else:
            groups.append(PrefixGroup(branch.prefix_length, order[span[0] : span[1] + 1]))
    return groups


Leaves = tuple[int, int]  # the first and the last of a range of sorted rows


class _Branch(NamedTuple):
    """A range of sorted rows."""

    saved: int  # tokens that are not computed twice
    prefix_length: int  # the longest prefix that all rows may share
    longest: int
    parts: tuple[Leaves, ...]  # empty where the rows are one group


def _join(tree: dict[Leaves, _Branch], left: Leaves, right: Leaves, common: int) -> _Branch:
    """Two neighbours as one group or two, whichever saves more."""
    parts = tree[left], tree[right]
    prefix_length = min(common, *(part.prefix_length for part in parts))
    longest = max(part.longest for part in parts)
    apart = sum(part.saved for part in parts)
    together = (right[1] - left[0]) * prefix_length if 2 * prefix_length >= longest else 0
    if together > apart:
        return _Branch(together, prefix_length, longest, ())
    return _Branch(apart, prefix_length, longest, (left, right))


def _common_length(a: np.ndarray, b: np.ndarray) -> int:
    n = min(len(a), len(b))
    differ = a[:n] != b[:n]
    return int(differ.argmax()) if differ.any() else n
