"""draft_back: the drafter's rows that exec and prompt can fill in: the cell before each row.

Cell i of an MTP layer pairs the trunk's hidden state at position i with the token at i + 1. A row
at position p with its token is therefore what cell p - 1 needs, hidden state included: the row
before it stored it, in this window or an earlier one.
"""

from __future__ import annotations

from dataclasses import dataclass

from strata_kernels.spec import THREADS, Arg, Bound, Geometry, KernelSpec, table_arg, write
from strata_kernels.table import LAYOUT, TableView


@dataclass(frozen=True)
class Params:
    """`rows` of the program."""

    rows: int


def args(p: Params) -> tuple[Arg, ...]:
    """The launch's table, and the drafter's."""
    return (table_arg(p.rows), write("out", LAYOUT.words(p.rows), dtype="i32"))


def geometry(p: Params) -> Geometry:
    """One block copies."""
    return Geometry((1, 1, 1), THREADS)


def reference(p: Params, bound: Bound) -> None:
    """Every row one position back; a row at position 0 has no cell before it, and is inert."""
    out = bound["out"].copy_(bound["table"])
    table = TableView(out.numpy(), p.rows)
    slot, position = table.row("slot"), table.row("position")
    slot[position <= 0] = -1
    position -= 1


SPEC = KernelSpec("draft_back", Params, args, geometry, reference)
