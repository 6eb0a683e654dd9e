"""A CUDA device on a fake card: its graphs run the kernels' references on the arenas.

References take float32 matrices and the arenas have them as the file stores them, so the model must
be F32. Bundles are compiled without NVRTC: a cubin that has the entries' names is enough.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import pytest
import torch

from cubin_case import FakeNvrtc, Kernel, make_cubin
from fake_driver import FakeDriver
from fake_streams import Node
from strata_kernels.registry import KERNELS
from strata_kernels.render import Entry
from strata_kernels.spec import Arg
from strata_runtime import cuda_device
from strata_runtime.arenas import DTYPES, on_host
from strata_runtime.bundle_format import Arena, Buffer, Call
from strata_runtime.bundle_load import Bundle, open_draft, open_weights
from strata_runtime.cuda_device import CudaDevice
from strata_runtime.records import decode

#: Names as `Entry` makes them.
_ENTRY = re.compile(r"\b\w+_r\d+_[0-9a-f]{12}\b")


class NamesOnly(FakeNvrtc):
    """Compiles a source to a cubin with its entries and no code."""

    def compile(self, source: str, name: str, arch: str, options: tuple[str, ...] = ()) -> bytes:
        """As Nvrtc's."""
        registers = int(arch.removeprefix("sm_"))  # so that architectures differ
        return make_cubin({entry: Kernel(registers) for entry in _ENTRY.findall(source)})


def without_nvrtc(patch: pytest.MonkeyPatch) -> None:
    """From now on bundles for GPUs have cubins without code."""
    nvrtc = NamesOnly()
    for module in ("compile", "entries"):
        patch.setattr(f"strata_compile.cubins.{module}.compiler_for", lambda arch: nvrtc)


@dataclass(frozen=True)
class _Region:
    """An arena in memory, and the buffers that lie in it."""

    start: int
    memory: torch.Tensor
    buffers: tuple[Buffer, ...]


class FakeCard:
    """A bundle's memory and kernels behind a `FakeDriver`; arguments are found by their address."""

    def __init__(self, bundle: Bundle, seed: int = 0) -> None:
        calls = [call for program in bundle.programs.values() for call in program.calls]
        self._entries = {call.entry: _entry(call) for call in calls}
        self._bundle = bundle
        self._regions: list[_Region] = []
        self._bound: dict[Node, Mapping[str, torch.Tensor]] = {}
        self.driver = FakeDriver(lambda entry: len(self._args(entry)), self.run, seed)

    def insert(self, patch: pytest.MonkeyPatch) -> None:
        """Put the card into the machine, as long as the patch is there."""
        install(patch, self.driver)
        patch.setattr(CudaDevice, "_allocate", lambda device, arena: self.allocate(arena))

    def open(self, patch: pytest.MonkeyPatch) -> CudaDevice:
        """The bundle's device on this card."""
        self.insert(patch)
        folder = self._bundle.folder
        weights, draft = open_weights(self._bundle, folder), open_draft(self._bundle, folder)
        return CudaDevice(self._bundle, weights, draft)

    def allocate(self, arena: Arena) -> torch.Tensor:
        """An arena, on the host."""
        memory, plan = on_host(arena), self._bundle.manifest.memory["cuda"]
        (name,) = [name for name, known in plan.arenas.items() if known == arena]
        buffers = tuple(b for b in plan.buffers.values() if b.arena == name)
        self._regions.append(_Region(memory.data_ptr(), memory, buffers))
        return memory

    def run(self, node: Node) -> None:
        """Run an entry's reference on its arguments."""
        entry = self._entries[node.entry]
        if node not in self._bound:
            g = entry.spec.geometry(entry.params)
            assert (node.grid, node.threads, node.shared) == (g.grid, g.threads, g.shared)
            args = zip(self._args(node.entry), node.pointers, strict=True)
            self._bound[node] = {arg.name: self._tensor(arg, place) for arg, place in args}
        with torch.inference_mode():
            entry.spec.reference(entry.params, self._bound[node])

    def _args(self, entry: str) -> tuple[Arg, ...]:
        return self._entries[entry].spec.args(self._entries[entry].params)

    def _tensor(self, arg: Arg, address: int) -> torch.Tensor:
        """What an argument is: part of one buffer; all of it where the kernel does not know."""
        for region in self._regions:
            at = address - region.start
            for b in region.buffers:
                if b.offset <= at < b.offset + b.bytes:
                    shape = (b.shape[0], *arg.shape[1:]) if arg.shape[0] == -1 else arg.shape
                    dtype = DTYPES[arg.dtype]
                    size = torch.Size(shape).numel() * dtype.itemsize
                    assert at + size <= b.offset + b.bytes, f"{arg.name} leaves its buffer"
                    assert arg.shape[0] != -1 or at == b.offset, f"{arg.name} begins in a buffer"
                    return region.memory[at : at + size].view(dtype).view(shape)
        raise AssertionError(f"{arg.name}: no buffer at {address:#x}")


def _entry(call: Call) -> Entry:
    spec = KERNELS[call.kernel]
    return Entry(spec, decode(spec.params, call.params, call.kernel))


def install(patch: pytest.MonkeyPatch, driver: Any) -> None:
    """Make a driver what `from cuda.bindings import driver` finds, and torch believe in cards."""
    bindings = ModuleType("cuda.bindings")
    bindings.driver = driver  # type: ignore[attr-defined]
    for name, module in (("cuda", ModuleType("cuda")), ("cuda.bindings", bindings)):
        patch.setitem(sys.modules, name, module)
    patch.setitem(sys.modules, "cuda.bindings.driver", driver)
    patch.setattr(cuda_device, "_check_torch", lambda card: None)
    patch.setattr(torch.cuda, "synchronize", lambda card=None: None)
