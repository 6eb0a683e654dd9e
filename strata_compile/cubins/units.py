"""Programs to translation units: every entry once, with the entries that it runs beside."""

from __future__ import annotations

from dataclasses import dataclass

from strata_compile.lower.calls import LoweredCall, Programs
from strata_kernels.quants import GPU_TYPES
from strata_kernels.render import Entry, render_unit
from strata_runtime.errors import ModelError


@dataclass(frozen=True)
class EntryUnit:
    """Entries that are compiled together, named for the first program that runs them."""

    name: str
    entries: tuple[Entry, ...]

    @property
    def source(self) -> str:
        """The CUDA source."""
        return render_unit(self.entries, "cuda")


@dataclass(frozen=True)
class EntryUnits:
    """All units of a bundle."""

    units: tuple[EntryUnit, ...]

    def verify(self) -> None:
        """No entry stands in two units."""
        names = [entry.name for unit in self.units for entry in unit.entries]
        assert len(names) == len(set(names)), sorted(names)

    def describe(self) -> str:
        """Units with their entries and params."""
        if not self.units:
            return "no GPU among the targets"
        return "\n".join(
            f"{unit.name}\n" + "\n".join(f"  {e.name}  {e.params}" for e in unit.entries)
            for unit in self.units
        )


def plan_units(programs: Programs, targets: tuple[str, ...]) -> EntryUnits:
    """A unit for each (kind, rows), all stages together; none without a GPU among the targets.

    One file of many entries costs little more than one of few: what a compile costs is its start.
    ModelError for a matrix whose type no GPU kernel reads.
    """
    if all(target == "cpu" for target in targets):
        return EntryUnits(())
    seen: set[str] = set()
    units: dict[str, list[Entry]] = {}
    for program in programs.programs:
        unit = units.setdefault(f"{program.kind.name.lower()}.r{program.rows}", [])
        for call in program.calls:
            _check_types(call)
            entry = Entry(call.spec, call.params)
            if entry.name not in seen:
                seen.add(entry.name)
                unit.append(entry)
    return EntryUnits(tuple(EntryUnit(n, tuple(e)) for n, e in units.items() if e))


def _check_types(call: LoweredCall) -> None:
    for arg in call.args:
        if arg.stored is not None and arg.stored not in GPU_TYPES:
            raise ModelError(
                f"a matrix of type {arg.stored} ({call.spec.name}): GPU kernels read "
                f"{', '.join(GPU_TYPES)}; compile for cpu only, or quantise the model otherwise"
            )
