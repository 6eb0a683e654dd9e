"""What a program costs: its kernel calls, the bytes that they touch, and the floor of its time.

All of it follows from the arguments that the program's file declares; nothing is run.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import prod
from typing import assert_never

import numpy as np

from strata_compile.memory.scratch import SIZES
from strata_kernels.spec import Region
from strata_runtime.bundle_format import Argument, MemoryPlan, Program
from strata_runtime.errors import BundleError

#: Roles whose bytes were written a moment ago, or are few: they come from a cache, not from memory.
CACHED_ROLES = frozenset({"scratch", "contexts", "tables", "answers", "ring"})

#: What `measure_bandwidth` reads, how often, and the most threads: fewer would not fill the bus,
#: more would read shares that fit into their cores' caches.
PROBE_BYTES, PROBE_RUNS, PROBE_THREADS = 256 * 10**6, 3, 16


@dataclass(frozen=True)
class Traffic:
    """Bytes that a program reads and writes."""

    read: int
    written: int


@dataclass(frozen=True)
class ProgramCost:
    """A program's kernel calls (nodes of its graph), by kernel too, and its bytes by arena role.

    `floor_us` is the time in microseconds that `floor_bytes` take at the bandwidth: no replay
    whose weights and cells come from memory can be faster.
    """

    stage: int
    name: str
    nodes: int
    kernels: Mapping[str, int]
    bytes: Mapping[str, Traffic]
    total_bytes: int
    floor_bytes: int
    floor_us: float


def touched_bytes(argument: Argument, region: Region, rows: int, context: int) -> int:
    """Bytes of an argument that an access touches when all `rows` of the program are live.

    The rows are those of *one slot*, the last of its first `context` tokens (or of as many as there
    are rows); so they share one history, which counts once, and it includes their own cells. Rows
    have neither a mask nor a bias. BundleError where type or shape are none that cells can have.
    """
    shape, size = argument.shape, _element_bytes(argument)
    match region:
        case Region.WHOLE:
            return prod(shape) * size
        case Region.RING_ENTRY | Region.CONTEXT:
            return prod(shape[1:]) * size
        case Region.STATE_IN | Region.STATE_OUT | Region.SOURCE_STATE:  # the slot's
            return prod(shape[1:]) * size
        case Region.TOKEN | Region.POSITION | Region.HANDOFF | Region.SAVED:
            return min((rows, *shape[:1])) * prod(shape[1:]) * size
        case Region.CELL | Region.SOURCE_CELL:
            return _cells(argument, rows) * size
        case Region.HISTORY:
            return _cells(argument, max(context, rows)) * size
        case Region.MASK | Region.BIAS:
            return 0
        case _:
            assert_never(region)


def _element_bytes(argument: Argument) -> int:
    if argument.dtype not in SIZES:
        raise BundleError(f"{argument.buffer}: unknown type {argument.dtype!r}; compile again")
    return SIZES[argument.dtype]


def _cells(argument: Argument, count: int) -> int:
    """Elements of `count` cells of one slot, at most of all that it has."""
    if len(argument.shape) != 5:
        raise BundleError(f"{argument.buffer}: {argument.shape} are not cells; compile again")
    _, chunks, parts, lanes, width = argument.shape
    return min(count, chunks * lanes) * parts * width


def program_cost(
    program: Program, memory: MemoryPlan, context: int, bandwidth_gb_s: float
) -> ProgramCost:
    """What one replay costs at `context` tokens; bandwidth in GB/s (10^9 bytes a second).

    BundleError where the program names a buffer or a region that does not exist.
    """
    traffic = _traffic(program, memory, context)
    both = {role: t.read + t.written for role, t in traffic.items()}
    floor = sum(size for role, size in both.items() if role not in CACHED_ROLES)
    return ProgramCost(
        stage=program.stage,
        name=program.name,
        nodes=len(program.calls),
        kernels=Counter(call.kernel for call in program.calls),
        bytes=traffic,
        total_bytes=sum(both.values()),
        floor_bytes=floor,
        floor_us=floor / (bandwidth_gb_s * 1e3),
    )


def _traffic(program: Program, memory: MemoryPlan, context: int) -> dict[str, Traffic]:
    """Bytes by role: each buffer once per direction, but scratch as often as it is touched.

    A buffer that several calls read, such as an embedding that is the head too, counts as the
    largest part of it that one call reads.
    """
    found: dict[tuple[str, str, int, bool], int] = {}
    for argument, region, writes in _accesses(program):
        role = role_of(argument.buffer, memory)
        size = touched_bytes(argument, region, program.rows, context)
        if argument.stored is not None:  # a GPU has the matrix in fewer bytes than the CPU device
            whole = prod(argument.shape) * _element_bytes(argument)
            size = size * memory.buffers[argument.buffer].bytes // whole
        key = (role, argument.buffer, argument.offset, writes)
        before = found.get(key, 0)
        found[key] = before + size if role == "scratch" else max(before, size)
    sums: Counter[tuple[str, bool]] = Counter()
    for (role, _, _, writes), size in found.items():
        sums[role, writes] += size
    roles = dict.fromkeys(arena.role for arena in memory.arenas.values())
    return {role: Traffic(sums[role, False], sums[role, True]) for role in roles}


def _accesses(program: Program) -> Iterator[tuple[Argument, Region, bool]]:
    """Every access of every call; the last item says whether it writes."""
    for call in program.calls:
        for argument in call.args.values():
            for text, writes in ((argument.reads, False), (argument.writes, True)):
                if text is not None:
                    yield argument, region_of(text), writes


def region_of(text: str) -> Region:
    """The region of this name; BundleError where there is none."""
    try:
        return Region(text)
    except ValueError as error:
        raise BundleError(f"unknown region {text!r}; compile again") from error


def role_of(buffer: str, memory: MemoryPlan) -> str:
    """The role of the arena that a buffer lies in; BundleError where the memory plan lacks it."""
    placed = memory.buffers.get(buffer)
    arena = memory.arenas.get(placed.arena) if placed else None
    if arena is None:
        raise BundleError(f"{buffer}: the memory plan has no such buffer; compile again")
    return arena.role


def measure_bandwidth() -> float:
    """How fast this machine reads memory with all its cores, in GB/s: the best of a few runs.

    Integers are summed, since numpy's sum of floats is bound by its arithmetic.
    """
    threads = min(os.cpu_count() or 1, PROBE_THREADS)
    values = np.empty(PROBE_BYTES // 8, np.int64)
    shares = np.array_split(values, threads)
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda share: share.fill(1), shares))  # pages come when they are touched
        seconds = min(_seconds(pool, shares) for _ in range(PROBE_RUNS))
    return values.nbytes / seconds / 1e9


def _seconds(pool: ThreadPoolExecutor, shares: list[np.ndarray]) -> float:
    start = time.perf_counter()
    list(pool.map(np.sum, shares))
    return time.perf_counter() - start
