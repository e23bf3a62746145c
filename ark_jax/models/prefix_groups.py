"""Finds which rows of token ids share a prefix, so that few tokens are computed twice."""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ark_jax.text.token_rows import TokenIds

# Token ids, and the longest prefix that the row may share, which is shorter than the row.
Rows = Sequence[tuple[TokenIds, int]]


@dataclasses.dataclass(frozen=True)
class PrefixGroup:
    """Rows that share their first `prefix_length` tokens."""

    prefix_length: int
    members: list[int]


Leaves = tuple[int, int]  # the first and the last of a range of sorted rows


class _Branch(NamedTuple):
    """A range of sorted rows."""

    saved: int  # tokens that are not computed twice
    prefix_length: int  # the longest prefix that all rows may share
    longest: int
    parts: tuple[Leaves, ...]  # empty where the rows are one group


def group_by_prefix(rows: Rows) -> list[PrefixGroup]:
    """Groups rows by shared prefix, so that few tokens are computed twice.

    The common prefixes of sorted neighbours make a binary tree. From the leaves up, a branch
    becomes one group where that saves more tokens than its two parts save. A prefix shorter than
    half of a row is not shared: padding would cost what it saves.
    """
    # As big-endian bytes, ids sort as the lists they are, at a fraction of the memory.
    ids = [np.asarray(row, ">u4") for row, _ in rows]
    order = sorted(range(len(rows)), key=lambda i: ids[i].tobytes())
    common = [common_length(ids[a], ids[b]) for a, b in itertools.pairwise(order)]
    tree = {(k, k): _Branch(0, rows[i][1], len(rows[i][0]), ()) for k, i in enumerate(order)}
    # first[k]: the first leaf of the branch that ends at leaf k.
    # last[k]: the last leaf of the branch that begins at leaf k.
    first, last = list(range(len(order))), list(range(len(order)))
    for k in sorted(range(len(common)), key=lambda k: (-common[k], k)):
        left, right = (first[k], k), (k + 1, last[k + 1])
        span = left[0], right[1]
        tree[span] = _join_branches(tree, left, right, common[k])
        first[span[1]], last[span[0]] = span
    return _collect_groups(tree, order)


def _collect_groups(tree: dict[Leaves, _Branch], order: list[int]) -> list[PrefixGroup]:
    """The groups below the root of the tree.

    Args:
        order: the number of each sorted row.
    """
    groups: list[PrefixGroup] = []
    stack = [(0, len(order) - 1)] if order else []
    while stack:
        span = stack.pop()
        branch = tree[span]
        if branch.parts:
            stack += branch.parts
        else:
            groups.append(PrefixGroup(branch.prefix_length, order[span[0] : span[1] + 1]))
    return groups


def _join_branches(
    tree: dict[Leaves, _Branch], left: Leaves, right: Leaves, common: int
) -> _Branch:
    """Two neighbours as one group or two, whichever saves more tokens.

    Args:
        tree: each branch by its leaves.
        common: tokens that the last row of `left` and the first of `right` have in common.
    """
    parts = tree[left], tree[right]
    prefix_length = min(common, *(part.prefix_length for part in parts))
    longest = max(part.longest for part in parts)
    separate_savings = sum(part.saved for part in parts)
    joint_savings = (right[1] - left[0]) * prefix_length if 2 * prefix_length >= longest else 0
    if joint_savings > separate_savings:
        return _Branch(joint_savings, prefix_length, longest, ())
    return _Branch(separate_savings, prefix_length, longest, (left, right))


def common_length(a: np.ndarray, b: np.ndarray) -> int:
    """How many tokens two rows have in common before they differ."""
    n = min(len(a), len(b))
    differ = a[:n] != b[:n]
    return int(differ.argmax()) if differ.any() else n
