"""Attention in chunks of 64 cells by absolute position, merged in ascending order.

A chunk of one row gives a maximum m, a sum l and an unnormalised value a. The merge is

    m' = max(m, m_c),  a' = a·exp(m - m') + a_c·exp(m_c - m'),  l' likewise,  out = a / l

(the online softmax of Milakov and Gimelshein, 2018). Chunks past a row's own position change no
bit: their weight is selected away, not multiplied by zero. Rows are computed in blocks of up to 8
rows of one slot, so that every product has the same shape, whatever the window.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from strata_kernels.lazy import torch
from strata_kernels.spec import CHUNK
from strata_kernels.table import ROW_LIMIT, TableView

#: Chunks that are gathered at a time: bounds the memory of long prompts (96 KiB each at 3 × 64).
GATHER_LIMIT = 256


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
class Blocks:
    """Up to 8 rows of one slot each; int64.

    `rows` (blocks, 8) are row indices, or the number of all rows where a block has no more;
    `positions` (blocks, 8) likewise with -1; `slots` (blocks,); `chunks` (blocks,) to be read.
    """

    rows: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    chunks: torch.Tensor

    def groups(self) -> Iterator[Blocks]:
        """Runs of blocks with at most `GATHER_LIMIT` chunks together (or a single block)."""
        start, total = 0, 0
        for i, n in enumerate(self.chunks.tolist()):
            if i > start and total + n > GATHER_LIMIT:
                yield self._slice(start, i)
                start, total = i, 0
            total += n
        if start < len(self.chunks):
            yield self._slice(start, len(self.chunks))

    def _slice(self, a: int, b: int) -> Blocks:
        return Blocks(self.rows[a:b], self.positions[a:b], self.slots[a:b], self.chunks[a:b])


def blocks_of(table: TableView, rows: int) -> Blocks:
    """Cut the live rows of each segment into blocks; rows of a segment stand together, in order."""
    slot, index, position = table.row("slot"), table.row("index"), table.row("position")
    live = np.flatnonzero(slot >= 0)
    lane = index[live] % ROW_LIMIT
    block = np.cumsum(lane == 0) - 1
    count = int(block[-1]) + 1 if len(live) else 0
    row_of = np.full((count, ROW_LIMIT), rows, np.int64)
    position_of = np.full((count, ROW_LIMIT), -1, np.int64)
    row_of[block, lane] = live
    position_of[block, lane] = position[live]
    return Blocks(
        torch.from_numpy(row_of),
        torch.from_numpy(position_of),
        torch.from_numpy(slot[row_of[:, 0]].astype(np.int64)),
        torch.from_numpy(position_of.max(1, initial=0) // CHUNK + 1),
    )


def partials(
    h: Heads, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, blocks: Blocks
) -> torch.Tensor:
    """Every chunk of every block: (blocks, 8, chunks, heads, head_dim + 2), float32.

    q (rows, heads · head_dim); k and v (slots, chunks, kv_heads, 64, head_dim). Chunks that a row
    does not see have m = -inf and zeros.
    """
    count, most = len(blocks.slots), int(blocks.chunks.max())
    which = torch.repeat_interleave(torch.arange(count), blocks.chunks)
    chunk = torch.arange(len(which)) - (torch.cumsum(blocks.chunks, 0) - blocks.chunks)[which]
    seen = _seen(blocks.positions[which], chunk)
    scores = _scores(h, _queries(h, q, blocks.rows)[which], k[blocks.slots[which], chunk])
    values = _values(v[blocks.slots[which], chunk], seen, chunk + 1 == blocks.chunks[which])
    parts = _softmax_parts(h, scores, seen, values)
    out = torch.zeros(count, ROW_LIMIT, most, h.heads, h.part)
    out[..., -1] = -torch.inf
    out[which, :, chunk] = parts
    return out


def _queries(h: Heads, q: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """(blocks, kv_heads, 8 · group, head_dim); a block's missing rows are zeros."""
    q = torch.cat([q, q.new_zeros(1, q.shape[1])])[rows.clamp(max=q.shape[0])]
    q = q.view(-1, ROW_LIMIT, h.kv_heads, h.group, h.head_dim).permute(0, 2, 1, 3, 4)
    return q.reshape(-1, h.kv_heads, ROW_LIMIT * h.group, h.head_dim)


def _seen(positions: torch.Tensor, chunk: torch.Tensor) -> torch.Tensor:
    """(pairs, 8, 64): may the block's row see the chunk's cell?"""
    cell = chunk[:, None] * CHUNK + torch.arange(CHUNK)
    seen: torch.Tensor = cell[:, None, :] <= positions[:, :, None]
    return seen


def _scores(h: Heads, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """q · kᵀ / √head_dim: (pairs, kv_heads, 8, group, 64)."""
    product = torch.bmm(q.flatten(0, 1), k.float().flatten(0, 1).transpose(1, 2))
    scale = 1.0 / math.sqrt(h.head_dim)
    return (product * scale).view(-1, h.kv_heads, ROW_LIMIT, h.group, CHUNK)


def _values(v: torch.Tensor, seen: torch.Tensor, last: torch.Tensor) -> torch.Tensor:
    """The chunks' values as float32, zero where no row of the block may look: those are not read.

    Only a block's last chunk has such cells.
    """
    v = v.float() if v.dtype != torch.float32 else v
    unseen = ~seen[last].any(1)
    v[last] = v[last].masked_fill(unseen[:, None, :, None], 0.0)
    return v


def _softmax_parts(
    h: Heads, scores: torch.Tensor, seen: torch.Tensor, values: torch.Tensor
) -> torch.Tensor:
    """(pairs, 8, heads, head_dim + 2): a, l and m of every row in every chunk."""
    mask = seen[:, None, :, None, :]
    scores = torch.where(mask, scores, -torch.inf)
    m = scores.amax(-1, keepdim=True)
    weights = torch.where(mask, torch.exp(scores - m), 0.0)
    a = torch.bmm(weights.view(-1, ROW_LIMIT * h.group, CHUNK), values.flatten(0, 1))
    a = a.view(*scores.shape[:-1], h.head_dim)
    parts = torch.cat([a, weights.sum(-1, keepdim=True), m], -1)
    return parts.permute(0, 2, 1, 3, 4).reshape(-1, ROW_LIMIT, h.heads, h.part)


def merge(h: Heads, parts: torch.Tensor, chunks: torch.Tensor) -> torch.Tensor:
    """Merge (rows, chunks, heads, head_dim + 2) into (rows, heads · head_dim).

    `chunks` (rows,) is how many of them each row reads; 0 gives a row of zeros.
    """
    most = int(chunks.max()) if len(chunks) else 0
    if most == 0:
        return parts.new_zeros(parts.shape[0], h.heads * h.head_dim)
    inside = (torch.arange(most) < chunks[:, None])[:, :, None, None]
    m = torch.where(inside, parts[:, :most, :, -1:], -torch.inf)
    al = torch.where(inside, parts[:, :most, :, :-1], 0.0)
    top = torch.cummax(m, 1).values
    fresh = al * torch.exp(m - top)
    keep = torch.exp(torch.cat([torch.full_like(m[:, :1], -torch.inf), top[:, :-1]], 1) - top)
    total = fresh[:, 0]
    for c in range(1, most):
        total = total * keep[:, c] + fresh[:, c]
    out = torch.where(chunks[:, None, None] > 0, total[..., :-1] / total[..., -1:], 0.0)
    return out.reshape(-1, h.heads * h.head_dim)
