"""strata-bench on a card: what programs and their kernels cost there, beside what reading costs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import prod
from statistics import median

import torch
from rich.console import Group, RenderableType
from rich.table import Table

from strata_runtime.bench_figures import ProgramTimes
from strata_runtime.bundle_format import Argument, MemoryPlan, Program
from strata_runtime.bundle_load import Bundle
from strata_runtime.cuda_device import CudaDevice
from strata_runtime.cuda_profile import kernel_times

#: Bytes that are read to measure the card, and how often; far more than a cache holds.
READ_BYTES, READS = 2 << 30, 7
#: Kinds whose kernels are timed one by one: what a stream waits for.
PROFILED = ("exec", "draft")


@dataclass(frozen=True)
class KernelShare:
    """A kernel's calls in a program, µs of all of them, and their share of all kernels' time."""

    kernel: str
    calls: int
    us: float
    share: float


@dataclass(frozen=True)
class ProgramCost:
    """A program as it ran: median µs, nodes, bytes of weights, and what part of the card's
    bandwidth that is."""

    stage: int
    name: str
    us: float
    nodes: int
    weight_bytes: int
    bandwidth_share: float
    kernels: tuple[KernelShare, ...]

    def cells(self) -> list[str]:
        """A line of the table."""
        shares = ", ".join(f"{k.kernel} {k.share:.0%}" for k in self.kernels[:5])
        numbers = [f"{self.us:.1f}", str(self.nodes), f"{self.weight_bytes / 1e6:.1f}"]
        return [str(self.stage), self.name, *numbers, f"{self.bandwidth_share:.0%}", shares]


@dataclass(frozen=True)
class CardReport:
    """The card's measured read bandwidth in GB/s, and every program that ran."""

    read_gb_s: float
    programs: tuple[ProgramCost, ...]

    def as_json(self) -> dict[str, object]:
        """As the JSON object has it."""
        return asdict(self)

    def tables(self, host_us: Sequence[float]) -> RenderableType:
        """The report for people; `host_us` are the settings' own."""
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        for name in ("stage", "program", "µs", "nodes", "weights MB", "of bandwidth"):
            table.add_column(name, justify="right")
        table.add_column("kernels", overflow="fold")
        for cost in self.programs:
            table.add_row(*cost.cells())
        host = f"host {median(host_us):.0f} µs a window and stage"
        return Group(table, "", f"read bandwidth {self.read_gb_s:,.0f} GB/s; {host}")


def card_report(bundle: Bundle, device: CudaDevice, times: ProgramTimes) -> CardReport:
    """What the programs of `times` cost; only while nothing is in flight."""
    bandwidth = read_bandwidth(device)
    costs = []
    for (stage, kind, rows), ms in times.items():
        program = bundle.programs[stage, f"{kind}.r{rows}"]
        size = weight_bytes(bundle.manifest.memory["cuda"], program)
        share = size / (ms * 1e-3) / (bandwidth * 1e9)
        kernels = _shares(device, program) if kind in PROFILED else ()
        name, nodes = program.name, len(program.calls)
        costs.append(ProgramCost(stage, name, ms * 1e3, nodes, size, share, kernels))
    return CardReport(bandwidth, tuple(costs))


def read_bandwidth(device: CudaDevice) -> float:
    """GB/s of one long read: the best of a few, timed by events."""
    data = torch.ones(READ_BYTES // 4, dtype=torch.int32, device=device.torch_device)
    best = 0.0
    for _ in range(READS):
        begin, end = _event(), _event()
        begin.record()
        torch.max(data)
        end.record()
        end.synchronize()
        best = max(best, READ_BYTES / (begin.elapsed_time(end) * 1e-3) / 1e9)
    return best


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def weight_bytes(plan: MemoryPlan, program: Program) -> int:
    """Bytes of weights that a program reads: matrices once, of the others the rows' own lines."""
    whole: dict[str, int] = {}
    lines = 0
    for call in program.calls:
        for argument in call.args.values():
            buffer = plan.buffers[argument.buffer]
            if plan.arenas[buffer.arena].role != "weights":
                continue
            if argument.reads == "whole":
                whole[argument.buffer] = buffer.bytes
            else:
                lines += _line_bytes(argument, buffer.bytes) * program.table_rows
    return sum(whole.values()) + lines


def _line_bytes(argument: Argument, size: int) -> int:
    return size // prod(argument.shape[:1])


def _shares(device: CudaDevice, program: Program) -> tuple[KernelShare, ...]:
    """The program's kernels by name, the most costly first."""
    us: dict[str, float] = defaultdict(float)
    calls: dict[str, int] = defaultdict(int)
    for found in kernel_times(device, program):
        us[found.kernel] += found.calls * found.us
        calls[found.kernel] += found.calls
    total = sum(us.values())
    ranked = sorted(us, key=lambda name: -us[name])
    return tuple(KernelShare(name, calls[name], us[name], us[name] / total) for name in ranked)
