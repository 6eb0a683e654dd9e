"""Does this machine's torch keep a row's bits? Asked once at load, with the bundle's own shapes.

Everything here rests on products that give a row the same bits whatever the number of rows, its
place and its company. torch does not promise that; where a build or a processor breaks it, texts
would differ in silence.
"""

from __future__ import annotations

from collections.abc import Iterable

from strata_kernels.arithmetic import linear
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


def unequal_attention(group: int, head_dim: int, pairs: int = 48) -> int | None:
    """The first number of (chunk, head) pairs whose products differ from a single pair's."""
    generator = torch.Generator().manual_seed(head_dim)
    q = torch.randn(1, LANES * group, head_dim, generator=generator)
    cells = torch.randn(1, CHUNK, head_dim, generator=generator)
    scores = torch.bmm(q, cells.transpose(1, 2))
    values = torch.bmm(scores, cells)
    for count in (2, 3, pairs):
        qs, many = q.repeat(count, 1, 1), cells.repeat(count, 1, 1)
        found = torch.bmm(qs, many.transpose(1, 2))
        if not (torch.equal(found[-1], scores[0]) and torch.equal(found[0], scores[0])):
            return count
        if not torch.equal(torch.bmm(found, many)[-1], values[0]):
            return count
    return None
