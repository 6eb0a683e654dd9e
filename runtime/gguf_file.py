"""A GGUF file, mapped read-only: typed metadata, raw tensor bytes, weights as float32."""

import difflib
import hashlib
import math
import mmap
import stat
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar, overload

import gguf.quants
import numpy as np
import numpy.typing as npt
from gguf.constants import GGML_QUANT_SIZES

from strata_runtime.errors import ModelError
from strata_runtime.gguf_header import Header, TensorInfo, Value, parse_header, shown

D = TypeVar("D")

_MISSING = object()
# Weights per call of gguf.quants. Its own groups of 16 rows are mostly call overhead; with larger
# groups than this the C library may hand every intermediate array back to the system, and the page
# faults cost three times what the arithmetic does.
_GROUP = 1 << 15


class GgufFile:
    """One model file; it stays mapped for as long as this or an array from raw() is alive."""

    def __init__(self, path: Path, label: str, mapped: mmap.mmap) -> None:
        self._path = path
        self._label = label
        self._header = parse_header(mapped, label)
        self._bytes = np.frombuffer(mapped, np.uint8)
        self._tensors = MappingProxyType({info.name: info for info in self._header.tensors})

    @classmethod
    def open(cls, path: Path) -> "GgufFile":
        """Maps the file and checks its header; reads no tensor. Raises ModelError."""
        label = str(path) if str(path).isprintable() else repr(str(path))
        return cls(path, label, _map(path, label))

    @property
    def path(self) -> Path:
        """The path as it was given."""
        return self._path

    @property
    def header(self) -> Header:
        """Everything that stands before the tensor data."""
        return self._header

    @property
    def metadata(self) -> Mapping[str, Value]:
        """All metadata by key, in the file's order."""
        return self._header.metadata

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """All tensors by name, in the file's order."""
        return self._tensors

    @overload
    def get_str(self, key: str) -> str: ...
    @overload
    def get_str(self, key: str, default: D) -> str | D: ...
    def get_str(self, key: str, default: object = _MISSING) -> object:
        """A string; ModelError if it is of another type, or missing with no default."""
        return self._get(key, default, _as_str, "a string")

    @overload
    def get_int(self, key: str) -> int: ...
    @overload
    def get_int(self, key: str, default: D) -> int | D: ...
    def get_int(self, key: str, default: object = _MISSING) -> object:
        """A whole number, also one stored as float; errors as get_str."""
        return self._get(key, default, _as_int, "a whole number")

    @overload
    def get_float(self, key: str) -> float: ...
    @overload
    def get_float(self, key: str, default: D) -> float | D: ...
    def get_float(self, key: str, default: object = _MISSING) -> object:
        """A finite number, also one stored as integer; errors as get_str."""
        return self._get(key, default, _as_float, "a finite number")

    @overload
    def get_bool(self, key: str) -> bool: ...
    @overload
    def get_bool(self, key: str, default: D) -> bool | D: ...
    def get_bool(self, key: str, default: object = _MISSING) -> object:
        """A bool; errors as get_str."""
        return self._get(key, default, _as_bool, "a bool")

    @overload
    def get_str_array(self, key: str) -> list[str]: ...
    @overload
    def get_str_array(self, key: str, default: D) -> list[str] | D: ...
    def get_str_array(self, key: str, default: object = _MISSING) -> object:
        """An array of strings; errors as get_str."""
        return self._get(key, default, _as_str_array, "an array of strings")

    @overload
    def get_int_array(self, key: str) -> npt.NDArray[np.int64]: ...
    @overload
    def get_int_array(self, key: str, default: D) -> npt.NDArray[np.int64] | D: ...
    def get_int_array(self, key: str, default: object = _MISSING) -> object:
        """An array of integers as a copy, shape (length,); errors as get_str."""
        return self._get(key, default, _as_int_array, "an array of integers (64-bit, signed)")

    @overload
    def get_float_array(self, key: str) -> npt.NDArray[np.float64]: ...
    @overload
    def get_float_array(self, key: str, default: D) -> npt.NDArray[np.float64] | D: ...
    def get_float_array(self, key: str, default: object = _MISSING) -> object:
        """An array of finite numbers as a copy, shape (length,); errors as get_str."""
        return self._get(key, default, _as_float_array, "an array of finite numbers")

    @overload
    def get_bool_array(self, key: str) -> npt.NDArray[np.bool_]: ...
    @overload
    def get_bool_array(self, key: str, default: D) -> npt.NDArray[np.bool_] | D: ...
    def get_bool_array(self, key: str, default: object = _MISSING) -> object:
        """An array of bools as a copy, shape (length,); errors as get_str."""
        return self._get(key, default, _as_bool_array, "an array of bools")

    def raw(self, name: str) -> npt.NDArray[np.uint8]:
        """A tensor's bytes as the file has them, shape (nbytes,): a read-only view, no copy."""
        info = self._info(name)
        return self._bytes[info.offset : info.offset + info.nbytes]

    def dequantize(self, name: str) -> npt.NDArray[np.float32]:
        """A tensor as a new float32 array of its shape; errors as dequantize_into."""
        out = np.empty(self._info(name).shape, np.float32)
        self.dequantize_into(name, out)
        return out

    def dequantize_into(self, name: str, out: npt.NDArray[np.float32]) -> None:
        """Writes a tensor as float32 into out (its shape, C-contiguous); takes 4 MiB at most.

        An out of fewer rows gets the first ones. The values are those of gguf.quants.dequantize,
        bit for bit. Raises ModelError for a missing tensor or a type that has no float32 form
        (integers, F64, Q8_1, ...).
        """
        info = self._info(name)
        fits = out.shape == info.shape or _are_first_rows(out.shape, info.shape)
        if not fits or out.dtype != np.float32 or not out.flags.c_contiguous:
            raise ValueError(f"out must be C-contiguous float32 of shape {info.shape}")
        block, block_bytes = GGML_QUANT_SIZES[info.ggml_type]
        weights = out.reshape(-1)
        raw = self.raw(name)[: info.nbytes * out.shape[0] // info.shape[0]]
        step = _GROUP // block * block_bytes
        for group in range(-(-raw.size // step)):
            values = self._dequantized(info, raw[group * step : (group + 1) * step])
            weights[group * _GROUP : (group + 1) * _GROUP] = values

    def require_dequantizable(self, name: str) -> None:
        """Raises ModelError for a tensor that is missing, or whose type has no float32 form."""
        info = self._info(name)
        self._dequantized(info, self.raw(name)[: GGML_QUANT_SIZES[info.ggml_type][1]])

    def _dequantized(self, info: TensorInfo, raw: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
        """Whole blocks as float32, shape (weights,)."""
        try:
            # Damaged scales may be NaN or overflow: that must not end in a warning.
            with np.errstate(all="ignore"):
                # One row, whatever the tensor's rows are: gguf.quants splits rows by 16.
                return gguf.quants.dequantize(raw.reshape(1, -1), info.ggml_type).reshape(-1)
        except NotImplementedError as error:
            raise ModelError(
                f"{self._label}: tensor {shown(info.name)} has type {info.ggml_type.name}, which "
                "cannot be converted to float32"
            ) from error

    def sha256(self) -> str:
        """SHA-256 of the whole file in hexadecimal; reads it all. Raises ModelError."""
        try:
            with self._path.open("rb") as file:
                return hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise _unreadable(self._label, error) from error

    def _info(self, name: str) -> TensorInfo:
        info = self._tensors.get(name)
        if info is None:
            raise self._missing("tensor", name, self._tensors)
        return info

    def _get(
        self, key: str, default: object, convert: Callable[[Value], object], expected: str
    ) -> object:
        value = self.metadata.get(key)
        if value is None:
            if default is _MISSING:
                raise self._missing("metadata key", key, self.metadata)
            return default
        converted = convert(value)
        if converted is None:
            raise ModelError(
                f"{self._label}: metadata key {shown(key)} must be {expected}, "
                f"but is {_described(value)}"
            )
        return converted

    def _missing(self, what: str, name: str, names: Iterable[str]) -> ModelError:
        close = difflib.get_close_matches(name, names, n=1)
        hint = f"; did you mean {shown(close[0])}?" if close else ""
        return ModelError(f"{self._label}: {what} {shown(name)} is missing{hint}")


def _are_first_rows(part: tuple[int, ...], whole: tuple[int, ...]) -> bool:
    return len(whole) > 1 and part[1:] == whole[1:] and 0 < part[0] < whole[0]


def _map(path: Path, label: str) -> mmap.mmap:
    try:
        # Before opening: to open a pipe would wait for its writer.
        status = path.stat()
        if stat.S_ISDIR(status.st_mode):
            raise ModelError(f"{label}: is a folder, not a GGUF file")
        if not stat.S_ISREG(status.st_mode):
            raise ModelError(f"{label}: is not a regular file")
        if status.st_size == 0:
            raise ModelError(f"{label}: the file is empty; download it again")
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        raise _unreadable(label, error) from error


def _unreadable(label: str, error: OSError | ValueError) -> ModelError:
    reason = error.strerror if isinstance(error, OSError) else None
    return ModelError(f"{label}: cannot be read: {reason or error}")


def _as_str(value: Value) -> str | None:
    return value if isinstance(value, str) else None


def _as_int(value: Value) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(value) if isinstance(value, int) or value.is_integer() else None


def _as_float(value: Value) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) else None


def _as_bool(value: Value) -> bool | None:
    return value if isinstance(value, bool) else None


def _as_str_array(value: Value) -> list[str] | None:
    return value if isinstance(value, list) else None


def _as_int_array(value: Value) -> npt.NDArray[np.int64] | None:
    if not isinstance(value, np.ndarray) or not np.issubdtype(value.dtype, np.integer):
        return None
    numbers = value.astype(np.int64)
    # Only unsigned 64-bit numbers can wrap.
    return None if value.dtype == np.uint64 and (numbers < 0).any() else numbers


def _as_float_array(value: Value) -> npt.NDArray[np.float64] | None:
    if not isinstance(value, np.ndarray) or value.dtype == np.bool_:
        return None
    return value.astype(np.float64) if np.isfinite(value).all() else None


def _as_bool_array(value: Value) -> npt.NDArray[np.bool_] | None:
    if not isinstance(value, np.ndarray) or value.dtype != np.bool_:
        return None
    return value.astype(np.bool_)


def _described(value: Value) -> str:
    if isinstance(value, str):
        return f"the string {shown(value)}"
    if isinstance(value, list):
        return f"an array of {len(value)} strings"
    if isinstance(value, np.ndarray):
        return f"an array of {value.size} values of type {value.dtype.name}"
    return f"the {type(value).__name__} {value}"
