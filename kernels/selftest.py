"""Does this machine's torch keep a row's bits? Asked once at load, with the bundle's own shapes.

Everything here rests on products that give a row the same bits whatever the number of rows, its
place and its company. torch does not promise that; where a build or a processor breaks it, texts
would differ in silence.
"""

from __future__ import annotations

from collections.abc import Iterable

from strata_kernels.arithmetic import linear, weighted
from strata_kernels.chunks import LANES
from strata_kernels.lazy import torch
from strata_kernels.spec import CHUNK
from strata_kernels.table import ROW_LIMIT


def unequal_linear(inner: int, outer: int, sizes: Iterable[int]) -> int | None:
    """The first number of rows whose product differs from that of 8 rows, or None.

    Every size's rows are the 8 rows again and again, turned by one place each time.
    """
    generator = torch.Generator().manual_seed(inner * 65537 + outer)
    eight = torch.randn(ROW_LIMIT, inner, generator=generator)
    weight = torch.randn(outer, inner, generator=generator)
    expected = torch.empty(ROW_LIMIT, outer)
    linear(eight, weight, expected)
    for rows in sorted({ROW_LIMIT, *sizes}):
        turned = torch.arange(rows) + torch.arange(rows) // ROW_LIMIT + 1
        found = torch.empty(rows, outer)
        linear(eight[turned % ROW_LIMIT], weight, found)
        if not torch.equal(found, expected[turned % ROW_LIMIT]):
            return rows
    return None


def unequal_attention(group: int, head_dim: int) -> str | None:
    """Which of a chunk's two products gives a row other bits at another place, or None.

    Rows move through the lanes of a block, and blocks through batches of several sizes, among
    others with random content.
    """
    generator = torch.Generator().manual_seed(head_dim * 257 + group)
    keys = torch.randn(CHUNK, head_dim, generator=generator)
    values = torch.randn(CHUNK, head_dim, generator=generator)
    q = torch.randn(group, head_dim, generator=generator)
    p = torch.rand(group, CHUNK, generator=generator)
    first: tuple[torch.Tensor, torch.Tensor] | None = None
    for count in (1, 2, 3, 48):
        for lane in range(LANES):
            place = slice(lane * group, (lane + 1) * group)
            batch = [
                torch.randn(count, n, w, generator=generator) for n, w in _shapes(group, head_dim)
            ]
            queries, weights, cells, contents = batch
            queries[-1, place], weights[-1, place] = q, p
            cells[-1], contents[-1] = keys, values
            scores = torch.bmm(queries, cells.transpose(1, 2))[-1, place]
            mixed = weighted(weights, contents)[-1, place]
            if first is None:
                first = scores.clone(), mixed.clone()
            if not torch.equal(scores, first[0]):
                return "scores"
            if not torch.equal(mixed, first[1]):
                return "values"
    return None


def _shapes(group: int, head_dim: int) -> tuple[tuple[int, int], ...]:
    """Queries, weights, keys and values of one block against one chunk."""
    rows = LANES * group
    return ((rows, head_dim), (rows, CHUNK), (CHUNK, head_dim), (CHUNK, head_dim))
