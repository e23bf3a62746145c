"""Which texts share a prefix, and how prefixes and what follows them are batched. Token ids in, host arrays out."""

import dataclasses
import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from ark_jax.text import tokens as tk

Rows = Sequence[tuple[Sequence[int], int]]  # token ids, and how many of them a prefix may take at most (not all)


@dataclasses.dataclass(frozen=True)
class Group:
    """Rows that share their first `prefix` tokens."""

    prefix: int
    members: list[int]


@dataclasses.dataclass(frozen=True)
class Batch:
    """What follows shared prefixes: array row r is row `members[r]` without its prefix, or empty (None).

    Each device has the rows of its own prefixes, so that no key or value travels. Rows of one prefix lie side by side.
    """

    members: list[int | None]
    tokens: np.ndarray  # int32 [b t]
    mask: np.ndarray  # bool [b t]
    start: np.ndarray  # int32 [b]: the length of a row's prefix
    seats: np.ndarray  # int32 [g]: which prefixes of their device these rows go on from
    tokens_of: np.ndarray  # bool [g r]: as many as a seat has tokens here
    rows_of: np.ndarray  # bool [g j]: as many as it has rows
    room: int  # of which no device has more tokens


@dataclasses.dataclass(frozen=True)
class Call:
    """Prefixes that are computed together, and the batches that go on from them."""

    tokens: np.ndarray  # int32 [p s]
    mask: np.ndarray  # bool [p s]
    room: int  # of which no device has more tokens
    batches: list[Batch]


Seated = tuple[int, list[int]]  # a seat of a device, and rows that go on from it


