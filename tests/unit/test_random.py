"""The counter-based generator against its published vectors, and derived seeds."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from radixserve.sampling.random import philox, uniforms
from radixserve.wire.seeds import derive_seed

# From the kat_vectors file of Random123: counter, key, output.
VECTORS = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000",
     "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff",
     "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0",
     "d16cfe09 94fdcceb 5001e420 24126ea1"),
]  # fmt: skip


def words(text: str) -> list[int]:
    return [int(word, 16) for word in text.split()]


def test_philox_gives_the_published_vectors_all_at_once() -> None:
    counter = np.array([words(c) for c, _, _ in VECTORS], np.uint64).T
    key = np.array([words(k) for _, k, _ in VECTORS], np.uint64).T
    assert philox(counter, key).T.tolist() == [words(out) for _, _, out in VECTORS]


def test_uniforms_use_the_whole_seed_and_position() -> None:
    seeds = np.array([0, 0, 1, 1 << 32, 2**63 - 1], np.uint64)
    positions = np.array([0, 1, 0, 0, 0], np.int32)
    drawn = uniforms(seeds, positions)
    first = words("6627e8d5 e169c58d")
    assert drawn[0] == ((first[0] << 32 | first[1]) >> 11) / 2**53
    assert len(set(drawn.tolist())) == 5
    assert ((drawn >= 0) & (drawn < 1)).all()


def test_uniforms_do_not_depend_on_company() -> None:
    seeds = np.arange(50, dtype=np.uint64) * np.uint64(977)
    positions = np.arange(50, dtype=np.int32)[::-1]
    together = uniforms(seeds, positions)
    assert [uniforms(seeds[i : i + 1], positions[i : i + 1])[0] for i in range(50)] == list(
        together
    )


@pytest.mark.parametrize("along", ["seeds", "positions"])
def test_uniforms_are_uniform_along_seeds_and_positions(along: str) -> None:
    n = 20_000
    count, fixed = np.arange(n), np.full(n, 5)
    seeds, positions = (count, fixed) if along == "seeds" else (fixed, count)
    drawn = uniforms(seeds.astype(np.uint64), positions)
    counts = np.histogram(drawn, bins=20, range=(0, 1))[0]
    assert ((counts - n / 20) ** 2 / (n / 20)).sum() < 43.8  # chi-square, 19 degrees, p 0.001
    assert abs(np.corrcoef(drawn[:-1], drawn[1:])[0, 1]) < 0.03


def test_derived_seeds_are_stable_distinct_and_in_range() -> None:
    assert derive_seed(7, 1, 2) == derive_seed(7, 1, 2)
    assert derive_seed(0) == 4246866556266386882
    paths = [(), (0,), (1,), (12,), (1, 2), (2, 1), (0, 0), (0, 0, 0)]
    found = {derive_seed(seed, *path) for seed in (0, 1, 7, 2**63 - 1) for path in paths}
    assert len(found) == 4 * len(paths)
    assert all(0 <= seed < 2**63 for seed in found)


def test_deriving_a_seed_needs_no_torch() -> None:
    code = "import sys, radixserve.wire.seeds; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
