"""handoff_write: a stage leaves the residual stream for the stage after it."""

from __future__ import annotations

from strata_kernels.arithmetic import live_rows, pick, view
from strata_kernels.handoff_read import Params, geometry
from strata_kernels.spec import (
    Arg,
    Bound,
    KernelSpec,
    Region,
    padded,
    read,
    table_arg,
    write,
)


def args(p: Params) -> tuple[Arg, ...]:
    """This window's residual stream (rows, width), and the hand-off rows of all contexts."""
    return (
        table_arg(p.rows),
        read("x", padded(p.rows), p.width),
        write("handoff", -1, p.width, region=Region.HANDOFF),
    )


def reference(p: Params, bound: Bound) -> None:
    """handoff[hand-off row of row i] = x[i] for live rows."""
    table = view(bound, p.rows)
    rows = live_rows(table.row("slot"))
    bound["handoff"][pick(table.row("handoff_row"), rows)] = bound["x"][rows]


SPEC = KernelSpec("handoff_write", Params, args, geometry, reference)
