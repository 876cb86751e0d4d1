"""The native library on every path that runs here."""

from __future__ import annotations

import contextlib
import functools
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


def quicken_interpreter() -> None:
    """Have a launch prepare Triton's language once, and not again in each function that it calls:
    of a kernel on small shapes that is a third of the time, and changes nothing."""
    from triton import language
    from triton.runtime import interpreter

    real = interpreter._patch_lang
    prepared: set[int] = set()

    @functools.cache
    def languages(fn) -> frozenset[int]:
        values = fn.__globals__.values()
        return frozenset(id(one) for one in values if one is language or one is language.core)

    def patch_lang(fn):
        if prepared and languages(fn) <= prepared:
            return interpreter._LangPatchScope()
        is_launch = not prepared
        prepared.update(languages(fn))
        scope = real(fn)
        if is_launch:
            restore = scope.restore

            def end() -> None:
                prepared.clear()
                restore()

            scope.restore = end
        return scope

    interpreter._patch_lang = patch_lang


if os.environ.get("TRITON_INTERPRET") == "1":
    with contextlib.suppress(ImportError, AttributeError):  # another release: it only takes longer
        quicken_interpreter()

# The interpreter of Triton must be chosen before Triton is imported, so these files run in a pytest
# process of their own, which test_interpreter.py starts.
collect_ignore_glob = [] if os.environ.get("TRITON_INTERPRET") == "1" else ["test_triton_*.py"]
