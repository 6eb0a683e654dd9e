"""Lifetimes to offsets: by hand, and random sets against brute force over steps and bytes."""

from __future__ import annotations

import random
from collections.abc import Mapping

import numpy as np
import pytest

from strata_compile.memory.offsets import (
    ALIGNMENT,
    Layout,
    Lifetime,
    aligned,
    assign,
    stack,
    verify_layout,
)

Lifetimes = dict[str, Lifetime]


@pytest.mark.parametrize(("size", "result"), [(0, 0), (1, 256), (255, 256), (256, 256), (257, 512)])
def test_aligned(size: int, result: int) -> None:
    assert aligned(size) == result


@pytest.mark.parametrize(
    ("one", "two", "meet"),
    [
        ((0, 3), (4, 6), False),
        ((0, 4), (4, 6), True),  # a step's reads and writes happen together
        ((2, 2), (2, 2), True),
        ((0, 9), (3, 4), True),
    ],
)
def test_lifetimes_meet(one: tuple[int, int], two: tuple[int, int], meet: bool) -> None:
    a, b = Lifetime(1, *one), Lifetime(1, *two)
    assert a.meets(b) == b.meets(a) == meet


def test_nothing_needs_nothing() -> None:
    assert assign({}) == stack({}) == Layout({}, 0)
    verify_layout(Layout({}, 0), {})


def test_a_chain_takes_two_places() -> None:
    chain = {f"v{i}": Lifetime(1024, i, i + 1) for i in range(6)}
    layout = assign(chain)
    assert layout.bytes == 2048
    assert [layout.offsets[f"v{i}"] for i in range(6)] == [0, 1024] * 3


def test_the_largest_stands_first_and_the_small_fill_the_gaps() -> None:
    lifetimes = {
        "small": Lifetime(100, 2, 3),
        "long": Lifetime(300, 0, 9),
        "early": Lifetime(1000, 0, 1),
        "late": Lifetime(700, 2, 9),
    }
    layout = assign(lifetimes)
    assert layout.offsets == {"early": 0, "late": 0, "long": 1024, "small": 768}
    assert layout.bytes == 1024 + 512
    verify_layout(layout, lifetimes)


def test_equal_sizes_stand_by_name() -> None:
    lifetimes = {name: Lifetime(256, 0, 1) for name in ("c", "a", "b")}
    assert assign(lifetimes).offsets == {"a": 0, "b": 256, "c": 512}


def test_a_gap_of_just_the_size_is_taken() -> None:
    lifetimes = {
        "a": Lifetime(768, 0, 9),
        "b": Lifetime(512, 0, 1),
        "c": Lifetime(511, 0, 9),
        "d": Lifetime(510, 2, 9),
    }
    layout = assign(lifetimes)
    assert layout.offsets == {"a": 0, "b": 768, "c": 1280, "d": 768}
    assert layout.bytes == 1792


def random_lifetimes(rng: random.Random) -> Lifetimes:
    steps = rng.randint(1, 10)
    found: Lifetimes = {}
    for i in range(rng.randint(1, 14)):
        first = rng.randrange(steps)
        last = rng.randint(first, steps - 1)
        size = rng.choice([rng.randint(0, 2000), 256 * rng.randint(1, 8), rng.randint(1, 3)])
        found[f"v{i}"] = Lifetime(size, first, last)
    return found


SETS = [random_lifetimes(random.Random(seed)) for seed in range(300)]


def steps_of(lifetimes: Lifetimes) -> range:
    return range(max(life.last for life in lifetimes.values()) + 1)


def owners(layout: Layout, lifetimes: Lifetimes) -> np.ndarray:
    """How many values own each byte at each step: (steps, bytes)."""
    count = np.zeros((len(steps_of(lifetimes)), layout.bytes), np.int64)
    for name, life in lifetimes.items():
        start = layout.offsets[name]
        assert start + life.bytes <= layout.bytes
        count[life.first : life.last + 1, start : start + life.bytes] += 1
    return count


