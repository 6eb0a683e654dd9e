"""What each kernel of a cubin needs, read from the ELF file itself.

The layout is NVIDIA's and not documented; it is the one that `readelf` and `cuobjdump` show for
NVRTC 12 and 13, sm_70 to sm_120.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from strata_runtime.errors import BundleError

_HEADER = struct.Struct("<8s8xHH20xQ10xHHH")  # mark, type, machine, sections' place and form
_SECTION = struct.Struct("<II16xQQI20x")  # name, type, offset, bytes, link
_SYMBOL = struct.Struct("<IBBHQQ")  # name, type, other, section, value, bytes
_ATTRIBUTE = struct.Struct("<BBH")  # format, attribute, value or bytes of the value behind it
_PAIR = struct.Struct("<II")  # symbol, value

_CUDA, _SYMBOLS, _NO_BITS = 190, 2, 8  # a machine, and two types of sections
_FUNCTION, _ENTRY = 2, 0x10  # a symbol's type; the flag of those that can be launched
_SIZED, _FORMATS = 4, (1, 2, 3, 4)  # formats of attributes
_FRAME, _STACK, _REGISTERS = 0x11, 0x12, 0x2F  # attributes: bytes, bytes with callees, registers
_UNKNOWN = 0xFFFFFFFF  # the stack of a recursion

#: From sm_90 on, a kernel's shared memory starts behind what the system keeps for itself.
_SYSTEM_SECTION, _SYSTEM_BYTES = ".nv.shared.reserved.0", 1024


@dataclass(frozen=True)
class Resources:
    """What a kernel needs.

    Registers of a thread; the block's static shared memory in bytes, without what the system adds;
    a thread's local memory in bytes: spilled registers and arrays, of called functions too.
    """

    registers: int
    shared_bytes: int
    local_bytes: int


@dataclass(frozen=True)
class _Section:
    name: str
    kind: int
    size: int
    content: bytes
    link: int


def read_resources(cubin: bytes) -> dict[str, Resources]:
    """Every kernel that can be launched, by name; BundleError for a damaged file."""
    sections = _sections(cubin)
    shared = {s.name: s.size for s in sections}
    system = _SYSTEM_BYTES if _SYSTEM_SECTION in shared else 0
    attributes = _function_attributes(sections)
    found: dict[str, Resources] = {}
    for index, name in _entries(sections):
        registers = attributes.get((_REGISTERS, index))
        if registers is None:
            raise BundleError(f"damaged cubin: {name} has no number of registers")
        stack = attributes.get((_STACK, index), 0)
        local = max(attributes.get((_FRAME, index), 0), 0 if stack == _UNKNOWN else stack)
        block = max(shared.get(f".nv.shared.{name}", 0) - system, 0)
        found[name] = Resources(registers, block, local)
    return found


def _sections(cubin: bytes) -> list[_Section]:
    header = _HEADER.unpack(_cut(cubin, 0, _HEADER.size))
    mark, _, machine, place, size, count, names = header
    if mark[:6] != b"\x7fELF\x02\x01" or machine != _CUDA or size != _SECTION.size:
        raise BundleError("damaged cubin: not an ELF file for CUDA")
    rows = list(_SECTION.iter_unpack(_cut(cubin, place, size * count)))
    if names >= count:
        raise BundleError(f"damaged cubin: {count} sections, names in {names}")
    texts = _cut(cubin, *rows[names][2:4])
    return [
        _Section(
            _text(texts, name), kind, size, b"" if kind == _NO_BITS else _cut(cubin, at, size), link
        )
        for name, kind, at, size, link in rows
    ]


def _entries(sections: list[_Section]) -> Iterator[tuple[int, str]]:
    """Index and name of each symbol that can be launched."""
    for table in sections:
        if table.kind != _SYMBOLS:
            continue
        if table.link >= len(sections):
            raise BundleError(f"damaged cubin: {table.name} has no names")
        texts = sections[table.link].content
        for index, (name, kind, other, *_) in enumerate(_rows(_SYMBOL, table)):
            if kind & 15 == _FUNCTION and other & _ENTRY:
                yield index, _text(texts, name)


def _function_attributes(sections: list[_Section]) -> dict[tuple[int, int], int]:
    """(attribute, symbol) to value: what the file says of its functions in one place."""
    found: dict[tuple[int, int], int] = {}
    for section in sections:
        if section.name != ".nv.info":
            continue
        at = 0
        while at < section.size:
            form, attribute, value = _ATTRIBUTE.unpack(_cut(section.content, at, _ATTRIBUTE.size))
            if form not in _FORMATS:
                raise BundleError(f"damaged cubin: an attribute of format {form}")
            at += _ATTRIBUTE.size
            if form == _SIZED:
                content = _cut(section.content, at, value)
                at += value
                if attribute in (_FRAME, _STACK, _REGISTERS):
                    symbol, number = _PAIR.unpack(_cut(content, 0, _PAIR.size))
                    found[attribute, symbol] = number
    return found


def _rows(form: struct.Struct, section: _Section) -> Iterator[tuple[int, ...]]:
    if section.size % form.size:
        raise BundleError(f"damaged cubin: {section.name} has {section.size} bytes")
    return form.iter_unpack(section.content)


def _text(texts: bytes, offset: int) -> str:
    end = texts.find(b"\0", offset)
    if end < 0:
        raise BundleError(f"damaged cubin: a name at {offset} of {len(texts)}")
    return texts[offset:end].decode(errors="replace")


def _cut(data: bytes, offset: int, size: int) -> bytes:
    if offset + size > len(data):
        raise BundleError(f"damaged cubin: bytes {offset} to {offset + size} of {len(data)}")
    return data[offset : offset + size]
