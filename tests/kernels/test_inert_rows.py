"""Inert rows read nothing and write nothing but their zeros."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from kernel_case import GARBAGE, Case, Segment, bind, bits, make_table, poison_like
from kernel_examples import (
    ALL,
    CHUNKS,
    IDS,
    is_table,
    row_args,
    sizes,
    suited,
    table_meaning,
    with_rows,
)
from strata_kernels.registry import KERNELS
from strata_kernels.spec import CHUNK, Arg, Region
from strata_kernels.table import Ints, TableView

#: What an inert row of an output holds, where it is not zero.
INERT_VALUE = {"draws": -1}


def has_table(name: str, params: Any) -> bool:
    """Does the kernel read the launch's table, so that it knows which rows are inert?"""
    return any(a.name == "table" and a.reads for a in KERNELS[name].args(params))


WITH_TABLE = [(n, p) for n, p in ALL if has_table(n, p)]
WITHOUT = [(n, p) for n, p in ALL if not has_table(n, p) and n != "take_table"]


def with_table(*rows: int) -> pytest.MarkDecorator:
    """Every kernel that knows its inert rows, in programs of some sizes."""
    found = [(n, p, r) for n, p in WITH_TABLE for r in sizes(n, rows)]
    ids = [f"{IDS[ALL.index((n, p))]}-{r}" for n, p, r in found]
    return pytest.mark.parametrize(("name", "params", "rows"), found, ids=ids)


OTHER_IDS = [i for i, (n, p) in zip(IDS, ALL, strict=True) if (n, p) in WITHOUT]


def mixed(rows: int, inert: int = -1) -> Ints:
    """Two segments with inert rows before, between and behind."""
    fields = {"state_in": 6, "temperature": 1.0, "penalty_last": 9, "mask": 1, "bias": 0}
    return make_table(
        rows,
        [
            Segment(1, 70, (5, 6), gap=1, fields={**fields, "handoff_row": (3, 9)}),
            Segment(3, 0, (7,), gap=1, fields={**fields, "handoff_row": 4}),
        ],
        inert=inert,
        context=1,
    )


def inert_rows(table: Ints, rows: int, padded: int) -> torch.Tensor:
    """A mask over the padded rows."""
    live = np.zeros(padded, np.bool_)
    live[:rows] = TableView(table, rows).row("slot") >= 0
    return torch.from_numpy(~live)


def stays(arg: Arg) -> bool:
    """Are inert rows left as they were? In partial results, and in what changes in place."""
    return arg.name == "partials" or arg.reads is not None


def results(case: Case) -> dict[str, Any]:
    """Every declared write, after a run: its bytes, without the inert rows that stay."""
    case.run()
    found: dict[str, Any] = {}
    for arg in case.args.values():
        if not arg.writes:
            continue
        if is_table(arg, case.params):
            found[arg.name] = table_meaning(case[arg.name].numpy(), case.params.rows)
            continue
        mask = case.mask(arg.name, arg.writes)
        if stays(arg) and arg.name in row_args(case.spec.name, case.params):
            mask[inert_rows(case.table, case.params.rows, len(mask))] = False
        found[arg.name] = bits(case[arg.name][mask])
    return found


@with_table(5, 8, 32)
def test_poison_in_inert_rows_changes_nothing(name: str, params: Any, rows: int) -> None:
    """Inert rows of the inputs hold NaN, and so do all cells that no live row may see."""
    table, spec, sized = suited(name, mixed(rows), rows), KERNELS[name], with_rows(params, rows)
    clean = bind(spec, sized, table)
    poisoned = {}
    for arg in clean.args.values():
        value = clean[arg.name].clone()
        if arg.reads and arg.name in row_args(name, params) and name != "verdict":
            value[inert_rows(table, rows, len(value))] = poison_like(value)[0]
        elif arg.reads and arg.reads is not Region.WHOLE:
            readable = clean.mask(arg.name, arg.reads)
            value = torch.where(readable, value, poison_like(value))
        poisoned[arg.name] = value
    assert results(bind(spec, sized, table, poisoned)) == results(clean)


