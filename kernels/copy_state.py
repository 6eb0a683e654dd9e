"""copy_state: copies states; the first row of a segment names where from and where to."""

from __future__ import annotations

from dataclasses import dataclass

from strata_kernels.arithmetic import first_rows, pick, view
from strata_kernels.spec import THREADS, Arg, Bound, Geometry, KernelSpec, Region, table_arg


@dataclass(frozen=True)
class Params:
    """Rows, the states' type, and elements of one state."""

    rows: int
    state_type: str
    size: int


def args(p: Params) -> tuple[Arg, ...]:
    """One part of the states, of all slots."""
    state = Arg(
        "state", p.state_type, (-1, p.size), reads=Region.SOURCE_STATE, writes=Region.STATE_OUT
    )
    return (table_arg(p.rows), state)


def geometry(p: Params) -> Geometry:
    """A block for each row, of which those of a segment's other rows have nothing to do."""
    return Geometry((p.rows, 1, 1), THREADS)


def reference(p: Params, bound: Bound) -> None:
    """state[state_out] = state[state_in] for each segment; no state is both."""
    table = view(bound, p.rows)
    rows = first_rows(table)
    source, target = pick(table.row("state_in"), rows), pick(table.row("state_out"), rows)
    bound["state"][target] = bound["state"][source]


SPEC = KernelSpec("copy_state", Params, args, geometry, reference)
