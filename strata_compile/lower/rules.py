"""Operator to kernel calls: a rule for each type of operator, the only places that know both."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from strata_compile.lower import attention
from strata_compile.lower.calls import LoweredCall, Named, Operand, Scratch, call
from strata_compile.lower.copies import copy_of_cells
from strata_compile.lower.place import Inputs, Place, Rule, payload
from strata_compile.model.graph import ModelGraph, Node
from strata_compile.model.ops import (
    Attention,
    Concat,
    Embed,
    Hidden,
    Linear,
    Op,
    RmsNorm,
    SwiGlu,
)
from strata_kernels import concat, embed, hidden_load, hidden_store, linear, rmsnorm, swiglu


def lower_graph(
    place: Place, nodes: Iterable[Node], graph: ModelGraph, given: Mapping[str, Scratch]
) -> list[LoweredCall]:
    """The kernel calls of operators in order; `given` holds the values that are there already."""
    calls: list[LoweredCall] = []
    for node in nodes:
        if node.name not in given:
            inputs = (given.get(name, place.value(name)) for name in graph.inputs(node.name))
            out = place.value(node.name)
            calls += RULES[type(node.op)].forward(place, node, tuple(inputs), out)
    return calls


def lower_commit(place: Place, nodes: Iterable[Node]) -> list[LoweredCall]:
    """What makes rows of a window permanent in the operators' states."""
    return [c for node in nodes for c in RULES[type(node.op)].commit(place, node)]


def lower_copy(place: Place, nodes: Iterable[Node]) -> list[LoweredCall]:
    """What moves the operators' cells and states between slots."""
    return [c for node in nodes for c in RULES[type(node.op)].copy(place, node)]


def _embed(place: Place, node: Node, inputs: Inputs, out: Scratch) -> list[LoweredCall]:
    weight = payload(node, Embed).weight
    params = embed.Params(place.rows, weight.shape[0], weight.shape[1], weight.type)
    where = place.weight(weight)
    return [call(embed.SPEC, params, table=place.table, weight=where, out=out)]


def _rmsnorm(place: Place, node: Node, inputs: Inputs, out: Scratch) -> list[LoweredCall]:
    op = payload(node, RmsNorm)
    params = rmsnorm.Params(place.rows, node.width, op.epsilon)
    return [call(rmsnorm.SPEC, params, x=inputs[0], weight=place.weight(op.weight), out=out)]


def _linear(place: Place, node: Node, inputs: Inputs, out: Scratch) -> list[LoweredCall]:
    op, residual = payload(node, Linear), len(inputs) > 1
    outer, inner = op.weight.shape
    biased = op.bias is not None
    params = linear.Params(place.rows, inner, outer, op.weight.type, biased, residual)
    extra: dict[str, Operand] = {}
    if op.bias is not None:
        extra["bias"] = place.weight(op.bias)
    if residual:
        extra["residual"] = inputs[1]
    weight = place.weight(op.weight)
    return [call(linear.SPEC, params, x=inputs[0], weight=weight, out=out, **extra)]


def _swiglu(place: Place, node: Node, inputs: Inputs, out: Scratch) -> list[LoweredCall]:
    params = swiglu.Params(place.rows, node.width)
    return [call(swiglu.SPEC, params, gate=inputs[0], up=inputs[1], out=out)]


def _concat(place: Place, node: Node, inputs: Inputs, out: Scratch) -> list[LoweredCall]:
    left = node.width // 2
    params = concat.Params(place.rows, left, node.width - left)
    return [call(concat.SPEC, params, left=inputs[0], right=inputs[1], out=out)]


def hidden_cells(place: Place) -> Named:
    """The trunk's last hidden states, of all slots."""
    return place.cells("hidden")


def _hidden(place: Place, node: Node, inputs: Inputs, out: Scratch) -> list[LoweredCall]:
    params = hidden_store.Params(place.rows, node.width, place.facts.chunks)
    held = hidden_cells(place)
    return [call(hidden_load.SPEC, params, table=place.table, hidden_cells=held, out=out)]


def _copy_hidden(place: Place, node: Node) -> list[LoweredCall]:
    return [copy_of_cells(place, hidden_cells(place), "f32", 1, node.width)]


#: Every type of operator; a family that brings a new one adds its rule here.
RULES: dict[type[Op], Rule] = {
    Embed: Rule(_embed),
    RmsNorm: Rule(_rmsnorm),
    Linear: Rule(_linear),
    Attention: attention.RULE,
    SwiGlu: Rule(_swiglu),
    Hidden: Rule(_hidden, copy=_copy_hidden),
    Concat: Rule(_concat),
}
