"""Operator to kernel calls: one rule each, the only place that knows both."""

from __future__ import annotations

from dataclasses import dataclass

from strata_compile.lower.calls import LoweredCall, Named, Operand, Scratch, call
from strata_compile.lower.facts import Facts
from strata_compile.model.graph import Node
from strata_compile.model.ops import Attention, Embed, Linear, RmsNorm, Rope, SwiGlu, Tensor
from strata_kernels import (
    attention,
    attention_merge,
    embed,
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
    """Where a rule lowers to: stage, kind and rows of the program, and the bundle's facts."""

    stage: int
    kind: Kind
    rows: int
    facts: Facts

    def named(self, name: str, role: str, count: int = 0) -> Named:
        """A buffer of this stage."""
        return Named(self.stage, name, role, count)

    @property
    def table(self) -> Named:
        """The stage's table, which every kernel that reads its launch takes."""
        return self.named("table", "tables")

    def weight(self, tensor: Tensor) -> Named:
        """A tensor of the model file."""
        return Named(self.stage, tensor.name, "weights", tensor=tensor)


def lower_node(place: Place, node: Node, inputs: tuple[Scratch, ...]) -> list[LoweredCall]:
    """The kernel calls of an operator; its value is the scratch of the operator's name."""
    rows, out = place.rows, Scratch(node.name)
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
    turned, parts = Scratch(f"{node.name}.q"), Scratch(f"{node.name}.parts")
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
