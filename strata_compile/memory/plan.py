"""The memory plan: every arena of every stage, and where each buffer lies in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from strata_compile.errors import MemoryPlanError
from strata_compile.lower.calls import LoweredProgram, Named, Programs
from strata_compile.memory.offsets import Layout, assign, stack, verify_layout
from strata_compile.memory.scratch import SIZES, arg_bytes, scratch_lifetimes
from strata_compile.stages.partition import Stage
from strata_kernels.spec import Arg
from strata_runtime.bundle_format import Arena, Buffer, MemoryPlan

#: The order of a stage's arenas; only the ring of tables lies in pinned host memory.
ROLES = ("weights", "cells", "contexts", "tables", "scratch", "ring")
HOST_ROLES = frozenset({"ring"})


@dataclass(frozen=True)
class PlannedMemory:
    """The memory plan, and the scratch layout of each program by its name."""

    plan: MemoryPlan
    scratch: Mapping[str, Layout]
    programs: Programs

    def verify(self) -> None:
        """No two live values and no two buffers overlap; every buffer is inside its arena."""
        for program in self.programs.programs:
            verify_layout(self.scratch[program.name], scratch_lifetimes(program))
            room = self.plan.buffers[f"{program.stage}/scratch"].bytes
            assert self.scratch[program.name].bytes <= room, f"{program.name} leaves its scratch"
        ends: dict[str, int] = {}
        for name, b in sorted(self.plan.buffers.items(), key=lambda i: (i[1].arena, i[1].offset)):
            assert b.offset >= ends.get(b.arena, 0), f"{name} overlaps the buffer before it"
            ends[b.arena] = b.offset + b.bytes
            assert ends[b.arena] <= self.plan.arenas[b.arena].bytes, f"{name} leaves {b.arena}"

    def describe(self) -> str:
        """Arenas with their sizes, then buffers with their places."""
        arenas = [f"{n:14} {a.bytes:14,d} bytes" for n, a in self.plan.arenas.items()]
        buffers = [
            f"{n:36} {b.arena:12} {b.offset:14,d} {b.bytes:14,d} {b.dtype} {b.shape}"
            for n, b in self.plan.buffers.items()
        ]
        return "\n".join([*arenas, "", *buffers])


def plan_memory(programs: Programs, stages: tuple[Stage, ...]) -> PlannedMemory:
    """Arenas for the CPU target, whose weights are float32; MemoryPlanError where one is short."""
    scratch = {p.name: assign(scratch_lifetimes(p)) for p in programs.programs}
    arenas: dict[str, Arena] = {}
    buffers: dict[str, Buffer] = {}
    named = _buffers(programs)
    for stage in stages:
        for role in ROLES:
            mine = {n: b for n, b in named.items() if b.arena == f"{stage.index}/{role}"}
            if role == "scratch":
                mine = _scratch_buffer(stage.index, programs, scratch)
            layout = stack({name: b.bytes for name, b in mine.items()})
            arena = Arena(stage.index, role, layout.bytes, role in HOST_ROLES)
            arenas[f"{stage.index}/{role}"] = arena
            for name, b in mine.items():
                place = layout.offsets[name]
                buffers[name] = Buffer(
                    b.arena, place, b.bytes, b.dtype, b.shape, b.tensor, b.rotation
                )
    plan = MemoryPlan(arenas, buffers)
    _check_budgets(plan, stages)
    return PlannedMemory(plan, scratch, programs)


def _buffers(programs: Programs) -> dict[str, Buffer]:
    """Every buffer that some call names, not yet placed, in the order of first use."""
    found: dict[str, Buffer] = {}
    for operand, arg in _named_operands(programs):
        shape = tuple(operand.count if n == -1 else n for n in arg.shape)
        size = arg_bytes(arg, operand.count)
        before = found.get(operand.full_name)
        if before is None or before.bytes < size:  # the table: as long as the longest program's
            found[operand.full_name] = Buffer(
                arena=f"{operand.stage}/{operand.role}",
                offset=0,
                bytes=size,
                dtype=arg.dtype,
                shape=shape,
                tensor=operand.tensor.name if operand.tensor else None,
                rotation=operand.rotation,
            )
    return found


def _named_operands(programs: Programs) -> Iterator[tuple[Named, Arg]]:
    for program in programs.programs:
        for call in program.calls:
            for arg in call.args:
                operand = call.operands[arg.name]
                if isinstance(operand, Named):
                    yield operand, arg


def _scratch_buffer(
    stage: int, programs: Programs, layouts: Mapping[str, Layout]
) -> dict[str, Buffer]:
    """One buffer for all programs of a stage: its queue runs one at a time."""
    mine: list[LoweredProgram] = [p for p in programs.programs if p.stage == stage]
    size = max((layouts[p.name].bytes for p in mine), default=0)
    arena = f"{stage}/scratch"
    shape = (size // SIZES["f32"],)
    return {arena: Buffer(arena, 0, size, "f32", shape, tensor=None, rotation=None)}


def _check_budgets(plan: MemoryPlan, stages: tuple[Stage, ...]) -> None:
    for stage in stages:
        needed = plan.stage_bytes(stage.index)
        if stage.memory is not None and needed > stage.memory:
            short = needed - stage.memory
            parts = ", ".join(
                f"{role} {plan.arenas[f'{stage.index}/{role}'].bytes >> 20} MiB"
                for role in ROLES
                if role not in HOST_ROLES
            )
            on = f" on {stage.device}" if stage.device else ""
            raise MemoryPlanError(
                f"stage {stage.index} (layers {stage.first}-{stage.last}){on} is "
                f"{-(-short >> 20)} MiB short: {parts}; give it fewer layers, fewer slots or a "
                "shorter context",
                device=stage.device or "",
                short_bytes=short,
            )
