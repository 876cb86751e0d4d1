"""Derived seeds: one seed names the random streams of many requests.

Owns: the map from a seed and a path (choice i of n, call c of fork p) to another seed. It is the
same on every machine and version of Python. Must not know: torch, how a draw uses a seed.
"""

from __future__ import annotations

import hashlib


def derive_seed(seed: int, *path: int) -> int:
    """A seed in [0, 2**63) for the place `path` under `seed`.

    Different paths give unrelated seeds: derive_seed(7, 1, 2) has nothing to do with
    derive_seed(7, 12) or derive_seed(derive_seed(7, 1), 2). An empty path is a path like others.
    """
    place = "/".join(str(step) for step in (seed, *path))
    digest = hashlib.blake2b(place.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1
