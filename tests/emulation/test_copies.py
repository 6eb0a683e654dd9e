"""Templates that move values without changing a bit of them, against their references."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from emulation import compare, needs_compiler, prepare
from kernel_case import Segment, make_table
from strata_kernels import (
    copy_cells,
    copy_state,
    handoff_read,
    handoff_write,
    logits_hash,
    store_tokens,
)
from strata_kernels import take_table as take
from strata_kernels.registry import KERNELS
from strata_kernels.render import Entry
from strata_kernels.table import LAYOUT
from template_case import SIZES, bound, tables

pytestmark = needs_compiler

CHUNKS = 2
MODULES = (handoff_read, handoff_write)

CASES = [
    *(Entry(m.SPEC, m.Params(rows, 133)) for m in MODULES for rows in SIZES),
    *(Entry(m.SPEC, m.Params(3, width)) for m in MODULES for width in (48, 300)),
    *(Entry(store_tokens.SPEC, store_tokens.Params(rows, CHUNKS)) for rows in SIZES),
    *(Entry(logits_hash.SPEC, logits_hash.Params(rows, 133)) for rows in SIZES),
    *(Entry(logits_hash.SPEC, logits_hash.Params(3, width)) for width in (48, 700, 8200)),
    *(Entry(copy_cells.SPEC, copy_cells.Params(rows, "f16", CHUNKS, 3, 12)) for rows in SIZES),
    *(
        Entry(copy_cells.SPEC, copy_cells.Params(3, kind, CHUNKS, parts, width))
        for kind, parts, width in (("f32", 2, 133), ("i32", 1, 1), ("f16", 1, 80))
    ),
    *(Entry(copy_state.SPEC, copy_state.Params(rows, "f32", 133)) for rows in SIZES),
    *(
        Entry(copy_state.SPEC, copy_state.Params(3, kind, size))
        for kind, size in (("f16", 48), ("i32", 1), ("f32", 700))
    ),
]
TAKES = [Entry(take.SPEC, take.Params(rows, 5, LAYOUT.words(32) + 3)) for rows in SIZES]


@pytest.fixture(scope="module", autouse=True)
def compiled() -> None:
    """All of them as one unit."""
    prepare([*CASES, *TAKES])


def _id(entry: Entry) -> str:
    return entry.name.rsplit("_", 1)[0]


@pytest.mark.parametrize("entry", CASES, ids=_id)
def test_template_does_what_the_reference_does(entry: Entry) -> None:
    for table in tables(entry.params.rows):
        compare(entry, bound(entry, table))


@pytest.mark.parametrize("entry", TAKES, ids=_id)
def test_take_table_fetches_the_counters_entry(entry: Entry) -> None:
    """The counter wraps, and its entry is then still one of the ring."""
    for count in (0, 4, 13, (1 << 31) - 1, -(1 << 31), -7):
        compare(entry, bound(entry, counter=torch.tensor([count], dtype=torch.int32)))


@pytest.mark.parametrize("rows", (3, 8))
def test_hash_sees_every_bit(rows: int) -> None:
    """Logits that differ in one bit, a NaN's payload among them, have other hashes."""
    entry = Entry(logits_hash.SPEC, logits_hash.Params(rows, 133))
    table = make_table(rows, [Segment(0, 0, (1,) * rows)])
    plain = bound(entry, table)
    plain["logits"][0, :3] = torch.tensor([torch.nan, -0.0, -torch.inf])
    hashes = compare(entry, plain)["hashes"]
    rng = np.random.default_rng(rows)
    for bit in (0, 17, 31):
        logits = plain["logits"].clone()
        columns = torch.from_numpy(rng.integers(0, 133, rows))
        flip = torch.from_numpy(np.array([1 << bit], np.uint32).view(np.int32))
        logits.view(torch.int32)[torch.arange(rows), columns] ^= flip
        changed = compare(entry, {**plain, "logits": logits})["hashes"]
        assert bool((changed[:rows].sum(-1) != hashes[:rows].sum(-1)).all())


@pytest.mark.parametrize(
    "entry", [e for e in CASES if hasattr(e.params, "cell_type")][-3:], ids=_id
)
def test_copied_cells_keep_their_bits(entry: Entry) -> None:
    """Any bits, among them the payloads of NaN and denormal numbers."""
    values = bound(entry, tables(entry.params.rows)[0])
    cells = values["cells"]
    count = cells.numel() * cells.itemsize
    raw = np.random.default_rng(1).integers(0, 256, count, np.uint8)
    compare(entry, {**values, "cells": torch.from_numpy(raw).view(cells.dtype).view(cells.shape)})


def test_every_template_of_this_file_is_a_kernel() -> None:
    """The specs are those of the registry."""
    assert all(KERNELS[e.spec.name] is e.spec for e in (*CASES, *TAKES))
