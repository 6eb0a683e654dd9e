"""hidden_store: keeps the trunk's last hidden state of each row as a cell, for the drafter."""

from __future__ import annotations

from dataclasses import dataclass

from strata_kernels.arithmetic import live_rows, pick, view
from strata_kernels.spec import (
    CHUNK,
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
    """Rows, the width of a hidden state, and chunks of 64 cells per slot."""

    rows: int
    width: int
    chunks: int


def args(p: Params) -> tuple[Arg, ...]:
    """x (rows, width) and the cells of hidden states, float32."""
    cells = (-1, p.chunks, 1, CHUNK, p.width)
    return (
        table_arg(p.rows),
        read("x", padded(p.rows), p.width),
        write("hidden_cells", *cells, region=Region.CELL),
    )


def geometry(p: Params) -> Geometry:
    """A block for each row."""
    return Geometry((p.rows, 1, 1), THREADS)


def reference(p: Params, bound: Bound) -> None:
    """hidden_cells[slot, position] = x[i] for live rows."""
    table = view(bound, p.rows)
    rows = live_rows(table.row("slot"))
    slot, position = pick(table.row("slot"), rows), pick(table.row("position"), rows)
    bound["hidden_cells"][slot, position // CHUNK, 0, position % CHUNK] = bound["x"][rows]


SPEC = KernelSpec("hidden_store", Params, args, geometry, reference)
