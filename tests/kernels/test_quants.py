"""The stored types that a GPU reads: their blocks are those of GGUF."""

import pytest
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from strata_kernels.quants import BLOCKS, GPU_TYPES


@pytest.mark.parametrize("kind", GPU_TYPES)
def test_block_sizes_are_those_of_gguf(kind: str) -> None:
    block = BLOCKS[kind]
    assert tuple(block) == GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
    assert block.row_bytes(3 * block.weights) == 3 * block.bytes
    assert block.bytes % 2 == 0  # f16 fields are read whole


@pytest.mark.parametrize("kind", [t for t in GPU_TYPES if BLOCKS[t].weights > 1])
def test_rows_are_whole_blocks(kind: str) -> None:
    with pytest.raises(ValueError, match="no whole blocks"):
        BLOCKS[kind].row_bytes(BLOCKS[kind].weights + 1)
