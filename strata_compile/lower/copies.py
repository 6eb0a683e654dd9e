"""What copy programs do: one kernel call for each sort of cells, and for each part of a state."""

from __future__ import annotations

from strata_compile.lower.calls import LoweredCall, Named, call
from strata_compile.lower.place import Place
from strata_kernels import copy_cells, copy_state


def copy_of_cells(
    place: Place, cells: Named, cell_type: str, parts: int, width: int
) -> LoweredCall:
    """One sort of cells, at the positions of the table's rows; as `copy_cells` has its params."""
    params = copy_cells.Params(place.rows, cell_type, place.facts.chunks, parts, width)
    return call(copy_cells.SPEC, params, table=place.table, cells=cells)


def copy_of_state(place: Place, state: Named, state_type: str, size: int) -> LoweredCall:
    """One part of the states, `size` elements each, of the table's segments."""
    params = copy_state.Params(place.rows, state_type, size)
    return call(copy_state.SPEC, params, table=place.table, state=state)
