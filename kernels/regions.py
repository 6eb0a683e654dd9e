"""Which elements of a buffer an access touches, given a table: the declarations, made concrete."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from strata_kernels.spec import CHUNK, Region
from strata_kernels.table import TableView

Mask = npt.NDArray[np.bool_]
Shape = tuple[int, ...]


def touched(region: Region, shape: Shape, table: TableView, counter: int = 0) -> Mask:
    """A mask of `shape` that is true where the access may read or write.

    Cells have shape (slots, chunks, parts, 64, width), states one entry each; `counter` is the
    stage's counter before the launch, which only the ring's entry depends on.
    """
    mask = np.zeros(shape, np.bool_)
    if region is Region.WHOLE:
        mask[...] = True
    elif region is Region.RING_ENTRY:
        mask[counter % shape[0]] = True
    elif region is Region.CONTEXT:
        mask[table.header("context")] = True
    elif region in _ROW_FIELDS:
        mask[_indices(table, _ROW_FIELDS[region])] = True
    elif region in _STATES:
        mask[_states(table, *_STATES[region])] = True
    else:
        _CELLS[region](mask, table)
    return mask


#: Regions that are one whole row of the buffer for each row of the table: the field that names it.
_ROW_FIELDS = {
    Region.TOKEN: "token",
    Region.POSITION: "position",
    Region.HANDOFF: "handoff_row",
    Region.SAVED: "saved_row",
    Region.MASK: "mask",
    Region.BIAS: "bias",
}


def _indices(table: TableView, field: str) -> npt.NDArray[np.int32]:
    values = table.row(field)
    return values[(table.row("slot") >= 0) & (values >= 0)]


#: Regions that are one state for each segment: the field of its first row that names it, and the
#: lowest position of that row. Whoever begins at position 0 begins with zeros, and reads none.
_STATES = {
    Region.STATE_IN: ("state_in", 1),
    Region.STATE_OUT: ("state_out", 0),
    Region.SOURCE_STATE: ("state_in", 0),
}


def _states(table: TableView, field: str, least: int) -> npt.NDArray[np.int32]:
    values = table.row(field)
    first = (table.row("slot") >= 0) & (table.row("index") == 0)
    named: npt.NDArray[np.int32] = values[first & (table.row("position") >= least)]
    return named


def _cells(field: str) -> Callable[[Mask, TableView], None]:
    """One cell for each live row: (slot named by `field`, the row's position)."""

    def mark(mask: Mask, table: TableView) -> None:
        live = table.row("slot") >= 0
        position = table.row("position")[live]
        mask[table.row(field)[live], position // CHUNK, :, position % CHUNK] = True

    return mark


def _history(mask: Mask, table: TableView) -> None:
    """Every cell of the row's slot up to the row's own position."""
    for slot, position in zip(table.row("slot"), table.row("position"), strict=True):
        if slot >= 0:
            mask[slot, : position // CHUNK] = True
            mask[slot, position // CHUNK, :, : position % CHUNK + 1] = True


_CELLS: dict[Region, Callable[[Mask, TableView], None]] = {
    Region.CELL: _cells("slot"),
    Region.SOURCE_CELL: _cells("state_in"),
    Region.HISTORY: _history,
}
