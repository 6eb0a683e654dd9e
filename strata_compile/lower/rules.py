"""Operator to kernel calls: one rule each, the only place that knows both."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from strata_compile.lower.calls import LoweredCall, Named, Operand, Scratch, call
from strata_compile.lower.facts import Facts
from strata_compile.model.graph import ModelGraph, Node
from strata_compile.model.ops import (
    Attention,
    Concat,
    Embed,
    Hidden,
    Linear,
    RmsNorm,
    Rope,
    SwiGlu,
    Tensor,
)
from strata_kernels import (
    attention,
    attention_merge,
    concat,
    embed,
    hidden_load,
    hidden_store,
    linear,
    prompt_attention,
    rmsnorm,
    rope_store,
    swiglu,
)
from strata_kernels.table import Kind
from strata_runtime.bundle_format import Rotation


@dataclass(frozen=True)
class Place:
    """Where a rule lowers to: stage, kind and rows of the program, and the bundle's facts.

    `own_table` stands for the launch's table where rows are not the launch's; `prefix` tells the
    values of one step of a chain from those of another.
    """

    stage: int
    kind: Kind
    rows: int
    facts: Facts
    own_table: Scratch | None = None
    prefix: str = ""

    def named(self, name: str, role: str, count: int = 0) -> Named:
        """A buffer of this stage."""
        return Named(self.stage, name, role, count)

    @property
    def table(self) -> Operand:
        """The table that every kernel takes which reads its launch: the stage's, as a rule."""
        return self.own_table or self.named("table", "tables")

    def value(self, name: str) -> Scratch:
        """The value of an operator."""
        return Scratch(self.prefix + name)

    def weight(self, tensor: Tensor) -> Named:
        """A tensor of the model file."""
        return Named(self.stage, weight_name(tensor), "weights", tensor=tensor)


def weight_name(tensor: Tensor) -> str:
    """A tensor's buffer: a drafter's own file, and a head that is cut, have names of their own."""
    return tensor.name if tensor.file == "model" else f"{tensor.file}.{tensor.name}"


def lower_graph(
    place: Place, nodes: Iterable[Node], graph: ModelGraph, given: Mapping[str, Scratch]
) -> list[LoweredCall]:
    """The kernel calls of operators in order; `given` holds the values that are there already."""
    calls: list[LoweredCall] = []
    for node in nodes:
        if node.name not in given:
            inputs = (given.get(name, place.value(name)) for name in graph.inputs(node.name))
            calls += lower_node(place, node, tuple(inputs))
    return calls


def lower_node(place: Place, node: Node, inputs: tuple[Scratch, ...]) -> list[LoweredCall]:
    """The kernel calls of an operator; its value is the scratch of the operator's name."""
    rows, out = place.rows, place.value(node.name)
    match node.op:
        case Embed(weight):
            params = embed.Params(rows, weight.shape[0], weight.shape[1], weight.type)
            where = place.weight(weight)
            return [call(embed.SPEC, params, table=place.table, weight=where, out=out)]
        case RmsNorm(weight, epsilon):
            norm = rmsnorm.Params(rows, node.width, epsilon)
            return [call(rmsnorm.SPEC, norm, x=inputs[0], weight=place.weight(weight), out=out)]
        case Linear(weight, bias):
            return [_linear(place, weight, bias, inputs, out)]
        case Attention():
            return _attention(place, node, node.op, inputs, out)
        case Hidden():
            return [_hidden_load(place, node.width, out)]
        case Concat():
            left = node.width // 2
            pair = concat.Params(rows, left, node.width - left)
            return [call(concat.SPEC, pair, left=inputs[0], right=inputs[1], out=out)]
        case SwiGlu():
            act = swiglu.Params(rows, node.width)
            return [call(swiglu.SPEC, act, gate=inputs[0], up=inputs[1], out=out)]


def _linear(
    place: Place, weight: Tensor, bias: Tensor | None, inputs: tuple[Scratch, ...], out: Scratch
) -> LoweredCall:
    outer, inner = weight.shape
    residual = len(inputs) > 1
    params = linear.Params(place.rows, inner, outer, weight.type, bias is not None, residual)
    extra: dict[str, Operand] = {}
    if bias is not None:
        extra["bias"] = place.weight(bias)
    if residual:
        extra["residual"] = inputs[1]
    return call(linear.SPEC, params, x=inputs[0], weight=place.weight(weight), out=out, **extra)


def hidden_cells(place: Place) -> Named:
    """The trunk's last hidden states, of all slots."""
    return place.named("cells.hidden", "cells", place.facts.slots)


def _hidden_load(place: Place, width: int, out: Scratch) -> LoweredCall:
    params = hidden_store.Params(place.rows, width, place.facts.chunks)
    held = hidden_cells(place)
    return call(hidden_load.SPEC, params, table=place.table, hidden_cells=held, out=out)


def cells(place: Place, layer: int) -> dict[str, Named]:
    """The key and value cells of a layer, of all slots."""
    return {
        f"{sort}_cells": place.named(f"cells.{sort}.{layer}", "cells", place.facts.slots)
        for sort in ("k", "v")
    }


def _rotation(place: Place, rope: Rope) -> Named:
    """cos and sin by position; every layer of a stage shares them."""
    factors = rope.factors.name if rope.factors else None
    rotation = Rotation(rope.base, rope.dims, rope.scale, factors)
    return Named(place.stage, "rotation", "weights", place.facts.context, rotation=rotation)


def _attention(
    place: Place, node: Node, op: Attention, inputs: tuple[Scratch, ...], out: Scratch
) -> list[LoweredCall]:
    """Rotate and store; then the chunks and their merge: one call for prompts, two for windows."""
    facts, table, (q, k, v) = place.facts, place.table, inputs
    heads = (op.heads, op.kv_heads, op.head_dim)
    turned, parts = place.value(f"{node.name}.q"), place.value(f"{node.name}.parts")
    held, rope = cells(place, node.layer), op.rope
    store = rope_store.Params(
        place.rows, *heads, rope.dims, rope.interleaved, facts.cell_type, facts.chunks
    )
    turn = _rotation(place, rope)
    calls = [
        call(rope_store.SPEC, store, table=table, rotation=turn, q=q, k=k, v=v, out=turned, **held)
    ]
    look = attention.Params(place.rows, *heads, facts.cell_type, facts.chunks)
    if place.kind is Kind.PROMPT:
        spec = prompt_attention.SPEC
        return [*calls, call(spec, look, table=table, q=turned, **held, out=out)]
    merge = attention_merge.Params(place.rows, op.heads, op.head_dim, facts.chunks)
    return [
        *calls,
        call(attention.SPEC, look, table=table, q=turned, **held, partials=parts),
        call(attention_merge.SPEC, merge, table=table, partials=parts, out=out),
    ]
