"""attention: a window's rows against the cells of their slots, chunk by chunk, not yet merged."""

from __future__ import annotations

from dataclasses import dataclass

from strata_kernels.arithmetic import view
from strata_kernels.chunks import Heads, groups_of, partials
from strata_kernels.spec import (
    CHUNK,
    Arg,
    Bound,
    Geometry,
    KernelSpec,
    Region,
    padded,
    read,
    table_arg,
    write,
)


@dataclass(frozen=True)
class Params:
    """Rows, heads, and the cells' type and chunks per slot."""

    rows: int
    heads: int
    kv_heads: int
    head_dim: int
    cell_type: str
    chunks: int

    @property
    def shape(self) -> Heads:
        """The heads alone."""
        return Heads(self.heads, self.kv_heads, self.head_dim)


def inputs(p: Params) -> tuple[Arg, ...]:
    """What rows of windows and of prompts read: q (rows, heads · head_dim), and both cells."""
    cells = (-1, p.chunks, p.kv_heads, CHUNK, p.head_dim)
    return (
        table_arg(p.rows),
        read("q", padded(p.rows), p.heads * p.head_dim),
        read("k_cells", *cells, dtype=p.cell_type, region=Region.HISTORY),
        read("v_cells", *cells, dtype=p.cell_type, region=Region.HISTORY),
    )


def args(p: Params) -> tuple[Arg, ...]:
    """The inputs, and each row's partial result of each chunk."""
    return (*inputs(p), write("partials", padded(p.rows), p.chunks, p.heads, p.shape.part))


def geometry(p: Params) -> Geometry:
    """A block for each chunk, key-value head and row; a thread for each cell."""
    return Geometry((p.chunks, p.kv_heads, p.rows), CHUNK)


def reference(p: Params, bound: Bound) -> None:
    """partials[row, chunk] for the chunks up to the row's own position; others stay unwritten."""
    q, k, v, out = (bound[name] for name in ("q", "k_cells", "v_cells", "partials"))
    for group in groups_of(view(bound, p.rows)):
        out[group.row, group.result_chunk] = partials(p.shape, q, k, v, group)


SPEC = KernelSpec("attention", Params, args, geometry, reference)
