"""The table: the small int32 array that says what each row is, and its layout.

A table is a header, then `ROW_LIMIT` segments, then the rows; so that a program of few rows needs
only a prefix of it. Floats are stored as their bits. Everything that may change from launch to
launch is here and nowhere else.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

#: The most rows that one window can have, and the padding unit of every reference.
ROW_LIMIT = 8

Ints = npt.NDArray[np.int32]


class Kind(IntEnum):
    """What a program does; the value stands in the table's header."""

    EXEC = 0
    COMMIT = 1
    COMMIT_ROW = 2
    DRAFT = 3
    PROMPT = 4
    COPY = 5


@dataclass(frozen=True)
class TableLayout:
    """Field names of a table's three parts, in order; one int32 each."""

    header: tuple[str, ...]
    segment: tuple[str, ...]
    row: tuple[str, ...]

    def words(self, rows: int) -> int:
        """Length in int32 words of the prefix that holds `rows` rows."""
        return self.rows_start + rows * len(self.row)

    @property
    def rows_start(self) -> int:
        """Index of the first word of the first row."""
        return len(self.header) + ROW_LIMIT * len(self.segment)


LAYOUT = TableLayout(
    header=("sequence", "kind", "context", "rows", "segments"),
    segment=("slot", "epoch", "first_row", "count", "depth", "first_saved_row"),
    row=(
        "slot",
        "position",
        "token",
        "first_row",
        "index",
        "state_in",
        "state_out",
        "saved_row",
        "handoff_row",
        "mask",
        "bias",
        "forced",
        "temperature",
        "top_k",
        "top_p",
        "min_p",
        "repeat_penalty",
        "presence_penalty",
        "frequency_penalty",
        "penalty_last",
        "seed_low",
        "seed_high",
    ),
)

#: Fields that hold the bits of a float32.
FLOAT_FIELDS = frozenset(
    {
        "temperature",
        "top_p",
        "min_p",
        "repeat_penalty",
        "presence_penalty",
        "frequency_penalty",
    }
)


class TableView:
    """Named columns of a table, for references and checks; shares the table's memory."""

    def __init__(self, words: Ints, rows: int) -> None:
        """Take the table's int32 words; `rows` is the program's row count, padding excluded."""
        layout = LAYOUT
        self._header = words[: len(layout.header)]
        start = layout.rows_start
        self._segments = words[len(layout.header) : start].reshape(ROW_LIMIT, len(layout.segment))
        self._rows = words[start : layout.words(rows)].reshape(rows, len(layout.row))

    def header(self, field: str) -> int:
        """One word of the header."""
        return int(self._header[_HEADER[field]])

    def segment(self, field: str) -> Ints:
        """The live segments' values of one field."""
        return self._segments[: self.header("segments"), _SEGMENT[field]]

    def row(self, field: str) -> Ints:
        """Every row's value of one field, inert rows too; shape (rows,)."""
        return self._rows[:, _ROW[field]]

    def row_float(self, field: str) -> npt.NDArray[np.float32]:
        """Every row's value of a float field; shape (rows,)."""
        assert field in FLOAT_FIELDS
        return np.ascontiguousarray(self.row(field)).view(np.float32)


_HEADER = {name: i for i, name in enumerate(LAYOUT.header)}
_SEGMENT = {name: i for i, name in enumerate(LAYOUT.segment)}
_ROW = {name: i for i, name in enumerate(LAYOUT.row)}
