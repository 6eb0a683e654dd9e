"""Header of a GGUF file: one walk that checks every bound and yields every value.

gguf.GGUFReader is not used: it trusts the file's counts and lengths, and its array per vocabulary
entry takes seconds and hundreds of MiB, more than a damaged file may cost. The gguf package
supplies the type numbers and block sizes. Format: docs/gguf.md in github.com/ggml-org/ggml.
"""

import dataclasses
import math
import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType

import numpy as np
import numpy.typing as npt
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType

from strata_runtime.errors import ModelError

Value = str | int | float | bool | list[str] | npt.NDArray[np.generic]

TOKENS_KEY = "tokenizer.ggml.tokens"

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_ALIGNMENT_KEY = "general.alignment"
_DEFAULT_ALIGNMENT = 32
_MAX_ALIGNMENT = 1 << 20
_MAX_KEY_BYTES = 65535
_MAX_NAME_BYTES = 64
_MAX_DIMS = 4
# Real headers have at most 20 MiB, 0.8 million strings and some 50,000 tensors. The limits keep a
# damaged header of a large file from costing seconds, or memory in proportion to the file.
_MAX_HEADER_BYTES = 1 << 26
_MAX_STRINGS = 1_500_000
_MAX_ENTRIES = 1 << 17
_MIN_PAIR_BYTES = 8 + 1 + 4 + 1  # length and text of the key, type, value
_MIN_TENSOR_BYTES = 8 + 1 + 4 + 8 + 4 + 8  # length and text of the name, dims, type, offset
_REMOVED_TYPES = frozenset((4, 5, 31, 32, 33, 36, 37, 38))
_AGAIN = "download it again"

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
# The letters mean the same to struct and to numpy.
_LETTERS = {
    GGUFValueType.UINT8: "B",
    GGUFValueType.INT8: "b",
    GGUFValueType.UINT16: "H",
    GGUFValueType.INT16: "h",
    GGUFValueType.UINT32: "I",
    GGUFValueType.INT32: "i",
    GGUFValueType.FLOAT32: "f",
    GGUFValueType.BOOL: "B",
    GGUFValueType.UINT64: "Q",
    GGUFValueType.INT64: "q",
    GGUFValueType.FLOAT64: "d",
}


@dataclass(frozen=True)
class TensorInfo:
    """Where a tensor lies: shape in numpy order (rows first), offset and nbytes in bytes."""

    name: str
    shape: tuple[int, ...]
    ggml_type: GGMLQuantizationType
    offset: int
    nbytes: int


@dataclass(frozen=True)
class Header:
    """What stands before the tensor data; alignment and data_start in bytes.

    Arrays of numbers are read-only views of the file, arrays of strings are lists.
    """

    version: int
    metadata: Mapping[str, Value]
    tensors: tuple[TensorInfo, ...]
    alignment: int
    data_start: int


