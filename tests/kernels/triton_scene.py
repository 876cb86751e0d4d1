"""Rows over a paged pool for tests of attention kernels: what no row holds is NaN."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from radixserve.kernels import reference
from radixserve.kernels.triton.attend_decode import attend_decode
from radixserve.kernels.triton.attend_extend import DeviceWork, attend_extend, queries_in_tile
from radixserve.kernels.triton.attend_shared import attend_shared, small_tile
from radixserve.kernels.triton.terms import Terms
from radixserve.kernels.triton.work import Work, cut
from radixserve.plan import SharedGroup
from radixserve.scheduler.sharing import shared_groups

TOLERANCE = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


@dataclass
class Scene:
    """tables: page ids of each row, drawn at random where None. options: of reference.attend."""

    positions: list[int]
    lengths: list[int]
    page_size: int = 16
    kv_heads: int = 2
    group: int = 2
    head_dim: int = 64
    dtype: torch.dtype = torch.float32
    tables: list[list[int]] | None = None
    options: dict[str, Any] = field(default_factory=dict)
    is_fp8: bool = False

    def __post_init__(self) -> None:
        torch.manual_seed(0)
        if self.tables is None:
            counts = [-(-(p + n) // self.page_size) for p, n in zip(self.positions, self.lengths)]
            free = iter(np.random.default_rng(0).permutation(sum(counts)).tolist())
            self.tables = [[next(free) for _ in range(count)] for count in counts]
        pages = max(page for table in self.tables for page in table) + 1
        size = (pages, self.page_size, self.kv_heads, self.head_dim)
        self.k = torch.full(size, torch.nan)
        self.v = self.k.clone()
        for table, position, length in zip(self.tables, self.positions, self.lengths):
            for place in range(position + length):
                slot = table[place // self.page_size], place % self.page_size
                self.k[slot] = torch.randn(size[2:])
                self.v[slot] = torch.randn(size[2:])
        cache_type = torch.float8_e4m3fn if self.is_fp8 else self.dtype
        self.k, self.v = self.k.to(cache_type), self.v.to(cache_type)
        if self.is_fp8:
            scales = torch.rand(self.kv_heads) + 0.5, torch.rand(self.kv_heads) + 0.5
            self.options["kv_scales"] = scales
        self.indptr = np.cumsum([0, *map(len, self.tables)]).astype(np.int32)
        self.indices = np.concatenate(self.tables).astype(np.int32)
        heads = self.kv_heads * self.group
        # Rows apart by more than their size, as q is in the product of a fused projection.
        fused = torch.randn(sum(self.lengths), heads + 3, self.head_dim).to(self.dtype)
        self.q = fused[:, :heads]
        self.scale = self.head_dim**-0.5
        self.terms = Terms(scale=self.scale, **self.options)

    def rows(self) -> tuple[np.ndarray, np.ndarray]:
        return np.array(self.positions, np.int32), np.array(self.lengths, np.int32)

    def groups(self) -> tuple[SharedGroup, ...]:
        return shared_groups(self.indptr, self.indices, *self.rows(), self.page_size)

    def caches(self) -> tuple[torch.Tensor, torch.Tensor]:
        return self.k, self.v

    def decode(self, splits: int = 1) -> torch.Tensor:
        lens = torch.tensor(self.positions, dtype=torch.int32) + 1
        table = torch.from_numpy(self.indptr), torch.from_numpy(self.indices)
        return attend_decode(self.q, *self.caches(), *table, lens, self.terms, splits=splits)

    def extend(self, wanted: int = 1, processors: int = 2) -> torch.Tensor:
        longest = max(self.lengths)
        tile, queries = queries_in_tile(longest, self.group, self.head_dim, self.dtype, 90)
        work = self.cut((), queries=queries, wanted=wanted)
        staged = self.staged(work)
        args = (self.q, *self.caches(), staged, self.terms, tile)
        return attend_extend(*args, processors=processors)

    def shared(self, groups: tuple[SharedGroup, ...], wanted: int = 1) -> torch.Tensor:
        many = sum(self.lengths)
        tile, queries = queries_in_tile(many, self.group, self.head_dim, self.dtype, 90)
        small = small_tile(self.group, self.head_dim, self.dtype, 90)
        assert small is not None
        few = small.rows // self.group
        work = self.cut(groups, queries=queries, few=few, wanted=wanted)
        args = (self.q, *self.caches(), self.staged(work), self.terms, (tile, small))
        return attend_shared(*args, processors=2)

    def cut(self, groups: tuple[SharedGroup, ...], **settings: int) -> Work:
        window = self.terms.window
        rows = (*self.rows(), self.indptr, groups)
        return cut(*rows, page_size=self.page_size, window=window, **settings)

    def staged(self, work: Work) -> DeviceWork:
        places = [p + i for p, n in zip(self.positions, self.lengths) for i in range(n)]
        names = (
            "firsts",
            "counts",
            "queries",
            "parts",
            "tables",
            "begins",
            "ends",
            "clears",
            "merged",
        )
        return DeviceWork(
            torch.tensor(places, dtype=torch.int32),
            torch.from_numpy(self.indices),
            *(torch.from_numpy(getattr(work, name)) for name in (*names, "merge_indptr")),
            part_count=work.part_count,
            large=work.large,
        )

    def check(self, got: torch.Tensor) -> None:
        ends = torch.tensor(self.positions) + torch.tensor(self.lengths)
        wanted = reference.attend(
            self.q.float(), self.k.float(), self.v.float(),
            torch.from_numpy(np.cumsum([0, *self.lengths])), ends,
            torch.from_numpy(self.indptr), torch.from_numpy(self.indices), self.scale,
            **self.options,
        )  # fmt: skip
        tolerance = TOLERANCE[self.dtype]
        assert got.dtype == self.dtype
        torch.testing.assert_close(got.float(), wanted, rtol=tolerance, atol=tolerance)
