"""Kernel templates on a CPU: compiled by the host compiler, run, and compared with the reference.

`templates/_device_host.h.j2` says how threads take turns. One run at a time in a process. The same
comparisons can be made on a GPU: `entry_units.on`.
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType
from gguf.quants import dequantize

from entry_units import elsewhere, unit_of
from entry_units import prepare as prepare
from strata_kernels.regions import touched
from strata_kernels.render import (
    DEVICE_PARTS,
    Entry,
    HostEntry,
    environment,
    render_host_entries,
    render_unit,
)
from strata_kernels.spec import Arg, Region, padded
from strata_kernels.table import LAYOUT, ROW_LIMIT, TableView

Tensors = Mapping[str, torch.Tensor]

DTYPES = {"f32": torch.float32, "f16": torch.float16, "i32": torch.int32, "i64": torch.int64}
#: Integers of the size of an element: what is compared where bits must be equal.
BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
FLAGS = (
    *("-std=c++17", "-O1", "-fPIC", "-shared", "-ffp-contract=off"),
    *("-U_FORTIFY_SOURCE", "-fstack-clash-protection"),  # jumps between stacks; guard pages work
)
ASCENDING, DESCENDING = 0, 1
ORDERS = (ASCENDING, DESCENDING)
BAND, ALIGNMENT, MESSAGE_SIZE = 16384, 256, 1024
#: Bytes around every buffer: NaN as float32, float16 and bfloat16, and nothing that kernels write.
BAND_BYTES = b"\xa5\xff"
#: Bytes that outputs hold before a run; one pattern alone could be a result.
PATTERNS = (0xFF, 0x5A)
#: Order, pattern, and whether everything outside the declared reads is poisoned as well.
RUNS = ((ASCENDING, 0xFF, False), (DESCENDING, 0x5A, False), (DESCENDING, 0xFF, True))


class EmulationFault(Exception):
    """A kernel did what no kernel may do, or does not compile."""


def compiler() -> str | None:
    """The host's C++ compiler: $CXX, g++ or clang++; None where there is none."""
    if sys.platform == "win32":  # fibers rest on ucontext
        return None
    for name in (os.environ.get("CXX", ""), "g++", "clang++"):
        if name and shutil.which(shlex.split(name)[0]):
            return name
    return None


needs_compiler = pytest.mark.skipif(
    compiler() is None, reason="needs a C++ compiler on this machine: $CXX, g++ or clang++"
)


@functools.cache
def _command() -> tuple[str, ...]:
    """The compiler's command without files; -mfma makes `std::fma` one instruction."""
    name = compiler()
    assert name, "a test without needs_compiler"
    info = Path("/proc/cpuinfo")
    x86 = platform.machine() == "x86_64" and info.exists()
    fused = ("-mfma",) if x86 and " fma " in info.read_text("utf-8") else ()
    return (*shlex.split(name), *FLAGS, *fused)


