"""What goes into a window and into a prompt chunk: slots, rows, sizes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest

from fake_device import FakeDevice
from scheduler_run import SchedulerRun
from strata_runtime.bundle_format import Shape
from strata_runtime.launch import Launch
from strata_runtime.schedule import Schedule
from strata_runtime.state import Config, Phase
from strata_runtime.windows import prompt_chunk, window

SHAPE = Shape(4, 2, 4096, 8, (32, 128, 512), 2, max_gap_ms=100.0, ring_entries=64)
PROMPT = tuple(range(40)) * 60


def rows_of(launch: Launch) -> int:
    """The rows of a launch's program."""
    return int(launch.program.split(".r")[1])


def make_run(
    shape: Shape = SHAPE, ms_per_row: float = 1.0, stages: int = 1, chunk_rows: int | None = None
) -> SchedulerRun:
    """An empty run on a device whose prompt programs cost so much a row."""
    device = FakeDevice(shape, stages, cost=lambda launch: rows_of(launch) * ms_per_row)
    schedule = Schedule(windows=shape.groups)
    return SchedulerRun(Config(stages, shape, chunk_rows, schedule), device)


def complete_until(run: SchedulerRun, holds: Callable[[Launch], bool]) -> None:
    """Complete launches until one that was queued on the way fits."""
    seen = len(run.device.launches)
    while not any(holds(launch) for launch in run.device.launches[seen:]):
        run.complete()


def windows_of(run: SchedulerRun) -> list[tuple[int, ...]]:
    """The slots of every window, in order."""
    return [
        tuple(s.slot for s in launch.table.segments)
        for launch in run.device.launches
        if launch.table.kind == "exec" and launch.stage == 0
    ]


