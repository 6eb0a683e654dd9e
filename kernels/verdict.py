"""verdict: how many drafts of each segment are accepted, and the token drawn after them."""

from __future__ import annotations

from dataclasses import dataclass

from strata_kernels.arithmetic import view
from strata_kernels.lazy import torch
from strata_kernels.spec import (
    WARP,
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
from strata_kernels.table import ROW_LIMIT

#: Words of one line: accepted and token of segment i, then the hash of row i, low and high.
WORDS = 4


@dataclass(frozen=True)
class Params:
    """`rows` of the window; parts of a row's hash."""

    rows: int
    parts: int


def args(p: Params) -> tuple[Arg, ...]:
    """Each row's drawn token and parts of its hash, and the verdict words of all contexts."""
    return (
        table_arg(p.rows),
        read("draws", padded(p.rows), dtype="i32"),
        read("hashes", padded(p.rows), p.parts, dtype="i64"),
        write("verdict", -1, ROW_LIMIT, WORDS, dtype="i32", region=Region.CONTEXT),
    )


def geometry(p: Params) -> Geometry:
    """One warp; there are at most 8 segments."""
    return Geometry((1, 1, 1), WARP)


def reference(p: Params, bound: Bound) -> None:
    """A draft is accepted if and only if it equals the draw of the row before it.

    `forced` (tests) bounds how many may be accepted; -1 bounds nothing.
    """
    table = view(bound, p.rows)
    out = bound["verdict"][table.header("context")]
    out.zero_()
    draws = bound["draws"].tolist()
    tokens, forced = table.row("token").tolist(), table.row("forced").tolist()
    firsts, counts = table.segment("first_row").tolist(), table.segment("count").tolist()
    for i, (first, count) in enumerate(zip(firsts, counts, strict=True)):
        most = count - 1 if forced[first] < 0 else min(forced[first], count - 1)
        accepted = 0
        while accepted < most and draws[first + accepted] == tokens[first + accepted + 1]:
            accepted += 1
        out[i, 0], out[i, 1] = accepted, draws[first + accepted]
    out[:, 2:] = bound["hashes"].sum(-1, keepdim=True).view(torch.int32)


SPEC = KernelSpec("verdict", Params, args, geometry, reference)
