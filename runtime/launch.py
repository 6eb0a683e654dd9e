"""A launch: one replay of a program, with the table that says what each row is."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from operator import attrgetter

import numpy as np
import numpy.typing as npt

from strata_runtime.bundle_format import Layout
from strata_runtime.errors import BundleError

Ints = npt.NDArray[np.int32]
#: Token ids, in order.
Tokens = tuple[int, ...]


@dataclass(frozen=True)
class Sampling:
    """How a row's token is drawn; temperature 0 is greedy. Defaults change nothing.

    `penalty_last` is how many of the last tokens the penalties look at; `seed` has 64 bits.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repeat_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    penalty_last: int = 0
    seed: int = 0

    @property
    def seed_low(self) -> int:
        """The seed's lower 32 bits, as an int32 has them."""
        return _signed(self.seed & 0xFFFFFFFF)

    @property
    def seed_high(self) -> int:
        """The seed's upper 32 bits, as an int32 has them."""
        return _signed(self.seed >> 32 & 0xFFFFFFFF)


def _signed(word: int) -> int:
    return word - (1 << 32) if word >> 31 else word


@dataclass(frozen=True)
class Row:
    """One token at one position of one slot; -1 where a field names nothing."""

    slot: int
    position: int
    token: int
    first_row: int
    index: int
    handoff_row: int
    state_in: int
    state_out: int
    saved_row: int = -1
    mask: int = -1
    bias: int = -1
    forced: int = -1
    sampling: Sampling = field(default_factory=Sampling)


@dataclass(frozen=True)
class Segment:
    """The rows of one slot in a window; `depth` is how many drafts are wanted next."""

    slot: int
    epoch: int
    first_row: int
    count: int
    depth: int = 0
    first_saved_row: int = -1


@dataclass(frozen=True)
class Table:
    """What a launch says; `kind` is the program's. Rows beyond these are inert."""

    kind: str
    context: int
    rows: tuple[Row, ...]
    segments: tuple[Segment, ...]


@dataclass(frozen=True)
class Launch:
    """Replay `program` on `stage` once every launch in `waits` is done; its own `id` signals."""

    id: int
    stage: int
    program: str
    table: Table
    waits: tuple[int, ...] = ()


#: The fields that this runtime can write.
_KNOWN = {
    "header": {"sequence", "kind", "context", "rows", "segments"},
    "segment": {*Segment.__dataclass_fields__},
    "row": {*Row.__dataclass_fields__, *Sampling.__dataclass_fields__, "seed_low", "seed_high"}
    - {"sampling", "seed"},
}


class TableWriter:
    """Writes tables as a bundle's layout has them."""

    def __init__(self, layout: Layout) -> None:
        """BundleError where the layout has a field that this runtime does not know."""
        self._layout = layout
        for part, known in _KNOWN.items():
            if unknown := [name for name in getattr(layout, part) if name not in known]:
                fields = ", ".join(unknown)
                raise BundleError(f"table: unknown {part} fields {fields}; compile again")
        self._header = struct.Struct(f"={len(layout.header)}i")
        self._segment = struct.Struct(f"={len(layout.segment)}i")
        kinds = ("f" if name in layout.floats else "i" for name in layout.row)
        self._row = struct.Struct("=" + "".join(kinds))
        self._of_segment = _getter(layout.segment)
        of_row = {*Row.__dataclass_fields__}
        self._of_row = _getter(n if n in of_row else f"sampling.{n}" for n in layout.row)

    def words(self, rows: int) -> int:
        """Length in int32 of the table of a program of `rows` rows."""
        layout = self._layout
        fixed = len(layout.header) + layout.row_limit * len(layout.segment)
        return fixed + rows * len(layout.row)

    def write(self, launch: Launch, rows: int, out: Ints) -> None:
        """Write the table of a program of `rows` rows to the front of `out` (int32 words).

        What no row and no segment fills is -1.
        """
        table, words = launch.table, out.data
        out[: self.words(rows)] = -1
        header = {
            "sequence": launch.id,
            "kind": self._layout.kinds.index(table.kind),
            "context": table.context,
            "rows": len(table.rows),
            "segments": len(table.segments),
        }
        self._header.pack_into(words, 0, *(header[name] for name in self._layout.header))
        place = self._header.size
        for segment in table.segments:
            self._segment.pack_into(words, place, *self._of_segment(segment))
            place += self._segment.size
        place = self.words(0) * out.itemsize
        for row in table.rows[:rows]:
            self._row.pack_into(words, place, *self._of_row(row))
            place += self._row.size


def _getter(names: Iterable[str]) -> Callable[[object], tuple[float, ...]]:
    """What gives these attributes of a record, always as a tuple."""
    wanted = tuple(names)
    if len(wanted) == 1:
        only = attrgetter(*wanted)
        return lambda record: (only(record),)
    return attrgetter(*wanted) if wanted else lambda record: ()
