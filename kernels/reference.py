"""The operations of the runtime in plain torch: the truth that every fast kernel is held to.

Owns: what each operation means, written as simply as it can be. Must not know: speed, backends,
requests. Attention and norms compute in float32 and return the dtype of their input; sampling
computes in float64. KV layout: [pages, page_size, num_kv_heads, head_dim]; a token's slot is
page * page_size + offset in the page.
"""

from __future__ import annotations

import torch
from torch import Tensor


def store_kv(k_cache: Tensor, v_cache: Tensor, k: Tensor, v: Tensor, slots: Tensor) -> None:
    """Write the K and V of tokens into their slots.

    k_cache, v_cache: [pages, page_size, num_kv_heads, head_dim], changed.
    k, v: [tokens, num_kv_heads, head_dim]. slots: [tokens] int64, each at most once.
    """
    page_size = k_cache.shape[1]
    for token, slot in enumerate(slots.tolist()):
        k_cache[slot // page_size, slot % page_size] = k[token]
        v_cache[slot // page_size, slot % page_size] = v[token]


def copy_kv(k_cache: Tensor, v_cache: Tensor, source: int, destination: int, n: int) -> None:
    """Copy the first n tokens of page `source` to page `destination`.

    k_cache, v_cache: [pages, page_size, num_kv_heads, head_dim], changed. 0 <= n <= page_size.
    """
    k_cache[destination, :n] = k_cache[source, :n]
    v_cache[destination, :n] = v_cache[source, :n]


def attend(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    qo_indptr: Tensor,
    kv_lens: Tensor,
    page_indptr: Tensor,
    page_indices: Tensor,
    scale: float,
    *,
    window: int = 0,
    softcap: float = 0.0,
    sinks: Tensor | None = None,
    kv_scales: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """Causal attention of ragged queries over paged KV; decode, extend and mixed alike.

    q: [tokens, num_qo_heads, head_dim]. k_cache, v_cache: [pages, page_size, num_kv_heads,
    head_dim]; query head h reads KV head h // (num_qo_heads / num_kv_heads).
    qo_indptr: [rows + 1], the tokens of row r are qo_indptr[r] .. qo_indptr[r + 1] - 1.
    kv_lens: [rows], tokens in the row's KV, the row's own queries being the last of them.
    page_indptr: [rows + 1], page_indices: [page_indptr[-1]]: each row's page table.
    window: a query sees that many tokens, itself the last; 0 sees all. softcap: a score s becomes
    softcap * tanh(s / softcap); 0 is off. sinks: [num_qo_heads], a score of each head that takes
    its share of the softmax and has no value. kv_scales: two of [num_kv_heads] float32, what the
    cache holds times which is K and V; None is 1.
    Returns [tokens, num_qo_heads, head_dim] in q's dtype.

    Example: kv_len 10 with 2 queries: the first sees tokens 0 .. 8, the second 0 .. 9.
    """
    out = torch.empty_like(q)
    group = q.shape[1] // k_cache.shape[2]
    for row, kv_len in enumerate(kv_lens.tolist()):
        begin, end = int(qo_indptr[row]), int(qo_indptr[row + 1])
        pages = page_indices[int(page_indptr[row]) : int(page_indptr[row + 1])].long()
        k = k_cache[pages].flatten(0, 1)[:kv_len].float().repeat_interleave(group, dim=1)
        v = v_cache[pages].flatten(0, 1)[:kv_len].float().repeat_interleave(group, dim=1)
        if kv_scales is not None:
            k = k * kv_scales[0].repeat_interleave(group)[:, None]
            v = v * kv_scales[1].repeat_interleave(group)[:, None]
        scores = torch.einsum("qhd,khd->hqk", q[begin:end].float(), k) * scale
        if softcap:
            scores = softcap * torch.tanh(scores / softcap)
        place = torch.arange(kv_len - (end - begin), kv_len, device=q.device)
        age = place[:, None] - torch.arange(kv_len, device=q.device)[None, :]
        hidden = (age < 0) | (age >= window) if window else age < 0
        scores = scores.masked_fill(hidden, float("-inf"))
        if sinks is not None:
            own = sinks.float()[:, None, None].expand(-1, end - begin, 1)
            scores = torch.cat((scores, own), dim=-1)
        weights = scores.softmax(-1)[..., :kv_len]
        out[begin:end] = torch.einsum("hqk,khd->qhd", weights, v).to(q.dtype)
    return out


def rms_norm(
    x: Tensor, weight: Tensor, eps: float, residual: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Add the residual, then divide by the root mean square of the last dimension.

    x, residual: [..., hidden]. weight: [hidden]. Returns (normed, x + residual), both in x's dtype.
    """
    total = x if residual is None else x + residual
    wide = total.float()
    normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return weight * normed.to(x.dtype), total


def rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the pairs (i, i + head_dim / 2) of each head by the token's angles.

    x: [tokens, heads, head_dim]. cos, sin: [tokens, head_dim / 2] float32. Returns x's dtype.
    """
    first, second = x.float().chunk(2, dim=-1)
    cos, sin = cos[:, None, :], sin[:, None, :]
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)


def silu_mul(x: Tensor) -> Tensor:
    """silu(gate) * up. x: [..., 2 * inner], gate first. Returns [..., inner]."""
    gate, up = x.chunk(2, dim=-1)
    return torch.nn.functional.silu(gate) * up


def gelu_mul(x: Tensor) -> Tensor:
    """gelu(gate) * up, gelu in its tanh form. x: [..., 2 * inner], gate first. [..., inner]."""
    gate, up = x.chunk(2, dim=-1)
    return torch.nn.functional.gelu(gate, approximate="tanh") * up


def apply_mask(logits: Tensor, bits: Tensor) -> Tensor:
    """logits with -inf where a bit is 0.

    logits: [rows, vocab]. bits: [rows, ceil(vocab / 32)] int32, token 32 * i + j in bit j of word
    i. Returns [rows, vocab].
    """
    ids = torch.arange(logits.shape[1], device=logits.device)
    legal = (bits[:, ids // 32] >> (ids % 32)) & 1
    return logits.masked_fill(legal == 0, float("-inf"))


def filtered_probs(
    logits: Tensor, temperature: float, top_k: int, top_p: float, min_p: float
) -> Tensor:
    """The distribution a token is drawn from.

    logits: [vocab] float32. top_k <= 0 is off. Returns [vocab] float64, sum 1, at least one > 0.
    Tokens are ordered by scaled logit, equal ones by id. top_k keeps the first k; top_p keeps, of
    what is left and renormalised, the shortest beginning whose mass reaches top_p; min_p drops what
    is less probable than min_p times the best.

    Example: probs [.05, .15, .35, .45], top_k 2, top_p .5: top_k leaves [0, 0, .4375, .5625] and
    top_p then [0, 0, 0, 1].
    """
    scaled = (logits / torch.tensor(temperature, dtype=torch.float32)).double()
    order = torch.argsort(scaled, descending=True, stable=True)
    probs = torch.softmax(scaled[order], dim=0)
    if top_k > 0:
        probs[top_k:] = 0.0
    probs = probs / probs.sum()
    if top_p < 1.0:
        before = probs.cumsum(0) - probs
        before[0] = -1.0
        probs[before >= top_p] = 0.0
    probs[probs < min_p * probs[0]] = 0.0
    result = torch.zeros_like(probs)
    result[order] = probs / probs.sum()
    return result


def sample(
    logits: Tensor,
    uniform: float,
    temperature: float,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
) -> int:
    """The first id whose cumulated probability passes `uniform`; temperature 0 takes the best.

    logits: [vocab] float32. uniform: in [0, 1).
    """
    if temperature == 0.0:
        return int(torch.argmax(logits))
    probs = filtered_probs(logits, temperature, top_k, top_p, min_p)
    passed = torch.nonzero(probs.cumsum(0) > uniform)
    return int(passed[0]) if len(passed) else int(torch.nonzero(probs)[-1])
