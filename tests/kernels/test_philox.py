"""The counter-based generator: the published vectors, and the numbers that are made of it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from strata_kernels.philox import philox, uniform

#: Counter, key and result of Philox4x32-10, from Random123's kat_vectors.
VECTORS = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000",
     "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff",
     "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0",
     "d16cfe09 94fdcceb 5001e420 24126ea1"),
]  # fmt: skip


def words(text: str) -> list[int]:
    """Hexadecimal words."""
    return [int(word, 16) for word in text.split()]


def plain(counter: Sequence[int], key: Sequence[int]) -> list[int]:
    """Philox4x32-10 with Python's integers."""
    c, (k0, k1) = list(counter), key
    for _ in range(10):
        p0, p1 = c[0] * 0xD2511F53, c[2] * 0xCD9E8D57
        c = [p1 >> 32 ^ c[1] ^ k0, p1 & 0xFFFFFFFF, p0 >> 32 ^ c[3] ^ k1, p0 & 0xFFFFFFFF]
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return c


def signed(values: Sequence[int]) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    """32-bit words as int32, as a table has them."""
    return np.array(values, np.uint32).view(np.int32)


@pytest.mark.parametrize(("counter", "key", "result"), VECTORS)
def test_known_answers(counter: str, key: str, result: str) -> None:
    c = [np.array([w], np.uint64) for w in words(counter)]
    k = [np.array([w], np.uint64) for w in words(key)]
    found = philox((c[0], c[1], c[2], c[3]), (k[0], k[1]))
    assert [int(x[0]) for x in found] == words(result)
    assert plain(words(counter), words(key)) == words(result)


def test_arrays_are_independent() -> None:
    """Many counters and keys at once give what each gives alone."""
    rng = np.random.default_rng(0)
    c = rng.integers(0, 1 << 32, (4, 100)).astype(np.uint64)
    k = rng.integers(0, 1 << 32, (2, 100)).astype(np.uint64)
    found = np.array(philox((c[0], c[1], c[2], c[3]), (k[0], k[1])))
    for i in range(100):
        assert found[:, i].tolist() == plain(c[:, i].tolist(), k[:, i].tolist())


def test_uniform_is_the_first_words_upper_bits() -> None:
    """Key: the seed's words; counter: the position; 24 bits, so that float32 holds them exactly."""
    low, high = [0, 1, 0xFFFFFFFF, 0x80000000, 5], [0, 0, 0xFFFFFFFF, 1, 0x7FFFFFFF]
    positions = [0, 1, 77, 4095, (1 << 31) - 1]
    found = uniform(signed(low), signed(high), signed(positions))
    assert found.dtype == np.float32
    assert found.tolist() == [
        (plain((position, 0, 0, 0), key)[0] >> 8) / 2**24
        for position, *key in zip(positions, low, high, strict=True)
    ]


def test_uniform_is_uniform() -> None:
    """20 000 positions of one seed in 20 bins: χ² of 19 degrees of freedom, bound at 1e-4."""
    count = 20_000
    zeros = np.zeros(count, np.int32)
    found = uniform(zeros + 9, zeros, np.arange(count, dtype=np.int32))
    assert found.min() >= 0 and found.max() < 1
    bins = np.bincount((found * 20).astype(int), minlength=20)
    assert ((bins - count / 20) ** 2 / (count / 20)).sum() < 50.8
