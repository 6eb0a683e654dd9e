"""copy_cells: copies cells between slots; a row is one position of the slot that receives it."""

from __future__ import annotations

from dataclasses import dataclass

from strata_kernels.arithmetic import live_rows, pick, view
from strata_kernels.spec import CHUNK, THREADS, Arg, Bound, Geometry, KernelSpec, Region, table_arg


@dataclass(frozen=True)
class Params:
    """Rows, the cells' type, chunks per slot; a cell is `parts` strips of `width` elements."""

    rows: int
    cell_type: str
    chunks: int
    parts: int
    width: int


def args(p: Params) -> tuple[Arg, ...]:
    """One sort of cells, of all slots."""
    shape = (-1, p.chunks, p.parts, CHUNK, p.width)
    return (
        table_arg(p.rows),
        Arg("cells", p.cell_type, shape, reads=Region.SOURCE_CELL, writes=Region.CELL),
    )


def geometry(p: Params) -> Geometry:
    """A block for each row."""
    return Geometry((p.rows, 1, 1), THREADS)


def reference(p: Params, bound: Bound) -> None:
    """cells[slot, position] = cells[state_in, position] for live rows; the slots differ."""
    table = view(bound, p.rows)
    rows = live_rows(table.row("slot"))
    source, target = pick(table.row("state_in"), rows), pick(table.row("slot"), rows)
    position = pick(table.row("position"), rows)
    cells, chunk, lane = bound["cells"], position // CHUNK, position % CHUNK
    cells[target, chunk, :, lane] = cells[source, chunk, :, lane]


SPEC = KernelSpec("copy_cells", Params, args, geometry, reference)
