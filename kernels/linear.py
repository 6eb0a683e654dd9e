"""linear: a matrix applied to every row, with a bias or the residual stream added where asked."""

from __future__ import annotations

from dataclasses import dataclass

from strata_kernels import arithmetic
from strata_kernels.products import Form, form_of, product_geometry
from strata_kernels.spec import Arg, Bound, Geometry, KernelSpec, matrix, padded, read, write


@dataclass(frozen=True)
class Params:
    """`rows`, input and output width, the matrix's type in the model file, what is added."""

    rows: int
    inner: int
    outer: int
    weight_type: str
    bias: bool = False
    residual: bool = False

    @property
    def form(self) -> Form:
        """How its product is shared out."""
        return form_of(self.inner, self.outer)


def args(p: Params) -> tuple[Arg, ...]:
    """x (rows, inner), weight (outer, inner), bias (outer), residual and out (rows, outer)."""
    rows = padded(p.rows)
    return (
        read("x", rows, p.inner),
        matrix("weight", p.weight_type, p.outer, p.inner),
        *((read("bias", p.outer),) if p.bias else ()),
        *((read("residual", rows, p.outer),) if p.residual else ()),
        write("out", rows, p.outer),
    )


def geometry(p: Params) -> Geometry:
    """As the form has it."""
    return product_geometry(p.rows, p.form.blocks(p.outer))


def reference(p: Params, bound: Bound) -> None:
    """out = x · weightᵀ (+ bias) (+ residual), in this order."""
    out = bound["out"]
    arithmetic.linear(bound["x"], bound["weight"], out)
    if p.bias:
        out += bound["bias"]
    if p.residual:
        out += bound["residual"]


SPEC = KernelSpec("linear", Params, args, geometry, reference)
