"""Params for every kernel, small and with awkward widths; tests run over all of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from strata_kernels import (
    attention,
    attention_merge,
    copy_cells,
    embed,
    handoff_read,
    handoff_write,
    linear,
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
from strata_kernels.table import LAYOUT, ROW_LIMIT

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
    "logits_hash": (logits_hash.Params(ROW_LIMIT, 133),),
    "sample": (sample.Params(ROW_LIMIT, 133, CHUNKS),),
    "verdict": (verdict.Params(ROW_LIMIT),),
    "copy_cells": (
        copy_cells.Params(ROW_LIMIT, "f16", CHUNKS, 2, 12),
        copy_cells.Params(ROW_LIMIT, "i32", CHUNKS, 1, 1),
    ),
}

#: Every (kernel name, params), with a readable id each.
ALL = [(name, params) for name, examples in EXAMPLES.items() for params in examples]
IDS = [f"{name}-{EXAMPLES[name].index(params)}" for name, params in ALL]


def with_rows(params: Any, rows: int) -> Any:
    """The same kernel for a program of another size."""
    return dataclasses.replace(params, rows=rows)


def row_args(name: str, params: Any) -> dict[str, Arg]:
    """Arguments whose first axis is the program's rows: its length follows them."""
    spec: KernelSpec[Any] = KERNELS[name]
    one, two = (
        {a.name: a for a in spec.args(with_rows(params, n))} for n in (ROW_LIMIT, 2 * ROW_LIMIT)
    )
    rows = {n: a for n, a in one.items() if a.shape != two[n].shape}
    return {n: a for n, a in rows.items() if n != "table"}


def sizes(name: str, rows: Sequence[int]) -> list[int]:
    """Those of `rows` that the kernel is for: a verdict is of a window."""
    return [n for n in rows if name != "verdict" or n <= ROW_LIMIT]