@functools.cache
def _version() -> str:
    """The compiler's own description of itself: part of the cache's key."""
    command = [*shlex.split(compiler() or ""), "--version"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def _folder() -> Path:
    """Beside what pytest itself keeps, so that `pytest --cache-clear` empties it."""
    folder = Path(__file__).parents[2] / ".pytest_cache" / "d" / "emulation"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def build(source: str) -> Path:
    """The shared library of a source; compiled where the cache has none, safe side by side."""
    key = "\0".join((source, *_command(), _version()))
    path = _folder() / f"{hashlib.blake2b(key.encode(), digest_size=16).hexdigest()}.so"
    if path.exists():
        return path
    text, own = path.with_suffix(".cpp"), path.with_suffix(f".{os.getpid()}.so")
    own_text = path.with_suffix(f".{os.getpid()}.cpp")
    own_text.write_text(source, "utf-8")
    os.replace(own_text, text)
    done = subprocess.run(
        [*_command(), str(text), "-o", str(own)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise EmulationFault(f"{text} does not compile:\n{done.stderr}")
    os.replace(own, path)
    return path


class Library:
    """A compiled source with some entries."""

    def __init__(self, source: str) -> None:
        """Compile `source` or take it from the cache; EmulationFault with the log."""
        self.path = build(source)
        self._functions = ctypes.CDLL(str(self.path))

    def run(
        self, name: str, values: Sequence[torch.Tensor], order: int, band: bytes = BAND_BYTES
    ) -> None:
        """Run an entry's grid; `values` are its arguments, and hold the results afterwards.

        EmulationFault for a fault, and for a byte that was written outside of every argument.
        """
        buffers = [_Guarded(value, band) for value in values]
        self.call(name, [buffer.address for buffer in buffers], order)
        for i, buffer in enumerate(buffers):
            if place := buffer.damage():
                raise EmulationFault(f"{name}: argument {i} was written {place}")
        for value, buffer in zip(values, buffers, strict=True):
            value.copy_(buffer.content(value))

    def call(self, name: str, addresses: Sequence[int], order: int) -> None:
        """Run an entry's grid on arguments in memory; EmulationFault for a fault."""
        function = getattr(self._functions, f"run_{name}")
        pointers = (ctypes.c_void_p * len(addresses))(*addresses)
        message = ctypes.create_string_buffer(MESSAGE_SIZE)
        if function(pointers, ctypes.c_int(order), message, ctypes.c_int(MESSAGE_SIZE)):
            text = message.value.decode()
            raise EmulationFault(f"{name}: {text} ({self.path.with_suffix('.cpp')})")


class _Guarded:
    """A copy of a tensor's bytes between two guard bands."""

    def __init__(self, value: torch.Tensor, band: bytes) -> None:
        raw = _raw(value)
        pattern = np.frombuffer(band * (BAND // len(band)), np.uint8)
        store = np.empty(len(raw) + 2 * BAND + ALIGNMENT, np.uint8)
        start = BAND + (-store.ctypes.data - BAND) % ALIGNMENT
        self.address = store.ctypes.data + start
        self._pattern = pattern
        self._before = store[start - BAND : start]
        self._inside = store[start : start + len(raw)]
        self._behind = store[start + len(raw) : start + len(raw) + BAND]
        self._before[:] = self._behind[:] = pattern
        self._inside[:] = raw

    def damage(self) -> str | None:
        """Where the bands were written, at the place next to the buffer."""
        behind = np.flatnonzero(self._behind != self._pattern)
        if len(behind):
            return f"{behind[0]} bytes behind its {len(self._inside)} bytes"
        before = np.flatnonzero(self._before != self._pattern)
        return f"{BAND - before[-1]} bytes before its start" if len(before) else None

    def content(self, like: torch.Tensor) -> torch.Tensor:
        """The tensor's bytes as they are now."""
        return torch.from_numpy(self._inside.copy()).view(like.dtype).view(like.shape)


def _raw(value: torch.Tensor) -> np.typing.NDArray[np.uint8]:
    return value.contiguous().reshape(-1).view(torch.uint8).numpy()


def assemble(text: str, entries: Sequence[HostEntry], parts: Sequence[str] = ()) -> Library:
    """Kernels that a test has as text, behind the device part and the named shared `parts`."""
    heads = [environment().get_template(n).render() for n in (DEVICE_PARTS["host"], *parts)]
    return Library("\n".join([*heads, text, render_host_entries(entries)]))


_LIBRARIES: dict[str, Library] = {}


def library_of(entry: Entry) -> Library:
    """The compiled unit of an entry."""
    if entry.name not in _LIBRARIES:
        unit = unit_of(entry)
        _LIBRARIES.update(dict.fromkeys((e.name for e in unit), Library(render_unit(unit, "host"))))
    return _LIBRARIES[entry.name]


def run(
    entry: Entry,
    bound: Tensors,
    order: int,
    library: Library | None = None,
    band: bytes = BAND_BYTES,
) -> None:
    """Run a template; `bound` has every argument, matrices with `stored` as uint8.

    `library` stands for the entry's own source where it was changed. Raises EmulationFault. A GPU
    has no order.
    """
    args = entry.spec.args(entry.params)
    for arg in args:
        wanted = torch.uint8 if arg.stored else DTYPES[arg.dtype]
        assert bound[arg.name].dtype == wanted, f"{arg.name} is {bound[arg.name].dtype}"
    values = [bound[arg.name] for arg in args]
    gpu = elsewhere()
    if gpu is None:
        (library or library_of(entry)).run(entry.name, values, order, band)
    elif library is None:
        gpu.run(entry, values, band)
    else:
        pytest.skip("a changed source is not compiled for GPUs")


# ---- against the reference


@dataclasses.dataclass(frozen=True)
class _Argument:
    """An argument with its value before the launch, and what the template may read and write."""

    arg: Arg
    value: torch.Tensor
    reads: torch.Tensor
    writes: torch.Tensor

    def start(self, pattern: int, poisoned: bool) -> torch.Tensor:
        """The value, with poison where it is only written, or wherever it is not read."""
        raw = torch.full((self.value.numel() * self.value.itemsize,), pattern, dtype=torch.uint8)
        poison = raw.view(self.value.dtype).view(self.value.shape)
        output = self.writes if self.arg.reads else torch.tensor(True)
        where = ~self.reads if poisoned else ~self.reads & output
        return torch.where(where, poison, self.value)


def _arguments(entry: Entry, bound: Tensors) -> dict[str, _Argument]:
    """Every argument; rows that only the reference pads to are neither read nor written."""
    rows = entry.params.rows
    args = {a.name: a for a in entry.spec.args(entry.params)}
    more = dataclasses.replace(entry.params, rows=rows + ROW_LIMIT)
    other = {a.name: a.shape for a in entry.spec.args(more)}
    has_table = "table" in args and args["table"].reads is not None
    words = bound["table"].numpy() if has_table else np.zeros(LAYOUT.words(rows), np.int32)
    table = TableView(words, rows)
    counter = int(bound["counter"][0]) if "counter" in args else 0

    def mask(arg: Arg, region: Region | None) -> torch.Tensor:
        shape = tuple(bound[arg.name].shape)
        found = np.zeros(shape, np.bool_)
        if region is not None:
            found = touched(region, shape, table, counter)
        if arg.shape[0] == padded(rows) and other[arg.name] != arg.shape:
            found[rows:] = False
        return torch.from_numpy(found)

    return {
        name: _Argument(arg, bound[name], mask(arg, arg.reads), mask(arg, arg.writes))
        for name, arg in args.items()
    }


def dequantised(arg: Arg, raw: torch.Tensor) -> torch.Tensor:
    """What the reference gets for a matrix: its bytes as float32, shape as declared."""
    assert arg.stored
    values = dequantize(raw.numpy(), GGMLQuantizationType[arg.stored.upper()])
    return torch.from_numpy(np.ascontiguousarray(values)).view(arg.shape)


def reference(entry: Entry, bound: Tensors) -> dict[str, torch.Tensor]:
    """The reference's arguments after a run on a copy of `bound`; matrices as float32."""
    args = entry.spec.args(entry.params)
    own = {
        a.name: dequantised(a, bound[a.name]) if a.stored else bound[a.name].clone() for a in args
    }
    with torch.inference_mode():
        entry.spec.reference(entry.params, own)
    return own


def compare(
    entry: Entry,
    bound: Tensors,
    *,
    tolerance: float = 0.0,
    ignore: Tensors | None = None,
    library: Library | None = None,
) -> dict[str, torch.Tensor]:
    """Run a template in both orders, and demand that it does what its declaration says.

    What the reference writes for the program's rows is written, and close: floats differ by at
    most `tolerance` of the largest magnitude of their last axis (0: equal bits), integers not at
    all. It has the same bits in both orders, whatever outputs held before and whatever stands
    outside the declared reads. Everything outside the declared writes keeps its bytes. `ignore`
    masks elements of outputs that may hold anything. Returns the arguments after the first run.
    """
    arguments = _arguments(entry, bound)
    expected, required = _expected(entry, arguments, ignore or {})
    results: list[dict[str, torch.Tensor]] = []
    for order, pattern, poisoned in RUNS:
        start = {n: a.start(pattern, poisoned) for n, a in arguments.items()}
        found = {n: value.clone() for n, value in start.items()}
        run(entry, found, order, library, BAND_BYTES if pattern == PATTERNS[0] else b"\x5a")
        results.append(found)
        for name, argument in arguments.items():
            what = f"{entry.name}: {name}, order {order}, pattern {pattern:#x}, {poisoned=}"
            need = required[name]
            same = _bits(found[name]) == _bits(start[name])
            _demand(same | argument.writes, found[name], start[name], f"{what}: was written")
            if argument.arg.writes:
                near = _close(found[name], expected[name], need, tolerance)
                _demand(near | ~need, found[name], expected[name], f"{what}: is not close")
                same = _bits(found[name]) == _bits(results[0][name])
                _demand(same | ~need, found[name], results[0][name], f"{what}: other bits")
    return results[0]


def _expected(
    entry: Entry, arguments: Mapping[str, _Argument], ignore: Tensors
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """The reference's results, and masks of the elements that the template must write."""
    starts = [{n: a.start(p, False) for n, a in arguments.items()} for p in PATTERNS]
    ends = [reference(entry, start) for start in starts]
    required = {}
    for name, a in arguments.items():
        need = a.reads & a.writes
        if a.arg.writes:
            for start, end in zip(starts, ends, strict=True):
                need = need | (_bits(start[name]) != _bits(end[name]))
        skipped = ignore.get(name, torch.zeros_like(need))
        required[name] = need & a.writes & ~skipped
    return ends[0], required


def _bits(value: torch.Tensor) -> torch.Tensor:
    return value.view(BITS[value.itemsize])


def _close(
    found: torch.Tensor, expected: torch.Tensor, need: torch.Tensor, tolerance: float
) -> torch.Tensor:
    """A mask of the elements that are close enough."""
    if not tolerance or not found.dtype.is_floating_point:
        return _bits(found) == _bits(expected)
    a, b = found.double(), expected.double()
    scale = torch.where(need & b.isfinite(), b.abs(), 0.0).amax(-1, keepdim=True)
    return ((a - b).abs() <= tolerance * scale) | (a == b) | (a.isnan() & b.isnan())


def _demand(good: torch.Tensor, found: torch.Tensor, expected: torch.Tensor, what: str) -> None:
    """AssertionError that names the first bad element."""
    if bool(good.all()):
        return
    bad = torch.nonzero(~good)
    at = tuple(bad[0].tolist())
    raise AssertionError(f"{what} at {at} ({len(bad)} in all): {found[at]}, not {expected[at]}")
