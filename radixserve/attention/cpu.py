"""Attention on the CPU in plain torch: gather, matmul, softmax.

Owns: how a step is cut into blocks that stay in cache. Must not know: models, requests.

Rows of one token (decode) are attended in groups of similar length without a loop over rows; rows
of more (extend) one by one in blocks of queries. Both gather the KV they read into
[num_kv_heads, kv_len, head_dim] and fold the query heads of one KV head into the rows of a matrix:
measured against scaled_dot_product_attention on strided K and V this is several times faster.
Scores and softmax are float32 whatever the cache holds; weights times V is in the cache's dtype.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from radixserve.attention.base import (
    AttentionInputs,
    AttentionShape,
    RotatingBackend,
    StagedBackend,
)
from radixserve.attention.geometry import Int64, bucket_rows, kv_slots, token_slots
from radixserve.kernels.cpu.paged import PagedAttention

GATHER_ELEMENTS = 2**19  # of K in one decode group: 2 MiB in float32, about one core's L2
SCORE_ELEMENTS = 2**19  # of scores in one block of extend queries
MIN_QUERIES = 16  # fewer rows make the matmul slow whatever the cache does
BUCKET_SLACK = 32  # tokens of padding that cost less than another group


@dataclass(frozen=True, slots=True)
class DecodeGroup:
    """rows b, padded KV length n. tokens: [b] int64, places of the queries in the step.

    kv_index: [b * num_kv_heads * n] int64 into the cache seen as [slots * num_kv_heads, head_dim].
    bias: [b, 1, 1, n] float32, 0 or -inf on padding; None where there is no padding.
    """

    tokens: torch.Tensor
    kv_index: torch.Tensor
    kv_len: int
    bias: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class ExtendRow:
    """One row with tokens begin .. end - 1 of the step, the last of its kv_len tokens.

    kv_index: [num_kv_heads * kv_len] int64, as in DecodeGroup. block: queries at a time.
    """

    begin: int
    end: int
    kv_len: int
    kv_index: torch.Tensor
    block: int


class CpuAttention:
    """AttentionBackend for float32, bfloat16 and float16 on the CPU."""

    shares_prefixes = False
    paged: PagedAttention | None = None
    rotating: RotatingBackend | None = None
    staged: StagedBackend | None = None

    def __init__(
        self,
        shape: AttentionShape,
        page_size: int,
        k_cache: list[torch.Tensor],
        v_cache: list[torch.Tensor],
    ) -> None:
        """k_cache, v_cache: one [pages, page_size, num_kv_heads, head_dim] for each layer."""
        self._heads = shape.num_kv_heads
        self._group = shape.num_qo_heads // shape.num_kv_heads
        self._head_dim = shape.head_dim
        self._scale = shape.scale
        self._page_size = page_size
        self._k_tokens = [cache.view(-1, self._heads, self._head_dim) for cache in k_cache]
        self._v_tokens = [cache.view(-1, self._heads, self._head_dim) for cache in v_cache]
        self._causal = torch.zeros(0, 0)

    def plan(self, inputs: AttentionInputs) -> None:
        lengths = inputs.lengths.astype(np.int64)
        kv_lens = inputs.positions.astype(np.int64) + lengths
        begins = np.cumsum(lengths) - lengths
        self._slots = torch.from_numpy(token_slots(inputs, self._page_size))
        self._decode = self._plan_decode(inputs, np.flatnonzero(lengths == 1), kv_lens, begins)
        self._extend = [
            self._plan_extend(inputs, row, int(kv_lens[row]), int(begins[row]))
            for row in np.flatnonzero(lengths > 1).tolist()
        ]

    def _plan_decode(
        self, inputs: AttentionInputs, rows: Int64, kv_lens: Int64, begins: Int64
    ) -> list[DecodeGroup]:
        groups = []
        limit = GATHER_ELEMENTS // (self._heads * self._head_dim)
        for members in bucket_rows(kv_lens[rows], limit, BUCKET_SLACK):
            chosen = rows[members]
            lens = kv_lens[chosen]
            longest, shortest = int(lens[0]), int(lens[-1])
            bias = None
            if shortest < longest:
                padding = np.arange(longest)[None, :] >= lens[:, None]
                bias = torch.zeros(padding.shape).masked_fill_(
                    torch.from_numpy(padding), float("-inf")
                )[:, None, None, :]
            index = self._head_index(kv_slots(inputs, chosen, lens, self._page_size))
            groups.append(DecodeGroup(torch.from_numpy(begins[chosen]), index, longest, bias))
        return groups

    def _plan_extend(self, inputs: AttentionInputs, row: int, kv_len: int, begin: int) -> ExtendRow:
        slots = kv_slots(inputs, np.array([row]), np.array([kv_len]), self._page_size)
        length = int(inputs.lengths[row])
        fitting = SCORE_ELEMENTS // (self._heads * self._group * kv_len)
        block = min(length, max(MIN_QUERIES, fitting))
        return ExtendRow(begin, begin + length, kv_len, self._head_index(slots), block)

    def _head_index(self, slots: Int64) -> torch.Tensor:
        index = slots[:, None, :] * self._heads + np.arange(self._heads)[None, :, None]
        return torch.from_numpy(index.reshape(-1))

    def run(self, layer_id: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        k_tokens, v_tokens = self._k_tokens[layer_id], self._v_tokens[layer_id]
        k_tokens.index_copy_(0, self._slots, k.to(k_tokens.dtype))
        v_tokens.index_copy_(0, self._slots, v.to(v_tokens.dtype))
        keys, values = k_tokens.view(-1, self._head_dim), v_tokens.view(-1, self._head_dim)
        by_head = (len(q), self._heads, self._group, self._head_dim)
        queries = (q.float() * self._scale).view(by_head)
        out = torch.empty_like(q)
        for group in self._decode:
            self._attend_decode(group, queries, keys, values, out)
        for row in self._extend:
            self._attend_extend(row, queries, keys, values, out)
        return out.flatten(1)

    def _attend_decode(
        self,
        group: DecodeGroup,
        queries: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        out: torch.Tensor,
    ) -> None:
        shape = (len(group.tokens), self._heads, group.kv_len, self._head_dim)
        k = keys.index_select(0, group.kv_index).view(shape).float()
        scores = torch.matmul(queries.index_select(0, group.tokens), k.transpose(2, 3))
        if group.bias is not None:
            scores += group.bias
        weights = scores.softmax(-1).to(values.dtype)
        v = values.index_select(0, group.kv_index).view(shape)
        attended = torch.matmul(weights, v).flatten(1, 2)
        out.index_copy_(0, group.tokens, attended.to(out.dtype))

    def _attend_extend(
        self,
        row: ExtendRow,
        queries: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        out: torch.Tensor,
    ) -> None:
        shape = (self._heads, row.kv_len, self._head_dim)
        k = keys.index_select(0, row.kv_index).view(shape).float().transpose(1, 2)
        v = values.index_select(0, row.kv_index).view(shape)
        by_head = out.view(queries.shape)
        for begin in range(row.begin, row.end, row.block):
            end = min(begin + row.block, row.end)
            n = end - begin
            seen = row.kv_len - (row.end - end)
            # [n, heads, group, head_dim] -> [heads, group * n, head_dim]: the mask is one for all
            block = queries[begin:end].permute(1, 2, 0, 3).reshape(self._heads, -1, self._head_dim)
            scores = torch.bmm(block, k[:, :, :seen])
            scores.view(self._heads, self._group, n, seen)[..., seen - n :] += self._mask(n)
            weights = scores.softmax(-1).to(values.dtype)
            attended = torch.bmm(weights, v[:, :seen])
            by_head[begin:end] = attended.view(self._heads, self._group, n, self._head_dim).permute(
                2, 0, 1, 3
            )

    def _mask(self, n: int) -> torch.Tensor:
        """[n, n] float32: -inf above the diagonal, 0 elsewhere."""
        if len(self._causal) < n:
            self._causal = torch.full((n, n), float("-inf")).triu_(1)
        return self._causal[:n, :n]
