"""rope_store against rotations in float64, and the cells that it stores."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
import torch

from kernel_case import Case, Segment, bind, bits, error, make_table
from strata_kernels import rope_store

CHUNKS = 4
POSITIONS = {0: (1, 63), 1: (1, 64), 3: (0, 0), 4: (2, 199)}  # row: slot, position
SHAPES = [
    rope_store.Params(5, heads, kv_heads, dim, rotated, interleaved, cell_type, CHUNKS)
    for heads, kv_heads, dim, rotated in [(4, 2, 12, 12), (3, 3, 16, 16), (4, 1, 16, 10)]
    for interleaved in (True, False)
    for cell_type in ("f32", "f16")
]


def angles(rotated: int) -> npt.NDArray[np.float64]:
    """position · 10000^(-2i/rotated), shape (positions, pairs)."""
    pairs = np.arange(rotated // 2)
    return np.arange(CHUNKS * 64)[:, None] * 10000.0 ** (-2 * pairs / rotated)


def rotated_case(p: rope_store.Params) -> Case:
    """Four live rows in three slots, an inert one between, with true cosines and sines."""
    segments = [Segment(1, 63, (1, 1)), Segment(0, 0, gap=1), Segment(2, 199)]
    turns = np.stack([np.cos(angles(p.rotated)), np.sin(angles(p.rotated))], -1)
    values = {"rotation": torch.from_numpy(turns.astype(np.float32))}
    return bind(rope_store.SPEC, p, make_table(5, segments), values).run()


def turn(
    p: rope_store.Params, x: npt.NDArray[np.float64], position: int
) -> npt.NDArray[np.float64]:
    """x (heads, head_dim) rotated by complex numbers."""
    half = p.rotated // 2
    if p.interleaved:
        a, b = np.arange(0, p.rotated, 2), np.arange(1, p.rotated, 2)
    else:
        a, b = np.arange(half), np.arange(half) + half
    z = (x[:, a] + 1j * x[:, b]) * np.exp(1j * angles(p.rotated)[position])
    out = x.copy()
    out[:, a], out[:, b] = z.real, z.imag
    return out


def cell(case: Case, name: str, slot: int, position: int) -> torch.Tensor:
    """(kv_heads, head_dim) of one cell."""
    return case[name][slot, position // 64, :, position % 64]


@pytest.mark.parametrize("p", SHAPES)
def test_rotation(p: rope_store.Params) -> None:
    """Queries and keys turn by their position; what is not rotated passes through."""
    case = rotated_case(p)
    for row, (slot, position) in POSITIONS.items():
        q = case["q"][row].double().numpy().reshape(p.heads, -1)
        k = case["k"][row].double().numpy().reshape(p.kv_heads, -1)
        out = case["out"][row].reshape(p.heads, -1)
        assert error(out, turn(p, q, position)) < 1e-5
        assert bits(out[:, p.rotated :]) == bits(case["q"][row].view(p.heads, -1)[:, p.rotated :])
        stored = cell(case, "k_cells", slot, position)
        assert error(stored, turn(p, k, position)) < (1e-5 if p.cell_type == "f32" else 5e-4)


@pytest.mark.parametrize("p", SHAPES)
def test_values_are_stored_as_cells_round(p: rope_store.Params) -> None:
    case = rotated_case(p)
    dtype = np.float32 if p.cell_type == "f32" else np.float16
    for row, (slot, position) in POSITIONS.items():
        v = case["v"][row].numpy().reshape(p.kv_heads, -1).astype(dtype)
        assert cell(case, "v_cells", slot, position).numpy().tobytes() == v.tobytes()


@pytest.mark.parametrize("interleaved", [True, False])
def test_f16_keys_are_the_rounded_f32_keys(interleaved: bool) -> None:
    """Rounding happens once, at the store."""
    wide, narrow = (
        rotated_case(rope_store.Params(5, 4, 2, 16, 10, interleaved, t, CHUNKS))
        for t in ("f32", "f16")
    )
    assert bits(wide["out"]) == bits(narrow["out"])
    for slot, position in POSITIONS.values():
        key = cell(wide, "k_cells", slot, position).to(torch.float16)
        assert bits(key) == bits(cell(narrow, "k_cells", slot, position))


def test_position_zero_turns_nothing() -> None:
    case = rotated_case(SHAPES[0])
    assert torch.equal(case["out"][3], case["q"][3])
    assert torch.equal(cell(case, "k_cells", 0, 0).flatten(), case["k"][3])


def test_pairs_are_neighbours_or_halves() -> None:
    """A quarter turn of (1, 2, 3, 4), by hand."""
    quarter = torch.tensor([0.0, 1.0]).expand(CHUNKS * 64, 2, 2)
    q = torch.tensor([1.0, 2.0, 3.0, 4.0]).repeat(8, 1)
    for interleaved, expected in ((True, [-2, 1, -4, 3]), (False, [-3, -4, 1, 2])):
        p = rope_store.Params(1, 1, 1, 4, 4, interleaved, "f32", CHUNKS)
        values = {"rotation": quarter, "q": q}
        case = bind(rope_store.SPEC, p, make_table(1, [Segment(0, 9)]), values).run()
        assert case["out"][0].tolist() == expected
