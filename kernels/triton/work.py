"""Cutting a step's attention into items of work, in numpy.

Owns: which queries attend to which range of which page table, how long ranges are split, and where
partial results go. Must not know: tensors, kernels.

An item is up to `queries` tokens that read one range of KV together: consecutive tokens of a row,
or tokens of several rows over the pages that a SharedGroup says they share. A token in more than
one item has its parts merged.

Example: page_size 4, two decode rows at positions 9 and 10 that share their first two pages, a tile
of four queries: the items are tokens [0, 1] over 0 .. 7, token 0 over 8 .. 9, token 1 over 8 .. 10;
parts [0, 2, 1, 3], merged are tokens [0, 1] with the parts 0 .. 1 and 2 .. 3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from radixserve.ints import ceil_div
from radixserve.plan import Int32, SharedGroup

Int64 = npt.NDArray[np.int64]

KEYS_STEP = 64  # ranges are split at multiples of this, so that blocks of keys stay whole
LEAST_KEYS = 512  # in a part of a split range


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """All int32. Item i: counts[i] tokens of the step, queries[firsts[i]] .., over places begins[i]
    .. ends[i] - 1 of the page table that starts at tables[i] in page_indices; every one of them may
    see the places before clears[i]. The first `large` items have more queries than `few`, both
    kinds are ordered longest first.

    parts: [len(queries)], where each query of each item writes, or -1: the output itself.
    merged: [m] tokens with parts merge_indptr[n] .. merge_indptr[n + 1] - 1. part_count: parts in
    all.
    """

    firsts: Int32
    counts: Int32
    queries: Int32
    parts: Int32
    tables: Int32
    begins: Int32
    ends: Int32
    clears: Int32
    merged: Int32
    merge_indptr: Int32
    part_count: int
    large: int

    @property
    def items(self) -> int:
        return len(self.tables)

    def padded(self, tokens: int, least: int = 16) -> Work:
        """The same with items of no tokens and merged tokens of no parts behind the others, so that
        the sizes are few: items of each kind, and parts, up to a power of two from `least` on (none
        stays none), merged up to `tokens`. Graphs are captured for such."""
        few = self.items - self.large
        large, more = _room(self.large, least), _room(few, least)
        place = np.concatenate((np.arange(self.large), large + np.arange(few)))

        def spread(array: Int32) -> Int32:
            wide = np.zeros(large + more, np.int32)
            wide[place] = array
            return wide

        names = ("firsts", "counts", "tables", "begins", "ends", "clears")
        behind = max(0, tokens - len(self.merged)) if self.part_count else 0
        return replace(
            self,
            **{name: spread(getattr(self, name)) for name in names},
            merged=np.pad(self.merged, (0, behind)),
            merge_indptr=np.pad(self.merge_indptr, (0, behind), mode="edge"),
            part_count=_room(self.part_count, least),
            large=large,
        )


@dataclass(frozen=True, slots=True)
class Tiles:
    """Tokens members[first] .. of count each, over begin .. end - 1 of a table, before clear
    without a mask; all int64."""

    first: Int64
    count: Int64
    table: Int64
    begin: Int64
    end: Int64
    clear: Int64


def _room(count: int, least: int) -> int:
    """The least power of two that is at least count and `least`; 0 for 0."""
    return max(least, 1 << (count - 1).bit_length()) if count else 0


def cut(
    positions: Int32,
    lengths: Int32,
    page_indptr: Int32,
    shared: Sequence[SharedGroup],
    *,
    page_size: int,
    queries: int,
    few: int = 0,
    window: int = 0,
    wanted: int = 1,
) -> Work:
    """The items of a step.

    positions, lengths: [rows], page_indptr: [rows + 1], as in attention.base.AttentionInputs.
    queries: tokens of a tile at most. few: items of at most so many are put last, for a smaller
    tile. window: as in kernels.reference.attend. wanted: items to aim at by splitting long ranges.
    """
    starts = np.cumsum(lengths, dtype=np.int64) - lengths
    places = _token_positions(positions, lengths, starts)
    own = np.zeros(len(lengths), np.int64)
    members = [np.arange(len(places), dtype=np.int64)]
    tiles = []
    at = len(places)
    for group in shared:
        rows = np.array(group.rows, dtype=np.int64)
        end = min(group.end * page_size, int(positions[rows].min()))
        begin = group.begin * page_size
        if end <= begin:
            continue
        tokens = _tokens_of(rows, starts, lengths)
        first = np.arange(0, len(tokens), queries, dtype=np.int64)
        count = np.minimum(queries, len(tokens) - first)
        table = np.full(len(first), page_indptr[rows[0]], np.int64)
        edges = [np.full(len(first), place) for place in (begin, end, end)]
        tiles.append(Tiles(at + first, count, table, *edges))
        members.append(tokens)
        at += len(tokens)
        own[rows] = end
    tiles.append(_row_tiles(positions, lengths, starts, page_indptr, own, queries))
    all_members = np.concatenate(members)
    items = _split(_clip(_join(tiles), places[all_members], window), wanted, few)
    return _work(items, all_members, int(np.count_nonzero(items.count > few)))


def _token_positions(positions: Int32, lengths: Int32, starts: Int64) -> Int64:
    """The place of each token of the step in its own sequence: [tokens]."""
    total = int(lengths.sum())
    result: Int64 = np.arange(total) + np.repeat(positions.astype(np.int64) - starts, lengths)
    return result


def _tokens_of(rows: Int64, starts: Int64, lengths: Int32) -> Int64:
    counts = lengths[rows].astype(np.int64)
    if (counts == 1).all():
        return starts[rows]
    return np.repeat(starts[rows], counts) + _within(counts)


def _within(counts: Int64) -> Int64:
    """counts [2, 3] give [0, 1, 0, 1, 2]."""
    result: Int64 = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    return result


def _row_tiles(
    positions: Int32,
    lengths: Int32,
    starts: Int64,
    page_indptr: Int32,
    own: Int64,
    queries: int,
) -> Tiles:
    """Tiles of each row's tokens over what no group of the row has read: from own[row] on."""
    counts = -(-lengths.astype(np.int64) // queries)
    row = np.repeat(np.arange(len(lengths)), counts)
    offset = _within(counts) * queries
    count = np.minimum(queries, lengths[row] - offset)
    end = positions[row] + offset + count
    tables = page_indptr[row].astype(np.int64)
    return Tiles(starts[row] + offset, count, tables, own[row], end, end - count + 1)


def _join(tiles: Sequence[Tiles]) -> Tiles:
    if len(tiles) == 1:
        return tiles[0]
    names = Tiles.__slots__
    return Tiles(*(np.concatenate([getattr(one, name) for one in tiles]) for name in names))


def _clip(tiles: Tiles, places: Int64, window: int) -> Tiles:
    """Without what lies before the window of a tile's first query. places: of all members."""
    begin = tiles.begin
    if window and len(tiles.first):
        whole = np.repeat(np.arange(len(tiles.first)), tiles.count)
        entries = np.repeat(tiles.first, tiles.count) + _within(tiles.count)
        least = np.full(len(tiles.first), np.iinfo(np.int64).max)
        np.minimum.at(least, whole, places[entries])
        begin = np.maximum(begin, least - window + 1)
    kept = begin < tiles.end
    fields = (tiles.first, tiles.count, tiles.table, begin, tiles.end, tiles.clear)
    return Tiles(*(field[kept] for field in fields))


def _split(tiles: Tiles, wanted: int, few: int) -> Tiles:
    """Ranges longer than an even share of the work in pieces; in the order of Work."""
    length = tiles.end - tiles.begin
    share = max(LEAST_KEYS, ceil_div(int(length.sum()), max(wanted, 1)))
    share = ceil_div(share, KEYS_STEP) * KEYS_STEP
    if len(length) and int(length.max()) > share:
        pieces = -(-length // share)
        size = -(-length // pieces)
        size = -(-size // KEYS_STEP) * KEYS_STEP
        pieces = -(-length // size)
        source = np.repeat(np.arange(len(length)), pieces)
        begin = tiles.begin[source] + _within(pieces) * size[source]
        end = np.minimum(begin + size[source], tiles.end[source])
        kept = (tiles.first[source], tiles.count[source], tiles.table[source])
        tiles = Tiles(*kept, begin, end, np.minimum(tiles.clear[source], end))
    order = np.lexsort((tiles.begin - tiles.end, tiles.count <= few))
    return Tiles(*(getattr(tiles, name)[order] for name in Tiles.__slots__))


def _work(tiles: Tiles, members: Int64, large: int) -> Work:
    tokens = members[np.repeat(tiles.first, tiles.count) + _within(tiles.count)]
    times = np.bincount(tokens) if len(tokens) else np.zeros(0, np.int64)
    parts = np.full(len(tokens), -1, np.int64)
    merged = np.flatnonzero(times > 1)
    indptr = np.concatenate(([0], np.cumsum(times[merged])))
    if len(merged):
        base = np.zeros(len(times), np.int64)
        base[merged] = indptr[:-1]
        order = np.argsort(tokens, kind="stable")
        in_order = tokens[order]
        rank = np.arange(len(tokens)) - np.repeat(np.cumsum(times) - times, times)
        parts[order] = np.where(times[in_order] > 1, base[in_order] + rank, -1)
    return Work(
        firsts=(np.cumsum(tiles.count) - tiles.count).astype(np.int32),
        counts=tiles.count.astype(np.int32),
        queries=tokens.astype(np.int32),
        parts=parts.astype(np.int32),
        tables=tiles.table.astype(np.int32),
        begins=tiles.begin.astype(np.int32),
        ends=tiles.end.astype(np.int32),
        clears=tiles.clear.astype(np.int32),
        merged=merged.astype(np.int32),
        merge_indptr=indptr.astype(np.int32),
        part_count=int(indptr[-1]),
        large=large,
    )
