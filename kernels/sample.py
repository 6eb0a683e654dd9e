"""sample: one token from each row's logits, greedy or drawn; data in the table decides.

Order: bias, penalties, mask, temperature, top-k, top-p, min-p; then one uniform number from a
generator keyed by (seed, position drawn for), inverse distribution in order of probability. Every
tie goes to the lower id. The first three change the logits in place: a GPU has no other room for
them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from strata_kernels.arithmetic import live_rows, pick, view
from strata_kernels.lazy import torch
from strata_kernels.philox import uniform
from strata_kernels.spec import (
    CHUNK,
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
from strata_kernels.table import TableView

#: Threads of a block: many, as a row's whole vocabulary has but one; few enough for 128 registers.
BLOCK = 512


@dataclass(frozen=True)
class Params:
    """Rows, the vocabulary's size, and chunks of 64 token cells per slot."""

    rows: int
    vocab: int
    chunks: int


def args(p: Params) -> tuple[Arg, ...]:
    """Logits (rows, vocab), token cells, bias and mask rings, and one drawn token a row.

    A mask is a bit a token, lowest bit first; a token whose bit is 0 cannot be drawn.
    """
    logits = (padded(p.rows), p.vocab)
    return (
        table_arg(p.rows),
        Arg("logits", "f32", logits, reads=Region.WHOLE, writes=Region.WHOLE),
        read("token_cells", -1, p.chunks, 1, CHUNK, 1, dtype="i32", region=Region.HISTORY),
        read("bias", -1, p.vocab, region=Region.BIAS),
        read("mask", -1, -(-p.vocab // 32), dtype="i32", region=Region.MASK),
        write("draws", padded(p.rows), dtype="i32"),
    )


def geometry(p: Params) -> Geometry:
    """A block for each row."""
    return Geometry((p.rows, 1, 1), BLOCK)


def reference(p: Params, bound: Bound) -> None:
    """draws[i] = token of live row i; -1 for inert rows and where no token is possible.

    logits[i] = what the token of live row i was drawn from; inert rows stay as they are.
    """
    table = view(bound, p.rows)
    rows = live_rows(table.row("slot"))
    logits = bound["logits"][rows]
    _add_bias(table, rows, logits, bound["bias"])
    _penalise(table, rows, logits, bound["token_cells"])
    _mask(table, rows, logits, bound["mask"])
    bound["logits"][rows] = logits
    draws = torch.argmax(logits, -1)  # ties: the first
    temperature = torch.from_numpy(table.row_float("temperature"))[rows]
    drawn = torch.nonzero(temperature > 0).flatten()
    if len(drawn):
        draws[drawn] = _draw(table, rows[drawn].numpy(), logits[drawn], temperature[drawn])
    possible = torch.isfinite(logits.amax(-1))
    out = bound["draws"]
    out.fill_(-1)
    out[rows] = torch.where(possible, draws, -1).to(out.dtype)


def _add_bias(
    table: TableView, rows: torch.Tensor, logits: torch.Tensor, bias: torch.Tensor
) -> None:
    """logits += bias[entry] for the rows that have one."""
    entry = pick(table.row("bias"), rows)
    has = torch.nonzero(entry >= 0).flatten()
    if len(has):
        logits[has] += bias[entry[has]]


def _penalise(
    table: TableView, rows: torch.Tensor, logits: torch.Tensor, cells: torch.Tensor
) -> None:
    """Repetition, frequency and presence penalties over a row's last `penalty_last` tokens.

    Repetition divides a positive logit and multiplies a negative one (Keskar et al., 2019); the
    others subtract count · frequency and, where the token occurred, presence.
    """
    last = table.row("penalty_last")
    for i in np.flatnonzero(last[rows.numpy()] > 0).tolist():
        row = int(rows[i])
        slot, end = int(table.row("slot")[row]), int(table.row("position")[row]) + 1
        history = cells[slot].view(-1)[max(0, end - int(last[row])) : end]
        ids, counts = torch.unique(history.to(torch.int64), return_counts=True)
        x = logits[i, ids]
        repeat = float(table.row_float("repeat_penalty")[row])
        x = torch.where(x > 0, x / repeat, x * repeat)
        x = x - counts * float(table.row_float("frequency_penalty")[row])
        logits[i, ids] = x - float(table.row_float("presence_penalty")[row])


def _mask(table: TableView, rows: torch.Tensor, logits: torch.Tensor, masks: torch.Tensor) -> None:
    """Tokens whose bit is not set become impossible."""
    entry = pick(table.row("mask"), rows)
    has = torch.nonzero(entry >= 0).flatten()
    if len(has):
        bits = (masks[entry[has]][:, :, None] >> torch.arange(32, dtype=torch.int32)) & 1
        allowed = bits.flatten(1)[:, : logits.shape[1]].bool()
        logits[has] = torch.where(allowed, logits[has], -torch.inf)


def _draw(
    table: TableView,
    rows: npt.NDArray[np.int64],
    logits: torch.Tensor,
    temperature: torch.Tensor,
) -> torch.Tensor:
    """One token for each row; logits (rows, vocab), temperature (rows,) > 0.

    Sums run in float64 in order of probability; `sum` would split a single row over threads.
    """
    ordered, ids = torch.sort(logits, stable=True, descending=True)
    p = torch.exp((ordered - ordered[:, :1]) / temperature[:, None])
    top_k, top_p, min_p = (
        torch.from_numpy(np.ascontiguousarray(x[rows]))[:, None]
        for x in (table.row("top_k"), table.row_float("top_p"), table.row_float("min_p"))
    )
    rank = torch.arange(p.shape[1])
    p = torch.where((top_k <= 0) | (rank < top_k), p, 0.0)
    running = torch.cumsum(p, -1, dtype=torch.float64)
    kept = (running - p < top_p.double() * running[:, -1:]) | (rank == 0)
    kept &= p >= min_p
    cumulative = torch.cumsum(torch.where(kept, p, 0.0), -1, dtype=torch.float64)
    fields = (table.row(f)[rows] for f in ("seed_low", "seed_high", "position"))
    seed_low, seed_high, position = fields
    u = torch.from_numpy(uniform(seed_low, seed_high, position + 1))[:, None]
    chosen = (cumulative > u * cumulative[:, -1:]).int().argmax(-1)
    token: torch.Tensor = ids.gather(1, chosen[:, None])[:, 0]
    return token


SPEC = KernelSpec("sample", Params, args, geometry, reference)
