"""Attention in chunks of 64 cells by absolute position, merged in ascending order.

A chunk of one row gives a maximum m, a sum l and an unnormalised value a. The merge is

    m' = max(m, m_c),  a' = a·exp(m - m') + a_c·exp(m_c - m'),  l' likewise,  out = a / l

(the online softmax of Milakov and Gimelshein, 2018). Chunks past a row's own position change no
bit: their weight is selected away, not multiplied by zero. Rows are computed in blocks of up to 4
rows of one slot, so that every product has the same shape, whatever the window.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from strata_kernels.arithmetic import weighted
from strata_kernels.lazy import torch
from strata_kernels.spec import CHUNK
from strata_kernels.table import Ints, TableView

#: Chunks that are gathered at a time: bounds the memory of long prompts (96 KiB each at 3 × 64).
GATHER_LIMIT = 256

#: Rows of a block. Every product has as many, the missing ones in vain: rows of one slot share a
#: block's gathered cells, rows of different slots do not, and this is between the two.
LANES = 4

#: The least finite float32: a maximum that is -inf must not meet -inf.
_LOWEST = -3.4028234663852886e38


@dataclass(frozen=True)
class Heads:
    """Query heads, key-value heads, and the width of one head."""

    heads: int
    kv_heads: int
    head_dim: int

    @property
    def group(self) -> int:
        """Query heads that share one key-value head."""
        return self.heads // self.kv_heads

    @property
    def part(self) -> int:
        """Width of one partial result: a, l, m."""
        return self.head_dim + 2


@dataclass(frozen=True)
class Group:
    """Blocks of up to 4 rows of one slot, and every (block, chunk) pair that they read.

    `rows` (blocks · 4,) are row indices, a block's first row again where it has no more. Per pair:
    `block`, `slot`, `chunk`. `lanes` is the most rows that a block has; `hidden` (pairs, 1, lanes,
    1, 64) marks cells that a row must not see; `tails` lists (pair, first cell that no row of the
    block may see), and `mixed` the pairs whose rows do not all see the same cells.

    Per result, a row in a chunk: `pair` and `lane` where it is computed, `row` where it goes, or
    `local` = 4 · block + lane. Per row of the group: `live_rows`, `live_local`, and `live_chunks`
    that it reads.
    """

    rows: torch.Tensor
    block: torch.Tensor
    slot: torch.Tensor
    chunk: torch.Tensor
    lanes: int
    most: int
    hidden: torch.Tensor
    tails: tuple[tuple[int, int], ...]
    mixed: tuple[int, ...]
    pair: torch.Tensor
    lane: torch.Tensor
    row: torch.Tensor
    local: torch.Tensor
    live_rows: torch.Tensor
    live_local: torch.Tensor
    live_chunks: torch.Tensor

    @property
    def result_chunk(self) -> torch.Tensor:
        """The chunk of each result."""
        return self.chunk[self.pair]


def groups_of(table: TableView) -> tuple[Group, ...]:
    """The live rows in blocks, in groups of at most `GATHER_LIMIT` chunks (or of one block)."""
    fields = (np.ascontiguousarray(table.row(f)).tobytes() for f in ("slot", "index", "position"))
    return _groups(*fields)


@lru_cache(maxsize=64)  # every layer of a window asks the same
def _groups(slots: bytes, indices: bytes, positions: bytes) -> tuple[Group, ...]:
    slot, index, position = (np.frombuffer(b, np.int32) for b in (slots, indices, positions))
    live = np.flatnonzero(slot >= 0)
    # Rows of a segment stand together, in order.
    new = (index[live][1:] % LANES == 0) | (slot[live][1:] != slot[live][:-1])
    blocks = np.split(live, np.flatnonzero(new) + 1) if len(live) else []
    groups: list[Group] = []
    taken: list[npt.NDArray[np.int64]] = []
    total = 0
    for block in blocks:
        chunks = int(position[block[-1]]) // CHUNK + 1
        if taken and total + chunks > GATHER_LIMIT:
            groups.append(_group(taken, slot, position))
            taken, total = [], 0
        taken.append(block)
        total += chunks
    return (*groups, *([_group(taken, slot, position)] if taken else ()))


def _group(blocks: list[npt.NDArray[np.int64]], slot: Ints, position: Ints) -> Group:
    last = np.array([position[b[-1]] for b in blocks])
    counts = last // CHUNK + 1
    block = np.repeat(np.arange(len(blocks)), counts)
    chunk = np.concatenate([np.arange(n) for n in counts])
    lanes = max(map(len, blocks))
    where = np.full((len(blocks), lanes), -1)
    for i, b in enumerate(blocks):
        where[i, : len(b)] = position[b]
    cell = chunk[:, None] * CHUNK + np.arange(CHUNK)
    hidden = cell[:, None, :] > where[block][:, :, None]
    seen_by_all = ~hidden | (where[block] < 0)[:, :, None]
    mixed = np.flatnonzero((hidden.all(1) != ~seen_by_all.all(1)).any(1))
    pair, lane = np.nonzero(where[block] >= 0)
    rows = np.array([[*b, *[b[0]] * (LANES - len(b))] for b in blocks])
    live_block, live_lane = np.nonzero(where >= 0)
    ends = np.cumsum(counts) - 1
    tensor = torch.from_numpy
    return Group(
        rows=tensor(rows.reshape(-1)),
        block=tensor(block),
        slot=tensor(slot[rows[block, 0]].astype(np.int64)),
        chunk=tensor(chunk),
        lanes=lanes,
        most=int(counts.max()),
        hidden=tensor(hidden[:, None, :, None, :]),
        tails=tuple((int(e), int(p) % CHUNK + 1) for e, p in zip(ends, last, strict=True)),
        mixed=tuple(mixed.tolist()),
        pair=tensor(pair),
        lane=tensor(lane),
        row=tensor(rows[block[pair], lane]),
        local=tensor(block[pair] * LANES + lane),
        live_rows=tensor(rows[live_block, live_lane]),
        live_local=tensor(live_block * LANES + live_lane),
        live_chunks=tensor(where[live_block, live_lane] // CHUNK + 1),
    )


def partials(
    h: Heads, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, group: Group
) -> torch.Tensor:
    """a, l and m of every result of the group: (results, heads, head_dim + 2), float32.

    q (rows, heads · head_dim); k and v (slots, chunks, kv_heads, 64, head_dim). A chunk that a
    row does not see gives m = -inf and zeros.
    """
    scores = _scores(h, q, k, group)
    scores.masked_fill_(group.hidden, -torch.inf)
    m = scores.amax(-1, keepdim=True)
    # Where a row sees nothing of a chunk, -inf less a finite number still gives exactly zero.
    weights = scores.sub_(m.clamp(min=_LOWEST)).exp_()
    a = _weighted(h, weights, v, group)
    parts = torch.cat([a, weights.sum(-1, keepdim=True), m], -1)
    return parts.permute(0, 2, 1, 3, 4)[group.pair, group.lane].reshape(-1, h.heads, h.part)


def _scores(h: Heads, q: torch.Tensor, k: torch.Tensor, group: Group) -> torch.Tensor:
    """q · kᵀ / √head_dim: (pairs, kv_heads, lanes, group, 64).

    The product always has 4 rows; only what follows it, element by element, leaves rows out.
    """
    q = q[group.rows].view(-1, LANES, h.kv_heads, h.group, h.head_dim).transpose(1, 2)
    q = q.reshape(-1, h.kv_heads, LANES * h.group, h.head_dim)[group.block]
    k = _gather(k, group)
    product = torch.bmm(q.flatten(0, 1), k.flatten(0, 1).transpose(1, 2))
    product = product.view(-1, h.kv_heads, LANES, h.group, CHUNK)[:, :, : group.lanes]
    return product * (1.0 / math.sqrt(h.head_dim))


def _gather(cells: torch.Tensor, group: Group) -> torch.Tensor:
    """A copy of every pair's chunk as float32: (pairs, kv_heads, 64, head_dim)."""
    chunk = group.slot * cells.shape[1] + group.chunk
    return cells.flatten(0, 1).index_select(0, chunk).float()


