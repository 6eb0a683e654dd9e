"""Neighbours that can be one kernel: products of the same rows, and a gate with its products.

A node of a graph costs a microsecond or two whatever it does, so a layer has as few as can be. What
is computed stays the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

from strata_compile.lower.calls import LoweredCall, Operand, Scratch, call
from strata_kernels import gated, linear, linears, swiglu


def fuse(calls: Sequence[LoweredCall]) -> tuple[LoweredCall, ...]:
    """The calls with products put together, then with gates put into them."""
    return tuple(_with_gates(_with_groups(calls)))


def _with_groups(calls: Sequence[LoweredCall]) -> list[LoweredCall]:
    """Products that follow each other and have the same input are one call."""
    found: list[LoweredCall] = []
    for shared, group in groupby(calls, _input_of):
        mine = list(group)
        found += [_group(mine)] if shared is not None and len(mine) > 1 else mine
    return found


def _input_of(c: LoweredCall) -> Operand | None:
    """What a product reads, where it may stand beside others: no residual stream is added."""
    if c.spec is not linear.SPEC or c.params.residual:
        return None
    return c.operands["x"]


def _group(products: Sequence[LoweredCall]) -> LoweredCall:
    first, parts = products[0], list[linears.Part]()
    operands: dict[str, Operand] = {"x": first.operands["x"]}
    for i, c in enumerate(products):
        p: linear.Params = c.params
        parts.append(linears.Part(p.outer, p.weight_type, p.bias))
        operands |= {f"{n}{i}": c.operands[n] for n in ("weight", "bias", "out") if n in c.operands}
    params = linears.Params(first.params.rows, first.params.inner, tuple(parts))
    return call(linears.SPEC, params, **operands)


def _with_gates(calls: Sequence[LoweredCall]) -> Iterable[LoweredCall]:
    """A gate behind its two products, whose values nobody else reads, is one call with them."""
    i = 0
    while i < len(calls):
        pair = calls[i : i + 2]
        if len(pair) == 2 and _is_gate(pair[0], pair[1], calls):
            yield _gate(pair[0], pair[1])
            i += 2
        else:
            yield calls[i]
            i += 1


def _is_gate(products: LoweredCall, gate: LoweredCall, calls: Sequence[LoweredCall]) -> bool:
    if products.spec is not linears.SPEC or gate.spec is not swiglu.SPEC:
        return False
    parts: tuple[linears.Part, ...] = products.params.parts
    made = [products.operands[f"out{i}"] for i in range(len(parts))]
    plain = len({part.outer for part in parts}) == 1 and not any(part.bias for part in parts)
    fits = plain and made == [gate.operands["gate"], gate.operands["up"]]
    return fits and all(_readers(value, calls) == 1 for value in made)


def _readers(value: Operand, calls: Sequence[LoweredCall]) -> int:
    """Calls that read a value of the program; one that others may read has more than any."""
    if not isinstance(value, Scratch):
        return len(calls)
    return sum(c.operands[a.name] == value for c in calls for a in c.args if a.reads)


def _gate(products: LoweredCall, gate: LoweredCall) -> LoweredCall:
    p: linears.Params = products.params
    first, second = p.parts
    params = gated.Params(p.rows, p.inner, first.outer, first.weight_type, second.weight_type)
    return call(
        gated.SPEC,
        params,
        x=products.operands["x"],
        gate=products.operands["weight0"],
        up=products.operands["weight1"],
        out=gate.operands["out"],
    )