def parse_header(buffer: bytes | memoryview | mmap.mmap, name: str) -> Header:
    """The header of a whole GGUF file (version 2 or 3, little endian); name goes into messages.

    Text must be UTF-8, except in the vocabulary, where a token may be any bytes: those that are
    not UTF-8 come as surrogates (surrogateescape). Raises ModelError on anything damaged.
    """
    cursor = _Cursor(memoryview(buffer), name)
    version = _version(cursor)
    tensor_count = cursor.count("the tensor count")
    pair_count = cursor.count("the count of metadata keys")
    _check_count(cursor, "metadata keys", pair_count, _MIN_PAIR_BYTES)
    _check_count(cursor, "tensors", tensor_count, _MIN_TENSOR_BYTES)
    metadata = _metadata(cursor, pair_count)
    alignment = _alignment(cursor, metadata)
    _check_count(cursor, "tensors", tensor_count, _MIN_TENSOR_BYTES)
    entries = _tensors(cursor, tensor_count, alignment)
    data_start = -(-cursor.pos // alignment) * alignment
    tensors = _placed(cursor, entries, data_start)
    return Header(version, MappingProxyType(metadata), tensors, alignment, data_start)


def shown(text: str) -> str:
    """A name from a file, quoted, escaped and cut so that a message stays one readable line."""
    return repr(text if len(text) <= 80 else text[:77] + "...")


class _Cursor:
    """Reads little-endian values in order and refuses to pass the end."""

    def __init__(self, view: memoryview, name: str) -> None:
        self.name = name
        self.size = len(view)
        self.view = view[:_MAX_HEADER_BYTES]
        self.pos = 0
        self.strings = 0

    @property
    def left(self) -> int:
        return len(self.view) - self.pos

    def error(self, text: str) -> ModelError:
        return ModelError(f"{self.name}: {text}")

    def short(self, what: str, count: int) -> ModelError:
        text = f"{what} at byte {self.pos} needs {count} bytes"
        if len(self.view) < self.size:
            limit = _MAX_HEADER_BYTES >> 20
            return self.error(f"{text}, but a header has at most {limit} MiB: damaged; {_AGAIN}")
        return self.error(
            f"{text}, but the file ends after {self.left}: it is cut off or damaged; {_AGAIN}"
        )

    def skip(self, count: int, what: str) -> int:
        """Passes over count bytes; returns where they start."""
        if count > self.left:
            raise self.short(what, count)
        start = self.pos
        self.pos += count
        return start

    def u32(self, what: str) -> int:
        return int(_U32.unpack_from(self.view, self.skip(4, what))[0])

    def count(self, what: str) -> int:
        return int(_U64.unpack_from(self.view, self.skip(8, what))[0])

    def string(self, what: str, limit: int = _MAX_HEADER_BYTES) -> str:
        length = self.count(f"the length of {what}")
        if limit < length <= self.left:
            raise self.error(f"{what} at byte {self.pos} has {length} bytes, more than {limit}")
        start = self.skip(length, what)
        try:
            return str(self.view[start : self.pos], "utf-8")
        except UnicodeDecodeError as error:
            raise self.error(
                f"{what} at byte {start} is not UTF-8 (byte {error.start} of it); {_AGAIN}"
            ) from error

    def named(self, what: str, limit: int) -> str:
        """A string that must not be empty."""
        start = self.pos
        text = self.string(what, limit)
        if not text:
            raise self.error(f"{what} at byte {start} is empty; {_AGAIN}")
        return text


def _version(cursor: _Cursor) -> int:
    start = cursor.skip(4, "the magic")
    magic = bytes(cursor.view[start : cursor.pos])
    if magic != _MAGIC:
        raise cursor.error(f"not a GGUF file: it starts with {magic!r} instead of {_MAGIC!r}")
    version = cursor.u32("the version")
    if version in _VERSIONS:
        return version
    if version and version & 0xFFFF == 0:
        raise cursor.error("a big-endian GGUF file; convert the model as little endian")
    raise cursor.error(f"GGUF version {version} is not supported, only 2 and 3; convert it again")


def _check_count(cursor: _Cursor, what: str, count: int, least: int) -> None:
    if count > min(cursor.left // least, _MAX_ENTRIES):
        raise cursor.error(
            f"the header claims {count} {what}, more than fit into the {cursor.left} bytes from "
            f"byte {cursor.pos} on, or more than {_MAX_ENTRIES}; {_AGAIN}"
        )


def _metadata(cursor: _Cursor, count: int) -> dict[str, Value]:
    metadata: dict[str, Value] = {}
    for index in range(count):
        start = cursor.pos
        key = cursor.named(f"metadata key {index}", _MAX_KEY_BYTES)
        if key in metadata:
            raise cursor.error(f"metadata key {shown(key)} stands twice (byte {start}); {_AGAIN}")
        metadata[key] = _value(cursor, key)
    return metadata


def _value(cursor: _Cursor, key: str) -> Value:
    what = f"the value of {shown(key)}"
    kind = _value_type(cursor, what)
    if kind is GGUFValueType.ARRAY:
        return _array(cursor, key)
    if kind is GGUFValueType.STRING:
        return cursor.string(what)
    code = struct.Struct("<" + _LETTERS[kind])
    start = cursor.skip(code.size, what)
    value: int | float = code.unpack_from(cursor.view, start)[0]
    if kind is not GGUFValueType.BOOL:
        return value
    if value > 1:
        raise cursor.error(f"{what} at byte {start} is {value}, not a bool (0 or 1); {_AGAIN}")
    return bool(value)


def _value_type(cursor: _Cursor, what: str) -> GGUFValueType:
    start = cursor.pos
    number = cursor.u32(f"the type of {what}")
    try:
        return GGUFValueType(number)
    except ValueError as error:
        raise cursor.error(
            f"{what} has the unknown type {number} (byte {start}): the file is damaged or too new"
        ) from error


def _array(cursor: _Cursor, key: str) -> list[str] | npt.NDArray[np.generic]:
    what = f"the array {shown(key)}"
    kind = _value_type(cursor, f"an item of {what}")
    if kind is GGUFValueType.ARRAY:
        raise cursor.error(f"{what} is an array of arrays, which is not supported")
    count = cursor.count(f"the length of {what}")
    if kind is GGUFValueType.STRING:
        return _strings(cursor, key, count)
    dtype = np.dtype("<" + _LETTERS[kind])
    start = cursor.skip(count * dtype.itemsize, f"{what} of {count} items")
    raw = cursor.view[start : cursor.pos].toreadonly()
    numbers = np.frombuffer(raw, dtype) if count else np.zeros(0, dtype)
    if kind is not GGUFValueType.BOOL:
        return numbers
    wrong = numbers > 1
    if wrong.any():
        raise cursor.error(f"item {wrong.argmax()} of {what} is not a bool (0 or 1); {_AGAIN}")
    return numbers.view(np.bool_)


def _strings(cursor: _Cursor, key: str, count: int) -> list[str]:
    what = f"the array {shown(key)}"
    if count * 8 > cursor.left:
        raise cursor.short(f"{what} of {count} strings", count * 8)
    cursor.strings += count
    if cursor.strings > _MAX_STRINGS:
        raise cursor.error(f"{what} of {count} strings: a header has at most {_MAX_STRINGS}")
    errors = "surrogateescape" if key == TOKENS_KEY else "strict"
    # A vocabulary has 50,000 to 800,000 strings: local names and one pass, no call per string.
    view, pos, end, unpack = cursor.view, cursor.pos, len(cursor.view), _U64.unpack_from
    texts: list[str] = []
    append = texts.append
    try:
        while len(texts) < count:
            start = pos + 8
            stop = start + unpack(view, pos)[0]
            if stop > end:
                break
            append(str(view[start:stop], "utf-8", errors))
            pos = stop
    except struct.error:
        stop = pos + 8
    except UnicodeDecodeError as error:
        raise cursor.error(
            f"string {len(texts)} of {what} (byte {pos}) is not UTF-8; {_AGAIN}"
        ) from error
    cursor.pos = pos
    if len(texts) < count:
        raise cursor.short(f"string {len(texts)} of {what}", stop - pos)
    return texts


def _alignment(cursor: _Cursor, metadata: Mapping[str, Value]) -> int:
    value = metadata.get(_ALIGNMENT_KEY, _DEFAULT_ALIGNMENT)
    whole = isinstance(value, int) and not isinstance(value, bool)
    if isinstance(value, int) and whole and 8 <= value <= _MAX_ALIGNMENT and value.bit_count() == 1:
        return value
    found = value if isinstance(value, int | float) else f"of type {type(value).__name__}"
    raise cursor.error(
        f"{_ALIGNMENT_KEY} is {found}, but must be a power of two from 8 to {_MAX_ALIGNMENT}"
    )


def _tensors(cursor: _Cursor, count: int, alignment: int) -> list[TensorInfo]:
    """The tensor entries in the file's order; offsets still count from the data's start."""
    entries: dict[str, TensorInfo] = {}
    for index in range(count):
        start = cursor.pos
        name = cursor.named(f"the name of tensor {index}", _MAX_NAME_BYTES)
        if name in entries:
            raise cursor.error(f"tensor {shown(name)} stands twice (byte {start}); {_AGAIN}")
        entries[name] = entry = _tensor(cursor, name)
        if entry.offset % alignment:
            raise cursor.error(
                f"tensor {shown(name)} has offset {entry.offset}, not a multiple of the "
                f"alignment {alignment}; {_AGAIN}"
            )
    return list(entries.values())


def _tensor(cursor: _Cursor, name: str) -> TensorInfo:
    what = f"tensor {shown(name)}"
    start = cursor.pos
    rank = cursor.u32(f"the number of dimensions of {what}")
    if not 1 <= rank <= _MAX_DIMS:
        raise cursor.error(f"{what} has {rank} dimensions (byte {start}), not 1 to {_MAX_DIMS}")
    dims_start = cursor.skip(8 * rank, f"the shape of {what}")
    shape = struct.unpack_from(f"<{rank}Q", cursor.view, dims_start)[::-1]
    elements = math.prod(shape)
    if not 0 < elements < 1 << 63:
        problem = "a dimension that is zero" if not elements else "too many elements"
        raise cursor.error(f"{what} has {problem} (shape {shape}, byte {dims_start}); {_AGAIN}")
    ggml_type = _ggml_type(cursor, what)
    block, block_bytes = GGML_QUANT_SIZES[ggml_type]
    if shape[-1] % block:
        raise cursor.error(
            f"{what} has rows of {shape[-1]} elements, not whole blocks of {block} as type "
            f"{ggml_type.name} needs"
        )
    offset = cursor.count(f"the offset of {what}")
    return TensorInfo(name, shape, ggml_type, offset, elements // block * block_bytes)


def _ggml_type(cursor: _Cursor, what: str) -> GGMLQuantizationType:
    start = cursor.pos
    number = cursor.u32(f"the type of {what}")
    if number in GGML_QUANT_SIZES:
        return GGMLQuantizationType(number)
    if number in _REMOVED_TYPES:
        raise cursor.error(f"{what} has type {number}, which ggml removed; quantise it again")
    raise cursor.error(
        f"{what} has the unknown type {number} (byte {start}): the file is damaged, or newer than "
        "the installed gguf package"
    )


def _placed(cursor: _Cursor, entries: list[TensorInfo], data_start: int) -> tuple[TensorInfo, ...]:
    """The entries with offsets from the file's start; all lie inside the file and apart."""
    tensors = tuple(dataclasses.replace(e, offset=e.offset + data_start) for e in entries)
    for tensor in tensors:
        end = tensor.offset + tensor.nbytes
        if end > cursor.size:
            raise cursor.error(
                f"tensor {shown(tensor.name)} ends at byte {end}, but the file has {cursor.size}: "
                f"it is cut off or damaged; {_AGAIN}"
            )
    for first, second in pairwise(sorted(tensors, key=lambda tensor: tensor.offset)):
        if first.offset + first.nbytes > second.offset:
            raise cursor.error(
                f"tensors {shown(first.name)} and {shown(second.name)} overlap at byte "
                f"{second.offset}; {_AGAIN}"
            )
    return tensors