def _weighted(h: Heads, weights: torch.Tensor, v: torch.Tensor, group: Group) -> torch.Tensor:
    """weights · v: (pairs, kv_heads, lanes, group, head_dim).

    Cells that no row of a block may see are not read: their values become zeros first.
    """
    v = _gather(v, group)
    for pair, tail in group.tails:
        v[pair, :, tail:] = 0.0
    if group.lanes < LANES:
        rows = weights.new_zeros(*weights.shape[:2], LANES, h.group, CHUNK)
        rows[:, :, : group.lanes] = weights
        weights = rows
    weights = weights.view(-1, h.kv_heads, LANES * h.group, CHUNK)
    a = weighted(weights.flatten(0, 1), v.flatten(0, 1))
    a = a.reshape(-1, h.kv_heads, LANES, h.group, h.head_dim)[:, :, : group.lanes]
    for pair in group.mixed:
        if not torch.isfinite(v[pair]).all():
            a[pair] = _each_row_apart(h, weights[pair], v[pair], group.hidden[pair, 0, :, 0])
    return a


def _each_row_apart(
    h: Heads, weights: torch.Tensor, v: torch.Tensor, hidden: torch.Tensor
) -> torch.Tensor:
    """One pair's (kv_heads, lanes, group, head_dim), every row with its own cells only.

    A later row of the window may have stored a value that is not finite; 0 · inf would be NaN.
    The products have the shape that they always have, so that finite rows keep their bits.
    """
    lanes = []
    for lane, unseen in enumerate(hidden):
        a = weighted(weights, v.masked_fill(unseen[:, None], 0.0))
        lanes.append(a.reshape(h.kv_heads, LANES, h.group, h.head_dim)[:, lane])
    return torch.stack(lanes, 1)


def merge(h: Heads, parts: torch.Tensor, chunks: torch.Tensor) -> torch.Tensor:
    """Merge (rows, chunks, heads, head_dim + 2) into (rows, heads · head_dim).

    `chunks` (rows,) is how many of them each row reads; 0 gives a row of zeros.
    """
    most = int(chunks.max()) if len(chunks) else 0
    if most == 0:
        return parts.new_zeros(parts.shape[0], h.heads * h.head_dim)
    inside = (torch.arange(most) < chunks[:, None])[:, :, None, None]
    neutral = parts.new_zeros(h.part)
    neutral[-1] = -torch.inf
    parts = torch.where(inside, parts[:, :most], neutral)
    al, m = parts[..., :-1], parts[..., -1:]
    top = torch.cummax(m, 1).values
    total = al[:, 0]  # the first chunk's weight is exp(0)
    if most > 1:
        fresh, keep = al * torch.exp(m - top), torch.exp(top[:, :-1] - top[:, 1:])
        for c in range(1, most):
            total = total * keep[:, c - 1] + fresh[:, c]
    out = torch.where(chunks[:, None, None] > 0, total[..., :-1] / total[..., -1:], 0.0)
    return out.reshape(-1, h.heads * h.head_dim)
