"""copy_state: the state of one slot becomes that of another."""

from __future__ import annotations

import pytest

from kernel_case import Segment, bind, bits, make_table
from strata_kernels import copy_state
from strata_kernels.regions import touched
from strata_kernels.spec import Region
from strata_kernels.table import TableView


@pytest.mark.parametrize("state_type", ["f32", "f16", "i32"])
@pytest.mark.parametrize("rows", [4, 32])
def test_states_of_several_slots(state_type: str, rows: int) -> None:
    """The first row of each segment says which; what its other rows say is nothing to it."""
    segments = [
        Segment(1, 62, (0,) * 2, fields={"state_in": (6, 0), "state_out": (1, 0)}),
        Segment(3, 0, (0,), gap=1, fields={"state_in": 4, "state_out": 3}),
    ]
    case = bind(
        copy_state.SPEC, copy_state.Params(rows, state_type, 45), make_table(rows, segments)
    )
    expected = case["state"].clone()
    expected[1], expected[3] = expected[6], expected[4]
    assert bits(case.run()["state"]) == bits(expected)


def test_states_that_a_table_names() -> None:
    """One for each segment; a kernel that begins at position 0 reads none, a copy does."""
    segments = [
        Segment(1, 9, (0,) * 3, fields={"state_in": 6, "state_out": 1}),
        Segment(3, 0, (0,) * 2, gap=1, fields={"state_in": 4, "state_out": 3}),
    ]
    table = TableView(make_table(8, segments), 8)

    def named(region: Region) -> list[int]:
        mask = touched(region, (8, 5), table)
        assert (mask.all(1) == mask.any(1)).all()
        return [i for i in range(8) if mask[i].any()]

    assert named(Region.STATE_IN) == [6]
    assert named(Region.SOURCE_STATE) == [4, 6]
    assert named(Region.STATE_OUT) == [1, 3]
