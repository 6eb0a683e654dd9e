"""rope_store, attention, attention_merge and prompt_attention as templates, on the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from emulation import ORDERS, compare, needs_compiler, prepare, run
from kernel_case import Case, Segment, bind, bits, make_table
from missing_barrier import without_barrier
from row_company import case_of, own_bytes
from strata_kernels import attention, attention_merge, prompt_attention, rope_store
from strata_kernels.registry import KERNELS
from strata_kernels.render import Entry
from strata_kernels.spec import CHUNK
from strata_kernels.table import Ints, TableView

pytestmark = needs_compiler

CHUNKS = 4  #: row_company has four as well
#: Products of up to 64 terms and sums of 64 cells, in another order than the reference's.
TOLERANCE = 3e-6

#: (heads, kv_heads, head_dim, cell type): one to four query heads a kv head; one head is wider
#: than a block.
SHAPES = [
    (2, 2, 12, "f32"),
    (4, 2, 16, "f16"),
    (3, 1, 64, "f16"),
    (8, 2, 12, "f16"),
    (4, 1, 64, "f32"),
    (2, 1, 80, "f32"),
]
WINDOWS, PROMPT = (1, 2, 3, 8), 32
#: (rotated, interleaved) of each shape.
TURNS = [(12, True), (10, False), (64, True), (12, False), (32, False), (80, True)]

every_shape = pytest.mark.parametrize("shape", range(len(SHAPES)))


def params(shape: int, rows: int) -> attention.Params:
    """An attention of some rows."""
    return attention.Params(rows, *SHAPES[shape], CHUNKS)


def merge_params(shape: int, rows: int) -> attention_merge.Params:
    """The merge behind it."""
    heads, _, head_dim, _ = SHAPES[shape]
    return attention_merge.Params(rows, heads, head_dim, CHUNKS)


def rope_params(shape: int, rows: int) -> rope_store.Params:
    """The kernel that writes its cells."""
    heads, kv_heads, head_dim, cell_type = SHAPES[shape]
    return rope_store.Params(rows, heads, kv_heads, head_dim, *TURNS[shape], cell_type, CHUNKS)


@pytest.fixture(scope="module", autouse=True)
def units() -> None:
    """Everything in one translation unit for each shape."""
    for shape in range(len(SHAPES)):
        entries = []
        for rows in WINDOWS:
            entries.append(Entry(attention.SPEC, params(shape, rows)))
            entries.append(Entry(attention_merge.SPEC, merge_params(shape, rows)))
            entries.append(Entry(rope_store.SPEC, rope_params(shape, rows)))
        entries.append(Entry(rope_store.SPEC, rope_params(shape, PROMPT)))
        entries += [Entry(prompt_attention.SPEC, params(shape, n)) for n in (8, PROMPT)]
        prepare(entries)


#: By rows: histories of 1, 63, 64, 65, 130 cells; several slots, rows of one, and inert rows.
TABLES: dict[int, list[Sequence[Segment]]] = {
    1: [[Segment(2, length - 1)] for length in (1, 63, 64, 65, 130)] + [[]],
    2: [[Segment(1, 63, (1, 1))], [Segment(3, 129, gap=1)]],
    3: [[Segment(1, 0), Segment(0, 63, (1, 1))], [Segment(2, 62, gap=1)]],
    8: [
        [Segment(1, 0), Segment(3, 62, (1, 1, 1)), Segment(0, 128, (1, 1), gap=1)],
        [Segment(2, 60, (1,) * 8)],
    ],
    PROMPT: [[Segment(2, 50, (1,) * 31, gap=1)], [Segment(0, 0, (1,) * 30)]],
}


def windows(*sizes: int) -> list[Ints]:
    """The tables of some sizes."""
    return [make_table(n, segments) for n in sizes for segments in TABLES[n]]


def rows_of(table: Ints) -> int:
    """How many rows a table's program has."""
    return int(table[3])


def live(table: Ints) -> list[int]:
    """Rows that are not inert."""
    slots = TableView(table, rows_of(table)).row("slot")
    return np.flatnonzero(slots >= 0).tolist()


