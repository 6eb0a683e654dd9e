"""The arithmetic that several references share; every operation keeps each row's bits.

Measured with torch 2.13 on a CPU: products of 8 to 512 rows give each row the same bits, whatever
its place, its company and the number of threads; products of 1 to 3 rows take other routines.
"""

from __future__ import annotations

import numpy as np

from strata_kernels.lazy import torch
from strata_kernels.spec import Bound, padded
from strata_kernels.table import ROW_LIMIT, Ints, TableView

#: A product of fewer columns than this takes routines that do not keep rows apart: measured for
#: 3, 5 and 8 columns of a matrix, and for heads of 5 to 11. Zeros make up for what is missing.
LEAST_COLUMNS = 16


def linear(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> None:
    """out = x · weightᵀ; x (rows, in) with rows a multiple of 8, weight (out, in), float32."""
    assert x.shape[0] % ROW_LIMIT == 0
    missing = LEAST_COLUMNS - weight.shape[0]
    if missing > 0:
        wide = torch.cat([weight, weight.new_zeros(missing, weight.shape[1])])
        out.copy_(torch.matmul(x, wide.T)[:, : weight.shape[0]])
    else:
        torch.matmul(x, weight.T, out=out)


def weighted(weights: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """weights · values, a batch of products: (batch, rows, columns); never of few columns."""
    columns = values.shape[-1]
    missing = LEAST_COLUMNS - columns
    if missing > 0:
        values = torch.cat([values, values.new_zeros(*values.shape[:-1], missing)], -1)
    product: torch.Tensor = torch.bmm(weights, values)[..., :columns]
    return product


def silu(x: torch.Tensor) -> torch.Tensor:
    """x / (1 + exp(-x)); `torch.nn.functional.silu` rounds the last elements of a row otherwise."""
    return x / (1 + torch.exp(-x))


def view(bound: Bound, rows: int) -> TableView:
    """The launch's table."""
    return TableView(bound["table"].numpy(), rows)


def live_rows(slots: Ints) -> torch.Tensor:
    """Indices of the rows that belong to a slot, ascending, int64."""
    return torch.from_numpy(np.flatnonzero(slots >= 0))


def first_rows(table: TableView) -> torch.Tensor:
    """Indices of the live rows that begin a segment, ascending, int64."""
    first = (table.row("slot") >= 0) & (table.row("index") == 0)
    return torch.from_numpy(np.flatnonzero(first))


def pick(values: Ints, rows: torch.Tensor) -> torch.Tensor:
    """One field's values at some rows, as int64 indices."""
    return torch.from_numpy(values[rows.numpy()].astype(np.int64))


def put_rows(out: torch.Tensor, rows: torch.Tensor, values: torch.Tensor) -> None:
    """out[rows] = values, and zero in every other row: what inert rows hold."""
    out.zero_()
    out[rows] = values


__all__ = [
    "first_rows",
    "linear",
    "live_rows",
    "padded",
    "pick",
    "put_rows",
    "silu",
    "view",
    "weighted",
]
