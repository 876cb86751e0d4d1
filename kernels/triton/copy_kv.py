"""Copying the first tokens of pages to other pages, in all layers by one launch.

Owns: the kernel, the table of the caches' addresses. Must not know: why pages are copied.

Orders of n tokens each over c caches (K and V of every layer) of t bytes a token: 2 * c * t *
sum(n) bytes moved, no FLOPs.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl

from radixserve.kernels.triton.launch import Launch

BLOCK = 1024  # words of 4 bytes that a program moves at a time


@triton.jit(do_not_specialize_on_alignment=("orders_ptr",))
def copy_kernel(caches_ptr, orders_ptr, token_words, PAGE_SIZE: tl.constexpr, BLOCK: tl.constexpr):
    """Program (order, cache). orders: source page, destination page, tokens."""
    order_ptr = orders_ptr + tl.program_id(0) * 3
    address = tl.load(caches_ptr + tl.program_id(1))
    cache_ptr = address.to(tl.pointer_type(tl.int32))
    page_words = token_words.to(tl.int64) * PAGE_SIZE
    source_ptr = cache_ptr + tl.load(order_ptr) * page_words
    destination_ptr = cache_ptr + tl.load(order_ptr + 1) * page_words
    words = tl.load(order_ptr + 2) * token_words
    for start in range(0, words, BLOCK):
        index = start + tl.arange(0, BLOCK)
        moved = tl.load(source_ptr + index, mask=index < words)
        tl.store(destination_ptr + index, moved, mask=index < words)


def cache_table(caches: Sequence[torch.Tensor]) -> torch.Tensor:
    """The addresses of caches of one shape, for copy_kv: [len(caches)] int64 on their device.

    Raises ValueError for caches that cannot be copied in words of 4 bytes.
    """
    first = caches[0]
    for cache in caches:
        if cache.shape != first.shape or cache.dtype != first.dtype or not cache.is_contiguous():
            raise ValueError("the caches must be contiguous and of one shape and type")
    if token_bytes(first) % 4:
        raise ValueError(f"{token_bytes(first)} bytes a token are no whole words")
    return torch.tensor([cache.data_ptr() for cache in caches], device=first.device)


def token_bytes(cache: torch.Tensor) -> int:
    """Bytes of one token in a cache [pages, page_size, num_kv_heads, head_dim]."""
    return cache.shape[2] * cache.shape[3] * cache.element_size()


def copy_launch(cache: torch.Tensor, table: torch.Tensor, orders: torch.Tensor) -> Launch:
    """As copy_kv, without running."""
    return Launch(
        kernel=copy_kernel,
        grid=(len(orders), len(table)),
        arguments={
            "caches_ptr": table,
            "orders_ptr": orders,
            "token_words": token_bytes(cache) // 4,
        },
        constants={"PAGE_SIZE": cache.shape[1], "BLOCK": BLOCK},
    )


def copy_kv(cache: torch.Tensor, table: torch.Tensor, orders: torch.Tensor) -> None:
    """Run copy orders on every cache of a table.

    cache: one of them, for its shape. table: of cache_table; the caches stay where they are.
    orders: [n, 3] int32: source page, destination page, how many of its first tokens. No
    destination is also a source, and none comes twice: the orders run at once.
    """
    copy_launch(cache, table, orders).run()
