"""Attention over long histories: a merge that stops at a row's position, and 65,536 cells."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from emulation import needs_compiler, reference, run
from entry_units import on
from gpu_kernels import GPU, GpuKernels, kernels_on
from kernel_case import Segment, bits, error, make_table
from strata_kernels import attention, attention_merge, prompt_attention
from strata_kernels.render import Entry
from strata_kernels.spec import CHUNK, padded
from strata_kernels.table import Ints, TableView

Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Sizes:
    """(Heads, kv heads, width), caps and lengths of histories, and cells of the longest."""

    heads: tuple[int, int, int]
    caps: tuple[int, ...]
    lengths: tuple[int, ...]
    rows: tuple[int, ...]
    long: int


#: Edges of chunks, and of blocks of chunks; 0 is an inert row.
LENGTHS = (0, 1, 63, 64, 65, 1023, 1024, 1025, 2051, 4096, 16383, 16385, 32768)
SIZES = {
    "gpu": Sizes((4, 2, 64), (33 * CHUNK, 512 * CHUNK), LENGTHS, (1, 2, 3, 4, 5, 6, 8), 65536),
    "emulated": Sizes((2, 1, 16), (9 * CHUNK,), (0, 1, 63, 64, 65, 200, 576), (1, 3, 8), 1024),
}
SLOTS = 2
#: Of the largest value of a row, which is small: a mean of so many.
TOLERANCE = 1e-5

emulated = pytest.param("emulated", marks=needs_compiler)


@pytest.fixture(scope="module", params=[emulated, GPU])
def sizes(request: pytest.FixtureRequest) -> Sizes:
    """What is computed, and where."""
    return SIZES[request.param]


@pytest.fixture(scope="module", autouse=True)
def kernels(
    sizes: Sizes, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GpuKernels]:
    """Where entries run."""
    place = next(name for name, known in SIZES.items() if known is sizes)
    cache = request.config.cache.mkdir("cubins")
    with kernels_on(place, cache, tmp_path_factory.mktemp("cubins")) as found, on(found):
        yield found


def cells(sizes: Sizes, length: int) -> Tensors:
    """Both caches of SLOTS slots, as f16."""
    _, kv_heads, width = sizes.heads
    rng, shape = np.random.default_rng(length), (SLOTS, length // CHUNK, kv_heads, CHUNK, width)
    return {
        name: torch.from_numpy(rng.standard_normal(shape, np.float32)).half()
        for name in ("k_cells", "v_cells")
    }


def queries(sizes: Sizes, rows: int) -> torch.Tensor:
    """Random queries; NaN in rows that only references have."""
    heads, _, width = sizes.heads
    q = torch.full((padded(rows), heads * width), torch.nan)
    rng = np.random.default_rng(rows)
    q[:rows] = torch.from_numpy(rng.standard_normal((rows, heads * width), np.float32))
    return q


def params(sizes: Sizes, rows: int, cap: int) -> attention.Params:
    """An attention over slots of so many cells."""
    return attention.Params(rows, *sizes.heads, "f16", cap // CHUNK)


def table_of(lengths: Sequence[int]) -> Ints:
    """A row for each length, the slots by turns; none for 0."""
    segments, gap = [], 0
    for i, length in enumerate(lengths):
        if length:
            segments.append(Segment(i % SLOTS, length - 1, gap=gap))
        gap = 0 if length else gap + 1
    return make_table(len(lengths), segments)


def full(value: int, *shape: int) -> torch.Tensor:
    """Floats whose bytes are all the same."""
    raw = torch.full((int(np.prod(shape)) * 4,), value, dtype=torch.uint8)
    return raw.view(torch.float32).view(shape)


def merge(sizes: Sizes, cap: int, table: Ints, parts: torch.Tensor, before: int) -> torch.Tensor:
    """The merge of a window, whose output held bytes `before`."""
    heads, _, width = sizes.heads
    rows = int(table[3])
    entry = Entry(attention_merge.SPEC, attention_merge.Params(rows, heads, width, cap // CHUNK))
    out = full(before, padded(rows), heads * width)
    run(entry, {"table": torch.from_numpy(table), "partials": parts, "out": out}, 0)
    return out[:rows]


def attend(sizes: Sizes, cap: int, table: Ints, stored: Tensors) -> Tensors:
    """The chunks of a window, in scratch that held NaN."""
    p = params(sizes, int(table[3]), cap)
    heads, _, width = sizes.heads
    parts = full(0xFF, padded(p.rows), p.chunks, heads, width + 2)
    values = {"table": torch.from_numpy(table), "q": queries(sizes, p.rows), "partials": parts}
    run(Entry(attention.SPEC, p), values | stored, 0)
    return values | stored


def test_the_bounded_merge_is_the_unbounded_one(sizes: Sizes) -> None:
    """One pass over the chunks; then what stops at a row's position has the same bits as what goes
    on to the last chunk over chunks that weigh nothing."""
    seen = 0
    for cap in sizes.caps:
        lengths, stored = [n for n in sizes.lengths if n <= cap], cells(sizes, cap)
        for rows in sizes.rows:
            for at in range(0, len(lengths), rows):
                mixed = [lengths[(at + i) % len(lengths)] for i in range(rows)]
                seen += _compare_merges(sizes, cap, mixed, stored)
    assert seen > 0


def _compare_merges(sizes: Sizes, cap: int, lengths: Sequence[int], stored: Tensors) -> int:
    """Merges a window twice; returns how many elements of the result are not zero."""
    table, live = table_of(lengths), [i for i, length in enumerate(lengths) if length]
    parts = attend(sizes, cap, table, stored)["partials"]
    unseen = torch.ones(parts.shape[:2], dtype=torch.bool)
    for row in live:
        unseen[row, : (lengths[row] - 1) // CHUNK + 1] = False
    assert bool(torch.isfinite(parts[~unseen]).all())
    assert {*bits(parts[unseen])} <= {0xFF}, "wrote chunks that no row has"
    bounded = merge(sizes, cap, table, parts, 0x5A)
    whole = parts.clone()
    whole[unseen] = 0.0
    whole[..., -1][unseen] = -torch.inf
    to_the_end = table.copy()
    TableView(to_the_end, len(lengths)).row("position")[live] = cap - 1
    assert bits(bounded) == bits(merge(sizes, cap, to_the_end, whole, 0x00)), lengths
    assert bool((bounded[live] != 0).any(-1).all()) and bool(torch.isfinite(bounded).all())
    assert not bounded[[i for i in range(len(lengths)) if i not in live]].any()
    return int(bounded.count_nonzero())


def exact(sizes: Sizes, q: torch.Tensor, stored: Tensors, slot: int, length: int) -> torch.Tensor:
    """One row's attention in float64."""
    heads, kv_heads, width = sizes.heads
    k, v = (
        stored[name][slot].double().movedim(1, 0).flatten(1, 2)[:, :length]
        for name in ("k_cells", "v_cells")
    )
    grouped = q.double().view(kv_heads, heads // kv_heads, width)
    weights = torch.softmax(grouped @ k.transpose(1, 2) / width**0.5, -1)
    return (weights @ v).reshape(-1)


def test_as_many_cells_as_a_slot_can_have(sizes: Sizes) -> None:
    """In windows and in a prompt, the same bits; close to the reference and to float64."""
    cap, stored = sizes.long, cells(sizes, sizes.long)
    table = make_table(8, [Segment(1, cap - 3, (1, 1, 1)), Segment(0, cap * 5 // 8 - 2, (1, 1, 1))])
    values = attend(sizes, cap, table, stored)
    window = merge(sizes, cap, table, values["partials"], 0xFF)
    entry = Entry(prompt_attention.SPEC, params(sizes, 8, cap))
    prompt = {name: values[name] for name in ("table", "q", "k_cells", "v_cells")}
    prompt["out"] = full(0x5A, *window.shape)
    run(entry, prompt, 0)
    assert bits(prompt["out"]) == bits(window)
    wanted = reference(entry, prompt)["out"]
    view = TableView(table, 8)
    for row in range(6):
        slot, length = int(view.row("slot")[row]), int(view.row("position")[row]) + 1
        right = exact(sizes, values["q"][row], stored, slot, length)
        assert error(window[row], right) < TOLERANCE
        assert error(window[row], wanted[row]) < TOLERANCE
    assert not window[6:].any()
