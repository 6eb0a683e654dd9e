"""Everything that strata-inspect shows: one record, and the record as tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby

from rich.console import Group, RenderableType
from rich.table import Table

from strata_compile.debug.costs import CACHED_ROLES, ProgramCost, program_cost
from strata_runtime.bundle_format import Manifest, MemoryPlan
from strata_runtime.bundle_load import Bundle
from strata_runtime.errors import BundleError

#: Tokens per slot that costs are shown for, where the bundle's context has as many.
USUAL_CONTEXT = 1024

ANY_DEVICE = "any device"


@dataclass(frozen=True)
class ModelSummary:
    """The model file: how the plan names it, and what it is."""

    name: str
    reference: str
    architecture: str
    layers: int
    sha256: str


@dataclass(frozen=True)
class StageSummary:
    """A stage: its layers (first and last), its arenas' bytes, how many programs it has."""

    index: int
    device: str | None
    first_layer: int
    last_layer: int
    device_bytes: int
    host_bytes: int
    programs: int


@dataclass(frozen=True)
class DeviceMemory:
    """Bytes by role of all stages that name one device (None: they name none); ring is on host."""

    target: str
    device: str | None
    stages: tuple[int, ...]
    roles: Mapping[str, int]
    device_bytes: int
    host_bytes: int


@dataclass(frozen=True)
class Question:
    """What the costs are for: tokens of a slot, bandwidth in GB/s and where it comes from."""

    context: int
    bandwidth_gb_s: float
    bandwidth_source: str


@dataclass(frozen=True)
class Inspection:
    """A bundle as strata-inspect shows it; `context` is that of the costs.

    `total_programs` depends on neither slots, nor groups, nor ring entries.
    """

    format: int
    compiler: str
    model: ModelSummary
    targets: tuple[str, ...]
    prompt_exact: Mapping[str, bool]
    slots: int
    groups: int
    slot_context: int
    stages: tuple[StageSummary, ...]
    memory: tuple[DeviceMemory, ...]
    total_programs: int
    context: int
    bandwidth_gb_s: float
    bandwidth_source: str
    programs: tuple[ProgramCost, ...]


def inspect_bundle(bundle: Bundle, question: Question) -> Inspection:
    """The record of a bundle; BundleError where its parts do not fit together."""
    manifest = bundle.manifest
    plan = first_memory(manifest)
    _check_stages(bundle)
    costs = tuple(
        program_cost(bundle.programs[stage, name], plan, question.context, question.bandwidth_gb_s)
        for stage, record in enumerate(manifest.stages)
        for name in record.programs
    )
    return Inspection(
        format=manifest.format,
        compiler=manifest.compiler,
        model=_model(manifest),
        targets=manifest.targets,
        prompt_exact=manifest.prompt_exact,
        slots=manifest.shape.slots,
        groups=manifest.shape.groups,
        slot_context=manifest.shape.context,
        stages=_stages(manifest, plan),
        memory=tuple(_devices(manifest)),
        total_programs=len(costs),
        context=question.context,
        bandwidth_gb_s=question.bandwidth_gb_s,
        bandwidth_source=question.bandwidth_source,
        programs=costs,
    )


def first_memory(manifest: Manifest) -> MemoryPlan:
    """The memory plan of the bundle's first target; BundleError where there is none."""
    for target in manifest.targets:
        if target in manifest.memory:
            return manifest.memory[target]
    raise BundleError("the manifest has no memory plan for its targets; compile again")


def _check_stages(bundle: Bundle) -> None:
    """Arenas must belong to stages that exist: the manifest itself carries no hash."""
    count = len(bundle.manifest.stages)
    for target, plan in bundle.manifest.memory.items():
        for name, arena in plan.arenas.items():
            if not 0 <= arena.stage < count:
                raise BundleError(
                    f"memory.{target}: {name} is of stage {arena.stage}, there are {count}; "
                    "compile again"
                )


def _model(manifest: Manifest) -> ModelSummary:
    m = manifest.model
    return ModelSummary(m.name, m.reference, m.architecture, m.layers, m.sha256)


def _stages(manifest: Manifest, plan: MemoryPlan) -> tuple[StageSummary, ...]:
    return tuple(
        StageSummary(
            index=index,
            device=record.device,
            first_layer=record.first_layer,
            last_layer=record.last_layer,
            device_bytes=plan.stage_bytes(index),
            host_bytes=plan.stage_bytes(index, host=True),
            programs=len(record.programs),
        )
        for index, record in enumerate(manifest.stages)
    )


def _devices(manifest: Manifest) -> Iterator[DeviceMemory]:
    for target, plan in manifest.memory.items():
        for device in dict.fromkeys(record.device for record in manifest.stages):
            stages = tuple(i for i, r in enumerate(manifest.stages) if r.device == device)
            roles: Counter[str] = Counter()
            for arena in plan.arenas.values():
                if arena.stage in stages:
                    roles[arena.role] += arena.bytes
            on_device = sum(plan.stage_bytes(stage) for stage in stages)
            on_host = sum(plan.stage_bytes(stage, host=True) for stage in stages)
            yield DeviceMemory(target, device, stages, roles, on_device, on_host)


