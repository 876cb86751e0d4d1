"""Random numbers by counting: the draw for a token depends on its seed and its position alone.

Owns: Philox4x32-10, the counter-based generator of Salmon, Moraes, Dror and Shaw, "Parallel random
numbers: as easy as 1, 2, 3" (SC 2011). There is no state to carry, to copy on a fork or to restore
after a retraction, and no order in which requests must draw. Must not know: tensors, sampling.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

UInt64 = npt.NDArray[np.uint64]

_MULTIPLIERS = np.array([[0xD2511F53], [0xCD9E8D57]], dtype=np.uint64)
_WEYL = np.array([[0x9E3779B9], [0xBB67AE85]], dtype=np.uint64)
_WEYL_STEPS = _WEYL * np.arange(10, dtype=np.uint64)[:, None, None]  # one for each round
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)


def philox(counter: UInt64, key: UInt64) -> UInt64:
    """Philox4x32-10 of n counters. All words are 32 bits wide, held in uint64.

    counter: [4, n]. key: [2, n]. Returns [4, n].
    """
    even, odd = counter[0::2], counter[1::2]
    for round_key in (key + _WEYL_STEPS) & _LOW:
        product = even * _MULTIPLIERS
        even = (product >> _HALF)[::-1] ^ odd ^ round_key
        odd = (product & _LOW)[::-1]
    out = np.empty_like(counter)
    out[0::2], out[1::2] = even, odd
    return out


def uniforms(seeds: UInt64, positions: npt.NDArray[np.integer]) -> npt.NDArray[np.float64]:
    """One number in [0, 1) for each draw, a multiple of 2**-53.

    seeds: [n] uint64, the key (low word first). positions: [n] integers >= 0, the counter (low word
    first; the upper half of the counter stays 0).
    """
    places = positions.astype(np.uint64)
    zeros = np.zeros_like(places)
    counter = np.stack((places & _LOW, places >> _HALF, zeros, zeros))
    words = philox(counter, np.stack((seeds & _LOW, seeds >> _HALF)))
    bits = ((words[0] << _HALF) | words[1]) >> np.uint64(11)
    drawn: npt.NDArray[np.float64] = bits.astype(np.float64) * 2.0**-53
    return drawn
