"""draft_pick: one step's drafts, and the table of the step behind it.

The draft is the arg max; its probability is that of a softmax over the drafter's own vocabulary.
The chain of a segment ends where that falls below `min_p` (that draft is dropped), at the depth
that the segment wants, and at the context's last position.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from strata_kernels.draft_first import DRAFT_WORDS
from strata_kernels.lazy import torch
from strata_kernels.spec import (
    THREADS,
    Arg,
    Bound,
    Geometry,
    KernelSpec,
    Region,
    padded,
    read,
    table_arg,
    write,
)
from strata_kernels.table import LAYOUT, ROW_LIMIT, TableView


@dataclass(frozen=True)
class Params:
    """Rows; the drafter's vocabulary; which draft of the chain this is, from 1; `min_p`.

    `context` is the number of positions that a slot has.
    """

    rows: int
    vocab: int
    step: int
    min_p: float
    context: int


def args(p: Params) -> tuple[Arg, ...]:
    """The step's table and logits (rows, vocab), the drafts so far, and the next step's table."""
    drafts = (-1, ROW_LIMIT, DRAFT_WORDS)
    region = Region.CONTEXT
    return (
        table_arg(p.rows),
        read("logits", padded(p.rows), p.vocab),
        Arg("drafts", "i32", drafts, reads=region, writes=region),
        write("out", LAYOUT.words(p.rows), dtype="i32"),
    )


def geometry(p: Params) -> Geometry:
    """A block for each segment."""
    return Geometry((p.rows, 1, 1), THREADS)


def reference(p: Params, bound: Bound) -> None:
    """drafts[context, s] gets the token and its probability; the next row stands behind it."""
    table = TableView(bound["table"].numpy(), p.rows)
    out = bound["out"].copy_(bound["table"])
    after = TableView(out.numpy(), p.rows)
    drafts = bound["drafts"][table.header("context")].numpy()
    logits = bound["logits"]
    top = logits.amax(-1, keepdim=True)
    probability = (1 / torch.exp(logits - top).sum(-1)).numpy()
    tokens = torch.argmax(logits, -1).numpy()
    depth = table.segment("depth")
    for s in np.flatnonzero(table.row("slot") >= 0).tolist():
        position = int(table.row("position")[s]) + 1
        kept = probability[s] >= p.min_p and np.isfinite(probability[s])
        if kept:
            drafts[s, 0] = p.step
            drafts[s, 2 * p.step - 1] = tokens[s]
            drafts[s, 2 * p.step] = np.float32(probability[s]).view(np.int32)
        goes_on = kept and p.step < depth[s] and position + 1 < p.context
        after.row("slot")[s] = table.row("slot")[s] if goes_on else -1
        after.row("position")[s] = position
        after.row("token")[s] = tokens[s]


SPEC = KernelSpec("draft_pick", Params, args, geometry, reference)
