"""draft_first: the first step of a draft chain, from the verdict: a row for each segment.

Row s stands at the last accepted row's position of segment s, with the token that was drawn behind
it: the cell that exec could not fill in, since its token was not known.
"""

from __future__ import annotations

from dataclasses import dataclass

from strata_kernels.arithmetic import view
from strata_kernels.spec import (
    WARP,
    Arg,
    Bound,
    Geometry,
    KernelSpec,
    Region,
    read,
    table_arg,
    write,
)
from strata_kernels.table import LAYOUT, ROW_LIMIT, TableView
from strata_kernels.verdict import WORDS

#: Words of one segment's drafts: how many, then for each its token and the bits of its probability.
DRAFT_WORDS = 1 + 2 * (ROW_LIMIT - 1)


@dataclass(frozen=True)
class Params:
    """The window's row limit; tables of drafts have as many rows."""

    rows: int


def args(p: Params) -> tuple[Arg, ...]:
    """The launch's table, the verdict, the drafts to begin, and the first step's table."""
    return (
        table_arg(p.rows),
        read("verdict", -1, ROW_LIMIT, WORDS, dtype="i32", region=Region.CONTEXT),
        write("drafts", -1, ROW_LIMIT, DRAFT_WORDS, dtype="i32", region=Region.CONTEXT),
        write("out", LAYOUT.words(p.rows), dtype="i32"),
    )


def geometry(p: Params) -> Geometry:
    """One warp; there are at most 8 segments."""
    return Geometry((1, 1, 1), WARP)


def reference(p: Params, bound: Bound) -> None:
    """No drafts yet; a segment that wants none, or whose draw failed, has an inert row."""
    table = view(bound, p.rows)
    context = table.header("context")
    bound["drafts"][context].zero_()
    out = bound["out"].copy_(bound["table"])
    step = TableView(out.numpy(), p.rows)
    step.row("slot")[:] = -1
    verdict = bound["verdict"][context].numpy()
    segments = zip(*(table.segment(f) for f in ("slot", "first_row", "depth")), strict=True)
    for s, (slot, first, depth) in enumerate(segments):
        accepted, token = verdict[s, :2]
        if depth > 0 and token >= 0:
            step.row("slot")[s] = slot
            step.row("position")[s] = table.row("position")[first] + accepted
            step.row("token")[s] = token
            step.row("first_row")[s], step.row("index")[s] = s, 0


SPEC = KernelSpec("draft_first", Params, args, geometry, reference)
