"""concat: two values of each row side by side."""

from __future__ import annotations

from dataclasses import dataclass

from strata_kernels.lazy import torch
from strata_kernels.spec import THREADS, Arg, Bound, Geometry, KernelSpec, padded, read, write


@dataclass(frozen=True)
class Params:
    """Rows, and the widths of the first and the second value."""

    rows: int
    left: int
    right: int


def args(p: Params) -> tuple[Arg, ...]:
    """left (rows, left), right (rows, right), out (rows, left + right)."""
    rows = padded(p.rows)
    values = (read("left", rows, p.left), read("right", rows, p.right))
    return (*values, write("out", rows, p.left + p.right))


def geometry(p: Params) -> Geometry:
    """A block for each row."""
    return Geometry((p.rows, 1, 1), THREADS)


def reference(p: Params, bound: Bound) -> None:
    """out = [left, right]."""
    torch.cat([bound["left"], bound["right"]], -1, out=bound["out"])


SPEC = KernelSpec("concat", Params, args, geometry, reference)
