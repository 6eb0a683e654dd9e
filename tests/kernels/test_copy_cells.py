"""copy_cells: cells of one slot become those of another."""

from __future__ import annotations

import pytest
import torch

from kernel_case import Segment, bind, bits, make_table
from strata_kernels import copy_cells

CELL_TYPES = ("f32", "f16", "i32")


@pytest.mark.parametrize("cell_type", CELL_TYPES)
def test_positions_of_several_slots(cell_type: str) -> None:
    """Two ranges from two sources, one across the border of chunks; the rest stays."""
    segments = [
        Segment(1, 62, (0,) * 5, fields={"state_in": 6}),
        Segment(3, 0, (0,) * 2, gap=1, fields={"state_in": 4}),
    ]
    params = copy_cells.Params(16, cell_type, 4, 2, 12)
    case = bind(copy_cells.SPEC, params, make_table(16, segments))
    expected = case["cells"].clone()
    for target, source, positions in ((1, 6, range(62, 67)), (3, 4, range(2))):
        for p in positions:
            expected[target, p // 64, :, p % 64] = expected[source, p // 64, :, p % 64]
    assert bits(case.run()["cells"]) == bits(expected)


def test_one_source_for_two_slots() -> None:
    segments = [Segment(slot, 9, fields={"state_in": 7}) for slot in (0, 2)]
    params = copy_cells.Params(2, "f32", 4, 1, 3)
    case = bind(copy_cells.SPEC, params, make_table(2, segments)).run()
    cells = case["cells"][:, 0, 0, 9]
    assert torch.equal(cells[0], cells[7]) and torch.equal(cells[2], cells[7])
    assert not torch.equal(cells[1], cells[7])
