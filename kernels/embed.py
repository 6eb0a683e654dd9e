"""embed: each row's token becomes its row of the embedding matrix."""

from __future__ import annotations

from dataclasses import dataclass

from strata_kernels.arithmetic import live_rows, pick, put_rows, view
from strata_kernels.spec import (
    THREADS,
    Arg,
    Bound,
    Geometry,
    KernelSpec,
    Region,
    matrix,
    padded,
    table_arg,
    write,
)


@dataclass(frozen=True)
class Params:
    """`rows`, vocabulary size, width, and the matrix's type in the model file."""

    rows: int
    vocab: int
    width: int
    weight_type: str


def args(p: Params) -> tuple[Arg, ...]:
    """The matrix (vocab, width) and the residual stream (rows, width)."""
    return (
        table_arg(p.rows),
        matrix("weight", p.weight_type, p.vocab, p.width, region=Region.TOKEN),
        write("out", padded(p.rows), p.width),
    )


def geometry(p: Params) -> Geometry:
    """A block for each row."""
    return Geometry((p.rows, 1, 1), THREADS)


def reference(p: Params, bound: Bound) -> None:
    """out[i] = weight[token of row i]; inert rows are zeros."""
    table = view(bound, p.rows)
    rows = live_rows(table.row("slot"))
    put_rows(bound["out"], rows, bound["weight"][pick(table.row("token"), rows)])


SPEC = KernelSpec("embed", Params, args, geometry, reference)
