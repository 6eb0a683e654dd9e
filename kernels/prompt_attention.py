"""prompt_attention: a prompt chunk's rows against the cells of their slot, merged on the way."""

from __future__ import annotations

from strata_kernels.arithmetic import view
from strata_kernels.attention import Params
from strata_kernels.chunks import blocks_of, merge, partials
from strata_kernels.spec import (
    CHUNK,
    Arg,
    Bound,
    KernelSpec,
    Region,
    padded,
    read,
    table_arg,
    write,
)


def args(p: Params) -> tuple[Arg, ...]:
    """q and out (rows, heads · head_dim), and both cells."""
    cells = (-1, p.chunks, p.kv_heads, CHUNK, p.head_dim)
    return (
        table_arg(p.rows),
        read("q", padded(p.rows), p.heads * p.head_dim),
        read("k_cells", *cells, dtype=p.cell_type, region=Region.HISTORY),
        read("v_cells", *cells, dtype=p.cell_type, region=Region.HISTORY),
        write("out", padded(p.rows), p.heads * p.head_dim),
    )


def reference(p: Params, bound: Bound) -> None:
    """The same chunks and the same merge as `attention` and `attention_merge`, block by block."""
    out = bound["out"]
    out.zero_()
    for group in blocks_of(view(bound, p.rows), padded(p.rows)).groups():
        parts = partials(p.shape, bound["q"], bound["k_cells"], bound["v_cells"], group)
        inside = group.positions >= 0
        chunks = group.positions[inside] // CHUNK + 1
        out[group.rows[inside]] = merge(p.shape, parts[inside], chunks)


SPEC = KernelSpec("prompt_attention", Params, args, reference)
