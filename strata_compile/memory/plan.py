"""The memory plan: every arena of every stage, and where each buffer lies in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from strata_compile.errors import MemoryPlanError
from strata_compile.lower.calls import LoweredProgram, Named, Programs
from strata_compile.memory.offsets import Layout, assign, stack, verify_layout
from strata_compile.memory.scratch import SIZES, arg_bytes, scratch_lifetimes
from strata_compile.stages.partition import Stage
from strata_kernels.spec import Arg
from strata_runtime.bundle_format import Arena, Buffer, MemoryPlan

#: The order of a stage's arenas; the ring of tables and what the host hears of (verdicts, drafts)
#: lie in pinned host memory. What a stage has nothing of, such as states in most models, has no
#: arena.
ROLES = ("weights", "cells", "states", "contexts", "tables", "scratch", "answers", "ring")
HOST_ROLES = frozenset({"answers", "ring"})


@dataclass(frozen=True)
class PlannedMemory:
    """A memory plan for each family, and the scratch layout of each program by its name."""

    plans: Mapping[str, MemoryPlan]
    scratch: Mapping[str, Layout]
    programs: Programs

    def verify(self) -> None:
        """No two live values and no two buffers overlap; every buffer is inside its arena."""
        for program in self.programs.programs:
            verify_layout(self.scratch[program.name], scratch_lifetimes(program))
        for plan in self.plans.values():
            self._verify_plan(plan)

    def _verify_plan(self, plan: MemoryPlan) -> None:
        for program in self.programs.programs:
            room = plan.buffers[f"{program.stage}/scratch"].bytes
            assert self.scratch[program.name].bytes <= room, f"{program.name} leaves its scratch"
        ends: dict[str, int] = {}
        for name, b in sorted(plan.buffers.items(), key=lambda i: (i[1].arena, i[1].offset)):
            assert b.offset >= ends.get(b.arena, 0), f"{name} overlaps the buffer before it"
            ends[b.arena] = b.offset + b.bytes
            assert ends[b.arena] <= plan.arenas[b.arena].bytes, f"{name} leaves {b.arena}"

    def describe(self) -> str:
        """Arenas with their sizes, then buffers with their places, a family at a time."""
        return "\n\n".join(_described(family, plan) for family, plan in self.plans.items())


def _described(family: str, plan: MemoryPlan) -> str:
    arenas = [f"{n:14} {a.bytes:14,d} bytes" for n, a in plan.arenas.items()]
    buffers = [
        f"{n:36} {b.arena:12} {b.offset:14,d} {b.bytes:14,d} {b.dtype} {b.shape}"
        for n, b in plan.buffers.items()
    ]
    return "\n".join([family, *arenas, "", *buffers])


def families_of(targets: tuple[str, ...]) -> tuple[str, ...]:
    """What the targets need a memory plan for: cpu, cuda, or both."""
    return tuple(sorted({"cpu" if target == "cpu" else "cuda" for target in targets}))


def plan_memory(
    programs: Programs, stages: tuple[Stage, ...], targets: tuple[str, ...]
) -> PlannedMemory:
    """A memory plan for each family of targets; scratch lies alike in all of them.

    MemoryPlanError where a stage's budget is short: a GPU's, where the plan has GPU targets.
    """
    scratch = {p.name: assign(scratch_lifetimes(p)) for p in programs.programs}
    families = families_of(targets)
    plans = {f: _family_plan(f, programs, stages, scratch) for f in families}
    _check_budgets(plans[families[-1]], stages)
    return PlannedMemory(plans, scratch, programs)


def _family_plan(
    family: str, programs: Programs, stages: tuple[Stage, ...], scratch: Mapping[str, Layout]
) -> MemoryPlan:
    """Every arena of every stage, and its buffers one behind the other."""
    arenas: dict[str, Arena] = {}
    buffers: dict[str, Buffer] = {}
    named = _buffers(programs, family)
    for stage in stages:
        for role in ROLES:
            mine = {n: b for n, b in named.items() if b.arena == f"{stage.index}/{role}"}
            if role == "scratch":
                mine = _scratch_buffer(stage.index, programs, scratch)
            if not mine:
                continue
            layout = stack({name: b.bytes for name, b in mine.items()})
            arena = Arena(stage.index, role, layout.bytes, role in HOST_ROLES)
            arenas[f"{stage.index}/{role}"] = arena
            for name, b in mine.items():
                buffers[name] = replace(b, offset=layout.offsets[name])
    return MemoryPlan(arenas, buffers)


def _buffers(programs: Programs, family: str) -> dict[str, Buffer]:
    """Every buffer that some call names, not yet placed, in the order of first use."""
    found: dict[str, Buffer] = {}
    for operand, arg in _named_operands(programs):
        shape = tuple(operand.count if n == -1 else n for n in arg.shape)
        size = arg_bytes(arg, operand.count, family)
        before = found.get(operand.full_name)
        if before is None or before.bytes < size:  # the table: as long as the longest program's
            found[operand.full_name] = Buffer(
                arena=f"{operand.stage}/{operand.role}",
                offset=0,
                bytes=size,
                dtype=arg.stored if arg.stored and family == "cuda" else arg.dtype,
                shape=shape,
                tensor=operand.tensor.name if operand.tensor else None,
                rotation=operand.rotation,
                file=operand.tensor.file if operand.tensor else "model",
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
            mine = (a for a in plan.arenas.values() if a.stage == stage.index and not a.host)
            parts = ", ".join(f"{a.role} {a.bytes >> 20} MiB" for a in mine)
            on = f" on {stage.device}" if stage.device else ""
            raise MemoryPlanError(
                f"stage {stage.index} (layers {stage.first}-{stage.last}){on} is "
                f"{-(-short >> 20)} MiB short: {parts}; give it fewer layers, fewer slots or a "
                "shorter context",
                device=stage.device or "",
                short_bytes=short,
            )
