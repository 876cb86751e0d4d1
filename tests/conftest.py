"""What every test shares: the embedded model, one torch thread, Hypothesis profiles, GPU skips."""

from __future__ import annotations

import os
import pathlib
import sys
from collections.abc import Iterator

import pytest
from hypothesis import settings

# The gate must give the same answer twice; the nightly run looks for new examples.
settings.register_profile("gate", deadline=None, derandomize=True, max_examples=60)
settings.register_profile("nightly", deadline=None, max_examples=1000, print_blob=True)
settings.load_profile(os.environ.get("RADIXSERVE_TEST_PROFILE", "gate"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    needy = [item for item in items if item.get_closest_marker("gpu")]
    if needy and not pathlib.Path("/dev/nvidia0").exists():
        for item in needy:
            item.add_marker(pytest.mark.skip(reason="no GPU here"))


@pytest.fixture(autouse=True)
def one_torch_thread() -> Iterator[None]:
    """Tests share few cores; torch is asked only where the test's modules have imported it."""
    torch = sys.modules.get("torch")
    if torch is None:
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def smollm2():
    """ModelSource of the embedded SmolLM2; a test that takes it is marked `model`."""
    from radixserve.weights import source

    return source.resolve("smollm2")
