"""Attention against a plain softmax over each row's own history, in float64."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest
import torch

from kernel_case import Case, Segment, bind, bits, error, make_table
from strata_kernels import attention, attention_merge, prompt_attention
from strata_kernels.spec import CHUNK, KernelSpec
from strata_kernels.table import TableView

CHUNKS = 4
Array = npt.NDArray[np.float64]

#: (heads, kv_heads, head_dim): one to four query heads a kv head.
SHAPES = [(2, 2, 12), (4, 2, 16), (3, 1, 64), (4, 1, 12), (8, 2, 16)]
#: Histories of 1, 63 to 66, 199 and 200 cells, in four slots, an inert row between.
WINDOW = [
    Segment(1, 0),
    Segment(3, 62, (1, 1)),
    Segment(0, 64, (1, 1), gap=1),
    Segment(2, 198, (1, 1)),
]
every_shape = pytest.mark.parametrize("shape", SHAPES)
both_types = pytest.mark.parametrize("cell_type", ["f32", "f16"])


def params(shape: tuple[int, int, int], cell_type: str, rows: int = 8) -> attention.Params:
    """A kernel of some heads."""
    return attention.Params(rows, *shape, cell_type, CHUNKS)


def history(cells: torch.Tensor, slot: int, position: int) -> Array:
    """(position + 1, kv_heads, head_dim) of one slot."""
    flat = cells[slot].transpose(1, 2).flatten(0, 1)[: position + 1]
    return np.asarray(flat.double().numpy())


def softmax_attention(q: Array, k: Array, v: Array) -> Array:
    """q (heads, head_dim), k and v (cells, kv_heads, head_dim)."""
    group = len(q) // k.shape[1]
    out = np.zeros_like(q)
    for head, query in enumerate(q):
        scores = k[:, head // group] @ query / math.sqrt(len(query))
        weights = np.exp(scores - scores.max())
        out[head] = weights @ v[:, head // group] / weights.sum()
    return out


def expected(case: Case, row: int) -> Array:
    """The plain result of one live row, (heads, head_dim)."""
    table = TableView(case.table, case.params.rows)
    slot, position = int(table.row("slot")[row]), int(table.row("position")[row])
    q = case["q"][row].double().numpy().reshape(case.params.heads, -1)
    k, v = (history(case[n], slot, position) for n in ("k_cells", "v_cells"))
    return softmax_attention(q, k, v)


def live(case: Case) -> list[int]:
    """The case's live rows."""
    return np.flatnonzero(TableView(case.table, case.params.rows).row("slot") >= 0).tolist()


def merged(case: Case) -> Case:
    """attention_merge over what `attention` left; chunks that it did not write are NaN."""
    p = case.params
    merge = attention_merge.Params(p.rows, p.heads, p.head_dim, p.chunks)
    values = {"partials": case["partials"]}
    return bind(attention_merge.SPEC, merge, case.table, values).run()


def assert_plain(case: Case, out: torch.Tensor) -> None:
    """Live rows hold the plain result, the others zeros."""
    rows = live(case)
    for row in rows:
        assert error(out[row].view(case.params.heads, -1), expected(case, row)) < 1e-5
    assert not out[[row for row in range(len(out)) if row not in rows]].any()


@every_shape
@both_types
def test_window(shape: tuple[int, int, int], cell_type: str) -> None:
    case = bind(attention.SPEC, params(shape, cell_type), make_table(8, WINDOW)).run()
    assert_plain(case, merged(case)["out"])


@every_shape
@both_types
def test_prompt_kernel_at_a_window(shape: tuple[int, int, int], cell_type: str) -> None:
    case = bind(prompt_attention.SPEC, params(shape, cell_type), make_table(8, WINDOW)).run()
    assert_plain(case, case["out"])


@every_shape
@pytest.mark.parametrize(("start", "rows"), [(0, 32), (50, 40), (120, 31)])
def test_prompt(shape: tuple[int, int, int], start: int, rows: int) -> None:
    table = make_table(40, [Segment(2, start, (1,) * rows)])
    case = bind(prompt_attention.SPEC, params(shape, "f32", 40), table).run()
    assert_plain(case, case["out"])


