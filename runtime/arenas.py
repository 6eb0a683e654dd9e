"""Arenas: allocated once at load, filled from the model file, viewed as tensors."""

from __future__ import annotations

import math
import os
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch

from strata_runtime.bundle_format import ALIGNMENT, Arena, Argument, Buffer, MemoryPlan, Rotation
from strata_runtime.errors import BundleError, DeviceError
from strata_runtime.gguf_file import GgufFile

#: Bytes that are copied to a device at once.
PIECE = 64 << 20

DTYPES = {"f32": torch.float32, "f16": torch.float16, "i32": torch.int32, "i64": torch.int64}


def on_host(arena: Arena) -> torch.Tensor:
    """Zeroed bytes that start at a multiple of the alignment; pages come when they are touched."""
    raw = np.zeros(arena.bytes + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return torch.from_numpy(raw[start : start + arena.bytes])


class Arenas:
    """The memory of a bundle; a buffer is a range of bytes of one of them."""

    def __init__(
        self, plan: MemoryPlan, allocate: Callable[[Arena], torch.Tensor] = on_host
    ) -> None:
        """Allocate every arena, zeroed; `allocate` says where, as aligned bytes.

        DeviceError where the machine has less memory than the arenas that are its own need.
        """
        if allocate is on_host:
            _check_memory(sum(a.bytes for a in plan.arenas.values()))
        self._plan = plan
        self._bytes = {name: allocate(a) for name, a in plan.arenas.items()}

    def arena(self, name: str) -> torch.Tensor:
        """A whole arena as bytes; shares its memory."""
        return self._bytes[name]

    def buffer(self, name: str) -> torch.Tensor:
        """A whole buffer, in its type and shape; shares the arena's memory."""
        b = self._plan.buffers[name]
        return self._view(b.arena, b.offset, b.dtype, b.shape)

    def has(self, name: str) -> bool:
        """Is there a buffer of this name?"""
        return name in self._plan.buffers

    def argument(self, argument: Argument) -> torch.Tensor:
        """The part of a buffer that a kernel call is bound to; shares the arena's memory.

        BundleError where there is no such part.
        """
        b = self._part(argument)
        return self._view(b.arena, b.offset + argument.offset, argument.dtype, argument.shape)

    def address(self, argument: Argument) -> int:
        """Where a device finds that part; of a matrix as it is stored, all of it."""
        b = self._part(argument) if argument.stored is None else self._whole(argument)
        return self._bytes[b.arena].data_ptr() + b.offset + argument.offset

    def _whole(self, argument: Argument) -> Buffer:
        b = self._plan.buffers.get(argument.buffer)
        if b is None or argument.offset:
            raise BundleError(f"no buffer {argument.buffer!r}, or only a part of it")
        return b

    def _part(self, argument: Argument) -> Buffer:
        """The buffer of an argument that lies within it."""
        b, item = self._plan.buffers.get(argument.buffer), DTYPES.get(argument.dtype)
        if b is None or item is None:
            raise BundleError(f"no buffer {argument.buffer!r} of type {argument.dtype!r}")
        end = argument.offset + math.prod(argument.shape) * item.itemsize
        if argument.offset % item.itemsize or not 0 <= argument.offset <= end <= b.bytes:
            raise BundleError(f"bytes {argument.offset} to {end} are not in {argument.buffer}")
        return b

    def _view(self, arena: str, offset: int, dtype: str, shape: tuple[int, ...]) -> torch.Tensor:
        size = int(np.prod(shape, dtype=np.int64)) * DTYPES[dtype].itemsize
        return self._bytes[arena][offset : offset + size].view(DTYPES[dtype]).view(shape)

    def fill(self, gguf: GgufFile, draft: GgufFile | None = None) -> None:
        """Fill the weights from the model file and the drafter's: as stored, or as float32."""
        for name, b in self._plan.buffers.items():
            if b.tensor is not None:
                source = gguf if b.file == "model" else draft
                if source is None:
                    raise DeviceError(f"{name} is in the drafter's file, which is not open")
                self._fill_tensor(b, b.tensor, source)
            elif b.rotation is not None:
                self._put(b, rotation_table(b, b.rotation, gguf))

    def _fill_tensor(self, b: Buffer, tensor: str, source: GgufFile) -> None:
        """A head that is cut has the file's first rows."""
        arena = self._bytes[b.arena]
        if b.dtype not in DTYPES:
            self._put(b, source.raw(tensor)[: b.bytes])
        elif arena.is_cpu:
            source.dequantize_into(tensor, self._view(b.arena, b.offset, b.dtype, b.shape).numpy())
        else:
            values = np.empty(b.shape, np.float32)
            source.dequantize_into(tensor, values)
            self._put(b, values)

    def _put(self, b: Buffer, values: npt.NDArray[np.generic]) -> None:
        """Copy values to a buffer's bytes, a piece at a time: the file is never whole in memory."""
        data = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
        for start in range(0, data.size, PIECE):
            piece = torch.from_numpy(data[start : start + PIECE].copy())
            place = b.offset + start
            self._bytes[b.arena][place : place + piece.numel()].copy_(piece)


def rotation_table(buffer: Buffer, rotation: Rotation, gguf: GgufFile) -> np.ndarray:
    """cos and sin of position · frequency, in float64 rounded once: (positions, dims / 2, 2)."""
    pairs = np.arange(rotation.dims // 2, dtype=np.float64)
    frequency = rotation.scale * rotation.base ** (-2.0 * pairs / rotation.dims)
    if rotation.factors is not None:
        frequency = frequency / gguf.dequantize(rotation.factors).astype(np.float64)
    angle = np.arange(buffer.shape[0], dtype=np.float64)[:, None] * frequency
    return np.stack([np.cos(angle), np.sin(angle)], -1).astype(np.float32)


def _check_memory(needed: int) -> None:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > total:
        raise DeviceError(
            f"cpu: the bundle needs {needed >> 20} MiB, the machine has {total >> 20} MiB; "
            "compile with fewer slots, a shorter context or a smaller model"
        )
