"""Which entries are compiled together, and where they run: under the emulation, or on a GPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import torch

from strata_kernels.render import Entry


class Elsewhere(Protocol):
    """Where entries can run that is not the emulation: a GPU."""

    def run(self, entry: Entry, values: Sequence[torch.Tensor], band: bytes) -> None:
        """Run an entry; `values` are its arguments, and hold the results afterwards.

        They lie between `band` bytes: AssertionError where those are written.
        """


#: Entries by their names, each with those that it is compiled with.
_UNITS: dict[str, tuple[Entry, ...]] = {}
_ELSEWHERE: list[Elsewhere] = []


def prepare(entries: Sequence[Entry]) -> None:
    """Entries will be compiled as one unit, which is faster than each on its own."""
    _UNITS.update(dict.fromkeys((entry.name for entry in entries), tuple(entries)))


def unit_of(entry: Entry) -> tuple[Entry, ...]:
    """The entries that an entry is compiled with, itself among them."""
    return _UNITS.setdefault(entry.name, (entry,))


def entry_named(name: str) -> Entry:
    """An entry of some unit."""
    return next(entry for entry in _UNITS[name] if entry.name == name)


@contextmanager
def on(elsewhere: Elsewhere) -> Iterator[None]:
    """Entries run there, for as long as this lasts."""
    _ELSEWHERE.append(elsewhere)
    try:
        yield
    finally:
        _ELSEWHERE.pop()


def elsewhere() -> Elsewhere | None:
    """Where entries run now, if it is not the emulation."""
    return _ELSEWHERE[-1] if _ELSEWHERE else None
