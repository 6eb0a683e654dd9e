"""The types of matrices that the GPU kernels read as the model file stores them.

A GGUF matrix is rows of whole blocks; a block holds some weights in some bytes. How the bytes mean
weights stands in `templates/_dequant.cuh.j2`, once.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import NamedTuple


class Block(NamedTuple):
    """Weights of one block, and the bytes that hold them."""

    weights: int
    bytes: int

    def row_bytes(self, width: int) -> int:
        """Bytes of a matrix row of `width` weights, which must be whole blocks."""
        if width % self.weights:
            raise ValueError(f"{width} weights are no whole blocks of {self.weights}")
        return width // self.weights * self.bytes


#: GGUF's name of a type to its block. Block sizes are even, so that f16 fields stay aligned.
BLOCKS: MappingProxyType[str, Block] = MappingProxyType(
    {
        "F32": Block(1, 4),
        "F16": Block(1, 2),
        "BF16": Block(1, 2),
        "Q4_0": Block(32, 18),
        "Q4_1": Block(32, 20),
        "Q5_0": Block(32, 22),
        "Q5_1": Block(32, 24),
        "Q8_0": Block(32, 34),
        "Q4_K": Block(256, 144),
        "Q5_K": Block(256, 176),
        "Q6_K": Block(256, 210),
    }
)

#: Every type that the templates of `embed` and `linear` can read.
GPU_TYPES: tuple[str, ...] = tuple(BLOCKS)
