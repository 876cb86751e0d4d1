"""Which rows of a step read the same pages of KV, so that attention may read them once.

Owns: finding the groups, nested ones too, from equal page ids; what is worth a group. Must not
know: the tree, tensors. A page at one place of two tables is the same only where everything before
it is the same too, because pages are shared along paths of the tree.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from radixserve.plan import Int32, SharedGroup

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
    usable = usable[among]
    stride = 1 + int(usable.sum()) // MAX_LOOKED_AT
    counts = usable // stride
    reached = np.cumsum(counts, dtype=np.int32)
    total = int(reached[-1])
    if not total:
        return ()
    begins = page_indptr[among]
    ordinals = np.arange(total, dtype=np.int32)
    ordinals -= np.repeat(reached - counts, counts)
    places = ordinals if stride == 1 else ordinals * stride + (stride - 1)
    pages = np.take(page_indices, np.repeat(begins, counts) + places)
    # How many rows have a page falls along each path; where it does, a group ends.
    holders = np.take(np.bincount(pages), pages)
    is_last = np.ones(total, np.bool_)
    np.logical_or(holders[1:] != holders[:-1], ordinals[1:] == 0, out=is_last[:-1])
    ends = np.flatnonzero(is_last & (holders > 1))
    rows = np.searchsorted(reached, ends, side="right")
    order = np.lexsort((rows, pages[ends], places[ends]))
    ends, rows = ends[order], among[rows[order]]
    return tuple(_worthy(rows.tolist(), holders[ends].tolist(), places[ends].tolist(), least))


def _sharing(
    usable: Int32, page_indptr: Int32, page_indices: Int32, least: int
) -> npt.NDArray[np.intp]:
    """The rows that share so many pages with another: no others can be in a group that pays."""
    reaching = np.flatnonzero(usable >= least)
    pages = page_indices[page_indptr[reaching] + (least - 1)]
    if not len(pages):
        return reaching
    return reaching[np.bincount(pages)[pages] > 1]


def _worthy(
    rows: list[int], sizes: list[int], last_pages: list[int], least: int
) -> list[SharedGroup]:
    """The groups that reach far enough beyond those around them.

    The three lists have one entry for each row of each group, a group's side by side and outer
    groups first: the row, how many the group has, the place of its last page.
    """
    begins: dict[int, int] = {}
    groups = []
    at = 0
    while at < len(rows):
        members = rows[at : at + sizes[at]]
        begin, end = begins.get(members[0], 0), last_pages[at] + 1
        at += len(members)
        if end - begin >= least:
            begins.update(dict.fromkeys(members, end))
            groups.append(SharedGroup(tuple(members), begin, end))
    return groups
