"""Templates that compute: products, norms, activations, and the weights they read.

What only reads weights has the reference's bits. Sums have their own fixed order, and exp its own
last bit; so those results are close, and what is demanded of their bits is row invariance.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from emulation import ASCENDING, DESCENDING, compare, needs_compiler, prepare, run
from kernel_case import Segment, bits, make_table
from kernel_examples import row_args, with_rows
from strata_kernels import embed, gated, linear, linears, rmsnorm, swiglu
from strata_kernels.products import form_of
from strata_kernels.quants import BLOCKS, GPU_TYPES
from strata_kernels.render import Entry
from strata_kernels.table import ROW_LIMIT, Ints
from template_case import SIZES, bound, random_codes, tables

pytestmark = needs_compiler

#: Of a row's largest magnitude: sums of up to 576 products in two orders. Against float64, over
#: 200 random matrices of 5 × 256, the reference is off by up to 1.8e-6, the template by 0.9e-6.
TOLERANCE = 4e-6
VOCAB = 7
SHAPES = ((48, 13, False, False), (133, 6, True, False), (80, 9, False, True), (48, 4, True, True))


def _width(kind: str, free: int) -> int:
    """More than one block of the type; `free` where a weight is a block."""
    return {1: free, 32: 96, 256: 512}[BLOCKS[kind].weights]


LINEAR = [
    *(linear.Params(rows, i, o, "F32", b, r) for i, o, b, r in SHAPES for rows in SIZES),
    *(linear.Params(rows, _width(t, 48), 5, t) for t in GPU_TYPES[1:] for rows in (3, 32)),
    linear.Params(2, 576, 5, "F32"),
    *(linear.Params(rows, 2048, 5, "Q4_1", True) for rows in (1, 3)),  # two warps an output
    linear.Params(2, 5120, 3, "Q6_K"),  # eight
    linear.Params(2, 32, 8193, "F32"),  # two outputs a warp, and one left over
]
LINEARS = [
    *(
        linears.Params(rows, 96, (linears.Part(9, "Q4_0"), linears.Part(5, "Q8_0", True)))
        for rows in SIZES
    ),
    linears.Params(3, 133, tuple(linears.Part(n, "F32") for n in (17, 8, 4))),
    linears.Params(2, 2048, tuple(linears.Part(n, t) for n, t in ((5, "Q4_K"), (3, "Q6_K")))),
]
GATED = [
    *(gated.Params(rows, 48, 13, "F32", "F32") for rows in SIZES),
    gated.Params(3, 256, 9, "Q4_K", "Q6_K"),
    gated.Params(2, 1152, 5, "Q4_1", "Q4_1"),
]
EMBED = [
    *(embed.Params(rows, VOCAB, 48, "F32") for rows in SIZES),
    *(embed.Params(3, VOCAB, _width(t, 133), t) for t in GPU_TYPES),
]
NORMS = [
    *(rmsnorm.Params(rows, 133, 1e-5) for rows in SIZES),
    *(rmsnorm.Params(3, width, 1e-6) for width in (48, 80, 576)),
]
GATES = [
    *(swiglu.Params(rows, 133) for rows in SIZES),
    *(swiglu.Params(3, width) for width in (48, 80, 300)),
]
CLOSE = [
    *(Entry(linear.SPEC, p) for p in LINEAR),
    *(Entry(linears.SPEC, p) for p in LINEARS),
    *(Entry(gated.SPEC, p) for p in GATED),
    *(Entry(rmsnorm.SPEC, p) for p in NORMS),
    *(Entry(swiglu.SPEC, p) for p in GATES),
]
EMBEDS = [Entry(embed.SPEC, p) for p in EMBED]

#: Kernels whose rows must not know each other, as windows of 1 to 8 rows and as a prompt.
APART = [
    Entry(linear.SPEC, linear.Params(ROW_LIMIT, 80, 9, "F32", residual=True)),
    Entry(linear.SPEC, linear.Params(ROW_LIMIT, 96, 5, "Q4_1", bias=True)),
    Entry(linear.SPEC, linear.Params(ROW_LIMIT, 2048, 5, "Q4_K")),
    Entry(gated.SPEC, gated.Params(ROW_LIMIT, 2048, 5, "Q8_0", "Q8_0")),
    Entry(rmsnorm.SPEC, rmsnorm.Params(ROW_LIMIT, 133, 1e-5)),
    Entry(swiglu.SPEC, swiglu.Params(ROW_LIMIT, 133)),
    Entry(embed.SPEC, embed.Params(ROW_LIMIT, VOCAB, 96, "Q4_1")),
]
WINDOWS = tuple(range(1, ROW_LIMIT + 1))
PROMPT = 4 * ROW_LIMIT


def _sized(entry: Entry, rows: int) -> Entry:
    return Entry(entry.spec, with_rows(entry.params, rows))


@pytest.fixture(scope="module", autouse=True)
def compiled() -> None:
    """All of them as one unit."""
    apart = [_sized(e, rows) for e in APART for rows in (*WINDOWS, PROMPT)]
    prepare(list(dict.fromkeys([*CLOSE, *EMBEDS, *apart])))


def _id(entry: Entry) -> str:
    return f"{entry.name.rsplit('_', 1)[0]}_{getattr(entry.params, 'weight_type', '')}"


@pytest.mark.parametrize("entry", CLOSE, ids=_id)
def test_template_is_close_to_the_reference(entry: Entry) -> None:
    compare(entry, bound(entry), tolerance=TOLERANCE)


@pytest.mark.parametrize("entry", EMBEDS, ids=_id)
def test_weights_have_the_bits_of_gguf(entry: Entry) -> None:
    """Every code and every scale of a block, through the kernel that only reads them."""
    p = entry.params
    for seed, table in enumerate(tables(p.rows, VOCAB)):
        codes = random_codes(np.random.default_rng(seed), p.weight_type, VOCAB, p.width)
        compare(entry, bound(entry, table, weight=codes))


@pytest.mark.parametrize("kind", GPU_TYPES)
def test_products_have_the_weights_of_gguf(kind: str) -> None:
    """Rows that are 1 in one column each give that column, bit for bit, of any codes."""
    width = _width(kind, 80)
    entry = Entry(linear.SPEC, linear.Params(width, width, 3, kind))
    codes = random_codes(np.random.default_rng(5), kind, 3, width)
    compare(entry, bound(entry, x=torch.eye(width), weight=codes))


def test_forms_that_are_tested() -> None:
    """Among the matrices above are those that warps share, and warps that have several outputs."""
    forms = {form_of(p.inner, p.outer) for p in LINEAR}
    assert {f.split for f in forms} == {1, 2, 8} and {f.each for f in forms} == {1, 2}


def test_gates_beyond_the_range_of_exp_are_zero() -> None:
    """x / (1 + exp(-x)) where exp overflows, vanishes, or is not a number."""
    entry = next(e for e in CLOSE if e.spec is swiglu.SPEC)
    values = bound(entry)
    values["gate"][:, :6] = torch.tensor([-1e3, -90.0, 1e3, torch.inf, -torch.inf, torch.nan])
    out = compare(entry, values, tolerance=TOLERANCE)["out"][: entry.params.rows]
    assert bool((out[:, :2] == 0).all()) and bool(out[:, 4:6].isnan().all())


# ---- rows do not know each other


def _table(tokens: list[int]) -> Ints:
    """All rows live, of one slot."""
    return make_table(len(tokens), [Segment(1, 5, tokens)])


def _outputs(
    entry: Entry, pool: dict[str, torch.Tensor], rows: list[int], order: int = ASCENDING
) -> list[bytes]:
    """Each row's bits in a program whose row i is row `rows[i]` of the pool."""
    sized = _sized(entry, len(rows))
    args = row_args(entry.spec.name, entry.params)
    shapes = {a.name: a.shape for a in sized.spec.args(sized.params)}
    values: dict[str, torch.Tensor] = {}
    for name, value in pool.items():
        if name in args:
            filled = torch.full(shapes[name], torch.nan)
            filled[: len(rows)] = value[rows]
            values[name] = filled
        elif name != "table":
            values[name] = value
    if "table" in pool:
        values["table"] = torch.from_numpy(_table([row % VOCAB for row in rows]))
    run(sized, values, order)
    return [bits(row) for row in values["out"][: len(rows)]]


