"""A frozen record with some fields changed: what the scheduler does a dozen times a window."""

from __future__ import annotations

from typing import Any, TypeVar

T = TypeVar("T")


def evolve(record: T, **changes: Any) -> T:
    """As `dataclasses.replace`, for records that check nothing when they are made.

    It copies what the record holds instead of calling its constructor: three times as fast. None of
    these records may keep what it computed in itself (`cached_property`): that would be copied too.
    """
    fresh: T = object.__new__(type(record))
    fresh.__dict__.update(record.__dict__, **changes)
    assert fresh.__dict__.keys() == record.__dict__.keys(), changes.keys()
    return fresh
