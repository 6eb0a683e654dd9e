"""Frozen dataclasses to JSON values and back, strictly: a bundle is read as it was written."""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from strata_runtime.errors import BundleError

T = TypeVar("T")

#: A JSON value to a typed one.
Decoder = Callable[[object], Any]


def encode(value: Any) -> Any:
    """Plain JSON values of a record; tuples become lists."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = _field_types(typing.cast(Any, type(value)))
        return {name: encode(getattr(value, name)) for name in names}
    if isinstance(value, Mapping):
        return {key: encode(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [encode(item) for item in value]
    return value


def decode(kind: type[T], value: object, where: str) -> T:
    """A record of type `kind` from JSON values; BundleError names the place that does not fit."""
    try:
        decoded: T = _decoder(typing.cast(Any, kind))(value)
    except _Unfit as unfit:
        raise BundleError(f"{where}: {unfit.path}{unfit.message}; compile again") from None
    return decoded


class _Unfit(Exception):
    """A value that does not fit; each level on the way out puts its name before the path."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message
        self.path = ""

    def within(self, name: str) -> _Unfit:
        self.path = f"{name}{'.' if self.path else ': '}{self.path}"
        return self


@functools.cache
def _field_types(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


@functools.cache
def _decoder(kind: Any) -> Decoder:
    """The decoder of a type: records, tuples, mappings from str, optional and plain values."""
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return lambda value: value
    if origin is types.UnionType:
        (inner,) = [_decoder(p) for p in parts if p is not types.NoneType]
        return lambda value: None if value is None else inner(value)
    if dataclasses.is_dataclass(kind):
        hints = _field_types(typing.cast(Any, kind))
        return functools.partial(_record, kind, {n: _decoder(t) for n, t in hints.items()})
    if origin is tuple:
        return functools.partial(_tuple, parts)
    if origin is not None and issubclass(origin, Mapping):
        return functools.partial(_mapping, _decoder(parts[1]))
    return functools.partial(_plain, kind)


def _record(kind: Any, fields: dict[str, Decoder], value: object) -> Any:
    items = _plain(dict, value)
    if missing := fields.keys() - items.keys():
        raise _Unfit(f"{', '.join(sorted(missing))} missing")
    if unknown := items.keys() - fields.keys():
        raise _Unfit(f"unknown {', '.join(sorted(unknown))}")
    return kind(**{name: _at(name, decoder, items[name]) for name, decoder in fields.items()})


def _tuple(parts: tuple[Any, ...], value: object) -> tuple[Any, ...]:
    items = _plain(list, value)
    if parts[-1] is Ellipsis:
        parts = (parts[0],) * len(items)
    if len(parts) != len(items):
        raise _Unfit(f"{len(items)} items, expected {len(parts)}")
    pairs = enumerate(zip(parts, items, strict=True))
    return tuple(_at(str(i), _decoder(part), item) for i, (part, item) in pairs)


def _mapping(decoder: Decoder, value: object) -> dict[str, Any]:
    return {key: _at(key, decoder, item) for key, item in _plain(dict, value).items()}


def _at(name: str, decoder: Decoder, value: object) -> Any:
    try:
        return decoder(value)
    except _Unfit as unfit:
        raise unfit.within(name) from None


def _plain(kind: type[T], value: object) -> T:
    """A value of exactly this JSON type; a whole number is also a float."""
    if type(value) is kind:
        return value
    if kind is float and type(value) is int:
        try:
            return typing.cast(T, float(value))
        except OverflowError:
            raise _Unfit("too large for a float") from None
    raise _Unfit(f"{type(value).__name__}, expected {kind.__name__}")