@with_table(5, 8, 32)
def test_fields_of_inert_rows_mean_nothing(name: str, params: Any, rows: int) -> None:
    """Only the slot of an inert row is looked at."""
    spec, sized = KERNELS[name], with_rows(params, rows)
    garbage, plain = (suited(name, mixed(rows, inert), rows) for inert in (GARBAGE, -1))
    assert results(bind(spec, sized, garbage)) == results(bind(spec, sized, plain))


@with_table(5, 8, 32)
def test_inert_rows_hold_zeros(name: str, params: Any, rows: int) -> None:
    table = suited(name, mixed(rows), rows)
    before = bind(KERNELS[name], with_rows(params, rows), table)
    case = bind(KERNELS[name], with_rows(params, rows), table).run()
    outputs = [a for a in row_args(name, params).values() if a.writes]
    for arg in outputs:
        value = case[arg.name]
        where = inert_rows(case.table, rows, len(value))
        inert = value[where]
        expected = torch.full_like(inert, INERT_VALUE.get(arg.name, 0))
        if stays(arg):
            expected = before[arg.name][where]
        assert bits(inert) == bits(expected)
    others = [a for a in case.args.values() if a.writes and a not in outputs]
    assert outputs or any(a.writes is not Region.WHOLE or is_table(a, case.params) for a in others)


@with_table(1, 8, 32)
def test_an_empty_table_touches_no_cell(name: str, params: Any, rows: int) -> None:
    """With no live row, buffers that are addressed by row keep their bytes."""
    table, spec, sized = make_table(rows, []), KERNELS[name], with_rows(params, rows)
    names = [a.name for a in spec.args(sized) if a.name not in ("table", "hashes", "draws")]
    first = bind(spec, sized, table)
    case = bind(spec, sized, table, {n: poison_like(first[n]) for n in names})
    kept = [a.name for a in case.args.values() if a.writes not in (None, Region.WHOLE)]
    if name in ("verdict", "draft_first"):  # they write the window's context, rows or none
        kept = []
    case.run()
    assert all(bits(case[n]) == bits(poison_like(case[n])) for n in kept)
    for arg in row_args(name, params).values():
        if arg.writes and not stays(arg):
            value = case[arg.name]
            assert bits(value) == bits(torch.full_like(value, INERT_VALUE.get(arg.name, 0)))


@pytest.mark.parametrize(("name", "params"), WITHOUT, ids=OTHER_IDS)
def test_other_kernels_keep_rows_apart(name: str, params: Any) -> None:
    """Where a kernel does not know which rows are inert, NaN in one row stays in that row."""
    table, spec = make_table(8, []), KERNELS[name]
    clean = bind(spec, params, table)
    inputs = [a.name for a in row_args(name, params).values() if a.reads]
    dirty = {n: clean[n].clone() for n in inputs}
    for value in dirty.values():
        value[[0, 3, 7]] = torch.nan
    live = torch.tensor([1, 2, 4, 5, 6])
    poisoned = bind(spec, params, table, {**clean.tensors, **dirty}).run()
    outs = [a.name for a in row_args(name, params).values() if a.writes]
    clean.run()
    assert inputs and outs
    for out in outs:
        assert bits(poisoned[out][live]) == bits(clean[out][live])
        assert bool(torch.isnan(poisoned[out][[0, 3, 7]]).all())


def test_a_mask_of_history_is_not_a_mask_of_zeros() -> None:
    """NaN in a slot's cells past the row's position, in the row's own chunk, is not read."""
    params = dict(zip(IDS, ALL, strict=True))["prompt_attention-0"][1]
    table = make_table(8, [Segment(1, 70, (5, 6))])
    spec = KERNELS["prompt_attention"]
    case = bind(spec, params, table)
    cells = {n: case[n].clone() for n in ("k_cells", "v_cells")}
    for value in cells.values():
        value[1, 70 // CHUNK, :, 72 % CHUNK :] = torch.nan
        value[1, 70 // CHUNK + 1 :] = torch.nan
        assert value.shape[1] == CHUNKS
    dirty = bind(spec, params, table, {**case.tensors, **cells}).run()
    assert bits(dirty["out"]) == bits(case.run()["out"])
    assert bool(torch.isfinite(dirty["out"]).all())
