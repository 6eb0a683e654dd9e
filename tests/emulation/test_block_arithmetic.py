"""The arithmetic of the emulated device: conversions, explicit rounding, and mma."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch

from emulation import ASCENDING, DESCENDING, ORDERS, Library, assemble, needs_compiler
from strata_kernels.render import HostEntry
from strata_kernels.spec import Geometry

pytestmark = needs_compiler

THREADS = 64

KERNELS = """
KERNEL halves(const u16* bits, float* half, float* brain) {
  const i32 i = block_x() * 64 + thread_x();
  half[i] = half_to_float(bits[i]);
  brain[i] = bf16_to_float(bits[i]);
}
KERNEL to_halves(const float* x, u16* half, u16* brain) {
  const i32 i = block_x() * 64 + thread_x();
  half[i] = float_to_half(x[i]);
  brain[i] = float_to_bf16(x[i]);
}

KERNEL arithmetic(const float* x, float* out) {
  const float a = x[thread_x() * 3], b = x[thread_x() * 3 + 1], c = x[thread_x() * 3 + 2];
  const float all[] = {fma_rn(a, b, c), add_rn(mul_rn(a, b), c), a * b + c, div_rn(a, b),
                       rsqrt_rn(a * a), exp_rn(a), bits_to_float(float_to_bits(a)), INFINITY_F};
  for (i32 i = 0; i < 8; i++) out[i * 64 + thread_x()] = all[i];
}

