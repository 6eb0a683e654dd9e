"""The check at load finds a product that does not keep rows apart."""

from __future__ import annotations

import pytest
import torch

from strata_kernels import selftest
from strata_kernels.arithmetic import linear
from strata_kernels.selftest import unequal_attention, unequal_linear


@pytest.mark.parametrize(("inner", "outer"), [(48, 133), (576, 192), (80, 5)])
def test_this_torch_keeps_rows_apart(inner: int, outer: int) -> None:
    """The pinned torch passes for the sizes of every program."""
    assert unequal_linear(inner, outer, [8, 32, 128, 512]) is None
    for head_dim in (5, 6, 9, 10, 12, 64):
        assert unequal_attention(3, head_dim) is None
        assert unequal_attention(1, head_dim) is None


def test_another_order_of_summation_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A product that sums in another order for more rows does not pass."""

    def split(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> None:
        cut = x.shape[1] // 5  # no place where a library might cut by itself
        if x.shape[0] > 8:  # another order of summation for more rows
            out.copy_(x[:, :cut] @ weight[:, :cut].T + x[:, cut:] @ weight[:, cut:].T)
        else:
            out.copy_(x @ weight.T)

    monkeypatch.setattr(selftest, "linear", split)
    assert unequal_linear(576, 192, [8]) is None
    assert unequal_linear(576, 192, [8, 32, 128]) == 32


@pytest.mark.parametrize("product", ["scores", "values"])
def test_a_lane_that_rounds_otherwise_is_found(
    monkeypatch: pytest.MonkeyPatch, product: str
) -> None:
    """One lane of one of the two products sums in another order: it does not pass."""
    plain = torch.bmm

    def uneven(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        out = plain(a, b)
        half = a.shape[-1] // 2
        out[:, -1:] = plain(a[:, -1:, :half], b[:, :half]) + plain(a[:, -1:, half:], b[:, half:])
        return out

    if product == "values":
        monkeypatch.setattr(selftest, "weighted", uneven)
    else:
        monkeypatch.setattr(selftest.torch, "bmm", uneven)
        monkeypatch.setattr(selftest, "weighted", plain)
    assert unequal_attention(1, 64) == product


@pytest.mark.parametrize("outer", [1, 3, 5, 8, 15, 16, 17])
def test_matrices_of_few_rows(outer: int) -> None:
    """Their products are right, and keep rows apart."""
    x, weight = torch.randn(8, 33), torch.randn(outer, 33)
    out = torch.empty(8, outer)
    linear(x, weight, out)
    assert torch.allclose(out.double(), x.double() @ weight.double().T, atol=1e-5)
    assert unequal_linear(33, outer, [8, 32]) is None
