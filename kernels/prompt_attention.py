"""prompt_attention: a prompt chunk's rows against the cells of their slot, merged on the way."""

from __future__ import annotations

from strata_kernels.arithmetic import view
from strata_kernels.attention import Params, inputs
from strata_kernels.chunks import groups_of, merge, partials
from strata_kernels.spec import CHUNK, Arg, Bound, Geometry, KernelSpec, padded, write


def args(p: Params) -> tuple[Arg, ...]:
    """The inputs, and the output (rows, heads · head_dim)."""
    return (*inputs(p), write("out", padded(p.rows), p.heads * p.head_dim))


def geometry(p: Params) -> Geometry:
    """A block for each key-value head and row; a thread for each cell."""
    return Geometry((p.kv_heads, p.rows, 1), CHUNK)


def reference(p: Params, bound: Bound) -> None:
    """The same chunks and the same merge as `attention` and `attention_merge`, block by block."""
    q, k, v, out = (bound[name] for name in ("q", "k_cells", "v_cells", "out"))
    out.zero_()
    for group in groups_of(view(bound, p.rows)):
        parts = q.new_empty(len(group.rows), group.most, p.heads, p.shape.part)
        parts[group.local, group.result_chunk] = partials(p.shape, q, k, v, group)
        live = group.live_local
        out[group.live_rows] = merge(p.shape, parts[live], group.live_chunks)


SPEC = KernelSpec("prompt_attention", Params, args, geometry, reference)
