"""What a kernel declares: its params, its arguments, what it reads and writes, its reference."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar

from strata_kernels.lazy import torch
from strata_kernels.table import LAYOUT, ROW_LIMIT

#: Cells that stand together, and the length of one chunk of attention.
CHUNK = 64

#: Threads of a warp, and of a plain block.
WARP, THREADS = 32, 256


class Region(Enum):
    """Which part of a buffer an access touches, as a function of the table."""

    WHOLE = "whole"  # all of it
    RING_ENTRY = "ring entry"  # the entry that the stage's counter names
    TOKEN = "token"  # row `token` of each live row
    POSITION = "position"  # row `position` of each live row
    HANDOFF = "hand-off row"  # row `handoff_row` of each live row
    CELL = "cell"  # (slot, position) of each live row
    HISTORY = "history"  # (slot, 0..position) of each live row
    SOURCE_CELL = "source cell"  # (state_in, position) of each live row
    SAVED = "saved row"  # row `saved_row` of each live row
    STATE_IN = "state in"  # entry `state_in` of each segment that does not begin at position 0
    STATE_OUT = "state out"  # entry `state_out` of each segment
    SOURCE_STATE = "source state"  # entry `state_in` of each segment, wherever it begins
    CONTEXT = "context"  # entry `context`
    MASK = "mask"  # entry `mask` of each live row that has one
    BIAS = "bias"  # entry `bias` of each live row that has one


@dataclass(frozen=True)
class Arg:
    """One argument of a kernel: a buffer, its type and shape, and how it is accessed.

    `shape` may begin with -1: as many as the buffer holds, so that neither slots nor contexts are
    part of a kernel. A kernel that reads and writes one buffer does so element by element.
    `stored` is a matrix's type in the model file: a GPU has it as it is stored, the CPU device as
    float32. A program of fewer rows than `padded` gives it computes the first of them on a GPU.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    reads: Region | None = None
    writes: Region | None = None
    stored: str | None = None


@dataclass(frozen=True)
class Geometry:
    """How a kernel is launched: blocks in x, y, z, threads in a block, dynamic shared bytes."""

    grid: tuple[int, int, int]
    threads: int
    shared: int = 0


P = TypeVar("P")

#: Argument name to the tensor that is bound to it.
Bound = Mapping[str, "torch.Tensor"]


@dataclass(frozen=True)
class KernelSpec(Generic[P]):
    """One kernel: the frozen dataclass of its params, its arguments, its launch, its meaning.

    Its template is `templates/<name>.cu.j2`.
    """

    name: str
    params: type[P]
    args: Callable[[P], tuple[Arg, ...]]
    geometry: Callable[[P], Geometry]
    reference: Callable[[P, Bound], None]


def padded(rows: int) -> int:
    """Rows that a reference computes for a program of `rows` rows."""
    return -(-rows // ROW_LIMIT) * ROW_LIMIT


def table_arg(rows: int) -> Arg:
    """The argument through which a kernel of `rows` rows reads its launch."""
    return Arg("table", "i32", (LAYOUT.words(rows),), reads=Region.WHOLE)


def read(name: str, *shape: int, dtype: str = "f32", region: Region = Region.WHOLE) -> Arg:
    """An argument that is only read."""
    return Arg(name, dtype, shape, reads=region)


def matrix(name: str, stored: str, *shape: int, region: Region = Region.WHOLE) -> Arg:
    """A matrix of the model file, which is only read."""
    return Arg(name, "f32", shape, reads=region, stored=stored)


def write(name: str, *shape: int, dtype: str = "f32", region: Region = Region.WHOLE) -> Arg:
    """An argument that is only written."""
    return Arg(name, dtype, shape, writes=region)
