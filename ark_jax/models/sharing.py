"""Which texts share a prefix, and how prefixes and what follows them are batched. Token ids in, host arrays out."""

import dataclasses
import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from ark_jax.text import tokens as tk

SMALL = 1024  # tokens below which a batch is not worth cutting

Rows = Sequence[tuple[list[int], int]]  # token ids, and how many of them a prefix may take at most (not all)


@dataclasses.dataclass(frozen=True)
class Group:
    """Rows that share their first `prefix` tokens."""

    prefix: int
    members: list[int]


@dataclasses.dataclass(frozen=True)
class Batch:
    """What follows shared prefixes: array row r is row `members[r]` without its prefix, or padding (None).

    Each device gets the rows of its own prefixes, so that no key or value travels.
    """

    members: list[int | None]
    seen: np.ndarray  # bool [g s]: the prefixes' visible positions
    owner: np.ndarray  # int32 [b]: which prefix of its device a row goes on from
    tokens: np.ndarray  # int32 [b t]
    mask: np.ndarray  # bool [b t]


@dataclasses.dataclass(frozen=True)
class _Cut:
    """What becomes a batch: for each device (length of the rest, row, seat of its prefix), longest first."""

    parts: list[list[tuple[int, int, int]]]

    @property
    def length(self) -> int:
        return max(part[0][0] for part in self.parts if part)


def plan(rows: Rows, budget: int, slack: float, devices: int) -> Iterator[tuple[list[list[int]], int, list[Batch]]]:
    """Prefixes to be computed together, the length their keys are padded to, and the batches that go on from them.

    All of a plan have the same number of prefixes and of rows, and the same padded prefix: few programs to compile. The
    padded lengths of batches differ where that saves more than a compilation costs.

    Args:
        budget: padded tokens of a call.
        slack: tokens that could be computed while one more program is compiled.
        devices: what the numbers of prefixes and of rows are multiples of.
    """
    groups = sorted(share(rows), key=lambda g: (-g.prefix, g.members))
    if not groups:
        return
    longest = tk.round_length(max(groups[0].prefix, 1))
    full = max(devices, budget // longest // devices * devices)
    height = min(full, tk.round_rows(-(-len(groups) // -(-len(groups) // full)), devices))
    calls = [_seated(groups[first : first + height], height // devices, devices) for first in range(0, len(groups), height)]
    queues = [_queues(rows, seats, height // devices, devices) for seats in calls]
    most = max(len(queue) for some in queues for queue in some)
    width = devices * tk.round_length(max(queue[0][0] for some in queues for queue in some if queue))
    # Four batches where one would do: sorted by length, they are padded less. Not so small that matrix products suffer.
    deep = tk.round_rows(min(max(-(-most // 4), min(SMALL // width, most)), max(budget // width, 1)), 1)
    cuts = [[_Cut([queue[at : at + deep] for queue in some]) for at in range(0, max(map(len, some)), deep)] for some in queues]
    padded = _lengths([cut.length for some in cuts for cut in some], slack / deep / devices)
    for seats, some in zip(calls, cuts, strict=True):
        prefixes = [rows[seats[at].members[0]][0][: seats[at].prefix] if at in seats else [] for at in range(height)]
        seen = np.arange(longest) < np.array([len(prefix) for prefix in prefixes])[:, None]
        yield prefixes, longest, [_batch(rows, cut.parts, deep, padded[cut.length], seen) for cut in some]


def _seated(groups: Sequence[Group], each: int, devices: int) -> dict[int, Group]:
    """Row of the prefix array -> its group; device d holds the rows from d * each, and every device short and long ones."""
    return {at % devices * each + at // devices: group for at, group in enumerate(groups)}


def _queues(rows: Rows, seats: dict[int, Group], each: int, devices: int) -> list[list[tuple[int, int, int]]]:
    """What follows each device's prefixes: (length, row, seat on the device), longest first."""
    queues: list[list[tuple[int, int, int]]] = [[] for _ in range(devices)]
    for seat, group in seats.items():
        queues[seat // each] += [(len(rows[i][0]) - group.prefix, i, seat % each) for i in group.members]
    return [sorted(queue, key=lambda x: (-x[0], x[1])) for queue in queues]


def _lengths(needed: Sequence[int], slack: float) -> dict[int, int]:
    """Needed length -> padded length. One padded length serves all shorter ones until their padding exceeds `slack`."""
    out: dict[int, int] = {}
    padded = wasted = 0
    for length in sorted(needed, reverse=True):
        wasted += padded - length
        if not out or wasted > slack:
            padded, wasted = tk.round_length(length), 0
        out[length] = padded
    return out


def _batch(rows: Rows, parts: list[list[tuple[int, int, int]]], each: int, length: int, seen: np.ndarray) -> Batch:
    """One batch of `each` rows a device."""
    at = {device * each + k: x for device, part in enumerate(parts) for k, x in enumerate(part)}
    height = len(parts) * each
    tokens, mask = tk.pad([rows[at[r][1]][0][-at[r][0] :] if r in at else [] for r in range(height)], height, length)
    owner = np.array([at[r][2] if r in at else 0 for r in range(height)], np.int32)
    return Batch([at[r][1] if r in at else None for r in range(height)], seen, owner, tokens, mask)


def share(rows: Rows) -> list[Group]:
    """Rows by shared prefix, so that few tokens are computed twice.

    The common prefixes of sorted neighbours make a tree. From its leaves up, a branch is one group where that saves more
    tokens than its parts do. A prefix that is less than half of a row is not shared: what it saves is lost to padding.
    """
    order = sorted(range(len(rows)), key=lambda i: rows[i][0])
    common = [_common(rows[a][0], rows[b][0]) for a, b in itertools.pairwise(order)]
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


def _common(a: list[int], b: list[int]) -> int:
    n = min(len(a), len(b))
    return next((i for i in range(n) if a[i] != b[i]), n)
