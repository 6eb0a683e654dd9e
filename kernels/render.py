"""Templates to source: the one jinja environment, and the names of entries.

An entry is one kernel with one set of params. A translation unit holds many: the shared parts
once, then every entry in a namespace of its own. The same templates render for CUDA and, with
another first part, for the emulated block model on a CPU.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from collections.abc import Sequence
from importlib import resources
from typing import Any

import jinja2

from strata_kernels.spec import CHUNK, WARP, Arg, Geometry, KernelSpec
from strata_kernels.table import FLOAT_FIELDS, LAYOUT, ROW_LIMIT

#: Parts that every translation unit begins with, in order; the first one is the target's own.
DEVICE_PARTS = {"cuda": "_device.cuh.j2", "host": "_device_host.h.j2"}
#: What a unit for the host ends with: a function for each entry that runs its whole grid.
HOST_ENTRIES = "_host_entries.h.j2"
SHARED_PARTS = (
    "_table.cuh.j2",
    "_cells.cuh.j2",
    "_dequant.cuh.j2",
    "_pieces.cuh.j2",
    "_product.cuh.j2",
    "_attention.cuh.j2",
)

#: What an argument of each type points to in a kernel; f16 as its bits.
ELEMENTS = {"f32": "float", "f16": "u16", "i32": "i32", "i64": "i64"}


@dataclasses.dataclass(frozen=True)
class HostEntry:
    """An entry's launch on the host: its name, what its arguments point to, its geometry."""

    name: str
    types: tuple[str, ...]
    geometry: Geometry


@dataclasses.dataclass(frozen=True)
class Entry:
    """One kernel with one set of params."""

    spec: KernelSpec[Any]
    params: Any

    @property
    def name(self) -> str:
        """`extern "C"` name: the kernel, its rows where it has them, and a hash of its params."""
        text = json.dumps(dataclasses.asdict(self.params), sort_keys=True)
        digest = hashlib.blake2b(text.encode(), digest_size=6).hexdigest()
        return f"{self.spec.name}_r{self.params.rows}_{digest}"


@functools.cache
def environment() -> jinja2.Environment:
    """Strict: a name that the template misspells is an error. CUDA stays CUDA."""
    env = jinja2.Environment(
        loader=jinja2.FunctionLoader(_source),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    env.globals.update(
        layout=LAYOUT, float_fields=FLOAT_FIELDS, row_limit=ROW_LIMIT, chunk=CHUNK, warp=WARP
    )
    return env


def _source(name: str) -> str | None:
    """A template's text; None where there is none of this name."""
    file = resources.files("strata_kernels.templates").joinpath(name)
    return file.read_text("utf-8") if file.is_file() else None


def render_entry(entry: Entry, target: str) -> str:
    """One entry's own source, without the shared parts; `target` is cuda or host."""
    template = environment().get_template(f"{entry.spec.name}.cu.j2")
    geometry = entry.spec.geometry(entry.params)
    return template.render(p=entry.params, entry=entry.name, geometry=geometry, target=target)


def render_unit(entries: Sequence[Entry], target: str) -> str:
    """A translation unit: device part, shared parts, entries; the same input, the same text."""
    env = environment()
    parts = [env.get_template(DEVICE_PARTS[target]).render(target=target)]
    parts += [env.get_template(part).render(target=target) for part in SHARED_PARTS]
    parts += [render_entry(entry, target) for entry in entries]
    if target == "host":
        parts.append(render_host_entries([host_entry(entry) for entry in entries]))
    return "\n".join(parts)


def element(arg: Arg) -> str:
    """What the argument points to in a kernel: a matrix of the model file is bytes."""
    return "u8" if arg.stored else ELEMENTS[arg.dtype]


def host_entry(entry: Entry) -> HostEntry:
    """The entry's launch, as the host's functions need it."""
    types = tuple(element(arg) for arg in entry.spec.args(entry.params))
    return HostEntry(entry.name, types, entry.spec.geometry(entry.params))


def render_host_entries(entries: Sequence[HostEntry]) -> str:
    """For each entry `int run_NAME(void** args, int order, char* message, int message_size)`."""
    return environment().get_template(HOST_ENTRIES).render(entries=entries)
