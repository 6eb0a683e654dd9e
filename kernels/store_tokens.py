"""store_tokens: keeps each row's token as a cell of its slot, for penalties and look-ups."""

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
    table_arg,
    write,
)


@dataclass(frozen=True)
class Params:
    """`rows`, and chunks of 64 token cells per slot."""

    rows: int
    chunks: int


def args(p: Params) -> tuple[Arg, ...]:
    """The token cells (slots, context)."""
    return (
        table_arg(p.rows),
        write("token_cells", -1, p.chunks, 1, CHUNK, 1, dtype="i32", region=Region.CELL),
    )


def geometry(p: Params) -> Geometry:
    """A thread for each row."""
    return Geometry((-(-p.rows // THREADS), 1, 1), THREADS)


def reference(p: Params, bound: Bound) -> None:
    """token_cells[slot, position] = token of each live row."""
    table = view(bound, p.rows)
    rows = live_rows(table.row("slot"))
    slot, position, token = (pick(table.row(f), rows) for f in ("slot", "position", "token"))
    cells = bound["token_cells"]
    cells[slot, position // CHUNK, 0, position % CHUNK, 0] = token.to(cells.dtype)


SPEC = KernelSpec("store_tokens", Params, args, geometry, reference)
