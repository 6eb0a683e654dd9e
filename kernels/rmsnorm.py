"""rmsnorm: each row divided by its root mean square, times a weight."""

from __future__ import annotations

from dataclasses import dataclass

from strata_kernels.lazy import torch
from strata_kernels.spec import THREADS, Arg, Bound, Geometry, KernelSpec, padded, read, write


@dataclass(frozen=True)
class Params:
    """`rows`, width, and the epsilon inside the root."""

    rows: int
    width: int
    epsilon: float


def args(p: Params) -> tuple[Arg, ...]:
    """x and out (rows, width), weight (width)."""
    return (
        read("x", padded(p.rows), p.width),
        read("weight", p.width),
        write("out", padded(p.rows), p.width),
    )


def geometry(p: Params) -> Geometry:
    """A block for each row."""
    return Geometry((p.rows, 1, 1), THREADS)


def reference(p: Params, bound: Bound) -> None:
    """out = x · rsqrt(mean(x²) + ε) · weight (Zhang and Sennrich, 2019)."""
    x = bound["x"]
    scale = torch.rsqrt((x * x).mean(-1, keepdim=True) + p.epsilon)
    torch.mul(x * scale, bound["weight"], out=bound["out"])


SPEC = KernelSpec("rmsnorm", Params, args, geometry, reference)
