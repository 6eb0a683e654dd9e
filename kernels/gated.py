"""gated: both products of a gated feed-forward layer and the activation between them."""

from __future__ import annotations

from dataclasses import dataclass

from strata_kernels import arithmetic
from strata_kernels.lazy import torch
from strata_kernels.products import Form, form_of, product_geometry
from strata_kernels.spec import Arg, Bound, Geometry, KernelSpec, matrix, padded, read, write


@dataclass(frozen=True)
class Params:
    """`rows`, input and output width, and both matrices' types in the model file."""

    rows: int
    inner: int
    outer: int
    gate_type: str
    up_type: str

    @property
    def form(self) -> Form:
        """How each of the products is shared out."""
        return form_of(self.inner, self.outer)


def args(p: Params) -> tuple[Arg, ...]:
    """x (rows, inner), gate and up (outer, inner), out (rows, outer)."""
    rows = padded(p.rows)
    return (
        read("x", rows, p.inner),
        matrix("gate", p.gate_type, p.outer, p.inner),
        matrix("up", p.up_type, p.outer, p.inner),
        write("out", rows, p.outer),
    )


def geometry(p: Params) -> Geometry:
    """As the form has it; a warp has an output of both matrices."""
    return product_geometry(p.rows, p.form.blocks(p.outer))


def reference(p: Params, bound: Bound) -> None:
    """out = silu(x · gateᵀ) · (x · upᵀ) (Shazeer, 2020)."""
    x, out = bound["x"], bound["out"]
    gate = torch.empty_like(out)
    arithmetic.linear(x, bound["gate"], gate)
    arithmetic.linear(x, bound["up"], out)
    torch.mul(arithmetic.silu(gate), out, out=out)


SPEC = KernelSpec("gated", Params, args, geometry, reference)
