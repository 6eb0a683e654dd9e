"""What strata-inspect shows, as tables for people."""

from __future__ import annotations

from itertools import groupby

from rich.console import Group, RenderableType
from rich.table import Table

from strata_compile.debug.costs import CACHED_ROLES, ProgramCost
from strata_compile.debug.describe import Inspection

ANY_DEVICE = "any device"


def tables(found: Inspection) -> RenderableType:
    """The record for people: what it is, stages, memory, programs, kernel calls."""
    return Group(
        _head(found),
        _stage_table(found),
        _memory_table(found),
        _program_table(found),
        _call_table(found),
        *([_resource_table(found)] if found.kernels else []),
        _notes(found),
    )


def printable(text: str) -> str:
    """Text from a file, with a question mark for whatever could steer a terminal."""
    return "".join(c if c.isprintable() else "?" for c in text)


def _table(
    title: str, left: tuple[str, ...], right: tuple[str, ...] = (), *, gap: int = 2
) -> Table:
    """An empty table: columns of words, then columns of numbers, `gap` spaces between them."""
    table = Table(
        title=title, title_justify="left", box=None, pad_edge=False, padding=(0, gap, 0, 0)
    )
    for name in left:
        table.add_column(name, overflow="fold")
    for name in right:
        table.add_column(name, justify="right", overflow="fold")
    return table


def _head(found: Inspection) -> Table:
    model = found.model
    exact = ", ".join(f"{t} {'yes' if yes else 'no'}" for t, yes in found.prompt_exact.items())
    table = _table("", ("", ""))
    table.title, table.show_header = None, False
    for name, text in (
        ("model", f"{model.name} ({model.architecture}, {model.layers} layers)"),
        ("file", model.reference),
        ("SHA-256", model.sha256),
        ("format", f"{found.format}, written by strata-compile {found.compiler}"),
        ("targets", ", ".join(found.targets)),
        ("prompt_exact", exact),
        ("holds", f"{found.slots} slots of {found.slot_context} tokens, {found.groups} groups"),
        ("programs", f"{found.total_programs}, whatever the slots, groups and ring entries"),
    ):
        table.add_row(name, printable(text))
    return table


def _stage_table(found: Inspection) -> Table:
    left, right = ("device", "layers"), ("device bytes", "host bytes", "programs")
    table = _table("\nStages", ("stage", *left), right)
    for s in found.stages:
        layers = f"{s.first_layer}-{s.last_layer}"
        numbers = (f"{s.device_bytes:,}", f"{s.host_bytes:,}", str(s.programs))
        table.add_row(str(s.index), printable(s.device or ANY_DEVICE), layers, *numbers)
    return table


def _memory_table(found: Inspection) -> Table:
    table = _table("\nMemory", ("target", "device", "stages", "arenas"), ("bytes", "MiB"))
    for memory in found.memory:
        where = (memory.target, memory.device or ANY_DEVICE, ", ".join(map(str, memory.stages)))
        sums = {"all on the device": memory.device_bytes, "all on the host": memory.host_bytes}
        for role, size in (*memory.roles.items(), *sums.items()):
            numbers = (f"{size:,}", f"{size / 2**20:,.2f}")
            table.add_row(*map(printable, (*where, role)), *numbers)
            where = ("", "", "")
    return table


def _program_table(found: Inspection) -> Table:
    cells = ("cells\nread", "cells\nwritten")
    columns = ("weights", *cells, "scratch", "other", "total", "floor\nµs")
    title = "\nPrograms, in MB (10^6 bytes)"
    table = _table(title, ("stage", "program"), ("nodes", *columns), gap=1)
    for p in found.programs:
        sizes = (f"{size / 1e6:,.3f}" for size in _program_sizes(p))
        numbers = (str(p.nodes), *sizes, f"{p.floor_us:,.1f}")
        table.add_row(str(p.stage), printable(p.name), *numbers)
    return table


def _program_sizes(program: ProgramCost) -> tuple[int, ...]:
    """Bytes of weights, cells read, cells written, scratch, everything else, and all of it."""
    sums = {role: t.read + t.written for role, t in program.bytes.items()}
    weights, scratch = sums.get("weights", 0), sums.get("scratch", 0)
    cells = program.bytes.get("cells")
    read, written = (cells.read, cells.written) if cells else (0, 0)
    other = program.total_bytes - weights - read - written - scratch
    return weights, read, written, scratch, other, program.total_bytes


def _call_table(found: Inspection) -> Table:
    """Kernel calls by kernel; programs that have the same ones share a line."""
    table = _table("\nKernel calls", ("stage", "programs", "calls"))
    for (stage, kernels), group in groupby(found.programs, lambda p: (p.stage, dict(p.kernels))):
        names = [p.name for p in group]
        span = names[0] if len(names) == 1 else f"{names[0]} - {names[-1]}"
        calls = ", ".join(f"{kernel} {count}" for kernel, count in kernels.items())
        table.add_row(str(stage), printable(span), printable(calls))
    return table


def _resource_table(found: Inspection) -> Table:
    """Kernels on each architecture: the most that one of a kernel's entries takes."""
    columns = ("entries", "registers", "shared\nbytes", "local\nbytes")
    table = _table(
        "\nKernels, the most that an entry takes", ("target", "NVRTC", "kernel"), columns
    )
    for (arch, kernel), group in groupby(found.kernels, lambda k: (k.arch, k.kernel)):
        entries = list(group)
        most = (
            max(k.registers for k in entries),
            max(k.shared_bytes for k in entries),
            max(k.local_bytes for k in entries),
        )
        words = map(printable, (arch, found.nvrtc.get(arch, "?"), kernel))
        table.add_row(*words, str(len(entries)), *map(str, most))
    return table


def _notes(found: Inspection) -> str:
    return (
        f"\nAll rows are live and are the last rows of one slot with {found.context} tokens. Each "
        "buffer counts once a program, scratch as often as it is touched. The floor is the time "
        f"that all but {', '.join(sorted(CACHED_ROLES))} takes at {found.bandwidth_gb_s:.1f} GB/s "
        f"({found.bandwidth_source})."
    )
