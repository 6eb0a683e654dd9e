"""The lifetimes of a program's scratch values."""

from __future__ import annotations

from math import prod

from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from strata_compile.lower.calls import LoweredProgram, Scratch
from strata_compile.memory.offsets import Lifetime
from strata_kernels.spec import Arg

#: Bytes of one element.
SIZES = {"f32": 4, "f16": 2, "i32": 4, "i64": 8}


def arg_bytes(arg: Arg, count: int = 1, family: str = "cpu") -> int:
    """Bytes of an argument; `count` stands for a leading -1.

    A GPU has matrices as they are stored, in whole blocks; the CPU device as float32.
    """
    elements = prod(count if n == -1 else n for n in arg.shape)
    if arg.stored is not None and family == "cuda":
        block, size = GGML_QUANT_SIZES[GGMLQuantizationType[arg.stored]]
        return elements // block * size
    return elements * SIZES[arg.dtype]


def scratch_lifetimes(program: LoweredProgram) -> dict[str, Lifetime]:
    """From the call that first touches a value to the last one that does, by value name."""
    found: dict[str, Lifetime] = {}
    for step, call in enumerate(program.calls):
        for arg in call.args:
            operand = call.operands[arg.name]
            if isinstance(operand, Scratch):
                size = arg_bytes(arg)
                before = found.get(operand.name, Lifetime(size, step, step))
                assert before.bytes == size, f"{program.name}: {operand.name} has two sizes"
                found[operand.name] = Lifetime(size, before.first, step)
    return found
