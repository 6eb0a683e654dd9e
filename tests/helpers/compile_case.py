"""The compiler's passes on tiny models: every result by name, or a bundle."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import ParamSpec, TypeVar, cast

import gguf_maker
from strata_compile.bundle.manifest import Parts
from strata_compile.lower.calls import LoweredProgram, Programs
from strata_compile.lower.facts import Facts
from strata_compile.memory.plan import PlannedMemory
from strata_compile.model.build import build_model
from strata_compile.model.graph import ModelGraph
from strata_compile.passes import PassRunner
from strata_compile.pipeline import CompileOptions, compile_plan
from strata_compile.plan.schema import Plan
from strata_compile.stages.partition import StagedModel
from strata_runtime.bundle_format import Program
from strata_runtime.gguf_file import GgufFile

P = ParamSpec("P")
T = TypeVar("T")

#: The plan's line that every case has; a case adds its own.
HEAD = "model: tiny.gguf\n"


class _Written(Exception):
    """Instead of the bundle: the passes before it have run."""


@dataclass
class _Recorder(PassRunner):
    """Keeps what every pass made, and the arguments of the last two that build on others."""

    results: dict[str, object] = field(default_factory=dict)
    given: dict[str, tuple[object, ...]] = field(default_factory=dict)

    def run_pass(self, name: str, fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """As PassRunner, but writes no bundle."""
        self.given[name] = args
        if name == "bundle":
            raise _Written
        result = super().run_pass(name, fn, *args, **kwargs)
        self.results[name] = result
        return result


@dataclass(frozen=True)
class Passes:
    """What each pass made, by name; `parts` is what the bundle would be written from."""

    plan: Plan
    gguf: GgufFile
    graph: ModelGraph
    staged: StagedModel
    facts: Facts
    programs: Programs
    memory: PlannedMemory
    placed: tuple[Program, ...]
    parts: Parts

    def program(self, name: str) -> LoweredProgram:
        """The program of this name, such as `0.exec.r1`."""
        (found,) = (p for p in self.programs.programs if p.name == name)
        return found


def run_passes(folder: Path, lines: str = "", **tiny: object) -> Passes:
    """All passes but the last for a tiny llama and a plan of HEAD and these lines."""
    plan, recorder = write_case(folder, lines, **tiny), _Recorder()
    try:
        compile_plan(plan, CompileOptions(folder / "unused", folder), recorder)
    except _Written:
        results, given = recorder.results, recorder.given
    return Passes(
        cast(Plan, results["plan"]),
        cast(GgufFile, results["gguf"]),
        cast(ModelGraph, results["model"]),
        cast(StagedModel, results["stages"]),
        cast(Facts, given["programs"][1]),
        cast(Programs, results["programs"]),
        cast(PlannedMemory, results["memory"]),
        cast("tuple[Program, ...]", results["place"]),
        cast(Parts, given["bundle"][0]),
    )


def tiny_graph(folder: Path, **tiny: object) -> ModelGraph:
    """The graph of a tiny llama (`tiny` as for gguf_maker)."""
    write_case(folder, "", **tiny)
    return build_model(GgufFile.open(folder / "tiny.gguf"))


def write_case(folder: Path, lines: str = "", **tiny: object) -> Path:
    """Writes a tiny llama and a plan of HEAD and these lines; returns the plan's path."""
    gguf_maker.write_tiny_llama(folder / "tiny.gguf", **tiny)  # type: ignore[arg-type]
    plan = folder / "plan.yaml"
    plan.write_text(HEAD + lines)
    return plan


def compile_case(plan: Path, bundle: Path, embed: bool = False) -> Path:
    """Compiles a plan into a bundle; returns the bundle."""
    return compile_plan(plan, CompileOptions(bundle, plan.parent, embed), PassRunner())


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below a folder by its path there."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
