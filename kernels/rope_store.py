"""rope_store: rotates queries and keys by their position, and stores keys and values as cells."""

from __future__ import annotations

from dataclasses import dataclass

from strata_kernels.arithmetic import live_rows, pick, put_rows, view
from strata_kernels.lazy import torch
from strata_kernels.spec import (
    CHUNK,
    THREADS,
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
    """Rows, heads, how many dimensions are rotated, and the cells' type and chunks per slot.

    `interleaved`: pairs are (2i, 2i+1), as GGUF's llama has them; otherwise (i, i + rotated/2).
    """

    rows: int
    heads: int
    kv_heads: int
    head_dim: int
    rotated: int
    interleaved: bool
    cell_type: str
    chunks: int


def args(p: Params) -> tuple[Arg, ...]:
    """cos and sin by position; q, k, v by row; the rotated q; the cells of keys and of values."""
    rows = padded(p.rows)
    cells = (-1, p.chunks, p.kv_heads, CHUNK, p.head_dim)
    return (
        table_arg(p.rows),
        read("rotation", -1, p.rotated // 2, 2, region=Region.POSITION),
        read("q", rows, p.heads * p.head_dim),
        read("k", rows, p.kv_heads * p.head_dim),
        read("v", rows, p.kv_heads * p.head_dim),
        write("out", rows, p.heads * p.head_dim),
        write("k_cells", *cells, dtype=p.cell_type, region=Region.CELL),
        write("v_cells", *cells, dtype=p.cell_type, region=Region.CELL),
    )


def geometry(p: Params) -> Geometry:
    """A block for each row."""
    return Geometry((p.rows, 1, 1), THREADS)


def reference(p: Params, bound: Bound) -> None:
    """Rotary embedding (Su et al., 2021); later rows read the stored cell, so it rounds here."""
    table = view(bound, p.rows)
    slots, positions = table.row("slot"), table.row("position")
    rows = live_rows(slots)
    slot, position = pick(slots, rows), pick(positions, rows)
    turn = bound["rotation"][position]
    q = bound["q"].view(-1, p.heads, p.head_dim)
    k = bound["k"].view(-1, p.kv_heads, p.head_dim)
    put_rows(bound["out"].view_as(q), rows, _rotate(p, q[rows], turn))
    where = (slot, position // CHUNK, slice(None), position % CHUNK)
    bound["k_cells"][where] = _rotate(p, k[rows], turn).to(bound["k_cells"].dtype)
    bound["v_cells"][where] = bound["v"].view_as(k)[rows].to(bound["v_cells"].dtype)


def _rotate(p: Params, x: torch.Tensor, turn: torch.Tensor) -> torch.Tensor:
    """x (rows, heads, head_dim) with its first dimensions turned by (rows, pairs, 2)."""
    cos, sin = turn[:, None, :, 0], turn[:, None, :, 1]
    if p.interleaved:
        a, b = slice(0, p.rotated, 2), slice(1, p.rotated, 2)
    else:
        a, b = slice(0, p.rotated // 2), slice(p.rotated // 2, p.rotated)
    out = torch.empty_like(x)
    out[..., p.rotated :] = x[..., p.rotated :]
    torch.sub(x[..., a] * cos, x[..., b] * sin, out=out[..., a])
    torch.add(x[..., a] * sin, x[..., b] * cos, out=out[..., b])
    return out


SPEC = KernelSpec("rope_store", Params, args, geometry, reference)
