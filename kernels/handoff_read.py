"""handoff_read: a later stage takes the residual stream from the stage before it."""

from __future__ import annotations

from dataclasses import dataclass

from strata_kernels.arithmetic import live_rows, pick, put_rows, view
from strata_kernels.spec import (
    THREADS,
    Arg,
    Bound,
    Geometry,
    KernelSpec,
    Region,
    padded,
    read,
    table_arg,
    write,
)


@dataclass(frozen=True)
class Params:
    """`rows` and the width of the residual stream."""

    rows: int
    width: int


def args(p: Params) -> tuple[Arg, ...]:
    """The hand-off rows of all contexts, and this window's residual stream (rows, width)."""
    return (
        table_arg(p.rows),
        read("handoff", -1, p.width, region=Region.HANDOFF),
        write("out", padded(p.rows), p.width),
    )


def geometry(p: Params) -> Geometry:
    """A block for each row."""
    return Geometry((p.rows, 1, 1), THREADS)


def reference(p: Params, bound: Bound) -> None:
    """out[i] = handoff[hand-off row of row i]; inert rows are zeros."""
    table = view(bound, p.rows)
    rows = live_rows(table.row("slot"))
    put_rows(bound["out"], rows, bound["handoff"][pick(table.row("handoff_row"), rows)])


SPEC = KernelSpec("handoff_read", Params, args, geometry, reference)
