"""Attention: its cells, its kernel calls in windows and in prompts, and its copy."""

from __future__ import annotations

from strata_compile.lower.calls import LoweredCall, Named, Scratch, call
from strata_compile.lower.copies import copy_of_cells
from strata_compile.lower.place import Inputs, Place, Rule, payload
from strata_compile.model.graph import Node
from strata_compile.model.ops import Attention, Rope
from strata_kernels import attention, attention_merge, prompt_attention, rope_store
from strata_kernels.table import Kind
from strata_runtime.bundle_format import Rotation


def _cells(place: Place, layer: int) -> dict[str, Named]:
    """The key and value cells of a layer, of all slots, by argument name."""
    return {f"{sort}_cells": place.cells(f"{sort}.{layer}") for sort in ("k", "v")}


def _rotation(place: Place, rope: Rope) -> Named:
    """cos and sin by position; every layer of a stage shares them."""
    factors = rope.factors.name if rope.factors else None
    rotation = Rotation(rope.base, rope.dims, rope.scale, factors)
    return Named(place.stage, "rotation", "weights", place.facts.context, rotation=rotation)


def _forward(place: Place, node: Node, inputs: Inputs, out: Scratch) -> list[LoweredCall]:
    """Rotate and store; then the chunks and their merge: one call for prompts, two for windows."""
    op, facts, table, (q, k, v) = payload(node, Attention), place.facts, place.table, inputs
    heads = (op.heads, op.kv_heads, op.head_dim)
    turned, parts = place.value(f"{node.name}.q"), place.value(f"{node.name}.parts")
    held, rope = _cells(place, node.layer), op.rope
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


def _copy(place: Place, node: Node) -> list[LoweredCall]:
    """Keys, then values."""
    op, sort = payload(node, Attention), place.facts.cell_type
    held = _cells(place, node.layer).values()
    return [copy_of_cells(place, cells, sort, op.kv_heads, op.head_dim) for cells in held]


RULE = Rule(_forward, copy=_copy)
