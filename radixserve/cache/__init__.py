"""The KV cache: a radix tree over pages, and what requests hold of them."""

from __future__ import annotations

import inspect


def is_compiled() -> bool:
    """Whether the tree runs as what mypyc has made of it (see setup.py), not as Python."""
    from radixserve.cache.tree import RadixTree

    return not inspect.isfunction(RadixTree.evict)
