"""Where a step's tokens lie in the KV pool, in numpy.

Owns: the arithmetic from page tables to slots (page * page_size + offset), and which decode rows
are attended together. Must not know: tensors, layers, heads.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from radixserve.attention.base import AttentionInputs
from radixserve.ints import ceil_div

Int64 = npt.NDArray[np.int64]


def token_positions(inputs: AttentionInputs) -> Int64:
    """The place of every token of the step in its own sequence: [tokens]."""
    lengths = inputs.lengths.astype(np.int64)
    starts = np.cumsum(lengths) - lengths
    places: Int64 = np.arange(lengths.sum()) + np.repeat(inputs.positions - starts, lengths)
    return places


def token_slots(inputs: AttentionInputs, page_size: int) -> Int64:
    """The slot of every token that the step computes: [tokens].

    Example, page_size 4: position 6, length 3, pages [7, 2, 9] gives [10, 11, 36].
    """
    lengths = inputs.lengths.astype(np.int64)
    places = token_positions(inputs)
    table_start = np.repeat(inputs.page_indptr[:-1].astype(np.int64), lengths)
    pages = inputs.page_indices[table_start + places // page_size].astype(np.int64)
    slots: Int64 = pages * page_size + places % page_size
    return slots


def kv_slots(
    inputs: AttentionInputs, rows: Int64, begins: Int64, ends: Int64, page_size: int
) -> Int64:
    """The slots of places begins .. ends - 1 of `rows`, padded: [len(rows), (ends - begins).max()].

    begins, ends: [len(rows)]. A row with fewer than the longest repeats its last slot, so that
    whoever gathers the padding reads numbers that have been written.
    """
    within = np.arange((ends - begins).max())[None, :]
    places = np.minimum(begins[:, None] + within, ends[:, None] - 1)
    table_start = inputs.page_indptr[rows].astype(np.int64)[:, None]
    pages = inputs.page_indices[table_start + places // page_size].astype(np.int64)
    slots: Int64 = pages * page_size + places % page_size
    return slots


def bucket_rows(kv_lens: Int64, tokens_limit: int, slack: int) -> list[Int64]:
    """Split rows into groups that may be padded to their longest: indices into kv_lens.

    A group's shortest row has at least three quarters of its longest, or is at most `slack`
    tokens shorter, and a group of more than one row holds at most tokens_limit padded tokens: one
    long row neither pads the others nor makes the gathered block larger than it must be.

    Example, limit 64, slack 8: lengths [30, 5, 28, 3] give [0, 2] and [1, 3].
    """
    order = np.argsort(-kv_lens, kind="stable")
    groups: list[Int64] = []
    begin = 0
    while begin < len(order):
        longest = int(kv_lens[order[begin]])
        shortest = min(ceil_div(longest * 3, 4), longest - slack)
        fitting = int(np.count_nonzero(kv_lens[order[begin:]] >= shortest))
        count = min(fitting, max(1, tokens_limit // longest))
        groups.append(order[begin : begin + count])
        begin += count
    return groups
