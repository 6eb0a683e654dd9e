"""A kernel call before memory has been planned."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from strata_compile.model.ops import Tensor
from strata_kernels.spec import Arg, KernelSpec
from strata_kernels.table import Kind
from strata_runtime.bundle_format import Rotation


@dataclass(frozen=True)
class Scratch:
    """A value that lives inside one program only."""

    name: str


@dataclass(frozen=True)
class Named:
    """A buffer that outlives a program; `role` is its arena, `count` its leading dimension.

    `tensor` or `rotation` fills it at load. `stage` owns it (another may read a hand-off).
    """

    stage: int
    name: str
    role: str
    count: int = 0
    tensor: Tensor | None = None
    rotation: Rotation | None = None

    @property
    def full_name(self) -> str:
        """The buffer's name in the memory plan."""
        return f"{self.stage}/{self.name}"


Operand = Scratch | Named


@dataclass(frozen=True)
class LoweredCall:
    """One kernel, its params, and an operand for each of its arguments."""

    spec: KernelSpec[Any]
    params: Any
    operands: Mapping[str, Operand]

    @property
    def args(self) -> tuple[Arg, ...]:
        """The kernel's arguments for these params."""
        return self.spec.args(self.params)

    def describe(self) -> str:
        """Kernel, params, operands, on one line."""
        operands = ", ".join(
            f"{a}={o.name if isinstance(o, Scratch) else o.full_name}"
            for a, o in self.operands.items()
        )
        return f"{self.spec.name:16} {operands}  {self.params}"


def call(spec: KernelSpec[Any], params: object, **operands: Operand) -> LoweredCall:
    """A call with its operands by argument name."""
    return LoweredCall(spec, params, operands)


@dataclass(frozen=True)
class LoweredProgram:
    """The kernel calls of one (stage, kind, rows), in order."""

    stage: int
    kind: Kind
    rows: int
    calls: tuple[LoweredCall, ...]

    @property
    def name(self) -> str:
        """`<stage>.<kind>.r<rows>`."""
        return f"{self.stage}.{self.kind.name.lower()}.r{self.rows}"


@dataclass(frozen=True)
class Programs:
    """All programs of a bundle, stage by stage."""

    programs: tuple[LoweredProgram, ...]

    @property
    def commits(self) -> tuple[bool, ...]:
        """Has each stage state, and so programs that commit rows to it?"""
        stages = range(max(p.stage for p in self.programs) + 1)
        having = {p.stage for p in self.programs if p.kind is Kind.COMMIT}
        return tuple(stage in having for stage in stages)

    def verify(self) -> None:
        """Every argument is bound, and every scratch value is written before it is read."""
        for program in self.programs:
            written: set[str] = set()
            for call in program.calls:
                where = f"{program.name}: {call.describe()}"
                assert {a.name for a in call.args} == call.operands.keys(), where
                for arg in call.args:
                    operand = call.operands[arg.name]
                    if isinstance(operand, Scratch) and arg.reads:
                        assert operand.name in written, f"{where}: {operand.name} is not written"
                    if isinstance(operand, Scratch) and arg.writes:
                        written.add(operand.name)

    def describe(self) -> str:
        """Every program with its calls."""
        return "\n\n".join(
            "\n".join([p.name, *(f"  {c.describe()}" for c in p.calls)]) for p in self.programs
        )
