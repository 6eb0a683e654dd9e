"""linears: several matrices applied to the same rows, side by side in one launch."""

from __future__ import annotations

from dataclasses import dataclass

from strata_kernels import arithmetic
from strata_kernels.products import Form, form_of, product_geometry
from strata_kernels.spec import Arg, Bound, Geometry, KernelSpec, matrix, padded, read, write


@dataclass(frozen=True)
class Part:
    """One of the matrices: its output width, its type in the model file, whether it has a bias."""

    outer: int
    weight_type: str
    bias: bool = False


@dataclass(frozen=True)
class Params:
    """`rows`, the input width that all share, and the matrices in order."""

    rows: int
    inner: int
    parts: tuple[Part, ...]

    @property
    def form(self) -> Form:
        """How the products are shared out: alike, as one matrix of all outputs would be."""
        return form_of(self.inner, sum(part.outer for part in self.parts))

    @property
    def blocks(self) -> tuple[int, ...]:
        """Blocks of each matrix."""
        return tuple(self.form.blocks(part.outer) for part in self.parts)


def args(p: Params) -> tuple[Arg, ...]:
    """x (rows, inner); of each part i weight<i> (outer, inner), bias<i> (outer), out<i>."""
    rows, found = padded(p.rows), [read("x", padded(p.rows), p.inner)]
    for i, part in enumerate(p.parts):
        found.append(matrix(f"weight{i}", part.weight_type, part.outer, p.inner))
        if part.bias:
            found.append(read(f"bias{i}", part.outer))
        found.append(write(f"out{i}", rows, part.outer))
    return tuple(found)


def geometry(p: Params) -> Geometry:
    """The matrices' blocks one after another."""
    return product_geometry(p.rows, sum(p.blocks))


def reference(p: Params, bound: Bound) -> None:
    """out<i> = x · weight<i>ᵀ (+ bias<i>)."""
    for i, part in enumerate(p.parts):
        out = bound[f"out{i}"]
        arithmetic.linear(bound["x"], bound[f"weight{i}"], out)
        if part.bias:
            out += bound[f"bias{i}"]


SPEC = KernelSpec("linears", Params, args, geometry, reference)
