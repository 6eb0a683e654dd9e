"""`emulation.compare` finds every way in which a template can break its declaration."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType
from gguf.quants import quantize

from emulation import EmulationFault, Library, assemble, compare, needs_compiler
from kernel_case import Segment, make_table
from strata_kernels.arithmetic import live_rows, pick, put_rows, view
from strata_kernels.render import Entry, host_entry
from strata_kernels.spec import (
    Arg,
    Bound,
    Geometry,
    KernelSpec,
    Region,
    matrix,
    padded,
    table_arg,
    write,
)

pytestmark = needs_compiler

WIDTH, VOCAB, ROWS = 32, 5, 3


@dataclass(frozen=True)
class Params:
    """Rows, and which of BODIES is the kernel."""

    rows: int
    body: str


def args(p: Params) -> tuple[Arg, ...]:
    """A quantised matrix by token, and rows."""
    return (
        table_arg(p.rows),
        matrix("weight", "Q8_0", VOCAB, WIDTH, region=Region.TOKEN),
        write("out", padded(p.rows), WIDTH),
    )


def geometry(p: Params) -> Geometry:
    """A block for each row."""
    return Geometry((p.rows, 1, 1), WIDTH)


def reference(p: Params, bound: Bound) -> None:
    """out[i] = weight[token of row i] reversed; inert rows are zeros."""
    table = view(bound, p.rows)
    rows = live_rows(table.row("slot"))
    put_rows(bound["out"], rows, bound["weight"][pick(table.row("token"), rows)].flip(-1))


SPEC = KernelSpec("backwards", Params, args, geometry, reference)

#: What comes after the value of this thread, and what `compare` says about it.
BODIES = {
    "right": ("out[at] = live ? tile[31 - lane()] : 0;", None),
    "unwritten": ("if (lane() < 31) out[at] = live ? tile[31 - lane()] : 0;", "is not close"),
    "inert": ("if (live) out[at] = tile[31 - lane()];", "is not close"),
    "wrong": ("out[at] = live ? tile[31 - lane()] * 1.0001f : 0;", "is not close"),
    "early": ("out[at] = live ? early : 0;", "is not close"),
    "orders": ("out[at] = live ? tile[31 - lane()] + (early == early ? 0 : 1e-6f) : 0;", "other b"),
    "padding": ("out[at] = live ? tile[31 - lane()] : 0; out[7 * 32] = 0;", "was written"),
    "input": ("out[at] = live ? tile[31 - lane()] : 0; ((u8*)weight)[3] = 0;", "weight, .*was wr"),
    "outside": (
        "out[at] = live ? tile[31 - lane()] : 0; if (live) out[at] += weight[0] * 1e-9f;",
        "other bits",
    ),
    "behind": ("out[at] = live ? tile[31 - lane()] : 0; out[8 * 32] = 0;", "0 bytes behind"),
}

TEXT = """
KERNEL NAME(const i32* table, const u8* weight, float* out) {
  SHARED(float, tile, 32);
  const i32 row = block_x(), at = row * 32 + lane();
  const bool live = row_slot(table, row) >= 0;
  const u8* block = weight + (live ? row_token(table, row) : 1) * 34;
  const float scale = half_to_float(u16(block[0] | block[1] << 8));
  tile[lane()] = scale * float((signed char)block[2 + lane()]);
  const float early = tile[31 - lane()];
  barrier();
  (void)early;
  BODY
}
"""


def entry(body: str) -> Entry:
    """The kernel with one of the bodies."""
    return Entry(SPEC, Params(ROWS, body))


@functools.cache
def library() -> Library:
    """All bodies, one entry each."""
    entries = {name: entry(name) for name in BODIES}
    text = [
        TEXT.replace("NAME", entries[name].name).replace("BODY", body)
        for name, (body, _) in BODIES.items()
    ]
    hosts = [host_entry(e) for e in entries.values()]
    return assemble("\n".join(text), hosts, ["_table.cuh.j2"])


def bound() -> dict[str, torch.Tensor]:
    """Two live rows of tokens 4 and 2, an inert row between them; the matrix as raw bytes."""
    values = np.random.default_rng(3).standard_normal((VOCAB, WIDTH)).astype(np.float32)
    raw = quantize(values, GGMLQuantizationType.Q8_0)
    table = make_table(ROWS, [Segment(1, 0, (4,)), Segment(0, 9, (2,), gap=1)])
    return {
        "table": torch.from_numpy(table),
        "weight": torch.from_numpy(raw),
        "out": torch.zeros(padded(ROWS), WIDTH),
    }


def test_a_right_template_passes_and_its_results_come_back() -> None:
    given = bound()
    found = compare(entry("right"), given, library=library())
    scale = given["weight"][4, :2].numpy().view(np.float16).astype(np.float32)
    wanted = scale * given["weight"][4, 2:].numpy().view(np.int8)
    assert np.array_equal(found["out"][0].numpy(), wanted[::-1])
    assert not found["out"][1].any()
    assert bool(found["out"][ROWS:].isnan().all())  # the pattern of the first run
    assert not given["out"].any()


@pytest.mark.parametrize("name", [n for n, (_, message) in BODIES.items() if message])
def test_a_wrong_template_is_found(name: str) -> None:
    with pytest.raises((AssertionError, EmulationFault), match=BODIES[name][1]):
        compare(entry(name), bound(), tolerance=1e-5, library=library())


def test_tolerance_is_of_the_largest_of_the_row() -> None:
    wrong = compare(entry("wrong"), bound(), tolerance=2e-4, library=library())["out"][0]
    right = compare(entry("right"), bound(), library=library())["out"][0]
    assert 0 < float((wrong - right).abs().max()) < 2e-4 * float(right.abs().max())


def test_ignored_elements_may_hold_anything() -> None:
    skipped = torch.zeros(padded(ROWS), WIDTH, dtype=torch.bool)
    skipped[:, 31] = True
    found = compare(entry("unwritten"), bound(), ignore={"out": skipped}, library=library())
    assert bool(found["out"][:ROWS, 31].isnan().all())