def inert_poison(case: Case, *names: str) -> dict[str, torch.Tensor]:
    """The case's arguments with NaN in the inert rows of some."""
    values = dict(case.tensors)
    keep = live(case.table)
    for name in names:
        values[name] = torch.full_like(case[name], torch.nan)
        values[name][keep] = case[name][keep]
    return values


def unseen(case: Case) -> torch.Tensor:
    """A mask of the partial results that nobody reads: chunks past a row's position."""
    mask = torch.ones(case["partials"].shape, dtype=torch.bool)
    position = TableView(case.table, case.params.rows).row("position")
    for row in live(case.table):
        mask[row, : position[row] // CHUNK + 1] = False
    return mask


def checked(case: Case, *inputs: str, tolerance: float = TOLERANCE) -> Case:
    """The template's outputs, after a comparison with the reference in both orders."""
    ignore = {"partials": unseen(case)} if case.spec.name == "attention" else {}
    values, entry = inert_poison(case, *inputs), Entry(case.spec, case.params)
    case.tensors.update(compare(entry, values, tolerance=tolerance, ignore=ignore))
    return case


def emulated(case: Case, order: int = ORDERS[0]) -> Case:
    """The case after a run of its template."""
    run(Entry(case.spec, case.params), case.tensors, order)
    return case


def merged(shape: int, case: Case, order: int = ORDERS[0]) -> torch.Tensor:
    """attention_merge over what `attention` left; chunks that it did not write are NaN."""
    p = merge_params(shape, case.params.rows)
    values = {"partials": case["partials"]}
    return emulated(bind(attention_merge.SPEC, p, case.table, values), order)["out"]


# ---- against the reference


@every_shape
def test_attention_and_merge(shape: int) -> None:
    """Partials, and nothing in chunks past a row's position; then their merge."""
    for table in windows(*WINDOWS):
        case = checked(bind(attention.SPEC, params(shape, rows_of(table)), table), "q")
        parts, skipped = case["partials"], unseen(case)
        assert bool(torch.isfinite(parts[~skipped]).all())
        assert set(bits(parts[skipped])) <= {0xFF}  # what was there before the run
        p = merge_params(shape, case.params.rows)
        merge = checked(bind(attention_merge.SPEC, p, table, {"partials": parts}))
        assert_finite(merge)


@every_shape
def test_prompt_attention(shape: int) -> None:
    for table in windows(8, PROMPT):
        p = params(shape, rows_of(table))
        assert_finite(checked(bind(prompt_attention.SPEC, p, table), "q"))


def assert_finite(case: Case) -> None:
    """No poison has come through, and inert rows are zeros."""
    out = case["out"][: case.params.rows]
    assert bool(torch.isfinite(out).all())
    assert not out[[row for row in range(len(out)) if row not in live(case.table)]].any()


@every_shape
def test_rope_store(shape: int) -> None:
    """Every bit is the reference's: products, sums and the rounding of cells are plain."""
    for table in windows(*WINDOWS[1:], PROMPT)[shape % 2 :: 2]:
        p = rope_params(shape, rows_of(table))
        checked(bind(rope_store.SPEC, p, table), "q", "k", "v", tolerance=0.0)


def test_scores_of_any_size() -> None:
    """Scores of hundreds neither overflow nor vanish; whole numbers, so that they are exact."""
    table = windows(8)[0]
    case = bind(attention.SPEC, params(0, 8), table)
    values = {n: (case[n] * 8).round() for n in ("q", "k_cells")}
    values |= {"v_cells": case["v_cells"]}
    found = checked(bind(attention.SPEC, params(0, 8), table, values))
    assert float(found["partials"][6, :2, :, -1].max()) > 100  # float32's exp ends at 88


@pytest.mark.parametrize("number", range(3))
def test_every_barrier_is_needed(number: int) -> None:
    """Behind the maxima, behind the weights, behind the query: none can be left out."""
    case = bind(prompt_attention.SPEC, params(3, 8), windows(8)[1])
    entry = Entry(case.spec, case.params)
    with pytest.raises(AssertionError):
        compare(
            entry,
            case.tensors,
            tolerance=TOLERANCE,
            library=without_barrier(entry, number, "attend"),
        )


# ---- one row, wherever it stands


@every_shape
@pytest.mark.parametrize("order", ORDERS)
def test_prompt_equals_window_and_merge(shape: int, order: int) -> None:
    """Bit for bit, however the same rows are cut into windows."""
    start, count = 50, 31
    table = make_table(PROMPT, [Segment(2, start, (1,) * count)])
    prompt = bind(prompt_attention.SPEC, params(shape, PROMPT), table)
    prompt = emulated(prompt, order)
    at = 0
    for size in (1, 2, 3, 8, 8, 3, 2, 1, 3):
        rows, values = slice(at, at + size), {n: prompt[n] for n in ("k_cells", "v_cells")}
        values["q"] = torch.full((8, prompt["q"].shape[1]), torch.nan)
        values["q"][:size] = prompt["q"][rows]
        table = make_table(size, [Segment(2, start + at, (1,) * size)])
        window = emulated(bind(attention.SPEC, params(shape, size), table, values), order)
        assert bits(merged(shape, window, order)[:size]) == bits(prompt["out"][rows])
        at += size
    assert at == count


@every_shape
def test_prompt_and_window_store_the_same_cells(shape: int) -> None:
    """rope_store in one chunk and row by row, in several sizes of windows."""
    start = 50
    table = make_table(PROMPT, [Segment(1, start, (1,) * PROMPT)])
    prompt = emulated(bind(rope_store.SPEC, rope_params(shape, PROMPT), table))
    values = {n: torch.full_like(prompt[n], torch.nan) for n in ("k_cells", "v_cells")}
    at = 0
    for size in (1, 2, 3, 8, 8, 8, 2):
        rows = slice(at, at + size)
        for name in ("q", "k", "v"):
            values[name] = torch.full((8, prompt[name].shape[1]), torch.nan)
            values[name][:size] = prompt[name][rows]
        table = make_table(size, [Segment(1, start + at, (1,) * size)])
        values["rotation"] = prompt["rotation"]
        window = emulated(bind(rope_store.SPEC, rope_params(shape, size), table, values))
        assert bits(window["out"][:size]) == bits(prompt["out"][rows])
        values |= {n: window[n] for n in ("k_cells", "v_cells")}
        at += size
    for name in ("k_cells", "v_cells"):
        mask = prompt.mask(name, prompt.args[name].writes)
        assert bits(values[name][mask]) == bits(prompt[name][mask])


INVARIANT = [
    ("rope_store", rope_params, (1, 3, 8, PROMPT)),
    ("attention", params, WINDOWS),
    ("attention_merge", merge_params, WINDOWS),
    ("prompt_attention", params, (8, PROMPT)),
]


@pytest.mark.parametrize(("name", "make", "sizes"), INVARIANT, ids=[i[0] for i in INVARIANT])
@pytest.mark.parametrize("length", [1, 64, 65, 130])
def test_a_row_does_not_depend_on_company(
    name: str, make: Any, sizes: Sequence[int], length: int
) -> None:
    """One row in programs of any size, at any place, among random rows of three slots."""
    shape, wanted = 3, {}
    for rows in sizes:
        places = range(rows) if rows <= 8 else (0, 13, 31)
        for place in places:
            case = emulated(case_of(name, make(shape, rows), rows, place, length, seed=2))
            found = own_bytes(case, place, length)
            wanted = wanted or found
            assert found == wanted and all(found.values())


@pytest.mark.parametrize("name", ["attention", "prompt_attention"])
@pytest.mark.parametrize("cells", ["k_cells", "v_cells"])
def test_a_row_does_not_read_the_cells_of_later_rows(name: str, cells: str) -> None:
    """A draft whose cell is not finite changes nothing for the rows before it in its window."""
    shape, outs = 1, []
    for value in (0.5, torch.nan):
        table = make_table(8, [Segment(2, 70, (1, 1, 1))])
        case = bind(KERNELS[name], params(shape, 8), table)
        case[cells][2, 71 // CHUNK, :, 71 % CHUNK] = value
        emulated(case)
        outs.append(merged(shape, case) if name == "attention" else case["out"])
    assert bits(outs[0][0]) == bits(outs[1][0])
    assert bool(torch.isnan(outs[1][1:3]).any(-1).all())
