"""Programs whose every argument has its place: what the bundle holds."""

from __future__ import annotations

from collections.abc import Mapping

from strata_compile.lower.calls import LoweredCall, LoweredProgram, Named
from strata_compile.memory.offsets import Layout
from strata_compile.memory.plan import PlannedMemory
from strata_kernels.render import Entry
from strata_kernels.spec import Arg
from strata_runtime.bundle_format import Argument, Call, Program
from strata_runtime.records import encode


def place_programs(memory: PlannedMemory) -> tuple[Program, ...]:
    """The bundle's programs: kernel names, params, buffer names with offsets, accesses."""
    return tuple(
        _place(program, memory.scratch[program.name]) for program in memory.programs.programs
    )


def _place(program: LoweredProgram, scratch: Layout) -> Program:
    calls = tuple(_call(program.stage, c, scratch) for c in program.calls)
    return Program(program.stage, program.kind.name.lower(), program.rows, calls)


def _call(stage: int, call: LoweredCall, scratch: Layout) -> Call:
    params: Mapping[str, object] = encode(call.params)  # plain, as it is read back
    args = {arg.name: _argument(stage, call, arg, scratch) for arg in call.args}
    entry = Entry(call.spec, call.params).name
    g = call.spec.geometry(call.params)
    return Call(call.spec.name, entry, params, g.grid, g.threads, g.shared, args)


def _argument(stage: int, call: LoweredCall, arg: Arg, scratch: Layout) -> Argument:
    operand = call.operands[arg.name]
    if isinstance(operand, Named):
        buffer, offset = operand.full_name, 0
        shape = tuple(operand.count if n == -1 else n for n in arg.shape)
    else:
        buffer, offset, shape = f"{stage}/scratch", scratch.offsets[operand.name], arg.shape
    return Argument(
        buffer=buffer,
        offset=offset,
        dtype=arg.dtype,
        shape=shape,
        reads=arg.reads.value if arg.reads else None,
        writes=arg.writes.value if arg.writes else None,
        stored=arg.stored,
    )