@pytest.mark.parametrize(("slots", "groups"), [(1, 1), (4, 1), (4, 2), (5, 2), (4, 4), (16, 2)])
def test_slots_are_spread_over_the_windows(slots: int, groups: int) -> None:
    """Once all decode, a window has ceil(slots / groups) of them at most, and none waits long."""
    run = make_run(replace(SHAPE, slots=slots, groups=groups))
    for _ in range(slots):
        run.submit((1,), 40)
    for _ in range(30 * groups):
        run.complete()
    share = -(-slots // groups)
    found = windows_of(run)[4 * groups :]
    assert max(map(len, found)) == share
    for start in range(len(found) - 2 * groups):
        assert {s for w in found[start : start + 2 * groups] for s in w} == {*range(slots)}
    run.drain()


def test_the_slots_that_wait_longest_go_first() -> None:
    run = make_run()
    for _ in range(4):
        run.submit((1,), 6)
    assert windows_of(run) == [(0,), (1,)]
    run.complete()
    assert windows_of(run)[2:] == [(2, 3)]
    run.complete()
    assert windows_of(run)[3:] == [(0, 1)]


def test_a_window_takes_fewer_slots_when_some_have_ended() -> None:
    run = make_run()
    for length in (1, 1, 9, 9):
        run.submit((1,), length)
    run.drain()
    assert windows_of(run)[-4:] == [(2,), (3,), (2,), (3,)]


def test_rows_of_a_window() -> None:
    """Row i is the real token of segment i; its hand-off row is in its context's own range."""
    run = make_run(replace(SHAPE, groups=1))
    run.submit((7, 3), 5)
    run.submit((9,), 5)
    complete_until(run, lambda launch: len(launch.table.rows) == 2)
    launch = run.device.launches[-1]
    state = run.state
    assert [(r.slot, r.index, r.first_row) for r in launch.table.rows] == [(0, 0, 0), (1, 0, 1)]
    assert [r.position for r in launch.table.rows] == [state.slots[s].length for s in (0, 1)]
    assert [r.handoff_row for r in launch.table.rows] == [0, 1]
    assert [(s.slot, s.epoch, s.first_row, s.count) for s in launch.table.segments] == [
        (0, 1, 0, 1),
        (1, 1, 1, 1),
    ]
    assert all(r.forced == r.mask == r.bias == -1 for r in launch.table.rows)
    assert [r.saved_row for r in launch.table.rows] == [0, 1]


def test_no_window_without_a_slot_or_a_context() -> None:
    run = make_run()
    assert window(run.state) == (run.state, ())
    assert prompt_chunk(run.state) == (run.state, ())
    for _ in range(3):
        run.submit((1,), 5)
    assert run.state.slots[2].phase is Phase.READY
    assert window(run.state) == (run.state, ())


@pytest.mark.parametrize(("count", "sizes"), [(2, [32]), (33, [32]), (600, [512, 32, 32, 32])])
def test_chunks_are_as_large_as_the_prompt_allows(count: int, sizes: list[int]) -> None:
    """Full programs while nobody decodes; the rest in the smallest."""
    run = make_run()
    run.submit(PROMPT[:count], 1)
    run.drain()
    chunks = [launch for launch in run.device.launches if launch.table.kind == "prompt"]
    assert [rows_of(launch) for launch in chunks] == sizes
    assert sum(len(launch.table.rows) for launch in chunks) == count - 1


def test_the_smallest_chunk_while_others_decode_and_nothing_is_measured() -> None:
    run = make_run()
    run.submit((1,), 50)
    run.submit(PROMPT[:2000], 1)
    chunks = [launch for launch in run.device.launches if launch.table.kind == "prompt"]
    assert [rows_of(launch) for launch in chunks] == [32, 32]


@pytest.mark.parametrize(
    ("ms_per_row", "expected"), [(0.05, 512), (0.3, 128), (0.39, 128), (0.4, 32), (9.0, 32)]
)
def test_measured_chunks_fit_the_gap(ms_per_row: float, expected: int) -> None:
    """Two chunks may stand between two windows of a slot: each gets half of 100 ms."""
    run = make_run(ms_per_row=ms_per_row)
    run.submit((1,), 50)
    run.submit(PROMPT[:2000], 1)
    for _ in range(3):  # the first two chunks are in flight at once; the first of all is cold
        complete_until(run, lambda launch: launch.table.kind == "prompt")
    assert rows_of(run.device.launches[-1]) == expected


def test_a_measured_size_counts_as_measured() -> None:
    """The estimate in proportion was too good: the next chunk is small again."""
    shape = SHAPE
    cost = {1: 1.0, 32: 5.0, 128: 80.0}
    device = FakeDevice(shape, 1, cost=lambda launch: cost[rows_of(launch)])
    run = SchedulerRun(Config(1, shape), device)
    run.submit((1,), 50)
    run.submit(PROMPT[:2000], 1)
    complete_until(run, lambda launch: launch.program == "prompt.r128")
    complete_until(run, lambda launch: launch.program == "prompt.r32")
    costs = run.state.costs
    assert [costs.at_most(0, "prompt", n) for n in (32, 128, 512)] == [5.0, 80.0, 80.0]


def test_chunks_grow_when_nobody_decodes() -> None:
    run = make_run(ms_per_row=9.0)
    run.submit((1,), 4)
    run.submit(PROMPT[:2000], 1)
    sizes = {True: set[int](), False: set[int]()}
    while run.in_flight:
        seen = len(run.device.launches)
        run.complete()
        for launch in run.device.launches[seen:]:
            if launch.table.kind == "prompt":
                sizes[run.state.decoding > 0].add(rows_of(launch))
    assert sizes[True] == {32} and max(sizes[False]) == 512


@pytest.mark.parametrize("stages", [1, 3])
@pytest.mark.parametrize("ms_per_row", [0.01, 0.3, 1.5])
def test_prompts_never_hold_a_decoding_slot_up_for_longer(stages: int, ms_per_row: float) -> None:
    """Between two windows of a slot stand chunks of 100 ms at most."""
    run = make_run(ms_per_row=ms_per_row, stages=stages)
    run.submit((1,), 60)
    run.submit((2,), 60)
    run.submit(PROMPT[:2000], 1)
    run.submit(PROMPT[:700], 1)
    run.drain()
    queue = [launch for launch in run.device.launches if launch.stage == 0]
    served = [i for i, launch in enumerate(queue) if launch.table.segments[0].slot == 0]
    gaps = [
        sum(rows_of(c) * ms_per_row for c in queue[a:b] if c.table.kind == "prompt")
        for a, b in pairwise(served)
    ]
    assert 0 < max(gaps) <= SHAPE.max_gap_ms


@pytest.mark.parametrize("limit", [1, 7, 32, 1000])
def test_chunk_rows_bounds_the_live_rows(limit: int) -> None:
    """The program stays one of the bundle's; rows beyond the bound are inert."""
    run = make_run(chunk_rows=limit)
    run.submit(PROMPT[:100], 1)
    run.drain()
    chunks = [launch for launch in run.device.launches if launch.table.kind == "prompt"]
    assert max(len(launch.table.rows) for launch in chunks) == min(limit, 32)
    assert {rows_of(launch) for launch in chunks} == {32}
    assert sum(len(launch.table.rows) for launch in chunks) == 99


def test_chunks_of_one_prompt_follow_each_other_in_other_contexts() -> None:
    """Both contexts in flight, each with its own hand-off rows behind those of the windows."""
    run = make_run(stages=2)
    run.submit(PROMPT[:1200], 1)
    first = [launch for launch in run.device.launches if launch.stage == 0]
    assert [launch.table.context for launch in first] == [2, 3]
    assert [launch.table.rows[0].handoff_row for launch in first] == [16, 16 + 512]
    assert [launch.table.rows[0].position for launch in first] == [0, 512]
    run.drain()


def test_prompts_are_read_in_the_order_of_arrival() -> None:
    run = make_run()
    for _ in range(3):
        run.submit(PROMPT[:200], 1)
    run.drain()
    chunks = [c.table.segments[0].slot for c in run.device.launches if c.table.kind == "prompt"]
    assert chunks == sorted(chunks) and {*chunks} == {0, 1, 2}
