"""How attention scores are formed, and how large the tiles are that form them.

Owns: the options that all attention kernels share, the tile sizes for each shape. Must not know:
rows, pages.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from radixserve.kernels.triton.launch import Constant, is_interpreted, power_of_2

FP8 = (torch.float8_e4m3fn, torch.uint8)


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """As in kernels.reference.attend.

    sinks: [num_qo_heads] float32. kv_scales: K's and V's, [num_kv_heads] float32 each, for a cache
    in float8_e4m3fn; a GPU without that type (before sm_89) is given the cache as uint8.
    """

    scale: float
    window: int = 0
    softcap: float = 0.0
    sinks: torch.Tensor | None = None
    kv_scales: tuple[torch.Tensor, torch.Tensor] | None = None

    def arguments(self) -> dict[str, torch.Tensor | float | None]:
        k_scale, v_scale = self.kv_scales or (None, None)
        return {
            "sinks_ptr": self.sinks,
            "k_scale_ptr": k_scale,
            "v_scale_ptr": v_scale,
            "scale": self.scale,
        }


def check_cache(
    q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, terms: Terms
) -> None:
    """Raises ValueError for tensors that the kernels would read wrongly."""
    if k_cache.shape != v_cache.shape or not (k_cache.is_contiguous() and v_cache.is_contiguous()):
        raise ValueError("K and V caches must be contiguous and of one shape")
    if q.stride()[1:] != (q.shape[2], 1):
        raise ValueError(f"the heads of a token must lie side by side, not {q.stride()}")
    if q.shape[1] % k_cache.shape[2] or q.shape[2] != k_cache.shape[3]:
        raise ValueError(f"queries {tuple(q.shape)} do not fit a cache {tuple(k_cache.shape)}")
    is_fp8 = k_cache.dtype in FP8
    if is_fp8 != (terms.kv_scales is not None) or (not is_fp8 and k_cache.dtype != q.dtype):
        raise ValueError(f"a {k_cache.dtype} cache for {q.dtype} queries; fp8 needs scales")


def shape_constants(q: torch.Tensor, k_cache: torch.Tensor, terms: Terms) -> dict[str, Constant]:
    """The constants that every attention kernel takes."""
    _, page_size, num_kv_heads, head_dim = k_cache.shape
    return {
        "PAGE_SIZE": page_size,
        "NUM_KV_HEADS": num_kv_heads,
        "GROUP": q.shape[1] // num_kv_heads,
        "HEAD_DIM": head_dim,
        "BLOCK_D": power_of_2(head_dim, 16),
        "WINDOW": terms.window,
        "SOFTCAP": terms.softcap,
        "WIDE": is_interpreted() and q.dtype == torch.bfloat16,
    }


@dataclass(frozen=True, slots=True)
class Tile:
    """rows: query rows (token and head) that share KV reads. keys: tokens of KV at a time."""

    rows: int
    keys: int
    warps: int
    stages: int

    def constants(self) -> dict[str, Constant]:
        return {"BLOCK_M": self.rows, "BLOCK_N": self.keys}


def tile_for(rows: int, head_dim: int, dtype: torch.dtype, arch: int) -> Tile:
    """The tile for `rows` query rows that could share their KV reads. arch: as of launch.arch_of.

    16 rows is the least that tensor cores take; 64 feeds one warp group; 128 reads KV half as
    often. float32 multiplies without tensor cores and holds twice the bytes: its tiles are small.
    All are chosen so that nothing is spilled, which test_aot.py holds; before sm_90 products live
    in registers beside everything else, so that fewer keys fit, and on sm_100 128 rows leave room
    for fewer.
    """
    wide = head_dim > 128
    if dtype == torch.float32:
        return Tile(16 if rows <= 16 else 32, 16, 4, 2)
    if rows <= 16:
        return Tile(16, 32 if wide else 64, 4, 2 if wide and arch < 90 else 3)
    keys = 32 if wide or (arch < 90 and head_dim > 64) else 64
    if rows <= 64 or wide:
        return Tile(64, keys, 8 if wide else 4, 2)
    return Tile(128, 32 if arch >= 100 else keys, 8, 2)