def tables(found: Inspection) -> RenderableType:
    """The record for people: what it is, stages, memory, programs, kernel calls."""
    return Group(
        _head(found),
        _stage_table(found),
        _memory_table(found),
        _program_table(found),
        _kernel_table(found),
        _notes(found),
    )


def printable(text: str) -> str:
    """Text from a file, with a question mark for whatever could steer a terminal."""
    return "".join(c if c.isprintable() else "?" for c in text)


def _table(
    title: str, left: tuple[str, ...], right: tuple[str, ...] = (), *, gap: int = 2
) -> Table:
    """An empty table: columns of words, then columns of numbers, `gap` spaces between them."""
    table = Table(
        title=title, title_justify="left", box=None, pad_edge=False, padding=(0, gap, 0, 0)
    )
    for name in left:
        table.add_column(name, overflow="fold")
    for name in right:
        table.add_column(name, justify="right", overflow="fold")
    return table


def _head(found: Inspection) -> Table:
    model = found.model
    exact = ", ".join(f"{t} {'yes' if yes else 'no'}" for t, yes in found.prompt_exact.items())
    table = _table("", ("", ""))
    table.title, table.show_header = None, False
    for name, text in (
        ("model", f"{model.name} ({model.architecture}, {model.layers} layers)"),
        ("file", model.reference),
        ("SHA-256", model.sha256),
        ("format", f"{found.format}, written by strata-compile {found.compiler}"),
        ("targets", ", ".join(found.targets)),
        ("prompt_exact", exact),
        ("holds", f"{found.slots} slots of {found.slot_context} tokens, {found.groups} groups"),
        ("programs", f"{found.total_programs}, whatever the slots, groups and ring entries"),
    ):
        table.add_row(name, printable(text))
    return table


def _stage_table(found: Inspection) -> Table:
    left, right = ("device", "layers"), ("device bytes", "host bytes", "programs")
    table = _table("\nStages", ("stage", *left), right)
    for s in found.stages:
        layers = f"{s.first_layer}-{s.last_layer}"
        numbers = (f"{s.device_bytes:,}", f"{s.host_bytes:,}", str(s.programs))
        table.add_row(str(s.index), printable(s.device or ANY_DEVICE), layers, *numbers)
    return table


def _memory_table(found: Inspection) -> Table:
    table = _table("\nMemory", ("target", "device", "stages", "arenas"), ("bytes", "MiB"))
    for memory in found.memory:
        where = (memory.target, memory.device or ANY_DEVICE, ", ".join(map(str, memory.stages)))
        sums = {"all on the device": memory.device_bytes, "all on the host": memory.host_bytes}
        for role, size in (*memory.roles.items(), *sums.items()):
            numbers = (f"{size:,}", f"{size / 2**20:,.2f}")
            table.add_row(*map(printable, (*where, role)), *numbers)
            where = ("", "", "")
    return table


def _program_table(found: Inspection) -> Table:
    cells = ("cells\nread", "cells\nwritten")
    columns = ("weights", *cells, "scratch", "other", "total", "floor\nµs")
    title = "\nPrograms, in MB (10^6 bytes)"
    table = _table(title, ("stage", "program"), ("nodes", *columns), gap=1)
    for p in found.programs:
        sizes = (f"{size / 1e6:,.3f}" for size in _program_sizes(p))
        numbers = (str(p.nodes), *sizes, f"{p.floor_us:,.1f}")
        table.add_row(str(p.stage), printable(p.name), *numbers)
    return table


def _program_sizes(program: ProgramCost) -> tuple[int, ...]:
    """Bytes of weights, cells read, cells written, scratch, everything else, and all of it."""
    sums = {role: t.read + t.written for role, t in program.bytes.items()}
    weights, scratch = sums.get("weights", 0), sums.get("scratch", 0)
    cells = program.bytes.get("cells")
    read, written = (cells.read, cells.written) if cells else (0, 0)
    other = program.total_bytes - weights - read - written - scratch
    return weights, read, written, scratch, other, program.total_bytes


def _kernel_table(found: Inspection) -> Table:
    """Kernel calls by kernel; programs that have the same ones share a line."""
    table = _table("\nKernel calls", ("stage", "programs", "calls"))
    for (stage, kernels), group in groupby(found.programs, lambda p: (p.stage, dict(p.kernels))):
        names = [p.name for p in group]
        span = names[0] if len(names) == 1 else f"{names[0]} - {names[-1]}"
        calls = ", ".join(f"{kernel} {count}" for kernel, count in kernels.items())
        table.add_row(str(stage), printable(span), printable(calls))
    return table


def _notes(found: Inspection) -> str:
    return (
        f"\nAll rows are live and are the last rows of one slot with {found.context} tokens. Each "
        "buffer counts once a program, scratch as often as it is touched. The floor is the time "
        f"that all but {', '.join(sorted(CACHED_ROLES))} takes at {found.bandwidth_gb_s:.1f} GB/s "
        f"({found.bandwidth_source})."
    )
