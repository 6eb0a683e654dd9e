"""Kernels that move rows: take_table, embed, hand-offs, stored tokens."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kernel_case import Segment, bind, make_table
from strata_kernels import embed, handoff_read, handoff_write, store_tokens, take_table
from strata_kernels.table import LAYOUT


def table(rows: int = 5) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    """Rows 0, 1: slot 2 at 63; row 2 inert; row 3: slot 0 at 0; the rest inert."""
    segments = [
        Segment(2, 63, (130, 7), fields={"handoff_row": (12, 3)}),
        Segment(0, 0, (7,), gap=1, fields={"handoff_row": 5}),
    ]
    return make_table(rows, segments)


def test_embed_takes_the_tokens_rows() -> None:
    case = bind(embed.SPEC, embed.Params(5, 133, 48, "f32"), table()).run()
    expected = np.zeros((8, 48), np.float32)
    expected[[0, 1, 3]] = case["weight"].numpy()[[130, 7, 7]]
    assert np.array_equal(case["out"].numpy(), expected)


def test_handoff_read_takes_the_named_rows() -> None:
    case = bind(handoff_read.SPEC, handoff_read.Params(5, 45), table()).run()
    expected = np.zeros((8, 45), np.float32)
    expected[[0, 1, 3]] = case["handoff"].numpy()[[12, 3, 5]]
    assert np.array_equal(case["out"].numpy(), expected)


def test_handoff_write_fills_the_named_rows() -> None:
    handoff = torch.arange(160 * 45, dtype=torch.float32).reshape(160, 45)
    params = handoff_write.Params(5, 45)
    case = bind(handoff_write.SPEC, params, table(), {"handoff": handoff}).run()
    expected = handoff.numpy().copy()
    expected[[12, 3, 5]] = case["x"].numpy()[[0, 1, 3]]
    assert np.array_equal(case["handoff"].numpy(), expected)


def test_what_one_stage_writes_the_next_one_reads() -> None:
    written = bind(handoff_write.SPEC, handoff_write.Params(5, 45), table()).run()
    values = {"handoff": written["handoff"]}
    read = bind(handoff_read.SPEC, handoff_read.Params(5, 45), table(), values).run()
    assert np.array_equal(read["out"].numpy()[[0, 1, 3]], written["x"].numpy()[[0, 1, 3]])


def test_store_tokens_keeps_each_token_at_its_cell() -> None:
    cells = torch.zeros(8, 4, 1, 64, 1, dtype=torch.int32)
    params = store_tokens.Params(5, 4)
    case = bind(store_tokens.SPEC, params, table(), {"token_cells": cells}).run()
    expected = np.zeros((8, 4 * 64), np.int32)
    expected[2, 63], expected[2, 64], expected[0, 0] = 130, 7, 7
    assert np.array_equal(case["token_cells"].numpy().reshape(8, -1), expected)


@pytest.mark.parametrize("rows", [1, 8, 32])
def test_take_table_copies_a_prefix_of_each_entry_in_turn(rows: int) -> None:
    params = take_table.Params(rows, 4, LAYOUT.words(32))
    counter = torch.tensor([2], dtype=torch.int32)
    case = bind(take_table.SPEC, params, make_table(rows, []), {"counter": counter})
    seen = [case.run()["table"].clone() for _ in range(6)]
    words = LAYOUT.words(rows)
    assert [s.tolist() for s in seen] == [
        case["ring"][entry, :words].tolist() for entry in (2, 3, 0, 1, 2, 3)
    ]
    assert case["counter"].tolist() == [8]


def test_the_counter_may_wrap() -> None:
    """A ring has a power of two entries, so that 2^31 launches end nothing."""
    params = take_table.Params(1, 4, LAYOUT.words(1))
    counter = torch.tensor([(1 << 31) - 2], dtype=torch.int32)
    case = bind(take_table.SPEC, params, make_table(1, []), {"counter": counter})
    seen = [case.run()["table"].tolist() for _ in range(4)]
    assert seen == [case["ring"][entry].tolist() for entry in (2, 3, 0, 1)]
