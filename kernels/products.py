"""How products are shared out over warps: the form of a matrix, from its shape alone."""

from __future__ import annotations

from dataclasses import dataclass

from strata_kernels.spec import WARP, Geometry
from strata_kernels.table import ROW_LIMIT

#: Warps of a block, and weights that a lane takes at once.
WARPS, PIECE = 8, 8
#: Turns of a lane at an output's columns before another warp shares them.
TURNS = 4
#: Blocks below which a warp is not given more outputs: a large card would idle.
BLOCKS = 512


@dataclass(frozen=True)
class Form:
    """`split` warps share each output's columns; each has `each` outputs.

    Of a matrix's shape alone: with another form a row would have other bits.
    """

    split: int
    each: int

    @property
    def outputs(self) -> int:
        """Outputs of a block."""
        return WARPS // self.split * self.each

    def blocks(self, outer: int) -> int:
        """Blocks for so many outputs."""
        return -(-outer // self.outputs)


def form_of(inner: int, outer: int) -> Form:
    """Few turns of a lane, then as many outputs of a warp as leave blocks for all of a card."""
    turns = -(-inner // (PIECE * WARP))
    split = next((n for n in (1, 2, 4) if turns <= TURNS * n), WARPS)
    each = next((n for n in (4, 2) if Form(split, n).blocks(outer) >= BLOCKS), 1)
    return Form(split, each)


def product_geometry(rows: int, blocks: int) -> Geometry:
    """`blocks` for up to 8 rows at a time."""
    return Geometry((blocks, -(-rows // ROW_LIMIT), 1), WARPS * WARP)
