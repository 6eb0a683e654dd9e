"""What the kernels of a program cost on a card: each timed by itself, in a graph of many of it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from statistics import median

from strata_runtime.bundle_format import Call, Program
from strata_runtime.cuda_device import CudaDevice

#: Launches in one graph, and how often it is replayed.
CHAIN, REPLAYS = 20, 5


@dataclass(frozen=True)
class KernelTime:
    """A kernel with one set of params: how often a program calls it, and µs of one call."""

    kernel: str
    entry: str
    calls: int
    us: float


def kernel_times(device: CudaDevice, program: Program) -> list[KernelTime]:
    """Each kernel of a program, the most costly first; only while nothing is in flight.

    A chain of one kernel has its arguments in the cache and no neighbour to wait for: what the
    program takes in all may be more or less than the sum.
    """
    counts = Counter(call.entry for call in program.calls)
    first: dict[str, Call] = {}
    for call in program.calls:
        first.setdefault(call.entry, call)
    found = [
        KernelTime(call.kernel, entry, counts[entry], _chain_us(device, program, call))
        for entry, call in first.items()
    ]
    return sorted(found, key=lambda k: -k.calls * k.us)


def _chain_us(device: CudaDevice, program: Program, call: Call) -> float:
    chain = Program(program.stage, program.kind, program.rows, (call,) * CHAIN)
    with device.captured(chain) as replay:
        replay()
        return median(replay() for _ in range(REPLAYS)) * 1e3 / CHAIN
