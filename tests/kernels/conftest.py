"""The native library on every path that runs here."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from radixserve.kernels.cpu import library
from radixserve.kernels.cpu.library import Library


@pytest.fixture(scope="module", params=["avx512", "avx2", "neon", "plain"])
def native(request: pytest.FixtureRequest) -> Iterator[Library]:
    loaded = library.load()
    if loaded is None:
        pytest.skip("the native library is not built")
    best = loaded.isa
    try:
        loaded.use(request.param)
    except ValueError as error:
        pytest.skip(str(error))
    loaded.set_threads(2)
    yield loaded
    loaded.set_threads(1)
    loaded.use(best)


# The interpreter of Triton must be chosen before Triton is imported, so these files run in a pytest
# process of their own, which test_interpreter.py starts.
collect_ignore_glob = [] if os.environ.get("TRITON_INTERPRET") == "1" else ["test_triton_*.py"]
