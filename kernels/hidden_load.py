"""hidden_load: the trunk's hidden state at each row's position, where the drafter goes on from."""

from __future__ import annotations

from strata_kernels.arithmetic import live_rows, pick, put_rows, view
from strata_kernels.hidden_store import Params, geometry
from strata_kernels.spec import (
    CHUNK,
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
    """The cells of hidden states, float32, and x (rows, width)."""
    cells = (-1, p.chunks, 1, CHUNK, p.width)
    return (
        table_arg(p.rows),
        read("hidden_cells", *cells, region=Region.CELL),
        write("out", padded(p.rows), p.width),
    )


def reference(p: Params, bound: Bound) -> None:
    """out[i] = hidden_cells[slot, position]; inert rows are zeros."""
    table = view(bound, p.rows)
    rows = live_rows(table.row("slot"))
    slot, position = pick(table.row("slot"), rows), pick(table.row("position"), rows)
    cells = bound["hidden_cells"][slot, position // CHUNK, 0, position % CHUNK]
    put_rows(bound["out"], rows, cells)


SPEC = KernelSpec("hidden_load", Params, args, geometry, reference)
