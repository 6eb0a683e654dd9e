"""Every kernel with every sort of params, table and weights: what a GPU is compared on."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from emulation import compare, reference
from kernel_case import Segment, make_table, random_table
from kernel_examples import ALL, CHUNKS, OF_SEGMENTS, suited, with_rows
from strata_kernels.draft_first import DRAFT_WORDS
from strata_kernels.quants import BLOCKS
from strata_kernels.registry import KERNELS
from strata_kernels.render import Entry
from strata_kernels.spec import CHUNK
from strata_kernels.table import ROW_LIMIT, Ints, TableView
from template_case import bound, tables

#: Of a row's largest magnitude: sums in another order, another exp. All others have equal bits.
TOLERANCES = {
    **dict.fromkeys(("linear", "linears", "gated", "rmsnorm", "swiglu"), 4e-6),
    **dict.fromkeys(("attention", "attention_merge", "prompt_attention"), 3e-6),
}
#: Histories of one cell, and around the edges of chunks, to the last cell that there is.
LENGTHS = (1, 2, 63, 64, 65, 127, 128, 129, 192, 193, 255, 256)
SLOTS = 4  #: of a table of `edges`


def typed(params: Any, kind: str, inner: int | None = None) -> Any:
    """The params with matrices of a type, and of a width that is whole blocks of it."""
    changes: dict[str, Any] = {}
    for field in dataclasses.fields(params):
        value = getattr(params, field.name)
        if field.name in ("weight_type", "gate_type", "up_type"):
            changes[field.name] = kind
        elif field.name in ("inner", "width") and inner is not None:
            changes[field.name] = inner
        elif isinstance(value, tuple) and value and dataclasses.is_dataclass(value[0]):
            changes[field.name] = tuple(typed(part, kind) for part in value)
    return dataclasses.replace(params, **changes)


def has_matrices(name: str, params: Any) -> bool:
    """Does the kernel read matrices as the file stores them?"""
    return any(arg.stored for arg in KERNELS[name].args(params))


#: Every example, as a GPU may have it.
EXAMPLES = [(name, typed(params, "F32")) for name, params in ALL]
#: The first example of each kernel with matrices.
WITH_MATRICES = {name: params for name, params in reversed(EXAMPLES) if has_matrices(name, params)}


def of_type(name: str, kind: str) -> Any:
    """An example whose matrices have more than one block a row."""
    return typed(WITH_MATRICES[name], kind, {1: 133, 32: 96, 256: 512}[BLOCKS[kind].weights])


def entry_of(name: str, params: Any, rows: int) -> Entry:
    """The kernel for a program of so many rows."""
    return Entry(KERNELS[name], with_rows(params, rows))


def edges(rows: int) -> Iterator[Ints]:
    """Tables whose segments end at all LENGTHS: of four slots in a window, of one in a prompt."""
    if rows > ROW_LIMIT:
        for start in (0, 50, CHUNKS * CHUNK - rows):
            yield make_table(rows, [_segment(2, start, rows)])
        return
    slots = min(rows, SLOTS)
    for at in range(0, len(LENGTHS), slots):
        ends, count = LENGTHS[at : at + slots], rows // slots
        starts = [max(0, end - count) for end in ends]
        yield make_table(rows, [_segment(s, start, count) for s, start in enumerate(starts)])


def _segment(slot: int, start: int, count: int) -> Segment:
    """What it copies from is no slot of the table's."""
    tokens = [(start + i) % 3 for i in range(count)]
    return Segment(slot, start, tokens, fields={"state_in": slot + SLOTS})


def tables_of(entry: Entry) -> list[Ints]:
    """What the entry is compared on: inert rows, no row, edges, random rows."""
    name, rows, rng = entry.spec.name, entry.params.rows, np.random.default_rng(entry.params.rows)
    found = [*tables(rows), *edges(rows)]
    found += [random_table(rng, rows, CHUNKS * CHUNK - 1, 3) for _ in range(2)]
    return [suited(name, words, rows) for words in found]


def check(entry: Entry, most: int | None = None) -> int:
    """Compare on all tables, or the `most` first; returns how many results are not zero."""
    table = "table" in {a.name for a in entry.spec.args(entry.params) if a.reads}
    choices = tables_of(entry)[:most] if table else [None]
    return sum(check_once(entry, words, seed) for seed, words in enumerate(choices))


def check_once(entry: Entry, table: Ints | None, seed: int) -> int:
    """Compare with the reference; returns how many elements of what it wrote are not zero."""
    values = _fitting(entry, bound(entry, table, seed))
    tolerance = TOLERANCES.get(entry.spec.name, 0.0)
    ignore = _ignored(entry, values)
    compare(entry, values, tolerance=tolerance, ignore=ignore)
    wanted = reference(entry, values)
    changed = [
        wanted[a.name][wanted[a.name] != values[a.name]]
        for a in entry.spec.args(entry.params)
        if a.writes
    ]
    return sum(int(new.count_nonzero()) for new in changed)


def _fitting(entry: Entry, values: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Random arguments where any will do, and others where they mean something."""
    if entry.spec.name == "attention_merge":  # sums of weights are positive
        values["partials"][..., -2] = values["partials"][..., -2].abs() + 0.5
    if entry.spec.name == "verdict":  # rows that a program lacks have no hash
        values["hashes"][entry.params.rows :] = 0
    if entry.spec.name == "copy_cells" and entry.params.cell_type == "i32":  # no two alike
        cells = values["cells"]
        values["cells"] = torch.arange(1, cells.numel() + 1, dtype=cells.dtype).view(cells.shape)
    if "counter" in values:
        values["counter"] = torch.tensor([7], dtype=torch.int32)
    return values


def _ignored(entry: Entry, values: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Elements that may hold anything, or something close."""
    name, rows = entry.spec.name, entry.params.rows
    if name == "attention":  # chunks past a row's position
        mask = torch.ones(values["partials"].shape, dtype=torch.bool)
        table = TableView(values["table"].numpy(), rows)
        for row in np.flatnonzero(table.row("slot") >= 0).tolist():
            mask[row, : int(table.row("position")[row]) // CHUNK + 1] = False
        return {"partials": mask}
    if name == "draft_pick":  # a probability, whose last bits are exp's
        words = torch.zeros(values["drafts"].shape, dtype=torch.bool)
        assert words.shape[-1] == DRAFT_WORDS
        words[:, :, 2 * entry.params.step] = True
        return {"drafts": words}
    return {}


__all__ = ["EXAMPLES", "OF_SEGMENTS", "WITH_MATRICES", "check", "entry_of", "of_type"]
