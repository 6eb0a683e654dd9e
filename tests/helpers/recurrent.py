"""A recurrent layer for tests: its state is a function of every committed row, in their order.

    s_i = s_{i-1} / 2 + x_i · (1 + clamp(turned s_{i-1}, -1, 1))        y_i = x_i + s_i

s is as wide as the residual stream, zeros before position 0; "turned" moves each element on by one.
Like a real one it cannot be rolled back: exec leaves the state, and keeps each x_i for the commit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import pytest
import torch

from strata_compile.lower import rules
from strata_compile.lower.calls import LoweredCall, call
from strata_compile.lower.copies import copy_of_state
from strata_compile.lower.place import Inputs, Place, Rule, Scratch
from strata_compile.model import build, llama
from strata_compile.model.graph import ModelGraph, Node
from strata_compile.model.ops import Op
from strata_compile.model.tensors import TensorReader
from strata_kernels import registry
from strata_kernels.arithmetic import view
from strata_kernels.spec import (
    Arg,
    Bound,
    Geometry,
    KernelSpec,
    Region,
    padded,
    read,
    table_arg,
    write,
)
from strata_kernels.table import Kind, TableView

#: Every layer but those of this remainder by 4 has one: of four stages, one has no state.
WITHOUT = 2


@dataclass(frozen=True)
class Recurrence(Op):
    """y of x, by row."""

    def fits(self, width: int, inputs: list[int]) -> bool:
        """One input of the same width."""
        return inputs == [width]


@dataclass(frozen=True)
class Params:
    """Rows and width."""

    rows: int
    width: int


def advanced(state: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """s_i of s_{i-1} and x_i, (width,) each."""
    return state * 0.5 + x * (1.0 + state.roll(1).clamp(-1.0, 1.0))


def _segments(table: TableView) -> Iterator[tuple[list[int], int, int, bool]]:
    """Each segment's rows, its states in and out, and whether it begins a text."""
    slots, first = table.row("slot"), table.row("first_row")
    for row in range(len(slots)):
        if slots[row] >= 0 and table.row("index")[row] == 0:
            rows = [i for i in range(len(slots)) if slots[i] >= 0 and first[i] == row]
            states = (int(table.row(f"state_{name}")[row]) for name in ("in", "out"))
            yield rows, *states, bool(table.row("position")[row] == 0)


def _run(
    p: Params,
    bound: Bound,
    x_of: Callable[[TableView, int], torch.Tensor],
    keep: bool,
) -> None:
    """All segments; `keep` writes their states."""
    table, states = view(bound, p.rows), bound["state"]
    for rows, state_in, state_out, begins in _segments(table):
        state = torch.zeros(p.width) if begins else states[state_in].clone()
        for row in rows:
            x = x_of(table, row)
            state = advanced(state, x)
            if "out" in bound:
                bound["out"][row] = x + state
            if "saved" in bound and not keep:
                bound["saved"][int(table.row("saved_row")[row])] = x
        if keep:
            states[state_out] = state


def _value(bound: Bound) -> Callable[[TableView, int], torch.Tensor]:
    return lambda table, row: bound["x"][row]


def _saved(bound: Bound) -> Callable[[TableView, int], torch.Tensor]:
    return lambda table, row: bound["saved"][int(table.row("saved_row")[row])]


def _exec_args(p: Params) -> tuple[Arg, ...]:
    x, out = read("x", padded(p.rows), p.width), write("out", padded(p.rows), p.width)
    state = read("state", -1, p.width, region=Region.STATE_IN)
    return (table_arg(p.rows), x, state, write("saved", -1, p.width, region=Region.SAVED), out)


def _kept(p: Params) -> Arg:
    return Arg("state", "f32", (-1, p.width), reads=Region.STATE_IN, writes=Region.STATE_OUT)


def _prompt_args(p: Params) -> tuple[Arg, ...]:
    x, out = read("x", padded(p.rows), p.width), write("out", padded(p.rows), p.width)
    return (table_arg(p.rows), x, _kept(p), out)


def _commit_args(p: Params) -> tuple[Arg, ...]:
    return (table_arg(p.rows), read("saved", -1, p.width, region=Region.SAVED), _kept(p))


def _geometry(p: Params) -> Geometry:
    return Geometry((1, 1, 1), 32)


EXEC = KernelSpec(
    "recurrent_exec", Params, _exec_args, _geometry, lambda p, b: _run(p, b, _value(b), False)
)
PROMPT = KernelSpec(
    "recurrent_prompt", Params, _prompt_args, _geometry, lambda p, b: _run(p, b, _value(b), True)
)
COMMIT = KernelSpec(
    "recurrent_commit", Params, _commit_args, _geometry, lambda p, b: _run(p, b, _saved(b), True)
)


def _forward(place: Place, node: Node, inputs: Inputs, out: Scratch) -> list[LoweredCall]:
    params = Params(place.rows, node.width)
    given = {"table": place.table, "x": inputs[0], "state": place.states(node.name), "out": out}
    if place.kind is Kind.PROMPT:
        return [call(PROMPT, params, **given)]
    return [call(EXEC, params, saved=place.saved(node.name), **given)]


def _commit(place: Place, node: Node) -> list[LoweredCall]:
    operands = {"table": place.table, "saved": place.saved(node.name)}
    params = Params(place.rows, node.width)
    return [call(COMMIT, params, state=place.states(node.name), **operands)]


def _copy(place: Place, node: Node) -> list[LoweredCall]:
    return [copy_of_state(place, place.states(node.name), "f32", node.width)]


def with_recurrences(trunk: ModelGraph) -> ModelGraph:
    """A llama whose attention reads the recurrence of its norm's value, in most layers."""
    graph, renamed = ModelGraph(replace(trunk.info, name="recurrent")), dict[str, str]()
    for node in trunk:
        inputs = [renamed.get(name, name) for name in trunk.inputs(node.name)]
        graph.add(node, inputs)
        if node.name.endswith(".attn_norm") and node.layer % 4 != WITHOUT:
            name = f"blk.{node.layer}.recurrence"
            graph.add(replace(node, name=name, op=Recurrence()), [node.name])
            renamed[node.name] = name
    return graph


def _build(reader: TensorReader) -> ModelGraph:
    return with_recurrences(llama.build(reader))


def install(patch: pytest.MonkeyPatch) -> None:
    """Make the operator and its kernels known; a model has them if compiled `as_recurrent`."""
    rule = Rule(_forward, commit=_commit, copy=_copy)
    patch.setitem(rules.RULES, Recurrence, rule)
    for spec in (EXEC, PROMPT, COMMIT):
        patch.setitem(registry.KERNELS, spec.name, spec)


def as_recurrent(patch: pytest.MonkeyPatch) -> None:
    """From now on llama files are built with recurrences."""
    patch.setitem(build.FAMILIES, "llama", _build)
