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
    rows = np.flatnonzero((lengths <= MAX_QUERIES) & (positions >= MIN_TOKENS))
    if len(rows) < 2:
        return ()
    first = page_indices[page_indptr[rows]]
    order = first.argsort(kind="stable")
    ordered = first[order]
    is_twin = np.zeros(len(rows) + 1, np.bool_)
    np.equal(ordered[1:], ordered[:-1], out=is_twin[1:-1])
    rows = rows[order[is_twin[1:] | is_twin[:-1]]]
    if not len(rows):
        return ()
    rows, common = _ordered(rows, page_indptr, page_indices, positions // page_size)
    return tuple(_nested(rows.tolist(), common.tolist(), -(-MIN_TOKENS // page_size)))


def _ordered(
    rows: npt.NDArray[np.int64], page_indptr: Int32, page_indices: Int32, usable: Int32
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Rows so that those with a common beginning are neighbours, and the length in pages of what
    each has in common with the one before: [len(rows)], 0 for the first."""
    counts = usable[rows]
    width = int(counts.max())
    places = np.arange(width)
    inside = places < counts[:, None]
    pages = page_indices[np.where(inside, page_indptr[rows][:, None] + places, 0)]
    pages = np.where(inside, pages + 1, 0)  # 0: no page
    keys = np.ascontiguousarray(pages.astype(">u4")).view(f"S{4 * width}")[:, 0]
    order = keys.argsort(kind="stable")
    pages = pages[order]
    differs = np.ones((len(rows), width + 1), np.bool_)
    np.not_equal(pages[1:], pages[:-1], out=differs[1:, :width])
    differs[1:, :width] |= pages[1:] == 0
    differs[0, 0] = True
    return rows[order], differs.argmax(axis=1)


def _nested(rows: list[int], common: list[int], least: int) -> list[SharedGroup]:
    """Groups of at least two rows and `least` pages, from the neighbours' common beginnings.

    common: pages that each row has in common with the one before.
    """
    found: list[tuple[int, int, int]] = []  # first row, last row + 1, pages
    open_at: list[tuple[int, int]] = []  # first row, pages
    for at, pages in enumerate([*common[1:], 0], start=1):
        start = at - 1
        while open_at and open_at[-1][1] > pages:
            start, depth = open_at.pop()
            found.append((start, at, depth))
        if pages and (not open_at or open_at[-1][1] < pages):
            open_at.append((start, pages))
    found.sort(key=lambda group: group[2])
    begins = [0] * len(rows)
    groups = []
    for first, end, pages in found:
        begin = begins[first]
        if pages - begin < least:
            continue
        begins[first:end] = [pages] * (end - first)
        groups.append(SharedGroup(tuple(sorted(rows[first:end])), begin, pages))
    return groups