def plan(rows: Rows, *, budget: int, parameters: int, attention: int, devices: int) -> Iterator[Call]:
    """Everything to be computed for `rows`, in few shapes.

    Args:
        budget: tokens of a call on each device.
        parameters: multiply-adds of a token.
        attention: multiply-adds of a pair of tokens.
        devices: among which prefixes are dealt, with the rows that go on from them.
    """
    groups = sorted(share(rows), key=lambda g: (-g.prefix, g.members))
    if not groups:
        return
    longest = tk.round_length(max(groups[0].prefix, 1))
    full = devices * max(1, budget // longest)
    height = min(full, tk.round_rows(-(-len(groups) // -(-len(groups) // full)), devices))
    each = height // devices
    calls, rooms = [], []
    for first in range(0, len(groups), height):
        some = groups[first : first + height]
        # Device d holds the rows from d * each of the prefix array.
        where, most = tk.deal([group.prefix for group in some], devices, each)
        calls.append(dict(zip(where.tolist(), some, strict=True)))
        rooms.append((tk.round_room(most),))
    rooms = tk.alike(rooms, lambda shape: devices * shape[0] * parameters)
    cuts = [_cut(rows, seats, each, devices, budget) for seats in calls]
    cost = lambda n: devices * (n[4] * parameters + attention * (n[0] * n[1] ** 2 + n[2] * n[3] * longest))
    needs = [_need(rows, seats, each, parts) for seats, some in zip(calls, cuts, strict=True) for parts in some]
    shapes = tk.alike(needs, cost)
    for seats, some, (room,) in zip(calls, cuts, rooms, strict=True):
        prefixes = [rows[seats[at].members[0]][0][: seats[at].prefix] if at in seats else [] for at in range(height)]
        yield Call(*tk.put(prefixes, range(height), height, longest), room,
                   [_batch(rows, seats, each, parts, next(shapes)) for parts in some])


def _cut(rows: Rows, seats: dict[int, Group], each: int, devices: int, budget: int) -> list[list[list[Seated]]]:
    """Batches of what follows: for each device some seats, each with some of its rows; at most `budget` tokens, and of an
    array that attention is computed in at most twice as many."""
    left = lambda i, group: len(rows[i][0]) - group.prefix
    batches: list[list[list[Seated]]] = []
    for device in range(devices):
        queue = [(seat, group, sorted(group.members, key=lambda i: (-left(i, group), i))) for seat, group in seats.items()
                 if seat // each == device]
        queue.sort(key=lambda x: (-sum(left(i, x[1]) for i in x[2]), x[0]))
        cut: list[list[Seated]] = []
        count = tokens = length = most = 0
        for seat, group, members in queue:
            here = 0  # tokens of this seat in the batch
            for i in members:
                n = left(i, group)
                fits = cut and max(tokens + n, (count + 1) * max(length, n) / 2,
                                   (len(cut[-1]) + (not here)) * max(most, here + n) / 2) <= budget
                if not fits:
                    cut.append([])
                    count = tokens = length = most = here = 0
                if not here:
                    cut[-1].append((seat % each, []))
                cut[-1][-1][1].append(i)
                count, tokens, length, here = count + 1, tokens + n, max(length, n), here + n
                most = max(most, here)
        batches += [[[] for _ in range(devices)] for _ in range(len(cut) - len(batches))]
        for batch, part in zip(batches, cut, strict=False):
            batch[device] = part
    return batches


def _lengths(rows: Rows, seats: dict[int, Group], each: int, parts: list[list[Seated]]) -> list[list[list[int]]]:
    """Of each device's seats, how long their rows are behind the prefix."""
    return [[[len(rows[i][0]) - seats[device * each + seat].prefix for i in members] for seat, members in part]
            for device, part in enumerate(parts)]


def _need(rows: Rows, seats: dict[int, Group], each: int, parts: list[list[Seated]]) -> tuple[int, ...]:
    """What a batch has at most on a device: rows, their tokens, seats, tokens of a seat, tokens, rows of a seat."""
    lengths = _lengths(rows, seats, each, parts)
    return (tk.round_rows(max(sum(map(len, part)) for part in lengths), 1),
            tk.round_length(max(n for part in lengths for some in part for n in some)),
            tk.round_rows(max(map(len, lengths)), 1),
            tk.round_room(max(sum(some) for part in lengths for some in part)),
            tk.round_room(max(sum(map(sum, part)) for part in lengths)),
            tk.round_rows(max(len(some) for part in lengths for some in part), 1))


def _batch(rows: Rows, seats: dict[int, Group], each: int, parts: list[list[Seated]], shape: tuple[int, ...]) -> Batch:
    height, length, width, most, room, crowd = shape
    members: list[int | None] = []
    start, chosen, tokens_of, rows_of = [], [], [], []
    for device, (part, lengths) in enumerate(zip(parts, _lengths(rows, seats, each, parts), strict=True)):
        some = [(i, seats[device * each + seat].prefix) for seat, members_of in part for i in members_of]
        members += [i for i, _ in some] + [None] * (height - len(some))
        start += [prefix for _, prefix in some] + [0] * (height - len(some))
        empty = [0] * (width - len(part))
        chosen += [seat for seat, _ in part] + empty
        tokens_of += [*map(sum, lengths), *empty]
        rows_of += [*map(len, lengths), *empty]
    at = [r for r, i in enumerate(members) if i is not None]
    tokens, mask = tk.put([rows[members[r]][0][start[r] :] for r in at], at, len(members), length)
    first = lambda counts, size: np.arange(size) < np.array(counts)[:, None]
    return Batch(members, tokens, mask, np.array(start, np.int32), np.array(chosen, np.int32), first(tokens_of, most),
                 first(rows_of, crowd), room)


def share(rows: Rows) -> list[Group]:
    """Rows by shared prefix, so that few tokens are computed twice.

    The common prefixes of sorted neighbours make a tree. From its leaves up, a branch is one group where that saves more
    tokens than its parts do. A prefix that is less than half of a row is not shared: what it saves is lost to padding.
    """
    # As big-endian bytes, ids sort as the lists they are, at a fraction of the memory.
    ids = [np.asarray(row, ">u4") for row, _ in rows]
    order = sorted(range(len(rows)), key=lambda i: ids[i].tobytes())
    common = [_common(ids[a], ids[b]) for a, b in itertools.pairwise(order)]
    # A branch is a range of sorted rows: the tokens it saves, the longest prefix all its rows may take, its longest row, and
    # its two parts unless it is one group.
    tree: dict[tuple[int, int], tuple] = {(k, k): (0, rows[i][1], len(rows[i][0]), ()) for k, i in enumerate(order)}
    first, last = list(range(len(order))), list(range(len(order)))  # of the branch that ends at, that begins at
    for k in sorted(range(len(common)), key=lambda k: (-common[k], k)):
        left, right = (first[k], k), (k + 1, last[k + 1])
        prefix = min(common[k], tree[left][1], tree[right][1])
        length, apart = max(tree[left][2], tree[right][2]), tree[left][0] + tree[right][0]
        together = (right[1] - left[0]) * prefix if 2 * prefix >= length else 0
        tree[left[0], right[1]] = (max(together, apart), prefix, length, () if together > apart else (left, right))
        first[right[1]], last[left[0]] = left[0], right[1]
    groups, todo = [], [(0, len(order) - 1)] if order else []
    while todo:
        branch = todo.pop()
        _, prefix, _, parts = tree[branch]
        if parts:
            todo += parts
        else:
            groups.append(Group(prefix, order[branch[0] : branch[1] + 1]))
    return groups


def _common(a: np.ndarray, b: np.ndarray) -> int:
    n = min(len(a), len(b))
    differ = a[:n] != b[:n]
    return int(differ.argmax()) if differ.any() else n
