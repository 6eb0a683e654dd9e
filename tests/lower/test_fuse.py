"""fuse: products of the same rows become one call, and a gate goes into its products."""

from __future__ import annotations

from dataclasses import replace

import pytest

from strata_compile.lower.calls import LoweredCall, Named, Operand, Scratch, call
from strata_compile.lower.fuse import fuse
from strata_kernels import gated, linear, linears, rmsnorm, swiglu

ROWS, INNER = 8, 48


def weight(name: str) -> Named:
    """A matrix."""
    return Named(0, name, "weights")


def product(
    name: str, x: str = "x", outer: int = 80, kind: str = "F32", **more: Operand
) -> LoweredCall:
    """`name` = matrix · x, with a bias or a residual where one is given."""
    params = linear.Params(ROWS, INNER, outer, kind, "bias" in more, "residual" in more)
    operands = {"x": Scratch(x), "weight": weight(f"{name}.weight"), "out": Scratch(name)}
    return call(linear.SPEC, params, **operands, **more)


def gate(first: str, second: str) -> LoweredCall:
    """act = silu(first) · second."""
    params = swiglu.Params(ROWS, 80)
    return call(swiglu.SPEC, params, gate=Scratch(first), up=Scratch(second), out=Scratch("act"))


def test_products_of_the_same_rows_are_one_call() -> None:
    """Each keeps its matrix, its bias and its value."""
    bias = weight("k.bias")
    q, k, v = product("q"), product("k", outer=13, bias=bias), product("v", outer=13, kind="Q8_0")
    (one,) = fuse([q, k, v])
    parts = (linears.Part(80, "F32"), linears.Part(13, "F32", True), linears.Part(13, "Q8_0"))
    assert one.spec is linears.SPEC and one.params == linears.Params(ROWS, INNER, parts)
    assert one.operands == {
        "x": Scratch("x"),
        **{f"weight{i}": weight(f"{n}.weight") for i, n in enumerate("qkv")},
        **{f"out{i}": Scratch(n) for i, n in enumerate("qkv")},
        "bias1": bias,
    }
    assert {a.name for a in one.args} == one.operands.keys()


def test_others_stay_as_they_are() -> None:
    """One alone, one of other rows, one that adds the residual stream, one behind another call."""
    norm = call(
        rmsnorm.SPEC,
        rmsnorm.Params(ROWS, INNER, 1e-5),
        x=Scratch("x"),
        weight=weight("n"),
        out=Scratch("n"),
    )
    residual = product("o", residual=Scratch("r"))
    calls = [
        product("a"),
        product("b", x="y"),
        residual,
        residual,
        product("c"),
        norm,
        product("d"),
    ]
    assert fuse(calls) == tuple(calls)


def test_a_gate_goes_into_its_products() -> None:
    (one,) = fuse([product("gate"), product("up", kind="Q6_K"), gate("gate", "up")])
    assert one.spec is gated.SPEC
    assert one.params == gated.Params(ROWS, INNER, 80, "F32", "Q6_K")
    names = {"x": Scratch("x"), "gate": weight("gate.weight"), "up": weight("up.weight")}
    assert one.operands == {**names, "out": Scratch("act")}


@pytest.mark.parametrize("case", ["other order", "read elsewhere", "three", "bias", "widths"])
def test_a_gate_that_does_not_fit_stays(case: str) -> None:
    """Values that somebody else needs must not vanish."""
    calls = [product("gate"), product("up"), gate("gate", "up")]
    match case:
        case "other order":
            calls[2] = gate("up", "gate")
        case "read elsewhere":
            calls.append(product("more", x="up"))
        case "three":
            calls.insert(2, product("third"))
        case "bias":
            calls[1] = product("up", bias=weight("b"))
        case "widths":
            calls[1] = replace(calls[1], params=replace(calls[1].params, outer=81))
    found = fuse(calls)
    assert [c.spec for c in found[:2]] == [linears.SPEC, swiglu.SPEC]
