"""The manifest of a bundle, but for the hashes of its files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from strata_compile import __version__
from strata_compile.cubins.entries import Cubins
from strata_compile.dataflow.graph import Dataflow
from strata_compile.lower.facts import Facts
from strata_compile.model.graph import ModelInfo
from strata_compile.plan.schema import Plan
from strata_compile.stages.partition import Stage
from strata_kernels.table import FLOAT_FIELDS, LAYOUT, ROW_LIMIT, Kind
from strata_runtime.bundle_format import (
    FORMAT_VERSION,
    DraftRecord,
    Layout,
    Manifest,
    MemoryPlan,
    ModelRecord,
    Program,
    StageRecord,
    Unit,
)
from strata_runtime.gguf_file import GgufFile


@dataclass(frozen=True)
class Parts:
    """Everything that the passes before have made."""

    plan: Plan
    gguf: GgufFile
    draft: GgufFile | None
    info: ModelInfo
    facts: Facts
    stages: tuple[Stage, ...]
    memory: Mapping[str, MemoryPlan]
    programs: tuple[Program, ...]
    dataflow: Dataflow
    cubins: Cubins


def manifest_of(parts: Parts, embedded: bool, files: Mapping[str, str]) -> Manifest:
    """The manifest; `files` are the bundle's other files with their SHA-256."""
    facts = parts.facts
    return Manifest(
        format=FORMAT_VERSION,
        compiler=__version__,
        plan=parts.plan.to_json(),
        model=_model(parts, embedded),
        draft=_draft(parts),
        targets=parts.plan.targets,
        units={u.name: Unit(tuple(e.name for e in u.entries)) for u in parts.cubins.units.units},
        nvrtc=parts.cubins.nvrtc,
        prompt_exact=dict.fromkeys(parts.memory, True),
        shape=facts.shape,
        table=_layout(),
        partition=parts.plan.partition,
        stages=tuple(_stage(s, parts.programs) for s in parts.stages),
        memory=parts.memory,
        files=files,
    )


def _layout() -> Layout:
    return Layout(
        kinds=tuple(kind.name.lower() for kind in Kind),
        header=LAYOUT.header,
        segment=LAYOUT.segment,
        row=LAYOUT.row,
        floats=tuple(sorted(FLOAT_FIELDS)),
        row_limit=ROW_LIMIT,
    )


def _stage(stage: Stage, programs: tuple[Program, ...]) -> StageRecord:
    names = tuple(p.name for p in programs if p.stage == stage.index)
    return StageRecord(stage.device, stage.first, stage.last, names)


def _draft(parts: Parts) -> DraftRecord | None:
    reference = parts.plan.draft.model
    if parts.draft is None or reference is None:
        return None
    path, digest = parts.draft.path, parts.draft.sha256()
    return DraftRecord(reference, str(path.resolve()), digest, path.stat().st_size)


def _model(parts: Parts, embedded: bool) -> ModelRecord:
    return ModelRecord(
        reference=parts.plan.model,
        path=str(parts.gguf.path.resolve()),
        sha256=parts.gguf.sha256(),
        bytes=parts.gguf.path.stat().st_size,
        embedded=embedded,
        name=parts.info.name,
        architecture=parts.info.architecture,
        layers=parts.info.layers,
        vocab=parts.info.vocab,
        context=parts.info.context,
    )
