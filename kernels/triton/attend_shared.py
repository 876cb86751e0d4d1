"""Attention of rows that share prefixes: shared pages are read once, the rest row by row.

Owns: the two launches and the merge. Must not know: how groups are found (scheduler), layers.

For groups of n_g rows over L_g tokens and rows with l_r tokens of their own, H query and K KV heads
of D, caches of e bytes an element: (sum(L_g) * ceil(n_g * H / K / 128) + sum(l_r)) * K * D * 2 * e
bytes of KV, where reading row by row moves (sum(n_g * L_g) + sum(l_r)) * K * D * 2 * e; 8 * parts *
H * (D + 1) bytes of parts written and read. FLOPs are those of attend_decode. Groups nest: a row's
parts are those of the groups around it and its own.
"""

from __future__ import annotations

import torch

from radixserve.kernels.triton.attend_extend import DeviceWork, extend_launch, merged_launch
from radixserve.kernels.triton.launch import Launch
from radixserve.kernels.triton.merge import Parts, empty_parts
from radixserve.kernels.triton.terms import Terms, Tile, tile_for


def small_tile(group: int, head_dim: int, dtype: torch.dtype, arch: int) -> Tile | None:
    """The tile for items of few queries beside large ones; None where one query fills more.

    group: query heads of a KV head. arch: as of launch.arch_of.
    """
    return tile_for(group, head_dim, dtype, arch) if group <= 16 else None


def shared_launches(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    work: DeviceWork,
    terms: Terms,
    tiles: tuple[Tile, Tile],
    out: torch.Tensor,
    parts: Parts | None,
    processors: int,
) -> list[Launch]:
    """As attend_shared, without running; parts: [work.part_count], None where that is 0."""
    caches = (q, k_cache, v_cache)
    both = (slice(0, work.large), slice(work.large, None))
    launches = [
        extend_launch(*caches, work, terms, tile, out, parts, processors, items)
        for tile, items in zip(tiles, both)
        if len(work.tables[items])
    ]
    return launches if parts is None else [*launches, merged_launch(parts, out, work, terms)]


def attend_shared(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    work: DeviceWork,
    terms: Terms,
    tiles: tuple[Tile, Tile],
    *,
    processors: int,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """As attend_extend, for work cut with groups: large items in tiles[0], few queries in tiles[1].

    work: work.cut(.., shared=groups, few=tiles[1].rows // group) on the device.
    """
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device) if out is None else out
    parts = empty_parts(work.part_count, q) if work.part_count else None
    caches = (q, k_cache, v_cache)
    for launch in shared_launches(*caches, work, terms, tiles, out, parts, processors):
        launch.run()
    return out