def _pool(entry: Entry) -> dict[str, torch.Tensor]:
    """Eight different rows of every input."""
    return bound(entry, _table([row % VOCAB for row in range(ROW_LIMIT)]), seed=3)


@pytest.mark.parametrize("entry", APART, ids=_id)
def test_a_row_has_the_same_bits_in_every_window_and_prompt(entry: Entry) -> None:
    """Whatever the number of rows, its place and its company."""
    pool = _pool(entry)
    expected = _outputs(entry, pool, list(range(ROW_LIMIT)))
    for count in (*WINDOWS, PROMPT):
        rows = [(i + i // ROW_LIMIT + count) % ROW_LIMIT for i in range(count)]
        found = _outputs(entry, pool, rows, DESCENDING)
        assert found == [expected[row] for row in rows], count
    assert len(set(expected)) >= VOCAB


@pytest.mark.parametrize("entry", APART[:6], ids=_id)
def test_a_row_keeps_its_bits_beside_rows_that_are_not_finite(entry: Entry) -> None:
    pool = _pool(entry)
    expected = _outputs(entry, pool, list(range(ROW_LIMIT)))
    args = row_args(entry.spec.name, entry.params)
    for kept in (0, 3, ROW_LIMIT - 1):
        dirty: dict[str, Any] = {n: v.clone() for n, v in pool.items()}
        for name in args:
            dirty[name][[row for row in range(ROW_LIMIT) if row != kept]] = torch.inf
        assert _outputs(entry, dirty, list(range(ROW_LIMIT)))[kept] == expected[kept]
