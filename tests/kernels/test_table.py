"""The table: offsets, named fields, floats as bits, and prefixes."""

from __future__ import annotations

import numpy as np
import pytest

from kernel_case import GARBAGE, Segment, make_table, row_start
from strata_kernels.spec import padded, table_arg
from strata_kernels.table import FLOAT_FIELDS, LAYOUT, ROW_LIMIT, Kind, TableView

#: Words of the header, of one segment, of one row.
HEADER, SEGMENT, ROW = (len(part) for part in (LAYOUT.header, LAYOUT.segment, LAYOUT.row))


def test_offsets_follow_the_names() -> None:
    """A header, room for the most segments, then the rows: nothing between, nothing behind."""
    assert LAYOUT.rows_start == HEADER + ROW_LIMIT * SEGMENT
    assert [LAYOUT.words(n) - LAYOUT.rows_start for n in (0, 1, 8, 128)] == [
        0, ROW, 8 * ROW, 128 * ROW,
    ]  # fmt: skip


def test_names_are_unique_and_floats_are_row_fields() -> None:
    for names in (LAYOUT.header, LAYOUT.segment, LAYOUT.row):
        assert len(set(names)) == len(names)
    assert set(LAYOUT.row) > FLOAT_FIELDS
    assert not FLOAT_FIELDS & {*LAYOUT.header, *LAYOUT.segment}


def test_kinds_have_fixed_values() -> None:
    assert [k.name for k in Kind] == ["EXEC", "COMMIT", "COMMIT_ROW", "DRAFT", "PROMPT", "COPY"]
    assert [k.value for k in Kind] == list(range(6))


def test_every_word_has_one_name() -> None:
    """A table of counted words: each view field is the word that the layout says."""
    rows = 5
    words = np.arange(LAYOUT.words(rows), dtype=np.int32)
    words[LAYOUT.header.index("segments")] = 3
    view = TableView(words, rows)
    for i, name in enumerate(LAYOUT.header):
        assert view.header(name) == words[i]
    for i, name in enumerate(LAYOUT.segment):
        assert view.segment(name).tolist() == [HEADER + SEGMENT * s + i for s in range(3)]
    for i, name in enumerate(LAYOUT.row):
        assert view.row(name).tolist() == [row_start(r) + i for r in range(rows)]


def test_a_view_shares_the_words() -> None:
    words = make_table(3, [Segment(2, 7, (11, 12))])
    view = TableView(words, 3)
    words[row_start(1) + LAYOUT.row.index("token")] = 99
    assert view.row("token").tolist()[:2] == [11, 99]
    assert np.shares_memory(view.row("position"), words)


def test_a_program_of_few_rows_needs_a_prefix() -> None:
    """The same words, cut: header, segments and the first rows are what they were."""
    words = make_table(8, [Segment(2, 7, (11, 12)), Segment(5, 0, (13,))], context=2)
    whole = TableView(words, 8)
    for rows in (1, 2, 5):
        part = TableView(words[: LAYOUT.words(rows)], rows)
        assert all(part.header(n) == whole.header(n) for n in LAYOUT.header)
        assert all(part.segment(n).tolist() == whole.segment(n).tolist() for n in LAYOUT.segment)
        assert all(part.row(n).tolist() == whole.row(n).tolist()[:rows] for n in LAYOUT.row)


def test_floats_are_stored_as_their_bits() -> None:
    values = (0.7, 1.5, float("inf"), -0.0)
    for name in sorted(FLOAT_FIELDS):
        words = make_table(4, [Segment(0, 0, (1, 1, 1, 1), fields={name: values})])
        view = TableView(words, 4)
        assert view.row(name).tolist() == np.array(values, np.float32).view(np.int32).tolist()
        assert view.row_float(name).tobytes() == np.array(values, np.float32).tobytes()


def test_only_float_fields_are_read_as_floats() -> None:
    view = TableView(make_table(1, []), 1)
    for name in sorted({*LAYOUT.row} - FLOAT_FIELDS):
        with pytest.raises(AssertionError):
            view.row_float(name)


def test_inert_rows_are_rows_and_dead_segments_are_none() -> None:
    view = TableView(make_table(4, [Segment(6, 3, (9,), gap=2)], inert=GARBAGE), 4)
    assert view.row("slot").tolist() == [-1, -1, 6, -1]
    assert view.row("position").tolist() == [GARBAGE, GARBAGE, 3, GARBAGE]
    assert view.segment("first_row").tolist() == [2]
    assert TableView(make_table(4, []), 4).segment("slot").tolist() == []


def test_references_pad_to_the_row_limit() -> None:
    assert ROW_LIMIT == 8
    assert [padded(n) for n in (1, 7, 8, 9, 32, 33)] == [8, 8, 8, 16, 32, 40]
    assert table_arg(5).shape == (LAYOUT.words(5),)
