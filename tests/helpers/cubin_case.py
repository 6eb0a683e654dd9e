"""Sources to compile, a compiler that needs no NVRTC, and ELF files written by hand."""

from __future__ import annotations

import struct
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest

from strata_compile.cubins.nvrtc import Nvrtc
from strata_compile.errors import KernelCompileError

ARCHS = ("sm_70", "sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120")

#: Shared memory, a barrier and shuffles; 128 bytes of shared memory.
SUM = """
extern "C" __global__ void sum(const float* x, float* y, int n) {
  __shared__ float part[32];
  float s = 0.0f;
  for (int i = threadIdx.x; i < n; i += blockDim.x) s += x[i];
  for (int o = 16; o; o >>= 1) s += __shfl_xor_sync(0xffffffffu, s, o);
  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = s;
  __syncthreads();
  if (threadIdx.x == 0) for (int i = 0; i < blockDim.x / 32; i++) y[0] += part[i];
}
"""

#: 96 values that live at once, in at most 64 registers.
SPILL = """
extern "C" __global__ void __launch_bounds__(1024) spill(volatile float* x) {
  float a[96];
#pragma unroll
  for (int i = 0; i < 96; i++) a[i] = x[i * 1024 + threadIdx.x];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 96; i++) x[i * 1024 + threadIdx.x] = a[95 - i] * a[(i * 7) % 96];
}
"""


def needs_nvrtc(*majors: int) -> pytest.MarkDecorator:
    """Skips a test where one of these versions is not installed."""
    missing = [str(major) for major in majors if Nvrtc.load(major) is None]
    return pytest.mark.skipif(bool(missing), reason=f"NVRTC {' and '.join(missing)}: not installed")


@dataclass
class FakeNvrtc:
    """Compiles anything: the cubin is the request. A source with `!` in it has an error."""

    version: tuple[int, int] = (13, 5)
    build: str = "13.5.1"
    supported: frozenset[int] = frozenset({75, 86, 90})
    meet: threading.Barrier | None = None
    compiled: list[tuple[str, str, tuple[str, ...]]] = field(default_factory=list)

    def compile(self, source: str, name: str, arch: str, options: tuple[str, ...] = ()) -> bytes:
        """As Nvrtc's."""
        self.compiled.append((source, arch, options))
        if self.meet:
            self.meet.wait(20)
        if "!" in source:
            log = f"a warning\n{name}(1): error: `!`\n1 error detected"
            raise KernelCompileError(f"{name}(1): error: `!`", log=log)
        return repr((source, name, arch, options, self.build)).encode()


@dataclass(frozen=True)
class Kernel:
    """What a hand-made cubin says of one function; None leaves the attribute out."""

    registers: int | None = 8
    frame: int | None = 0
    stack: int | None = 0
    shared: int | None = None
    entry: bool = True


class _Strings:
    def __init__(self) -> None:
        self.data = b"\0"

    def add(self, text: str) -> int:
        self.data += text.encode() + b"\0"
        return len(self.data) - len(text) - 1


def make_cubin(kernels: Mapping[str, Kernel], system_shared: bool = False) -> bytes:
    """An ELF file with these functions and no code."""
    names, strings = _Strings(), _Strings()
    symbols, info = [struct.pack("<IBBHQQ", 0, 0, 0, 0, 0, 0)], [struct.pack("<BBH", 3, 0x50, 7)]
    sections: list[tuple[str, int, bytes, int, int]] = []  # name, type, content, bytes, link
    for index, (name, kernel) in enumerate(kernels.items(), 1):
        flags = 0x10 if kernel.entry else 0
        symbols.append(struct.pack("<IBBHQQ", strings.add(name), 0x12, flags, 9, 0, 128))
        said = {0x2F: kernel.registers, 0x11: kernel.frame, 0x12: kernel.stack, 0x23: 1}
        info += [
            struct.pack("<BBHII", 4, attribute, 8, index, value)
            for attribute, value in said.items()
            if value is not None
        ]
        if kernel.shared is not None:
            sections.append((f".nv.shared.{name}", 8, b"", kernel.shared, 0))
    if system_shared:
        sections.append((".nv.shared.reserved.0", 8, b"", 64, 0))
    texts = [(".shstrtab", 3), (".strtab", 3), (".symtab", 2), (".nv.info", 0x70000000)]
    parts = [b"", strings.data, b"".join(symbols), b"".join(info)]
    head = [
        (name, kind, data, len(data), 2) for (name, kind), data in zip(texts, parts, strict=True)
    ]
    return _elf([("", 0, b"", 0, 0), *head, *sections], names)


def _elf(sections: list[tuple[str, int, bytes, int, int]], names: _Strings) -> bytes:
    """Header, contents, then the table of sections; section 1 gets the sections' names."""
    places = [names.add(name) for name, *_ in sections]
    body, rows = b"", []
    for index, (place, (_, kind, content, size, link)) in enumerate(
        zip(places, sections, strict=True)
    ):
        data = names.data if index == 1 else content
        size = len(data) if index == 1 else size
        offset = 64 + len(body)
        rows.append(struct.pack("<IIQQQQIIQQ", place, kind, 0, 0, offset, size, link, 0, 1, 0))
        body += data
    mark = b"\x7fELF\x02\x01\x01\x41\x08".ljust(16, b"\0")
    counts = (64, 0, 0, 64, len(rows), 1)
    table = 64 + len(body)
    header = struct.pack("<16sHHIQQQIHHHHHH", mark, 2, 190, 1, 0, 0, table, 0, *counts)
    return header + body + b"".join(rows)
