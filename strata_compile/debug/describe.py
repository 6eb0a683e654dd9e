"""Everything that strata-inspect shows, as one record."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from strata_compile.debug.costs import ProgramCost, program_cost
from strata_compile.debug.kernels import KernelResources, kernel_resources
from strata_runtime.bundle_format import Manifest, MemoryPlan
from strata_runtime.bundle_load import Bundle
from strata_runtime.errors import BundleError

#: Tokens per slot that costs are shown for, where the bundle's context has as many.
USUAL_CONTEXT = 1024


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
    """Bytes by role of all stages that name one device (None: they name none).

    Ring and answers are on the host.
    """

    target: str
    device: str | None
    stages: tuple[int, ...]
    roles: Mapping[str, int]
    device_bytes: int
    host_bytes: int


@dataclass(frozen=True)
class Question:
    """What the costs are for: the target, tokens of a slot, bandwidth in GB/s and its origin."""

    target: str
    context: int
    bandwidth_gb_s: float
    bandwidth_source: str


@dataclass(frozen=True)
class Inspection:
    """A bundle as strata-inspect shows it; `target` and `context` are those of the costs.

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
    target: str
    context: int
    bandwidth_gb_s: float
    bandwidth_source: str
    programs: tuple[ProgramCost, ...]
    nvrtc: Mapping[str, str]
    kernels: tuple[KernelResources, ...]


def inspect_bundle(bundle: Bundle, question: Question) -> Inspection:
    """The record of a bundle; BundleError where its parts do not fit together."""
    manifest = bundle.manifest
    plan = memory_of(manifest, question.target)
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
        target=question.target,
        context=question.context,
        bandwidth_gb_s=question.bandwidth_gb_s,
        bandwidth_source=question.bandwidth_source,
        programs=costs,
        nvrtc=manifest.nvrtc,
        kernels=kernel_resources(bundle),
    )


def memory_of(manifest: Manifest, target: str) -> MemoryPlan:
    """The memory plan of a target; BundleError where there is none."""
    family = "cpu" if target == "cpu" else "cuda"
    if target not in manifest.targets or family not in manifest.memory:
        raise BundleError(f"the manifest has no memory plan for {target}; compile again")
    return manifest.memory[family]


def _check_stages(bundle: Bundle) -> None:
    """Arenas must belong to stages that exist."""
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
