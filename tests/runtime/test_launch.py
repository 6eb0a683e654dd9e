"""Tables: what is written is what kernels read, and unknown layouts are refused."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gguf_maker
from replayer import compile_bundle
from strata_kernels.table import FLOAT_FIELDS, LAYOUT, ROW_LIMIT, Kind, TableView
from strata_runtime.bundle_format import Layout
from strata_runtime.errors import BundleError
from strata_runtime.launch import Launch, Row, Sampling, Segment, Table, TableWriter

POISON = 0x7FABCDEF
KINDS = tuple(kind.name.lower() for kind in Kind)
FORMAT = Layout(
    KINDS, LAYOUT.header, LAYOUT.segment, LAYOUT.row, tuple(sorted(FLOAT_FIELDS)), ROW_LIMIT
)
SAMPLING = Sampling(
    temperature=0.7,
    top_k=40,
    top_p=0.95,
    min_p=0.05,
    repeat_penalty=1.1,
    presence_penalty=-0.0,
    frequency_penalty=-1e-30,
    penalty_last=2**31 - 1,
    seed=0xFEDCBA9876543210,
)
ROWS = (
    Row(3, 100, 49151, 0, 0, 16, 3, 11, 5, 6, 7, 0, SAMPLING),
    Row(3, 101, 17, 0, 1, 17, 3, 11, sampling=replace(SAMPLING, temperature=1e-45)),
    Row(0, 2**31 - 1, 0, 2, 0, 18, 0, 0),
)
SEGMENTS = (Segment(3, 2**31 - 1, 0, 2, 4, 24), Segment(0, 9, 2, 1))


def written(rows: int, table: Table, layout: Layout = FORMAT, launch_id: int = 77) -> TableView:
    """What a kernel of a program of `rows` rows reads; the words behind it must be untouched."""
    writer = TableWriter(layout)
    words = np.full(writer.words(rows) + 5, POISON, np.int32)
    writer.write(Launch(launch_id, 1, f"{table.kind}.r{rows}", table), rows, words)
    assert (words[-5:] == POISON).all()
    return TableView(words[:-5], rows)


@pytest.mark.parametrize("rows", [3, 5, 8, 128])
def test_every_row_field_arrives(rows: int) -> None:
    view = written(rows, Table("exec", 2, ROWS, SEGMENTS))
    for name in LAYOUT.row:
        owners = [row if hasattr(row, name) else row.sampling for row in ROWS]
        values = [getattr(owner, name) for owner in owners]
        if name in FLOAT_FIELDS:
            assert view.row_float(name)[:3].tobytes() == np.array(values, np.float32).tobytes()
        else:
            assert view.row(name)[:3].tolist() == values


@pytest.mark.parametrize("rows", [3, 8])
def test_header_and_segments_arrive(rows: int) -> None:
    view = written(rows, Table("prompt", 6, ROWS, SEGMENTS))
    found = {name: view.header(name) for name in LAYOUT.header}
    spare = {name: 0 for name in LAYOUT.header if name.startswith("spare")}
    expected = {"sequence": 77, "kind": Kind.PROMPT, "context": 6, "rows": 3, "segments": 2}
    assert found == expected | spare
    for name in LAYOUT.segment:
        assert view.segment(name).tolist() == [getattr(s, name) for s in SEGMENTS]


def test_rows_that_are_not_there_are_inert() -> None:
    view = written(8, Table("exec", 0, ROWS, SEGMENTS))
    assert view.row("slot").tolist() == [3, 3, 0, -1, -1, -1, -1, -1]
    empty = written(1, Table("commit_row", 0, (), ()))
    assert (empty.row("slot").tolist(), empty.segment("slot").tolist()) == ([-1], [])


def test_a_table_leaves_nothing_of_the_one_before() -> None:
    """A ring entry is written again and again."""
    writer = TableWriter(FORMAT)
    words, fresh = (np.full(writer.words(8), fill, np.int32) for fill in (POISON, 0))
    full = Table("exec", 3, tuple(replace(ROWS[0], slot=i) for i in range(8)), SEGMENTS * 4)
    short = Launch(2, 0, "exec.r8", Table("exec", 1, ROWS[:1], SEGMENTS[:1]))
    writer.write(Launch(1, 0, "exec.r8", full), 8, words)
    writer.write(short, 8, words)
    writer.write(short, 8, fresh)
    assert words.tobytes() == fresh.tobytes()


@pytest.mark.parametrize(
    "seed", [0, 1, 2**31 - 1, 2**31, 2**32, 2**63, 2**64 - 1, 0x80000000 << 32]
)
def test_a_seed_has_64_bits(seed: int) -> None:
    sampling = Sampling(seed=seed)
    view = written(1, Table("exec", 0, (replace(ROWS[2], sampling=sampling),), SEGMENTS[1:]))
    low, high = (int(view.row(f"seed_{part}")[0]) for part in ("low", "high"))
    assert (low, high) == (sampling.seed_low, sampling.seed_high)
    assert (high & 0xFFFFFFFF) << 32 | low & 0xFFFFFFFF == seed


@pytest.mark.parametrize("value", [0.1, 1e-45, 3.4e38, -0.0, float("inf"), 16777217.0])
def test_floats_keep_the_bits_of_float32(value: float) -> None:
    row = replace(ROWS[2], sampling=Sampling(presence_penalty=value))
    view = written(1, Table("exec", 0, (row,), SEGMENTS[1:]))
    assert view.row_float("presence_penalty").tobytes() == np.float32(value).tobytes()


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_its_number(kind: str) -> None:
    assert written(1, Table(kind, 0, (), ())).header("kind") == Kind[kind.upper()]


def test_words_are_what_kernels_expect() -> None:
    writer = TableWriter(FORMAT)
    assert [writer.words(n) for n in (0, 1, 8, 512)] == [LAYOUT.words(n) for n in (0, 1, 8, 512)]


def test_the_layout_decides_the_order() -> None:
    """A bundle of another compiler may have its fields in another order."""
    turned = replace(FORMAT, row=FORMAT.row[::-1])
    writer, words = TableWriter(turned), np.zeros(LAYOUT.words(1), np.int32)
    writer.write(Launch(1, 0, "exec.r1", Table("exec", 0, ROWS[:1], SEGMENTS[:1])), 1, words)
    found = dict(zip(turned.row, words[-len(turned.row) :].tolist(), strict=True))
    assert (found["slot"], found["position"], found["token"]) == (3, 100, 49151)
    assert np.int32(found["temperature"]).view(np.float32) == np.float32(0.7)


@pytest.mark.parametrize("part", ["row", "segment", "header"])
@pytest.mark.parametrize("name", ["expert", "sampling"])
def test_a_field_that_is_not_known(part: str, name: str) -> None:
    """It would hold what no launch says."""
    changes: dict[str, Any] = {part: (*getattr(FORMAT, part), name)}
    layout = replace(FORMAT, **changes)
    with pytest.raises(BundleError, match=f"unknown.*{name}.*compile again"):
        TableWriter(layout)


def test_defaults_change_nothing() -> None:
    """Greedy, no penalty, nothing cut off: what every field of `Sampling` must have alone."""
    neutral = {"temperature": 0, "top_k": 0, "top_p": 1, "min_p": 0, "repeat_penalty": 1}
    neutral |= {"presence_penalty": 0, "frequency_penalty": 0, "penalty_last": 0, "seed": 0}
    assert {f.name: getattr(Sampling(), f.name) for f in fields(Sampling)} == neutral


def test_a_manifest_has_the_kernels_layout(tmp_path: Path) -> None:
    """Both sides name the fields; neither imports the other's names."""
    model = gguf_maker.write_tiny_llama(tmp_path / "tiny.gguf")
    manifest = compile_bundle(tmp_path, model).manifest
    assert manifest.table == FORMAT
    assert manifest.shape.row_limit == ROW_LIMIT