def test_random_sets_never_overlap() -> None:
    shared = 0
    for lifetimes in SETS:
        layout = assign(lifetimes)
        assert layout.offsets.keys() == lifetimes.keys()
        count = owners(layout, lifetimes)
        assert count.max(initial=0) <= 1
        shared += int((count.sum(0) > 1).any())
        assert all(offset >= 0 and offset % ALIGNMENT == 0 for offset in layout.offsets.values())
        assert layout.bytes % ALIGNMENT == 0
        verify_layout(layout, lifetimes)
    assert shared > 200  # bytes are used again: the sets are worth testing


def test_random_sets_take_at_least_the_peak_and_at_most_the_sum() -> None:
    below_the_sum = 0
    for lifetimes in SETS:
        size = assign(lifetimes).bytes
        total = sum(aligned(life.bytes) for life in lifetimes.values())
        peak = max(
            sum(aligned(x.bytes) for x in lifetimes.values() if x.first <= step <= x.last)
            for step in steps_of(lifetimes)
        )
        assert peak <= size <= total
        below_the_sum += size < total
    assert below_the_sum > 200


def test_order_of_the_names_changes_nothing() -> None:
    for seed, lifetimes in enumerate(SETS[:100]):
        names = list(lifetimes)
        random.Random(seed).shuffle(names)
        again = assign({name: lifetimes[name] for name in names})
        assert again == assign(lifetimes)


def test_random_stacks_stand_one_behind_the_other() -> None:
    for lifetimes in SETS[:100]:
        sizes = {name: life.bytes for name, life in lifetimes.items()}
        layout = stack(sizes)
        end = 0
        for name, size in sizes.items():
            assert layout.offsets[name] == end and end % ALIGNMENT == 0
            end += -(-size // ALIGNMENT) * ALIGNMENT
        assert layout.bytes == end
        verify_layout(layout, {name: Lifetime(size, 0, 0) for name, size in sizes.items()})


LIVES: Lifetimes = {
    "a": Lifetime(600, 0, 2),
    "b": Lifetime(300, 2, 4),
    "c": Lifetime(256, 3, 4),
}
SOUND: Mapping[str, int] = {"a": 0, "b": 768, "c": 0}


def test_sound_layout() -> None:
    verify_layout(Layout(SOUND, 1280), LIVES)
    assert owners(Layout(SOUND, 1280), LIVES).max() == 1


@pytest.mark.parametrize(
    ("change", "size", "words"),
    [
        ({"b": 512}, 1280, "a and b overlap"),  # by 88 bytes
        ({"b": 0}, 1280, "b and a overlap|a and b overlap"),
        ({"c": 768}, 1280, "b and c overlap|c and b overlap"),
        ({"c": 1024}, 1280, "b and c overlap"),  # by 44 bytes
        ({"b": 700}, 1280, "b"),  # not aligned
        ({}, 1067, "b"),  # the last byte is outside
        ({"c": -256}, 1280, "c"),
        ({"c": None}, 1280, "c"),  # no place at all
    ],
)
def test_verify_finds_a_planted_fault(change: dict[str, int | None], size: int, words: str) -> None:
    offsets = {name: place for name, place in {**SOUND, **change}.items() if place is not None}
    with pytest.raises(AssertionError, match=words):
        verify_layout(Layout(offsets, size), LIVES)


def test_verify_finds_overlaps_planted_in_random_sets() -> None:
    planted = 0
    for lifetimes in SETS:
        layout = assign(lifetimes)
        for name, life in lifetimes.items():
            for other, there in lifetimes.items():
                if name != other and life.bytes and there.bytes and life.meets(there):
                    moved = {**layout.offsets, name: layout.offsets[other]}
                    with pytest.raises(AssertionError):
                        verify_layout(Layout(moved, layout.bytes + 4096), lifetimes)
                    planted += 1
                    break
    assert planted > 500
