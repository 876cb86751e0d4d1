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
    NO_TENSORS,
    AttentionInputs,
    AttentionShape,
    AttentionTensors,
    RotatingBackend,
    StagedBackend,
)
from radixserve.attention.geometry import Int64, bucket_rows, kv_slots, token_slots
from radixserve.attention.terms import LayerTerms, bits, encoded, layer_terms
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
    """One row with tokens begin .. end - 1 of the step, the last of the kv_len tokens it reads.

    kv_index: [num_kv_heads * kv_len] int64, as in DecodeGroup. block: queries at a time.
    """

    begin: int
    end: int
    kv_len: int
    kv_index: torch.Tensor
    block: int


@dataclass(frozen=True, slots=True)
class WindowPlan:
    """How the layers that have one window attend in a step."""

    decode: list[DecodeGroup]
    extend: list[ExtendRow]


@dataclass(frozen=True, slots=True)
class Layer:
    """k, v: the caches as terms.bits has them, [slots, num_kv_heads, head_dim]. cache: K's as it
    is, for its type."""

    terms: LayerTerms
    k: torch.Tensor
    v: torch.Tensor
    cache: torch.Tensor


class CpuAttention:
    """AttentionBackend for float32, bfloat16 and float16 on the CPU, their caches in fp8 too."""

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
        tensors: AttentionTensors = NO_TENSORS,
    ) -> None:
        """k_cache, v_cache: one [pages, page_size, num_kv_heads, head_dim] for each layer."""
        self._heads = shape.num_kv_heads
        self._group = shape.num_qo_heads // shape.num_kv_heads
        self._head_dim = shape.head_dim
        self._scale = shape.scale
        self._page_size = page_size
        tokens = (-1, self._heads, self._head_dim)
        self._layers = [
            Layer(terms, bits(k).view(tokens), bits(v).view(tokens), k)
            for terms, k, v in zip(layer_terms(shape, tensors, k_cache[0]), k_cache, v_cache)
        ]
        self._windows = sorted({layer.terms.window for layer in self._layers})
        self._causal = torch.zeros(0, 0)

    def plan(self, inputs: AttentionInputs) -> None:
        self._slots = torch.from_numpy(token_slots(inputs, self._page_size))
        self._plans = {window: self._plan_window(inputs, window) for window in self._windows}

    def _plan_window(self, inputs: AttentionInputs, window: int) -> WindowPlan:
        lengths, firsts = inputs.lengths.astype(np.int64), inputs.positions.astype(np.int64)
        ends = firsts + lengths
        firsts = np.maximum(firsts - window + 1, 0) if window else np.zeros_like(firsts)
        starts = np.cumsum(lengths) - lengths
        decode = self._plan_decode(inputs, np.flatnonzero(lengths == 1), firsts, starts)
        extend = [
            self._plan_extend(inputs, row, (int(firsts[row]), int(ends[row])), int(starts[row]))
            for row in np.flatnonzero(lengths > 1).tolist()
        ]
        return WindowPlan(decode, extend)

    def _plan_decode(
        self, inputs: AttentionInputs, rows: Int64, firsts: Int64, starts: Int64
    ) -> list[DecodeGroup]:
        groups = []
        limit = GATHER_ELEMENTS // (self._heads * self._head_dim)
        kv_lens = inputs.positions.astype(np.int64) + 1 - firsts
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
            places = (firsts[chosen], firsts[chosen] + lens)
            index = self._head_index(kv_slots(inputs, chosen, *places, self._page_size))
            groups.append(DecodeGroup(torch.from_numpy(starts[chosen]), index, longest, bias))
        return groups

    def _plan_extend(
        self, inputs: AttentionInputs, row: int, places: tuple[int, int], start: int
    ) -> ExtendRow:
        first, end = places
        bounds = (np.array([first]), np.array([end]))
        slots = kv_slots(inputs, np.array([row]), *bounds, self._page_size)
        length, kv_len = int(inputs.lengths[row]), end - first
        fitting = SCORE_ELEMENTS // (self._heads * self._group * kv_len)
        block = min(length, max(MIN_QUERIES, fitting))
        return ExtendRow(start, start + length, kv_len, self._head_index(slots), block)

    def _head_index(self, slots: Int64) -> torch.Tensor:
        index = slots[:, None, :] * self._heads + np.arange(self._heads)[None, :, None]
        return torch.from_numpy(index.reshape(-1))

    def run(self, layer_id: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        layer = self._layers[layer_id]
        k_scale, v_scale = layer.terms.kv_scales or (None, None)
        layer.k.index_copy_(0, self._slots, bits(encoded(k, layer.cache, k_scale)))
        layer.v.index_copy_(0, self._slots, bits(encoded(v, layer.cache, v_scale)))
        by_head = (len(q), self._heads, self._group, self._head_dim)
        queries = (q.float() * self._scale).view(by_head)
        out = torch.empty_like(q)
        plan = self._plans[layer.terms.window]
        for group in plan.decode:
            self._attend_decode(group, queries, layer, out)
        for row in plan.extend:
            self._attend_extend(row, queries, layer, out)
        return out.flatten(1)

    def _attend_decode(
        self, group: DecodeGroup, queries: torch.Tensor, layer: Layer, out: torch.Tensor
    ) -> None:
        shape = (len(group.tokens), self._heads, group.kv_len, self._head_dim)
        k, v = self._gathered(layer, group.kv_index, shape, out.dtype)
        scores = torch.matmul(queries.index_select(0, group.tokens), k.transpose(2, 3))
        scores = _capped(scores, layer.terms)
        if group.bias is not None:
            scores += group.bias
        weights = _softmax(scores, self._sinks(layer, 3)).to(v.dtype)
        attended = torch.matmul(weights, v).flatten(1, 2)
        out.index_copy_(0, group.tokens, attended.to(out.dtype))

    def _attend_extend(
        self, row: ExtendRow, queries: torch.Tensor, layer: Layer, out: torch.Tensor
    ) -> None:
        shape = (self._heads, row.kv_len, self._head_dim)
        k, v = self._gathered(layer, row.kv_index, shape, out.dtype)
        by_head = out.view(queries.shape)
        window = layer.terms.window
        for begin in range(row.begin, row.end, row.block):
            end = min(begin + row.block, row.end)
            n = end - begin
            seen = row.kv_len - (row.end - end)
            least = max(0, seen - n - window + 1) if window else 0
            # [n, heads, group, head_dim] -> [heads, group * n, head_dim]: the mask is one for all
            block = queries[begin:end].permute(1, 2, 0, 3).reshape(self._heads, -1, self._head_dim)
            scores = torch.bmm(block, k[:, least:seen].transpose(1, 2))
            scores = _capped(scores.view(self._heads, self._group, n, -1), layer.terms)
            if window:
                scores += _window_mask(n, seen - least, window)
            else:
                scores[..., seen - n :] += self._mask(n)
            weights = _softmax(scores, self._sinks(layer, 4)).to(v.dtype).flatten(1, 2)
            attended = torch.bmm(weights, v[:, least:seen])
            by_head[begin:end] = attended.view(self._heads, self._group, n, self._head_dim).permute(
                2, 0, 1, 3
            )

    def _gathered(
        self, layer: Layer, index: torch.Tensor, shape: tuple[int, ...], values: torch.dtype
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """K in float32, V in its cache's type or, where that is fp8, in `values`."""
        k, v = (part.view(-1, self._head_dim).index_select(0, index) for part in (layer.k, layer.v))
        if layer.terms.kv_scales is None:
            return k.view(shape).float(), v.view(shape)
        dtype = layer.cache.dtype
        k, v = (
            part.view(dtype).view(shape).float() * scale.view(-1, 1, 1)
            for part, scale in zip((k, v), layer.terms.kv_scales)
        )
        return k, v.to(values)

    def _sinks(self, layer: Layer, dims: int) -> torch.Tensor | None:
        """As scores of that many dimensions: .., KV head, query head of it, .., one key."""
        sinks = layer.terms.sinks
        return None if sinks is None else sinks.view(self._heads, self._group, *(dims - 2) * (1,))

    def _mask(self, n: int) -> torch.Tensor:
        """[n, n] float32: -inf above the diagonal, 0 elsewhere."""
        if len(self._causal) < n:
            self._causal = torch.full((n, n), float("-inf")).triu_(1)
        return self._causal[:n, :n]


def _window_mask(n: int, keys: int, window: int) -> torch.Tensor:
    """[n, keys] float32 of the last n of them: 0 on the `window` keys that end with a query's own,
    -inf elsewhere."""
    age = torch.arange(keys - n, keys)[:, None] - torch.arange(keys)[None, :]
    hidden = (age < 0) | (age >= window)
    return torch.zeros(n, keys).masked_fill_(hidden, float("-inf"))


def _capped(scores: torch.Tensor, terms: LayerTerms) -> torch.Tensor:
    if not terms.softcap:
        return scores
    return torch.tanh(scores / terms.softcap) * terms.softcap


def _softmax(scores: torch.Tensor, sinks: torch.Tensor | None) -> torch.Tensor:
    """Over the last axis; sinks take their share of it."""
    if sinks is None:
        return scores.softmax(-1)
    own = sinks.expand(*scores.shape[:-1], 1)
    return torch.cat((scores, own), dim=-1).softmax(-1)[..., :-1]
