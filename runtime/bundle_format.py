"""What a bundle holds, as records: the manifest, the memory plan, the programs.

The runtime owns the format, since it is the side that must stay thin; the compiler writes it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from strata_runtime.records import encode

#: Raised whenever a reader of the previous format would misread a bundle.
FORMAT_VERSION = 2

#: Buffers start at multiples of this many bytes: the widest load, and one DRAM burst of a GPU.
ALIGNMENT = 256

MANIFEST = "manifest.json"
DATAFLOW = "dataflow.json"
EMBEDDED_MODEL, EMBEDDED_DRAFT = "model.gguf", "draft.gguf"


@dataclass(frozen=True)
class Rotation:
    """A buffer filled with cos and sin of position · frequency: (positions, dims / 2, 2).

    frequency_i = scale · base^(-2i / dims) / factor_i; `factors` names a tensor, if any.
    """

    base: float
    dims: int
    scale: float
    factors: str | None


@dataclass(frozen=True)
class Buffer:
    """A named range of an arena; `tensor` or `rotation` says what fills it at load.

    A tensor is in the model file, or, where `file` is `draft`, in the drafter's.
    """

    arena: str
    offset: int
    bytes: int
    dtype: str
    shape: tuple[int, ...]
    tensor: str | None
    rotation: Rotation | None
    file: str = "model"


@dataclass(frozen=True)
class Arena:
    """One allocation, made once at load; `host` memory is pinned, the rest is the stage's device.

    `role` is what it is for: weights, cells, states, contexts, tables, scratch, answers or ring.
    """

    stage: int
    role: str
    bytes: int
    host: bool


@dataclass(frozen=True)
class MemoryPlan:
    """Arenas and buffers by name; a buffer's name begins with its stage: `0/cells.k.3`."""

    arenas: Mapping[str, Arena]
    buffers: Mapping[str, Buffer]

    def stage_bytes(self, stage: int, host: bool = False) -> int:
        """Bytes of one stage's arenas, on its device or in pinned host memory."""
        return sum(a.bytes for a in self.arenas.values() if (a.stage, a.host) == (stage, host))


@dataclass(frozen=True)
class Argument:
    """One argument of a kernel call: where it lies, and which part of it the call touches.

    `stored` is a matrix's type in the model file: a GPU has it so, the CPU device as `dtype`.
    """

    buffer: str
    offset: int
    dtype: str
    shape: tuple[int, ...]
    reads: str | None
    writes: str | None
    stored: str | None = None


@dataclass(frozen=True)
class Call:
    """One kernel call of a program; `entry` is the kernel with these params in the cubins.

    `args` are in the kernel's order. A GPU launches `grid` blocks (x, y, z) of `threads` threads,
    each with `shared` bytes beyond those that the kernel declares.
    """

    kernel: str
    entry: str
    params: Mapping[str, Any]
    grid: tuple[int, int, int]
    threads: int
    shared: int
    args: Mapping[str, Argument]


@dataclass(frozen=True)
class Program:
    """An ordered list of kernel calls with static shapes; one CUDA graph."""

    stage: int
    kind: str
    rows: int
    calls: tuple[Call, ...]

    @property
    def name(self) -> str:
        """`<kind>.r<rows>`: the name within its stage."""
        return f"{self.kind}.r{self.rows}"

    @property
    def table_rows(self) -> int:
        """Rows of its table: a draft program's `rows` are its steps, for a window of any width."""
        return int(self.calls[0].params["rows"])


@dataclass(frozen=True)
class StageRecord:
    """A contiguous range of layers (first and last) on one device, and its programs' names."""

    device: str | None
    first_layer: int
    last_layer: int
    programs: tuple[str, ...]


@dataclass(frozen=True)
class ModelRecord:
    """The model file: how the plan names it, where it was, and what it must be."""

    reference: str
    path: str
    sha256: str
    bytes: int
    embedded: bool
    name: str
    architecture: str
    layers: int
    vocab: int
    context: int


@dataclass(frozen=True)
class DraftRecord:
    """The drafter's own file: how the plan names it, where it was, and what it must be.

    A drafter that is in the model file has no record.
    """

    reference: str
    path: str
    sha256: str
    bytes: int


@dataclass(frozen=True)
class Layout:
    """Field names of the table's parts, in order; `floats` are stored as their bits.

    A kind is stored as its index in `kinds`.
    """

    kinds: tuple[str, ...]
    header: tuple[str, ...]
    segment: tuple[str, ...]
    row: tuple[str, ...]
    floats: tuple[str, ...]
    row_limit: int


@dataclass(frozen=True)
class Shape:
    """How much of everything there is: what the scheduler needs to know of a bundle.

    `drafter` proposes up to `draft_depth` tokens behind a slot's real token; with `draft_auto` the
    scheduler chooses how many.
    """

    slots: int
    groups: int
    context: int
    row_limit: int
    prompt_sizes: tuple[int, ...]
    prompt_contexts: int
    max_gap_ms: float
    ring_entries: int
    drafter: str = "none"
    draft_depth: int = 0
    draft_auto: bool = False


@dataclass(frozen=True)
class Unit:
    """A translation unit: its entries by name; `kernels/<unit>/<arch>.cubin` holds them all."""

    entries: tuple[str, ...]


@dataclass(frozen=True)
class Manifest:
    """The manifest; `files` maps every other file of the bundle to its SHA-256.

    `nvrtc` is the version that compiled each architecture's cubins. With `partition` sms, stages
    that share a card share out its multiprocessors.

    `digest` is the SHA-256 of the manifest itself, written with an empty digest.
    """

    format: int
    compiler: str
    plan: Mapping[str, Any]
    model: ModelRecord
    draft: DraftRecord | None
    targets: tuple[str, ...]
    units: Mapping[str, Unit]
    nvrtc: Mapping[str, str]
    prompt_exact: Mapping[str, bool]
    shape: Shape
    table: Layout
    partition: str
    stages: tuple[StageRecord, ...]
    memory: Mapping[str, MemoryPlan]
    files: Mapping[str, str]
    digest: str = ""

    def text(self) -> str:
        """The manifest as it is written."""
        return json.dumps(encode(self), indent=1)

    def own_digest(self) -> str:
        """What `digest` must be."""
        return hashlib.sha256(replace(self, digest="").text().encode()).hexdigest()
