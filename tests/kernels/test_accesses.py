"""The declarations are true: nothing else is read or written, and all of it is written."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from kernel_case import Case, bind, bits, make_table, poison_like, random_table
from kernel_examples import ALL, CHUNKS, EXAMPLES, IDS, sizes, suited, with_rows
from strata_kernels.registry import KERNELS
from strata_kernels.spec import CHUNK, Region
from strata_kernels.table import Ints, TableView

SIZES = (1, 5, 8, 32)
TABLES = 3

every_kernel = pytest.mark.parametrize(("name", "params"), ALL, ids=IDS)


def tables(params: Any, rows: int) -> list[Ints]:
    """An empty table and a few random ones, inert rows among them."""
    vocab = getattr(params, "vocab", 133)
    rng = np.random.default_rng(rows)
    return [
        make_table(rows, []),
        *(random_table(rng, rows, CHUNKS * CHUNK, vocab) for _ in range(TABLES)),
    ]


def cases(name: str, params: Any) -> list[Case]:
    """One case for every size and table."""
    return [
        bind(KERNELS[name], with_rows(params, rows), suited(name, table, rows), seed=rows)
        for rows in sizes(name, SIZES)
        for table in tables(params, rows)
    ]


def rebind(case: Case, **values: torch.Tensor) -> Case:
    """The same case with copies of its tensors, some replaced."""
    return bind(case.spec, case.params, case.table, {**case.tensors, **values})


def written(case: Case, name: str) -> torch.Tensor:
    """The elements of an output that must be written: all declared ones, with one exception.

    `attention` leaves the chunks past a row's own position as they are.
    """
    region = case.args[name].writes
    assert region
    mask = case.mask(name, region)
    if (case.spec.name, name) == ("attention", "partials"):
        view = TableView(case.table, case.params.rows)
        chunks = np.zeros(len(mask), np.int64)
        live = np.where(view.row("slot") >= 0, view.row("position") // CHUNK + 1, 0)
        chunks[: case.params.rows] = live
        mask &= (torch.arange(mask.shape[1]) < torch.from_numpy(chunks)[:, None])[..., None, None]
    return mask


def results(case: Case) -> dict[str, bytes]:
    """The bytes of every element that must be written; the masks belong to the launch's start."""
    masks = {a.name: written(case, a.name) for a in case.args.values() if a.writes}
    case.run()
    return {name: bits(case[name][mask]) for name, mask in masks.items()}


def test_every_kernel_has_an_example() -> None:
    assert EXAMPLES.keys() == KERNELS.keys()
    assert all(isinstance(params, KERNELS[name].params) for name, params in ALL)
    assert len({hash((name, params)) for name, params in ALL}) == len(ALL)


@every_kernel
def test_reads_only_what_it_declares(name: str, params: Any) -> None:
    """Poison outside the declared reads changes no bit of the results."""
    for case in cases(name, params):
        poisoned = {}
        for arg in case.args.values():
            if arg.reads and arg.name != "table":
                readable = case.mask(arg.name, arg.reads)
                value = case[arg.name]
                poisoned[arg.name] = torch.where(readable, value, poison_like(value))
        assert results(rebind(case, **poisoned)) == results(case)


@every_kernel
def test_writes_only_what_it_declares(name: str, params: Any) -> None:
    """Everything outside the declared writes keeps its bytes, inputs as well."""
    for case in cases(name, params):
        outside = {
            a.name: ~case.mask(a.name, a.writes)
            if a.writes
            else torch.ones(case[a.name].shape, dtype=torch.bool)
            for a in case.args.values()
        }
        before = {n: bits(case[n][mask]) for n, mask in outside.items()}
        case.run()
        assert before == {n: bits(case[n][mask]) for n, mask in outside.items()}


@every_kernel
def test_writes_all_that_it_declares(name: str, params: Any) -> None:
    """Whatever an output held before, the results are equal; outputs are not read."""
    for case in cases(name, params):
        only_written = [a.name for a in case.args.values() if a.writes and not a.reads]
        other = {n: torch.full_like(case[n], 7) for n in only_written}
        assert results(rebind(case, **other)) == results(case)


@every_kernel
def test_runs_twice_alike(name: str, params: Any) -> None:
    for case in cases(name, params):
        if name != "take_table":  # its counter goes on
            first = results(rebind(case))
            assert results(case) == first
            if name != "sample":  # its logits have changed
                assert results(case) == first


def test_merge_does_not_read_chunks_past_the_row() -> None:
    """What `attention` leaves unwritten, `attention_merge` does not look at."""
    for case in cases("attention_merge", EXAMPLES["attention_merge"][0]):
        view = TableView(case.table, case.params.rows)
        clean = bits(rebind(case).run()["out"])
        parts = case["partials"].clone()
        for row in range(len(parts)):
            live = row < case.params.rows and view.row("slot")[row] >= 0
            parts[row, view.row("position")[row] // CHUNK + 1 if live else 0 :] = torch.nan
        assert bits(rebind(case, partials=parts).run()["out"]) == clean
        assert bool(torch.isfinite(case["out"]).any()) is False  # outputs began as poison


def test_poison_reaches_what_is_declared() -> None:
    """The method works: poison inside the declared reads does change results."""
    table = make_table(8, [])
    case = bind(KERNELS["rmsnorm"], EXAMPLES["rmsnorm"][0], table)
    x = case["x"].clone()
    x[3, 5] = torch.nan
    assert results(rebind(case, x=x)) != results(case)
    assert case.args["x"].reads is Region.WHOLE
