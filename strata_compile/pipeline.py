"""plan.yaml to bundle, pass by pass: read this first."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from strata_compile.bundle.manifest import Parts
from strata_compile.bundle.write import write_bundle
from strata_compile.cubins.cache import CubinCache
from strata_compile.cubins.entries import compile_entries
from strata_compile.cubins.units import plan_units
from strata_compile.dataflow.record import record_dataflow
from strata_compile.lower.facts import facts_of
from strata_compile.lower.programs import lower
from strata_compile.memory.place import place_programs
from strata_compile.memory.plan import plan_memory
from strata_compile.model.build import build_model
from strata_compile.model.companion import check_companion
from strata_compile.model.graph import ModelGraph
from strata_compile.model.nextn import build_drafter
from strata_compile.model.tensors import TensorReader
from strata_compile.passes import PassRunner
from strata_compile.plan.check import check_draft
from strata_compile.plan.loader import load_plan
from strata_compile.plan.schema import Plan
from strata_compile.stages.partition import partition
from strata_runtime.gguf_file import GgufFile
from strata_runtime.model_source import find_model

#: The passes, in order; `--until` takes one of them.
PASSES = (
    *("plan", "gguf", "model", "drafter", "stages", "programs", "dataflow"),
    *("memory", "place", "units", "cubins", "bundle"),
)


@dataclass(frozen=True)
class CompileOptions:
    """Where the bundle goes, whether it holds the weights, and where models are cached."""

    bundle: Path
    cache: Path
    embed_weights: bool = False
    no_compile: bool = False

    @property
    def cubins(self) -> CubinCache:
        """Where compiled kernels are kept."""
        return CubinCache(self.cache, self.no_compile)


def compile_plan(path: Path, options: CompileOptions, runner: PassRunner) -> Path:
    """Compile a plan; returns the bundle's folder. StrataError where an input is at fault."""
    run = runner.run_pass
    plan = run("plan", load_plan, path)
    gguf = run("gguf", open_model, plan, options.cache)
    graph = run("model", build_model, gguf)
    facts = facts_of(plan, graph.info)
    draft = open_draft(plan, gguf, options.cache)
    drafter = run("drafter", drafter_of, plan, gguf, draft, graph)
    staged = run("stages", partition, plan, graph, drafter)
    programs = run("programs", lower, staged, facts)
    dataflow = run("dataflow", record_dataflow, facts.shape, programs.commits)
    memory = run("memory", plan_memory, programs, staged.stages, plan.targets)
    placed = run("place", place_programs, memory)
    units = run("units", plan_units, programs, plan.targets)
    cubins = run("cubins", compile_entries, units, plan.targets, options.cubins)
    made = (memory.plans, placed, dataflow, cubins)
    parts = Parts(plan, gguf, draft, graph.info, facts, staged.stages, *made)
    return run("bundle", write_bundle, parts, options.bundle, options.embed_weights)


def drafter_of(
    plan: Plan, gguf: GgufFile, draft: GgufFile | None, graph: ModelGraph
) -> ModelGraph | None:
    """The drafter's graph, where the plan's drafter is a layer: in a file of its own, or `gguf`."""
    if plan.draft.kind != "mtp":
        return None
    info, vocab = graph.info, plan.draft.vocab
    if draft is not None:
        check_draft(plan, vocab=info.vocab, nextn_layers=None)
        check_companion(draft, gguf, graph)
        return build_drafter(TensorReader(draft, info.architecture), graph, vocab)
    reader = TensorReader(gguf, info.architecture)
    check_draft(plan, vocab=info.vocab, nextn_layers=reader.nextn_layers)
    return build_drafter(reader, graph, vocab, file="model")


def open_draft(plan: Plan, gguf: GgufFile, cache: Path) -> GgufFile | None:
    """The drafter's file with its header checked; None where the plan names none but `gguf`."""
    if plan.draft.model is None:
        return None
    draft = GgufFile.open(find_model(plan.draft.model, plan.source.parent, cache))
    return None if draft.path.samefile(gguf.path) else draft


def open_model(plan: Plan, cache: Path) -> GgufFile:
    """The plan's model file with its header checked."""
    return GgufFile.open(find_model(plan.model, plan.source.parent, cache))
