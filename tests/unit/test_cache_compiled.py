"""Which tree the tests run on: the sources, or what `make test-compiled` has made of them."""

from __future__ import annotations

import os

from benchmarks.trees import as_python
from radixserve.cache import is_compiled
from radixserve.cache.prefix import PrefixCache
from tests.cache_driver import ids


def test_the_tree_under_test_is_the_one_that_was_asked_for() -> None:
    assert is_compiled() == (os.environ.get("RADIXSERVE_TEST_COMPILED") == "1")


def test_the_sources_can_be_loaded_beside_it() -> None:
    plain = as_python()
    assert plain is not PrefixCache
    cache = plain(4, 2)
    lease = cache.acquire("", ids(1, 2, 3))
    assert lease is not None
    assert type(lease).__module__ == "radixserve.cache.lease"
    assert len(lease.pages) == 2
    from radixserve.cache import prefix

    assert prefix.PrefixCache is PrefixCache
