"""Params for every kernel, small and with awkward widths; tests run over all of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from strata_kernels import (
    attention,
    attention_merge,
    concat,
    copy_cells,
    copy_state,
    draft_back,
    draft_first,
    draft_pick,
    embed,
    gated,
    handoff_read,
    handoff_write,
    hidden_store,
    linear,
    linears,
    logits_hash,
    rmsnorm,
    rope_store,
    sample,
    store_tokens,
    swiglu,
    take_table,
    verdict,
)
from strata_kernels.registry import KERNELS
from strata_kernels.spec import Arg, KernelSpec
from strata_kernels.table import LAYOUT, ROW_LIMIT, Ints, TableView

CHUNKS = 4  #: of 64 cells in every example

_ATTENTION = (
    attention.Params(ROW_LIMIT, 4, 2, 12, "f32", CHUNKS),
    attention.Params(ROW_LIMIT, 3, 1, 16, "f16", CHUNKS),
)

#: Kernel name to its examples; `rows` is replaced by the tests.
EXAMPLES: dict[str, tuple[Any, ...]] = {
    "take_table": (take_table.Params(ROW_LIMIT, 4, LAYOUT.words(40)),),
    "embed": (embed.Params(ROW_LIMIT, 133, 48, "f32"),),
    "handoff_read": (handoff_read.Params(ROW_LIMIT, 45),),
    "rmsnorm": (rmsnorm.Params(ROW_LIMIT, 48, 1e-5), rmsnorm.Params(ROW_LIMIT, 133, 1e-5)),
    "linear": (
        linear.Params(ROW_LIMIT, 48, 133, "f32"),
        linear.Params(ROW_LIMIT, 133, 48, "f32", bias=True),
        linear.Params(ROW_LIMIT, 80, 48, "f32", residual=True),
        linear.Params(ROW_LIMIT, 48, 36, "f32", bias=True, residual=True),
        linear.Params(ROW_LIMIT, 576, 192, "f32"),
    ),
    "linears": (
        linears.Params(ROW_LIMIT, 48, (linears.Part(133, "F32"), linears.Part(36, "F32", True))),
        linears.Params(ROW_LIMIT, 133, tuple(linears.Part(n, "F32") for n in (48, 13, 13))),
    ),
    "gated": (gated.Params(ROW_LIMIT, 48, 80, "F32", "F32"),),
    "rope_store": (
        rope_store.Params(ROW_LIMIT, 4, 2, 12, 12, True, "f32", CHUNKS),
        rope_store.Params(ROW_LIMIT, 3, 3, 16, 10, False, "f16", CHUNKS),
    ),
    "attention": _ATTENTION,
    "attention_merge": (attention_merge.Params(ROW_LIMIT, 4, 12, CHUNKS),),
    "prompt_attention": _ATTENTION,
    "swiglu": (swiglu.Params(ROW_LIMIT, 80), swiglu.Params(ROW_LIMIT, 133)),
    "handoff_write": (handoff_write.Params(ROW_LIMIT, 45),),
    "store_tokens": (store_tokens.Params(ROW_LIMIT, CHUNKS),),
    "logits_hash": (logits_hash.Params(ROW_LIMIT, 133), logits_hash.Params(ROW_LIMIT, 8200)),
    "sample": (sample.Params(ROW_LIMIT, 133, CHUNKS),),
    "verdict": (verdict.Params(ROW_LIMIT, 1), verdict.Params(ROW_LIMIT, 3)),
    "hidden_store": (hidden_store.Params(ROW_LIMIT, 45, CHUNKS),),
    "hidden_load": (hidden_store.Params(ROW_LIMIT, 45, CHUNKS),),
    "concat": (concat.Params(ROW_LIMIT, 45, 36),),
    "draft_back": (draft_back.Params(ROW_LIMIT),),
    "draft_first": (draft_first.Params(ROW_LIMIT),),
    "draft_pick": (
        draft_pick.Params(ROW_LIMIT, 133, 1, 0.0, 64 * CHUNKS),
        draft_pick.Params(ROW_LIMIT, 36, 2, 0.15, 200),
    ),
    "copy_cells": (
        copy_cells.Params(ROW_LIMIT, "f16", CHUNKS, 2, 12),
        copy_cells.Params(ROW_LIMIT, "i32", CHUNKS, 1, 1),
    ),
    "copy_state": (
        copy_state.Params(ROW_LIMIT, "f32", 300),
        copy_state.Params(ROW_LIMIT, "f16", 45),
    ),
}

#: Kernels of windows: what they write is a segment's, not a row's.
OF_SEGMENTS = ("verdict", "draft_first", "draft_pick")
#: Kernels whose results are not a row's own values: tables, or what is a segment's.
NOT_OF_ROWS = ("take_table", "draft_back", "copy_state", *OF_SEGMENTS)
#: Row fields that a drafter's step looks at; the others of its tables mean nothing.
STEP_FIELDS = ("slot", "position", "token", "first_row", "index")

#: Every (kernel name, params), with a readable id each.
ALL = [(name, params) for name, examples in EXAMPLES.items() for params in examples]
IDS = [f"{name}-{EXAMPLES[name].index(params)}" for name, params in ALL]


def with_rows(params: Any, rows: int) -> Any:
    """The same kernel for a program of another size."""
    return dataclasses.replace(params, rows=rows)


def is_table(arg: Arg, params: Any) -> bool:
    """Is it a launch's table, or one that the kernel makes?"""
    return arg.shape == (LAYOUT.words(params.rows),)


def row_args(name: str, params: Any) -> dict[str, Arg]:
    """Arguments whose first axis is the program's rows: its length follows them."""
    spec: KernelSpec[Any] = KERNELS[name]
    sized = with_rows(params, ROW_LIMIT)
    one, two = (
        {a.name: a for a in spec.args(with_rows(params, n))} for n in (ROW_LIMIT, 2 * ROW_LIMIT)
    )
    rows = {n: a for n, a in one.items() if a.shape != two[n].shape}
    return {n: a for n, a in rows.items() if not is_table(a, sized)}


def sizes(name: str, rows: Sequence[int]) -> list[int]:
    """Those of `rows` that the kernel is for: verdicts and drafts are of a window."""
    return [n for n in rows if name not in OF_SEGMENTS or n <= ROW_LIMIT]


def suited(name: str, words: Ints, rows: int) -> Ints:
    """The table as the kernel may get it.

    Random verdicts accept up to two drafts: `draft_first` needs that many rows. The tables of
    drafting steps have one row for each segment, at the segment's own number.
    """
    table = TableView(words, rows)
    first, depth = table.segment("first_row"), table.segment("depth")
    if name in ("draft_first", "draft_pick"):
        depth[:] = [1 + s % 3 if at + 2 < rows else 0 for s, at in enumerate(first)]
    if name == "draft_pick":
        for field in LAYOUT.row:
            table.row(field)[: len(first)] = table.row(field)[first]
        table.row("slot")[len(first) :] = -1
    return words


def table_meaning(words: Ints, rows: int) -> list[list[int]]:
    """What a drafter's table says: the words that steps look at, and zeros for inert rows."""
    table = TableView(words, rows)
    live = table.row("slot") >= 0
    header = [table.header(name) for name in LAYOUT.header]
    segments = [table.segment(name).tolist() for name in LAYOUT.segment]
    return [header, *segments, *((table.row(name) * live).tolist() for name in STEP_FIELDS)]
