"""What each compiled kernel takes of a multiprocessor, read from a bundle's cubins."""

from __future__ import annotations

from dataclasses import dataclass

from strata_compile.cubins.resources import read_resources
from strata_runtime.bundle_load import Bundle
from strata_runtime.errors import BundleError


@dataclass(frozen=True)
class KernelResources:
    """One entry on one architecture: registers a thread, static shared bytes a block, local bytes.

    Local bytes a thread are spilled registers and arrays that are not in registers.
    """

    arch: str
    kernel: str
    entry: str
    unit: str
    registers: int
    shared_bytes: int
    local_bytes: int


def kernel_resources(bundle: Bundle) -> tuple[KernelResources, ...]:
    """Every entry of every unit, by architecture and kernel; BundleError for a cubin without it."""
    kernels = {c.entry: c.kernel for p in bundle.programs.values() for c in p.calls}
    found: list[KernelResources] = []
    for arch in bundle.manifest.nvrtc:
        for unit, record in bundle.manifest.units.items():
            name = f"kernels/{unit}/{arch}.cubin"
            resources = read_resources((bundle.folder / name).read_bytes())
            if missing := set(record.entries) - resources.keys():
                raise BundleError(f"{name}: has no {missing.pop()}; compile again")
            for entry in record.entries:
                r = resources[entry]
                sizes = (r.registers, r.shared_bytes, r.local_bytes)
                found.append(KernelResources(arch, kernels.get(entry, "?"), entry, unit, *sizes))
    return tuple(sorted(found, key=lambda k: (k.arch, k.kernel, k.entry)))
