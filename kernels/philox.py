"""A counter-based generator: one uniform number for each (seed, position), on any device.

Philox4x32-10 (Salmon, Moraes, Dror and Shaw, 2011): key = the seed's two words, counter =
(position, 0, 0, 0). The first word's upper 24 bits become a float32 in [0, 1), exactly.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_M0, _M1 = 0xD2511F53, 0xCD9E8D57
_W0, _W1 = 0x9E3779B9, 0xBB67AE85
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)

Words = npt.NDArray[np.uint64]


def philox(
    counter: tuple[Words, Words, Words, Words], key: tuple[Words, Words]
) -> tuple[Words, ...]:
    """Ten rounds over arrays of 32-bit words held in uint64; returns the four output words."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        p0, p1 = c0 * np.uint64(_M0), c2 * np.uint64(_M1)
        c0, c1, c2, c3 = (p1 >> _HALF) ^ c1 ^ k0, p1 & _LOW, (p0 >> _HALF) ^ c3 ^ k1, p0 & _LOW
        k0, k1 = (k0 + np.uint64(_W0)) & _LOW, (k1 + np.uint64(_W1)) & _LOW
    return c0, c1, c2, c3


def uniform(
    seed_low: npt.NDArray[np.int32],
    seed_high: npt.NDArray[np.int32],
    position: npt.NDArray[np.int32],
) -> npt.NDArray[np.float32]:
    """One number in [0, 1) for each (seed, position), a multiple of 2^-24."""

    def word(x: npt.NDArray[np.int32]) -> Words:
        return np.ascontiguousarray(x).view(np.uint32).astype(np.uint64)

    zero = np.zeros(len(position), np.uint64)
    first = philox((word(position), zero, zero, zero), (word(seed_low), word(seed_high)))[0]
    return ((first >> np.uint64(8)).astype(np.float64) * 2.0**-24).astype(np.float32)
