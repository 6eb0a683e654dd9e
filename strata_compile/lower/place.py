"""Where an operator is lowered to, and what a rule for it holds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from strata_compile.lower.calls import LoweredCall, Named, Operand, Scratch
from strata_compile.lower.facts import Facts
from strata_compile.model.graph import Node
from strata_compile.model.ops import Op, Tensor
from strata_kernels.table import Kind

OpT = TypeVar("OpT", bound=Op)


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

    def cells(self, name: str) -> Named:
        """What every slot keeps at each of its positions."""
        return self.named(f"cells.{name}", "cells", self.facts.slots)

    def states(self, name: str) -> Named:
        """What every slot keeps without a position: exec and draft read it, and never write it."""
        return self.named(f"state.{name}", "states", self.facts.states)

    def saved(self, name: str) -> Named:
        """What a commit needs of each row of the windows in flight; exec writes it."""
        return self.named(f"saved.{name}", "contexts", self.facts.saved_rows)

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


#: The values of an operator's inputs, in its order.
Inputs = tuple[Scratch, ...]
#: Place, operator, inputs and where its value goes, to the operator's kernel calls.
Forward = Callable[[Place, Node, Inputs, Scratch], list[LoweredCall]]
#: Place and operator to kernel calls for what the operator keeps.
Keep = Callable[[Place, Node], list[LoweredCall]]


def nothing(place: Place, node: Node) -> list[LoweredCall]:
    """The calls of an operator that keeps nothing."""
    return []


@dataclass(frozen=True)
class Rule:
    """How one type of operator is lowered.

    `forward` is for exec, prompt and draft. In a prompt it makes its rows permanent itself; after
    an exec that is for `commit`, whose table has the rows to be kept, a slot's in order and side
    by side (commit_row: at most one of each slot). Without state there is nothing to commit.
    `copy` moves the cells of a table's rows, and the states of its segments, between slots.
    """

    forward: Forward
    commit: Keep = nothing
    copy: Keep = nothing


def payload(node: Node, kind: type[OpT]) -> OpT:
    """The operator of a node, which a rule for this type was found for."""
    assert isinstance(node.op, kind), node
    return node.op
