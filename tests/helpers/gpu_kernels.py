"""Entries as cubins, run one at a time through the driver; arguments lie between guard bands.

With `emulated_card` the same code runs on this machine: its kernels are the emulated templates.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from emulation import ALIGNMENT, ASCENDING, BAND, library_of
from entry_units import entry_named, unit_of
from fake_card import install, without_nvrtc
from fake_driver import PLAIN_SHARED, FakeDriver
from fake_streams import Node
from gpu_bundle import architecture
from strata_compile.cubins.cache import CubinCache
from strata_compile.cubins.compile import Unit, compile_units
from strata_kernels.render import Entry, render_unit
from strata_runtime.cuda_driver import Driver

Bytes = npt.NDArray[np.uint8]
#: Entries of a unit: a core compiles one unit at a time.
FEW = 8
#: A test's parameter for a real card.
GPU = pytest.param("gpu", marks=pytest.mark.gpu)


class GpuKernels:
    """Implements `Elsewhere`; compiles what it is asked for with what it is compiled with."""

    def __init__(self, arch: str, cache: Path, device: str = "cuda") -> None:
        """A stream in the primary context of the first card, which torch uses too."""
        self._arch, self._cache, self._device = arch, CubinCache(cache), device
        call = self._driver = Driver()
        self._context = call("cuDevicePrimaryCtxRetain", call("cuDeviceGet", 0))
        call("cuCtxSetCurrent", self._context)
        flags = call.api.CUstream_flags.CU_STREAM_NON_BLOCKING
        self._stream = call("cuStreamCreateWithPriority", flags, 0)
        self._functions: dict[str, Any] = {}
        self._memory = torch.empty(0, dtype=torch.uint8, device=device)

    def compile(self, entries: Sequence[Entry]) -> None:
        """Compile and load those that are not there yet, a few a unit, side by side."""
        fresh = [entry for entry in entries if entry.name not in self._functions]
        units = [fresh[i : i + FEW] for i in range(0, len(fresh), FEW)]
        sources = [Unit(str(i), render_unit(unit, "cuda")) for i, unit in enumerate(units)]
        cubins = compile_units(sources, (self._arch,), self._cache)
        for source, unit in zip(sources, units, strict=True):
            cubin = cubins[source.name, self._arch]
            library = self._driver("cuLibraryLoadData", cubin, [], [], 0, [], [], 0)
            for entry in unit:
                self._functions[entry.name] = self._function(library, entry)

    def _function(self, library: Any, entry: Entry) -> Any:
        kernel = self._driver("cuLibraryGetKernel", library, entry.name.encode())
        function, shared = self._driver("cuKernelGetFunction", kernel), _shared(entry)
        if shared > PLAIN_SHARED:
            attributes = self._driver.api.CUfunction_attribute
            most = attributes.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            self._driver("cuFuncSetAttribute", function, most, shared)
        return function

    def run(self, entry: Entry, values: Sequence[torch.Tensor], band: bytes) -> None:
        """Run an entry; AssertionError for a byte that was written outside of every argument."""
        self._driver("cuCtxSetCurrent", self._context)
        if entry.name not in self._functions:
            self.compile(unit_of(entry))
        places, size = _places(values)
        before = np.resize(np.frombuffer(band, np.uint8), size)
        for value, place in zip(values, places, strict=True):
            before[place] = _raw(value)
        if len(self._memory) < size:
            self._memory = torch.empty(size, dtype=torch.uint8, device=self._device)
        self._memory[:size].copy_(torch.from_numpy(before))
        self._launch(entry, [self._memory.data_ptr() + place.start for place in places])
        after = self._memory[:size].cpu().numpy()
        self._check_bands(entry, places, before, after)
        for value, place in zip(values, places, strict=True):
            found = torch.from_numpy(after[place].copy())
            value.copy_(found.view(value.dtype).view(value.shape))

    def _launch(self, entry: Entry, addresses: Sequence[int]) -> None:
        g = entry.spec.geometry(entry.params)
        pointers = np.array(addresses, np.uint64)
        where = pointers.ctypes.data + 8 * np.arange(len(pointers))
        torch.cuda.synchronize()
        shape = (*g.grid, g.threads, 1, 1, g.shared, self._stream)
        arguments = (where.astype(np.uint64), 0)
        function = self._functions[entry.name]
        self._driver("cuLaunchKernel", function, *shape, arguments[0].ctypes.data, 0)
        self._driver("cuStreamSynchronize", self._stream)

    def _check_bands(
        self, entry: Entry, places: Sequence[slice], before: Bytes, after: Bytes
    ) -> None:
        """Everything between the arguments is what it was."""
        ends = [0, *(place.stop for place in places)]
        starts = [*(place.start for place in places), len(before)]
        for i, (start, end) in enumerate(zip(ends, starts, strict=True)):
            changed = np.flatnonzero(before[start:end] != after[start:end])
            if len(changed):
                at = f"{changed[0]} bytes behind argument {i - 1}"
                raise AssertionError(f"{entry.name}: wrote {len(changed)} bytes, {at}")


def _shared(entry: Entry) -> int:
    return entry.spec.geometry(entry.params).shared


def _places(values: Sequence[torch.Tensor]) -> tuple[list[slice], int]:
    """Where each argument lies, behind a band and aligned; and the size of all."""
    places, at = [], BAND
    for value in values:
        at = -(-at // ALIGNMENT) * ALIGNMENT
        places.append(slice(at, at + value.numel() * value.itemsize))
        at = places[-1].stop + BAND
    return places, at


def _raw(value: torch.Tensor) -> Bytes:
    raw: Bytes = value.contiguous().reshape(-1).view(torch.uint8).numpy()
    return raw


@contextmanager
def emulated_card(folder: Path) -> Iterator[GpuKernels]:
    """Kernels behind a fake driver, which are the templates under the emulated block model."""

    def arguments(name: str) -> int:
        entry = entry_named(name)
        return len(entry.spec.args(entry.params))

    def run(node: Node) -> None:
        library_of(entry_named(node.entry)).call(node.entry, node.pointers, ASCENDING)

    with pytest.MonkeyPatch.context() as patch:
        without_nvrtc(patch)
        install(patch, FakeDriver(arguments, run))
        yield GpuKernels("sm_90", folder, device="cpu")


@contextmanager
def kernels_on(place: str, cache: Path, folder: Path) -> Iterator[GpuKernels]:
    """Kernels on a "gpu", whose cubins are kept in `cache`, or "emulated"."""
    if place == "gpu":
        yield GpuKernels(architecture(), cache)
    else:
        with emulated_card(folder) as kernels:
            yield kernels
