"""Arenas on the CPU: allocated once at load, filled from the model file, viewed as tensors."""

from __future__ import annotations

import math
import os

import numpy as np
import torch

from strata_runtime.bundle_format import ALIGNMENT, Argument, Buffer, MemoryPlan, Rotation
from strata_runtime.errors import BundleError, DeviceError
from strata_runtime.gguf_file import GgufFile

DTYPES = {"f32": torch.float32, "f16": torch.float16, "i32": torch.int32, "i64": torch.int64}


class Arenas:
    """The memory of a bundle; a buffer is a range of bytes of one of them."""

    def __init__(self, plan: MemoryPlan) -> None:
        """Allocate every arena, zeroed; DeviceError where the machine has less memory."""
        needed = sum(a.bytes for a in plan.arenas.values())
        _check_memory(needed)
        self._plan = plan
        self._bytes = {name: _allocate(a.bytes) for name, a in plan.arenas.items()}

    def arena(self, name: str) -> torch.Tensor:
        """A whole arena as bytes; shares its memory."""
        return self._bytes[name]

    def buffer(self, name: str) -> torch.Tensor:
        """A whole buffer, in its type and shape; shares the arena's memory."""
        b = self._plan.buffers[name]
        return self._view(b.arena, b.offset, b.dtype, b.shape)

    def argument(self, argument: Argument) -> torch.Tensor:
        """The part of a buffer that a kernel call is bound to; shares the arena's memory.

        BundleError where there is no such part.
        """
        b, item = self._plan.buffers.get(argument.buffer), DTYPES.get(argument.dtype)
        if b is None or item is None:
            raise BundleError(f"no buffer {argument.buffer!r} of type {argument.dtype!r}")
        end = argument.offset + math.prod(argument.shape) * item.itemsize
        if argument.offset % item.itemsize or not 0 <= argument.offset <= end <= b.bytes:
            raise BundleError(f"bytes {argument.offset} to {end} are not in {argument.buffer}")
        return self._view(b.arena, b.offset + argument.offset, argument.dtype, argument.shape)

    def _view(self, arena: str, offset: int, dtype: str, shape: tuple[int, ...]) -> torch.Tensor:
        size = int(np.prod(shape, dtype=np.int64)) * DTYPES[dtype].itemsize
        return self._bytes[arena][offset : offset + size].view(DTYPES[dtype]).view(shape)

    def fill(self, gguf: GgufFile, draft: GgufFile | None = None) -> None:
        """Fill the weights from the model file and the drafter's, as float32."""
        for name, b in self._plan.buffers.items():
            if b.tensor is not None:
                source = gguf if b.file == "model" else draft
                if source is None:
                    raise DeviceError(f"cpu: {name} is in the drafter's file, which is not open")
                source.dequantize_into(b.tensor, self.buffer(name).numpy())
            elif b.rotation is not None:
                self.buffer(name).numpy()[...] = rotation_table(b, b.rotation, gguf)


def rotation_table(buffer: Buffer, rotation: Rotation, gguf: GgufFile) -> np.ndarray:
    """cos and sin of position · frequency, in float64 rounded once: (positions, dims / 2, 2)."""
    pairs = np.arange(rotation.dims // 2, dtype=np.float64)
    frequency = rotation.scale * rotation.base ** (-2.0 * pairs / rotation.dims)
    if rotation.factors is not None:
        frequency = frequency / gguf.dequantize(rotation.factors).astype(np.float64)
    angle = np.arange(buffer.shape[0], dtype=np.float64)[:, None] * frequency
    return np.stack([np.cos(angle), np.sin(angle)], -1).astype(np.float32)


def _allocate(size: int) -> torch.Tensor:
    """Zeroed bytes that start at a multiple of the alignment; pages come when they are touched."""
    raw = np.zeros(size + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return torch.from_numpy(raw[start : start + size])


def _check_memory(needed: int) -> None:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > total:
        raise DeviceError(
            f"cpu: the bundle needs {needed >> 20} MiB, the machine has {total >> 20} MiB; "
            "compile with fewer slots, a shorter context or a smaller model"
        )
