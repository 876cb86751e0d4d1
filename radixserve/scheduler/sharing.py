"""Which rows of a step read the same pages of KV, so that attention may read them once.

Owns: finding the groups, nested ones too, from equal page ids; what is worth a group. Must not
know: the tree, tensors. A page at one place of two tables is the same only where everything before
it is the same too, because pages are shared along paths of the tree.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from radixserve.plan import Int32, SharedGroup

Places = npt.NDArray[np.intp]

MIN_TOKENS = 64
"""Shared tokens, beyond those of the group around it, that make a group of two pay: joining the
partial results costs a row about as much as reading a handful of tokens."""

MAX_LOOKED_AT = 1 << 13
"""Pages that are looked at. Of more every second is, or third: groups then end up to so many pages
early, which costs little of prefixes so long."""

MAX_QUERIES = 16
"""Rows that compute more tokens than this read their KV for many queries anyway."""


def shared_groups(
    page_indptr: Int32, page_indices: Int32, positions: Int32, lengths: Int32, page_size: int
) -> tuple[SharedGroup, ...]:
    """The groups of a step, outer ones before those nested in them.

    Arrays as in StepPlan, page_indptr [rows + 1], positions and lengths [rows]. Only whole pages
    before a row's first position count: what the step computes is not shared within it.

    Example, page_size 64, three decode rows with the pages [7, 2, 4], [7, 2, 5] and [7, 3]:
    (SharedGroup((0, 1, 2), 0, 1), SharedGroup((0, 1), 1, 2)).
    """
    least = -(-MIN_TOKENS // page_size)
    usable = np.where(lengths <= MAX_QUERIES, positions // page_size, 0)
    among = _sharing(usable, page_indptr, page_indices, least)
    if not len(among):
        return ()
    counts = usable[among]
    stride = 1 + int(counts.sum()) // MAX_LOOKED_AT
    counts //= stride
    reached = np.cumsum(counts, dtype=np.int32)
    total = int(reached[-1])
    if not total:
        return ()
    begins = page_indptr[among]
    looked_at = np.arange(stride - 1, total * stride, stride, dtype=np.int32)
    looked_at += np.repeat(begins - (reached - counts) * stride, counts)
    pages = np.take(page_indices, looked_at)
    # How many rows have a page falls along each path; where it does, a group ends.
    holders = np.take(np.bincount(pages), pages)
    is_last = np.empty(total, np.bool_)
    np.not_equal(holders[1:], holders[:-1], out=is_last[:-1])
    is_last[reached - 1] = True
    ends = np.flatnonzero(is_last)
    ends = ends[holders[ends] > 1]
    rows = np.searchsorted(reached, ends, side="right")
    last_places = looked_at[ends] - begins[rows]
    return tuple(_worthy(among[rows], last_places, pages[ends], holders[ends], least))


def _sharing(usable: Int32, page_indptr: Int32, page_indices: Int32, least: int) -> Places:
    """The rows that share so many pages with another: no others can be in a group that pays."""
    reaching = np.flatnonzero(usable >= least)
    pages = page_indices[page_indptr[reaching] + (least - 1)]
    order = np.argsort(pages)
    pages = pages[order]
    is_same = pages[1:] == pages[:-1]
    shares = np.zeros(len(reaching), np.bool_)
    shares[order[1:]] = is_same
    shares[order[:-1]] |= is_same
    return reaching[shares]


def _worthy(
    rows: Places, last_places: Int32, last_pages: Int32, sizes: Places, least: int
) -> list[SharedGroup]:
    """The groups that reach far enough beyond those around them, outer ones first.

    The arrays have one entry for each row of each group, by row and then by place: the row, the
    place and the id of the group's last page, how many rows the group has.
    """
    order = np.lexsort((last_pages, last_places))
    firsts = [0]
    listed = sizes[order].tolist()
    while firsts[-1] < len(listed):
        firsts.append(firsts[-1] + listed[firsts[-1]])
    # The entry before is of the group around, where it is of the same row.
    group_of = np.empty(len(rows), np.intp)
    group_of[order] = np.repeat(np.arange(len(firsts) - 1), np.diff(firsts))
    first = order[firsts[:-1]]
    around = np.where((first > 0) & (rows[first] == rows[first - 1]), group_of[first - 1], -1)
    members, ends = rows[order].tolist(), (last_places[first] + 1).tolist()
    reached = [0] * len(firsts)  # by group; the last is of none
    groups = []
    for group, (outer, end) in enumerate(zip(around.tolist(), ends)):
        begin = reached[outer]
        reached[group] = begin
        if end - begin >= least:
            reached[group] = end
            of_group = members[firsts[group] : firsts[group + 1]]
            groups.append(SharedGroup(tuple(of_group), begin, end))
    return groups