@every_shape
def test_partials(shape: tuple[int, int, int]) -> None:
    """Each chunk gives the unnormalised values, their weights' sum, and the maximum."""
    case = bind(attention.SPEC, params(shape, "f32"), make_table(8, WINDOW)).run()
    p, row, position = case.params, 7, 199
    q = case["q"][row].double().numpy().reshape(p.heads, -1)
    k, v = (history(case[n], 2, position) for n in ("k_cells", "v_cells"))
    for chunk in range(position // CHUNK + 1):
        cells = slice(chunk * CHUNK, (chunk + 1) * CHUNK)
        for head in range(p.heads):
            keys, values = (x[cells, head // p.shape.group] for x in (k, v))
            scores = keys @ q[head] / math.sqrt(p.head_dim)
            weights = np.exp(scores - scores.max())
            found = case["partials"][row, chunk, head]
            assert error(found[:-2], weights @ values) < 1e-5
            assert error(found[-2:], [weights.sum(), scores.max()]) < 1e-5


def test_one_cell_gives_its_value() -> None:
    case = bind(attention.SPEC, params((4, 2, 16), "f16"), make_table(8, WINDOW)).run()
    value = case["v_cells"][1, 0, :, 0].float().repeat_interleave(2, 0)
    assert bits(merged(case)["out"][0]) == bits(value)


def test_scores_of_any_size() -> None:
    """Scores of hundreds neither overflow nor vanish; whole numbers, so that they are exact."""
    case = bind(attention.SPEC, params((2, 2, 16), "f32"), make_table(8, WINDOW))
    rng = np.random.default_rng(0)
    values = {
        n: torch.from_numpy(rng.integers(-3, 4, case[n].shape).astype(np.float32))
        for n in ("q", "k_cells")
    }
    values["k_cells"] *= 12
    case = bind(attention.SPEC, case.params, case.table, {**case.tensors, **values}).run()
    out = merged(case)["out"]
    assert float(case["partials"][7, :3, :, -1].max()) > 100  # float32's exp ends at 88
    for row in live(case):
        assert error(out[row].view(2, -1), expected(case, row)) < 1e-5


def test_merge_ascends() -> None:
    """The documented formula, chunk after chunk, in float64."""
    p, table = attention_merge.Params(8, 3, 16, CHUNKS), make_table(8, WINDOW)
    parts = bind(attention_merge.SPEC, p, table)["partials"].clone()
    parts[..., -2] = parts[..., -2].abs() + 1  # a sum of weights is 1 or more
    case = bind(attention_merge.SPEC, p, table, {"partials": parts}).run()
    positions = TableView(case.table, 8).row("position")
    for row in live(case):
        ascending = case["partials"][row, : positions[row] // CHUNK + 1].double().numpy()
        m, total = np.full((3, 1), -np.inf), np.zeros((3, 17))
        for part in ascending:
            top = np.maximum(m, part[:, -1:])
            total = total * np.exp(m - top) + part[:, :-1] * np.exp(part[:, -1:] - top)
            m = top
        assert error(case["out"][row].view(3, -1), total[:, :-1] / total[:, -1:]) < 1e-5


@pytest.mark.parametrize("cell_type", ["f32", "f16"])
@pytest.mark.parametrize(("count", "rows"), [(1, 32), (7, 32), (32, 32), (128, 128)])
def test_prompt_equals_window_and_merge(count: int, rows: int, cell_type: str) -> None:
    """Bit for bit, however the same rows are cut into windows."""
    start = 70
    p = params((4, 2, 12), cell_type, rows)
    prompt = bind(
        prompt_attention.SPEC, p, make_table(rows, [Segment(2, start, (1,) * count)])
    ).run()
    at = 0
    for size in (1, 2, 3, 5, 8) * count:
        size = min(size, count - at)
        if not size:
            break
        table = make_table(8, [Segment(2, start + at, (1,) * size)])
        values = {n: prompt[n] for n in ("k_cells", "v_cells")}
        values["q"] = torch.zeros(8, 48)
        values["q"][:size] = prompt["q"][at : at + size]
        window = bind(attention.SPEC, params((4, 2, 12), cell_type), table, values).run()
        assert bits(merged(window)["out"][:size]) == bits(prompt["out"][at : at + size])
        at += size
    assert at == count


def test_long_histories_equal_too() -> None:
    """So many chunks that a prompt is computed in several groups."""
    heads, chunks, rows, start = (2, 1, 12), 24, 128, 24 * 64 - 128
    p = attention.Params(rows, *heads, "f16", chunks)
    prompt = bind(prompt_attention.SPEC, p, make_table(rows, [Segment(1, start, (1,) * rows)]))
    prompt.run()
    small = attention.Params(8, *heads, "f16", chunks)
    for at in (0, 64, 120, 127):
        values = {n: prompt[n] for n in ("k_cells", "v_cells")}
        values["q"] = prompt["q"][at].repeat(8, 1)
        table = make_table(8, [Segment(1, start + at)])
        window = bind(attention.SPEC, small, table, values).run()
        assert bits(merged(window)["out"][0]) == bits(prompt["out"][at])


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("name", ["k_cells", "v_cells"])
@pytest.mark.parametrize("spec", [attention.SPEC, prompt_attention.SPEC], ids=lambda s: s.name)
def test_a_row_does_not_read_the_cells_of_later_rows(
    spec: KernelSpec[attention.Params], name: str, value: float
) -> None:
    """A draft whose cell is not finite changes nothing for the rows before it in its window."""
    table = make_table(8, [Segment(2, 70, (1, 1, 1))])
    clean = bind(spec, params((4, 2, 12), "f16"), table)
    cells = clean[name].clone()
    cells[2, 71 // CHUNK, :, 71 % CHUNK] = value
    dirty = bind(spec, clean.params, table, {**clean.tensors, name: cells}).run()
    clean.run()
    outs = [merged(c) if spec is attention.SPEC else c for c in (clean, dirty)]
    assert bits(outs[0]["out"][0]) == bits(outs[1]["out"][0])
    assert bits(outs[0]["out"][1]) != bits(outs[1]["out"][1])
