"""The check at load finds a product that does not keep rows apart."""

from __future__ import annotations

import pytest
import torch

from strata_kernels import selftest
from strata_kernels.selftest import unequal_attention, unequal_linear


@pytest.mark.parametrize(("inner", "outer"), [(48, 133), (576, 192), (80, 5)])
def test_this_torch_keeps_rows_apart(inner: int, outer: int) -> None:
    """The pinned torch passes for the sizes of every program."""
    assert unequal_linear(inner, outer, [8, 32, 128, 512]) is None
    assert unequal_attention(3, 64) is None
    assert unequal_attention(1, 12) is None


def test_another_order_of_summation_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A product that sums in another order for more rows does not pass."""

    def split(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> None:
        half = x.shape[1] // 2
        if x.shape[0] > 8:  # another order of summation for more rows
            out.copy_(x[:, :half] @ weight[:, :half].T + x[:, half:] @ weight[:, half:].T)
        else:
            out.copy_(x @ weight.T)

    monkeypatch.setattr(selftest, "linear", split)
    assert unequal_linear(576, 192, [8]) is None
    assert unequal_linear(576, 192, [8, 32, 128]) == 32
