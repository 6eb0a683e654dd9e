"""Tiny llama files with keys and tensors changed, left out or added, and their bytes damaged."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import GGUFValueType, GGUFWriter

from gguf_maker import finish, write_tiny_llama
from strata_runtime.gguf_file import GgufFile

#: A key's new value, or None where it goes.
Keys = Mapping[str, str | int | float | bool | None]
#: A tensor's new values, stored as their dtype, or None where it goes.
Tensors = Mapping[str, npt.NDArray[Any] | None]

_ARCHITECTURE = "general.architecture"


def write_changed(
    path: Path,
    keys: Keys | None = None,
    tensors: Tensors | None = None,
    architecture: str = "llama",
    write: Callable[..., Path] = write_tiny_llama,
    **tiny: Any,
) -> Path:
    """Writes a tiny llama (or NextN layer) with the changes, F32; returns path.

    `write` is a writer of gguf_maker, `tiny` are its arguments.
    """
    source = GgufFile.open(write(path.with_suffix(".plain"), **tiny))
    weights = {name: source.dequantize(name) for name in source.tensors}
    writer = GGUFWriter(path, architecture)
    for key, value in {**source.metadata, **(keys or {})}.items():
        if value is not None and key != _ARCHITECTURE:
            writer.add_key_value(key, value, _kind(value))
    for name, values in {**weights, **(tensors or {})}.items():
        if values is not None:
            writer.add_tensor(name, values)
    finish(writer)
    source.path.unlink()
    return path


def _kind(value: object) -> GGUFValueType:
    """The type under which a value is stored."""
    if isinstance(value, bool):
        return GGUFValueType.BOOL
    if isinstance(value, int):
        return GGUFValueType.INT64 if value < 0 or value >> 32 else GGUFValueType.UINT32
    return GGUFValueType.STRING if isinstance(value, str) else GGUFValueType.FLOAT32


def norms(*shape: int) -> npt.NDArray[np.float32]:
    """Ones of this shape."""
    return np.ones(shape, np.float32)


def put(data: bytes, offset: int, part: bytes) -> bytes:
    """The bytes with `part` in the place of as many of them."""
    return data[:offset] + part + data[offset + len(part) :]


def put_u64(data: bytes, offset: int, value: int) -> bytes:
    """The bytes with another 64-bit number at an offset."""
    return put(data, offset, struct.pack("<Q", value))


def behind(data: bytes, name: str) -> int:
    """Offset of what follows a key's or tensor's name: its type, or its number of dimensions."""
    text = struct.pack("<Q", len(name)) + name.encode()
    assert data.count(text) == 1, name
    return data.index(text) + len(text)


def renamed(data: bytes, name: str, new: str) -> bytes:
    """The bytes with a key or tensor renamed; both names have one length."""
    assert len(name) == len(new)
    return put(data, behind(data, name) - len(name), new.encode())
