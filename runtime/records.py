"""Frozen dataclasses to JSON values and back, strictly: a bundle is read as it was written."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

from strata_runtime.errors import BundleError

T = TypeVar("T")


def encode(value: Any) -> Any:
    """Plain JSON values of a record; tuples become lists."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: encode(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {key: encode(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [encode(item) for item in value]
    return value


def decode(kind: type[T], value: object, where: str) -> T:
    """A record of type `kind` from JSON values; BundleError names the place that does not fit."""
    decoded: T = _decode(kind, value, where)
    return decoded


def _decode(kind: Any, value: object, where: str) -> Any:
    if kind is Any:
        return value
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin is types.UnionType or origin is typing.Union:
        if value is None and type(None) in parts:
            return None
        (kind,) = [p for p in parts if p is not type(None)]
        return _decode(kind, value, where)
    if dataclasses.is_dataclass(kind):
        return _decode_record(kind, value, where)
    if origin is tuple:
        return _decode_tuple(parts, value, where)
    if origin in (dict, Mapping) or origin is typing.get_origin(Mapping[str, int]):
        items = _expect(dict, value, where)
        return {key: _decode(parts[1], item, f"{where}.{key}") for key, item in items.items()}
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    return _expect(kind, value, where)


def _decode_record(kind: Any, value: object, where: str) -> Any:
    items = _expect(dict, value, where)
    types_of = typing.get_type_hints(kind)
    names = {f.name for f in dataclasses.fields(kind)}
    if missing := names - items.keys():
        raise BundleError(f"{where}: {', '.join(sorted(missing))} missing")
    if unknown := items.keys() - names:
        raise BundleError(f"{where}: unknown {', '.join(sorted(unknown))}")
    return kind(**{n: _decode(types_of[n], items[n], f"{where}.{n}") for n in names})


def _decode_tuple(parts: tuple[Any, ...], value: object, where: str) -> tuple[Any, ...]:
    items = _expect(list, value, where)
    if parts[-1] is Ellipsis:
        parts = (parts[0],) * len(items)
    if len(parts) != len(items):
        raise BundleError(f"{where}: {len(items)} items, expected {len(parts)}")
    return tuple(
        _decode(p, item, f"{where}[{i}]")
        for i, (p, item) in enumerate(zip(parts, items, strict=True))
    )


def _expect(kind: type[T], value: object, where: str) -> T:
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise BundleError(f"{where}: {type(value).__name__}, expected {kind.__name__}")
    return value
