"""attention_merge: the chunks of a window's rows, merged up to each row's own position."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from strata_kernels.arithmetic import view
from strata_kernels.chunks import Heads, merge
from strata_kernels.lazy import torch
from strata_kernels.spec import (
    CHUNK,
    Arg,
    Bound,
    Geometry,
    KernelSpec,
    padded,
    read,
    table_arg,
    write,
)


@dataclass(frozen=True)
class Params:
    """Rows, query heads, head width, chunks per slot."""

    rows: int
    heads: int
    head_dim: int
    chunks: int


def args(p: Params) -> tuple[Arg, ...]:
    """The partial results, and the attention's output (rows, heads · head_dim)."""
    return (
        table_arg(p.rows),
        read("partials", padded(p.rows), p.chunks, p.heads, p.head_dim + 2),
        write("out", padded(p.rows), p.heads * p.head_dim),
    )


def geometry(p: Params) -> Geometry:
    """A block for each head and row."""
    return Geometry((p.heads, p.rows, 1), CHUNK)


def reference(p: Params, bound: Bound) -> None:
    """out = the online softmax over the row's chunks, ascending; inert rows are zeros."""
    table = view(bound, p.rows)
    chunks = np.zeros(padded(p.rows), np.int64)
    chunks[: p.rows] = np.where(table.row("slot") >= 0, table.row("position") // CHUNK + 1, 0)
    heads = Heads(p.heads, p.heads, p.head_dim)
    bound["out"].copy_(merge(heads, bound["partials"], torch.from_numpy(chunks)))


SPEC = KernelSpec("attention_merge", Params, args, geometry, reference)
