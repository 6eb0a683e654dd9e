"""Units to cubins for every GPU among the targets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from strata_compile.cubins.cache import CubinCache
from strata_compile.cubins.compile import Unit, compile_units
from strata_compile.cubins.nvrtc import compiler_for
from strata_compile.cubins.resources import read_resources
from strata_compile.cubins.units import EntryUnits


@dataclass(frozen=True)
class Cubins:
    """Sources and cubins: by (unit, architecture); `nvrtc` is each architecture's version."""

    units: EntryUnits
    sources: Mapping[str, str]
    cubins: Mapping[tuple[str, str], bytes]
    nvrtc: Mapping[str, str]

    def verify(self) -> None:
        """Every cubin holds every entry of its unit."""
        for unit in self.units.units:
            wanted = {entry.name for entry in unit.entries}
            for arch in self.nvrtc:
                found = read_resources(self.cubins[unit.name, arch])
                assert wanted <= found.keys(), f"{unit.name}, {arch}: {wanted - found.keys()}"

    def describe(self) -> str:
        """Registers, shared and local bytes of every entry on every architecture."""
        if not self.cubins:
            return "no GPU among the targets"
        return "\n".join(
            f"{arch:7} {name:44} {r.registers:4d} registers {r.shared_bytes:6d} shared "
            f"{r.local_bytes:6d} local"
            for (_, arch), cubin in self.cubins.items()
            for name, r in read_resources(cubin).items()
        )


def compile_entries(units: EntryUnits, targets: tuple[str, ...], cache: CubinCache) -> Cubins:
    """Compile what the cache does not hold; KernelCompileError with the log and the source."""
    archs = tuple(target for target in targets if target != "cpu")
    sources = {unit.name: unit.source for unit in units.units}
    todo = [Unit(name, source) for name, source in sources.items()]
    cubins = compile_units(todo, archs, cache)
    versions = {arch: ".".join(map(str, compiler_for(arch).version)) for arch in archs}
    return Cubins(units, sources, cubins, versions)
