"""swiglu: the gated activation between the two halves of a feed-forward layer."""

from __future__ import annotations

from dataclasses import dataclass

from strata_kernels.arithmetic import silu
from strata_kernels.lazy import torch
from strata_kernels.spec import THREADS, Arg, Bound, Geometry, KernelSpec, padded, read, write


@dataclass(frozen=True)
class Params:
    """`rows` and the feed-forward width."""

    rows: int
    width: int


def args(p: Params) -> tuple[Arg, ...]:
    """gate, up and out (rows, width)."""
    rows = padded(p.rows)
    return (read("gate", rows, p.width), read("up", rows, p.width), write("out", rows, p.width))


def geometry(p: Params) -> Geometry:
    """A thread for each element."""
    return Geometry((-(-p.width // THREADS), p.rows, 1), THREADS)


def reference(p: Params, bound: Bound) -> None:
    """out = silu(gate) · up (Shazeer, 2020)."""
    torch.mul(silu(bound["gate"]), bound["up"], out=bound["out"])


SPEC = KernelSpec("swiglu", Params, args, geometry, reference)
