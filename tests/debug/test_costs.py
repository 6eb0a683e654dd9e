"""Bytes that an access touches."""

from __future__ import annotations

import numpy as np
import pytest

from strata_compile.debug.costs import touched_bytes
from strata_kernels.regions import touched
from strata_kernels.spec import CHUNK, Region
from strata_kernels.table import LAYOUT, TableView
from strata_runtime.bundle_format import Argument
from strata_runtime.errors import BundleError


@pytest.mark.parametrize("region", [r for r in Region if r not in (Region.MASK, Region.BIAS)])
@pytest.mark.parametrize(("rows", "context"), [(1, 1), (3, 70), (8, 64), (8, 128), (4, 2)])
def test_touched_bytes_is_what_the_region_says(region: Region, rows: int, context: int) -> None:
    """Against the mask of the same region for a table whose rows end at the context."""
    words = np.full(LAYOUT.words(rows), -1, np.int32)
    words[: len(LAYOUT.header)] = 0
    table = TableView(words, rows)
    begins = region is Region.STATE_IN  # at position 0 there is none to read
    for field in ("slot", "state_in", "state_out"):
        table.row(field)[:] = 1
    table.row("position")[:] = np.arange(rows) + max(context - rows, begins)
    table.row("index")[:] = np.arange(rows)
    for field in ("token", "handoff_row", "saved_row"):
        table.row(field)[:] = np.arange(rows) * 2
    cells = region in (Region.CELL, Region.SOURCE_CELL, Region.HISTORY)
    shape = (3, 2, 2, CHUNK, 5) if cells else (130, 6)
    argument = Argument("0/x", 0, "f16", shape, region.value, None)
    assert touched_bytes(argument, region, rows, context) == 2 * touched(region, shape, table).sum()


def test_rows_have_no_mask_and_no_bias() -> None:
    argument = Argument("0/mask", 0, "i32", (16, 5), "mask", None)
    assert touched_bytes(argument, Region.MASK, 8, 100) == 0
    assert touched_bytes(argument, Region.BIAS, 8, 100) == 0


def test_costs_refuse_what_cannot_be() -> None:
    with pytest.raises(BundleError, match="0/x: unknown type 'f8'"):
        touched_bytes(Argument("0/x", 0, "f8", (4,), None, None), Region.WHOLE, 1, 1)
    with pytest.raises(BundleError, match=r"0/x: \(4, 2\) are not cells"):
        touched_bytes(Argument("0/x", 0, "f32", (4, 2), None, None), Region.CELL, 1, 1)
