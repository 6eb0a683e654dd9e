"""Regions, made concrete: hand-written masks for one table."""

from __future__ import annotations

import numpy as np

from kernel_case import Segment, make_table
from strata_kernels.regions import Mask, touched
from strata_kernels.spec import CHUNK, Region
from strata_kernels.table import TableView

CELLS = (8, 2, 3, CHUNK, 5)


def view() -> TableView:
    """Two rows of slot 2 at positions 63 and 64, an inert row, one row of slot 0 at position 0."""
    fields = {"handoff_row": (4, 1), "mask": (-1, 2), "bias": (1, -1), "state_in": (5, 7)}
    segments = [
        Segment(2, 63, (3, 6), fields=fields),
        Segment(0, 0, (3,), gap=1, fields={"handoff_row": 0, "state_in": 6}),
    ]
    return TableView(make_table(5, segments, context=1), 5)


def rows(mask: Mask) -> list[int]:
    """First indices where all is marked; nothing may be marked in part."""
    flat = mask.reshape(len(mask), -1)
    assert (flat.all(1) == flat.any(1)).all()
    return np.flatnonzero(flat.all(1)).tolist()


def cells(mask: Mask) -> set[tuple[int, int]]:
    """(slot, position) of every marked cell; a cell is marked in all parts or in none."""
    by_cell = mask.transpose(0, 1, 3, 2, 4).reshape(CELLS[0], CELLS[1] * CHUNK, -1)
    assert (by_cell.all(2) == by_cell.any(2)).all()
    return {(int(s), int(p)) for s, p in np.argwhere(by_cell.all(2))}


def test_regions_of_whole_rows() -> None:
    table = view()
    expected = {
        Region.WHOLE: list(range(70)),
        Region.TOKEN: [3, 6],
        Region.POSITION: [0, 63, 64],
        Region.HANDOFF: [0, 1, 4],
        Region.MASK: [2],
        Region.BIAS: [1],
        Region.CONTEXT: [1],
    }
    assert {r: rows(touched(r, (70, 3), table)) for r in expected} == expected


def test_the_ring_entry_follows_the_counter() -> None:
    found = [rows(touched(Region.RING_ENTRY, (4, 9), view(), counter)) for counter in (0, 3, 4, 9)]
    assert found == [[0], [3], [0], [1]]


def test_cells() -> None:
    table = view()
    assert cells(touched(Region.CELL, CELLS, table)) == {(2, 63), (2, 64), (0, 0)}
    assert cells(touched(Region.SOURCE_CELL, CELLS, table)) == {(5, 63), (7, 64), (6, 0)}
    history = {(2, p) for p in range(65)} | {(0, 0)}
    assert cells(touched(Region.HISTORY, CELLS, table)) == history


def test_every_region_of_an_empty_table() -> None:
    table = TableView(make_table(3, []), 3)
    always = {Region.WHOLE, Region.CONTEXT, Region.RING_ENTRY}
    assert {r for r in Region if touched(r, CELLS, table).any()} == always
