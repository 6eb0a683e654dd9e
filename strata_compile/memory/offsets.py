"""Lifetimes to offsets: ranges that live at the same time never overlap. Knows no graphs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from strata_runtime.bundle_format import ALIGNMENT


def aligned(size: int) -> int:
    """`size` in bytes, rounded up to the alignment."""
    return -(-size // ALIGNMENT) * ALIGNMENT


@dataclass(frozen=True)
class Lifetime:
    """Bytes that are needed from step `first` to step `last`, both included."""

    bytes: int
    first: int
    last: int

    def meets(self, other: Lifetime) -> bool:
        """Are both needed at some step?"""
        return self.first <= other.last and other.first <= self.last


@dataclass(frozen=True)
class Layout:
    """Offsets by name, and the arena's size in bytes."""

    offsets: Mapping[str, int]
    bytes: int


def assign(lifetimes: Mapping[str, Lifetime]) -> Layout:
    """First fit, largest first; the same lifetimes always give the same offsets."""
    offsets: dict[str, int] = {}
    for name in sorted(lifetimes, key=lambda n: (-lifetimes[n].bytes, n)):
        mine = lifetimes[name]
        taken = sorted(
            (offsets[other], offsets[other] + aligned(lifetimes[other].bytes))
            for other in offsets
            if lifetimes[other].meets(mine)
        )
        offset = 0
        for start, end in taken:
            if offset + mine.bytes <= start:
                break
            offset = max(offset, end)
        offsets[name] = offset
    ends = (offsets[name] + aligned(lifetimes[name].bytes) for name in offsets)
    return Layout(offsets, max(ends, default=0))


def stack(sizes: Mapping[str, int]) -> Layout:
    """One behind the other, for buffers that live forever."""
    offsets, end = {}, 0
    for name, size in sizes.items():
        offsets[name] = end
        end += aligned(size)
    return Layout(offsets, end)


def verify_layout(layout: Layout, lifetimes: Mapping[str, Lifetime]) -> None:
    """AssertionError with both names where two ranges overlap in space and time."""
    assert layout.offsets.keys() == lifetimes.keys(), layout.offsets.keys() ^ lifetimes.keys()
    names = sorted(layout.offsets, key=lambda n: layout.offsets[n])
    for i, a in enumerate(names):
        end = layout.offsets[a] + lifetimes[a].bytes
        assert layout.offsets[a] >= 0 and layout.offsets[a] % ALIGNMENT == 0, a
        assert end <= layout.bytes, a
        for b in names[i + 1 :]:
            if layout.offsets[b] >= end:
                break
            assert not lifetimes[a].meets(lifetimes[b]), f"{a} and {b} overlap"
