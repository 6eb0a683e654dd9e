"""linear, rmsnorm and swiglu against their formulas in float64."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
import torch

from kernel_case import Case, bind, bits, error, make_table
from strata_kernels import linear, rmsnorm, swiglu

Array = npt.NDArray[np.float64]


def doubles(case: Case, name: str) -> Array:
    """An argument in float64."""
    return case[name].double().numpy()


@pytest.mark.parametrize("rows", [1, 8, 40])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("residual", [False, True])
def test_linear(rows: int, bias: bool, residual: bool) -> None:
    params = linear.Params(rows, 48, 133, "f32", bias=bias, residual=residual)
    case = bind(linear.SPEC, params, make_table(rows, [])).run()
    expected = doubles(case, "x") @ doubles(case, "weight").T
    if bias:
        expected += doubles(case, "bias")
    if residual:
        expected += doubles(case, "residual")
    assert error(case["out"], expected) < 1e-5


def test_linear_adds_the_bias_before_the_residual() -> None:
    """Two additions, each of which rounds: the order is part of the meaning."""
    params = linear.Params(1, 1, 1, "f32", bias=True, residual=True)
    big = 2.0**24
    values = {
        "x": torch.full((8, 1), big),
        "weight": torch.ones(1, 1),
        "bias": torch.ones(1),
        "residual": torch.full((8, 1), -big),
    }
    case = bind(linear.SPEC, params, make_table(1, []), values).run()
    assert case["out"].flatten().tolist() == [0.0] * 8  # (2^24 + 1) rounds to 2^24


def test_linear_of_unit_vectors_gives_the_matrix() -> None:
    params = linear.Params(8, 8, 36, "f32")
    case = bind(linear.SPEC, params, make_table(8, []), {"x": torch.eye(8)}).run()
    assert bits(case["out"]) == bits(case["weight"].T)


@pytest.mark.parametrize("width", [45, 48, 576])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_rmsnorm(width: int, scale: float) -> None:
    params = rmsnorm.Params(8, width, 1e-5)
    x = torch.randn(8, width, generator=torch.Generator().manual_seed(1)) * scale
    case = bind(rmsnorm.SPEC, params, make_table(8, []), {"x": x}).run()
    x64 = x.double().numpy()
    expected = x64 / np.sqrt((x64**2).mean(-1, keepdims=True) + 1e-5) * doubles(case, "weight")
    assert error(case["out"], expected) < 1e-5


def test_rmsnorm_of_zeros_is_zero() -> None:
    values = {"x": torch.zeros(8, 48)}
    case = bind(rmsnorm.SPEC, rmsnorm.Params(8, 48, 1e-5), make_table(8, []), values).run()
    assert not case["out"].any()


@pytest.mark.parametrize("width", [45, 80, 133])
def test_swiglu(width: int) -> None:
    case = bind(swiglu.SPEC, swiglu.Params(8, width), make_table(8, [])).run()
    gate, up = doubles(case, "gate"), doubles(case, "up")
    assert error(case["out"], gate / (1 + np.exp(-gate)) * up) < 1e-5


def test_swiglu_at_large_gates() -> None:
    """exp overflows on one side and vanishes on the other; the limits are exact."""
    gate = torch.tensor([-200.0, -100.0, 0.0, 100.0, 200.0]).repeat(8, 1)
    values = {"gate": gate, "up": torch.full((8, 5), 2.0)}
    case = bind(swiglu.SPEC, swiglu.Params(8, 5), make_table(8, []), values).run()
    assert case["out"][0].tolist()[2:] == [0.0, 200.0, 400.0]
    assert abs(case["out"][0]).tolist()[0] == 0.0
    assert 0 <= abs(case["out"][0]).tolist()[1] < 1e-36