KERNEL products(const i32* a, const i32* b, float* d) {
  float sums[4];
  for (i32 i = 0; i < 4; i++) sums[i] = d[lane() * 4 + i];
  u32 left[4], right[2];
  for (i32 i = 0; i < 4; i++) left[i] = u32(a[lane() * 4 + i]);
  for (i32 i = 0; i < 2; i++) right[i] = u32(b[lane() * 2 + i]);
  mma_m16n8k16(sums, left, right);
  for (i32 i = 0; i < 4; i++) d[lane() * 4 + i] = sums[i];
}
"""

LAUNCHES = [
    HostEntry("halves", ("u16", "float", "float"), Geometry((1024, 1, 1), THREADS)),
    HostEntry("to_halves", ("float", "u16", "u16"), Geometry((1024, 1, 1), THREADS)),
    HostEntry("arithmetic", ("float", "float"), Geometry((1, 1, 1), THREADS)),
    HostEntry("products", ("i32", "i32", "float"), Geometry((1, 1, 1), 32)),
]


@functools.cache
def kernels() -> Library:
    """All of them."""
    return assemble(KERNELS, LAUNCHES)


PATTERNS = np.arange(1 << 16, dtype=np.uint16)


def test_all_halves_to_float() -> None:
    bits = torch.from_numpy(PATTERNS.view(np.float16).copy())
    half, brain = torch.zeros(1 << 16), torch.zeros(1 << 16)
    kernels().run("halves", [bits, half, brain], ASCENDING)
    for found, wanted in (
        (half.numpy(), PATTERNS.view(np.float16).astype(np.float32)),
        (brain.numpy(), (PATTERNS.astype(np.uint32) << 16).view(np.float32)),
    ):
        number = ~np.isnan(wanted)
        assert np.array_equal(found[number].view(np.int32), wanted[number].view(np.int32))
        assert np.array_equal(np.isnan(found), ~number)


def rounding_cases(values: np.typing.NDArray[np.float32]) -> np.typing.NDArray[np.float32]:
    """Each value of a coarser type, the middle to the next one, and the floats on both sides."""
    finite = values[np.isfinite(values)].astype(np.float64)
    steps = np.unique(finite)
    middle = ((steps[:-1] + steps[1:]) / 2).astype(np.float32)
    beside = [np.nextafter(middle, np.float32(s)) for s in (-np.inf, np.inf)]
    special = np.array([np.nan, -np.nan, np.inf, -np.inf, 3.4e38, -3.4e38, 0.0, -0.0, 1e-45])
    return np.concatenate([values, middle, *beside, special.astype(np.float32)])


@pytest.mark.parametrize("sort", ["half", "brain"])
def test_all_roundings_to_halves(sort: str) -> None:
    """All 65,536 values, every tie between two of them, and the neighbours of every tie."""
    half = PATTERNS.view(np.float16).astype(np.float32)
    brain = (PATTERNS.astype(np.uint32) << 16).view(np.float32)
    cases = torch.from_numpy(rounding_cases(half if sort == "half" else brain))
    for x in torch.nn.functional.pad(cases, (0, -len(cases) % (1 << 16))).view(-1, 1 << 16):
        outs = [torch.zeros(1 << 16, dtype=torch.float16) for _ in range(2)]
        kernels().run("to_halves", [x, *outs], DESCENDING)
        wanted = x.to(torch.float16 if sort == "half" else torch.bfloat16)
        found = outs[sort == "brain"].view(torch.int16)
        assert torch.equal(found[~x.isnan()], wanted.view(torch.int16)[~x.isnan()])
        assert bool((found[x.isnan()] == 0x7FFF).all())


def test_arithmetic() -> None:
    x = np.random.default_rng(1).standard_normal((THREADS, 3)).astype(np.float32)
    out = torch.zeros(8, THREADS)
    kernels().run("arithmetic", [torch.from_numpy(x), out], ASCENDING)
    a, b, c = x.T
    exact = (a.astype(np.float64) * b + c).astype(np.float32)  # products of floats are exact
    assert np.array_equal(out[0].numpy(), exact)
    assert np.array_equal(out[1].numpy(), a * b + c)
    assert np.array_equal(out[2].numpy(), a * b + c)
    assert not np.array_equal(exact, a * b + c)
    assert np.array_equal(out[3].numpy(), a / b)
    root = (1 / np.sqrt((a * a).astype(np.float64))).astype(np.float32)
    assert np.array_equal(out[4].numpy(), root)
    assert np.allclose(out[5].numpy(), np.exp(a.astype(np.float64)), rtol=2e-7, atol=0)
    assert np.array_equal(out[6].numpy(), a)
    assert bool((out[7] == torch.inf).all())


def fragments(
    left: np.typing.NDArray[np.float16], right: np.typing.NDArray[np.float16]
) -> tuple[torch.Tensor, torch.Tensor]:
    """PTX's fragments of a (16, 16) and b (16, 8): registers of two halves, for every lane."""
    lanes = np.arange(32)[:, None]
    i = np.arange(8)[None]
    row, col = lanes // 4 + (i // 2 % 2) * 8, lanes % 4 * 2 + i % 2 + i // 4 * 8
    j = i[:, :4]
    a = np.ascontiguousarray(left[row, col]).view(np.int32)
    b = np.ascontiguousarray(right[lanes % 4 * 2 + j % 2 + j // 2 * 8, lanes // 4 + 0 * j])
    return torch.from_numpy(a), torch.from_numpy(b.view(np.int32))


@pytest.mark.parametrize("order", ORDERS, ids=["ascending", "descending"])
def test_mma(order: int) -> None:
    rng = np.random.default_rng(2)
    left, right = (rng.standard_normal((16, n)).astype(np.float16) for n in (16, 8))
    start = rng.standard_normal((16, 8)).astype(np.float32)
    lanes, i = np.arange(32)[:, None], np.arange(4)[None]
    place = (lanes // 4 + i // 2 * 8, lanes % 4 * 2 + i % 2)
    sums = torch.from_numpy(start[place])
    kernels().run("products", [*fragments(left, right), sums], order)
    wanted = start + left.astype(np.float64) @ right.astype(np.float64)
    assert np.allclose(sums.numpy(), wanted[place], rtol=0, atol=1e-5)
    exact = left.astype(np.float32)[:, :, None] * right.astype(np.float32)[None]
    for k in range(16):  # in this order
        start += exact[:, k]
    assert np.array_equal(sums.numpy(), start[place])
