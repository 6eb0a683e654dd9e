"""Arguments for templates: raw matrices of every stored type, and tables with inert rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from gguf import GGMLQuantizationType
from gguf.quants import quantize

from kernel_case import Segment, make_table, random_values
from strata_kernels.quants import BLOCKS
from strata_kernels.render import Entry
from strata_kernels.table import Ints

SIZES = (1, 2, 3, 8, 32)

#: Every field of an inert row but its slot: a place that exists, so that whoever looks is seen.
INERT = 2

#: Where a block has f16 fields; random bytes there could be infinite.
HALVES = {
    "Q4_0": (0,),
    "Q4_1": (0, 2),
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "Q8_0": (0,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
}
#: Types that gguf cannot make from floats.
UNMADE = ("Q4_K", "Q5_K", "Q6_K")


def random_matrix(rng: np.random.Generator, kind: str, rows: int, width: int) -> torch.Tensor:
    """Normal weights as the type stores them; uint8, (rows, bytes of a row)."""
    if kind in UNMADE:
        return random_codes(rng, kind, rows, width)
    weights = rng.standard_normal((rows, width), np.float32)
    raw = quantize(weights, GGMLQuantizationType[kind])
    return torch.from_numpy(np.ascontiguousarray(raw).view(np.uint8))


def random_codes(rng: np.random.Generator, kind: str, rows: int, width: int) -> torch.Tensor:
    """Any bytes, so that all codes occur, with small f16 fields of both signs."""
    if kind not in HALVES:
        return random_matrix(rng, kind, rows, width)
    block = BLOCKS[kind]
    raw = rng.integers(0, 256, (rows, width // block.weights, block.bytes), np.uint8)
    for at in HALVES[kind]:
        raw[:, :, at : at + 2] = _halves(rng, raw.shape[:2])
    return torch.from_numpy(raw.reshape(rows, -1))


def _halves(rng: np.random.Generator, shape: tuple[int, ...]) -> npt.NDArray[np.uint8]:
    values = rng.standard_normal((*shape, 1)) * 0.01
    return values.astype(np.float16).view(np.uint8)


def bound(
    entry: Entry, table: Ints | None = None, seed: int = 0, **values: torch.Tensor
) -> dict[str, torch.Tensor]:
    """Every argument of an entry: the table, `values` where given, else random."""
    rng = np.random.default_rng(seed)
    found = {}
    for arg in entry.spec.args(entry.params):
        if arg.name in values:
            found[arg.name] = values[arg.name]
        elif arg.name == "table" and arg.reads:
            assert table is not None
            found[arg.name] = torch.from_numpy(table)
        elif arg.stored:
            found[arg.name] = random_matrix(rng, arg.stored, *arg.shape)
        else:
            found[arg.name] = random_values(rng, arg, entry.params)
    return found


def mixed_table(rows: int, vocab: int = 3) -> Ints:
    """Rows of one or two slots with inert rows between them, where there is room for any."""
    fields: dict[str, Any] = {"state_in": 6}
    if rows < 3:  # the last position of a chunk
        return make_table(rows, [Segment(2, 63, (vocab - 1,), rows - 1, fields)], INERT)
    count = rows // 2
    tokens = [(7 * i + 1) % vocab for i in range(count)]
    places = {**fields, "handoff_row": [rows + 2 * i for i in range(count, 0, -1)]}
    first = Segment(1, 62, tokens, rows > 4, places)
    return make_table(rows, [first, Segment(3, 0, (vocab - 1,), 1, fields)], INERT)


def tables(rows: int, vocab: int = 3) -> list[Ints]:
    """What every template with a table meets: live and inert rows, and no live row at all."""
    return [mixed_table(rows, vocab), make_table(rows, [], INERT)]
