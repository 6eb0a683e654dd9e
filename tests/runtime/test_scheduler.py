"""The scheduler as a state machine: random runs, replays, admission, cancellation."""

from __future__ import annotations

import random

import pytest

from fake_device import VOCAB, FakeDevice, text_alone
from scheduler_run import SchedulerRun, make_request
from strata_runtime.bundle_format import Shape
from strata_runtime.launch import Launch
from strata_runtime.request import CANCELLED, CONTEXT, LENGTH, STOP
from strata_runtime.schedule import Schedule
from strata_runtime.scheduler import Cancelled, Submitted, step
from strata_runtime.state import Config, Phase, initial_state

RUNS = 200


def make_shape(
    slots: int, groups: int, context: int = 240, sizes: tuple[int, ...] = (8, 32)
) -> Shape:
    """A bundle's shape, with the compiler's own numbers where a test has no choice."""
    return Shape(slots, groups, context, 8, sizes, 2, max_gap_ms=100.0, ring_entries=64)


def make_run(
    stages: int, shape: Shape, seed: int = 0, chunk_rows: int | None = None
) -> SchedulerRun:
    """An empty run."""
    config = Config(stages, shape, chunk_rows, Schedule(windows=shape.groups))
    return SchedulerRun(config, FakeDevice(shape, stages, seed))


def tokens(count: int, seed: int = 0) -> tuple[int, ...]:
    """A random prompt."""
    return tuple(random.Random(seed).choices(range(VOCAB), k=count))


def random_run(seed: int) -> SchedulerRun:
    """Arrivals, cancellations and completions in random order, then all completions."""
    rng = random.Random(seed)
    sizes = rng.choice([(32, 128, 512), (4, 16, 64), (8,)])
    shape = make_shape(rng.randint(1, 6), rng.randint(1, 4), rng.choice([203, 240]), sizes)
    run = make_run(rng.randint(1, 4), shape, seed, rng.choice([1, 7, None]))
    most = rng.randint(1, 12)
    for _ in range(rng.randint(20, 200)):
        action = rng.random()
        if action < 0.2 and len(run.requests) < most:
            long = rng.random() < 0.5
            prompt = tokens(rng.randint(1, 200 if long else 12), rng.randrange(1 << 30))
            ends = frozenset(rng.sample(range(VOCAB), rng.choice([0, 1, 3])))
            run.submit(prompt, rng.randint(1, 30), ends)
        elif action < 0.25:
            run.cancel(rng.randint(1, most))
        elif run.in_flight:
            run.complete()
    run.drain()
    return run


@pytest.mark.parametrize("seed", range(RUNS))
def test_every_text_is_the_text_alone(seed: int) -> None:
    """The device checks each access on the way; here, the ends."""
    run = random_run(seed)
    for number, request in run.requests.items():
        text, reason = text_alone(request, run.config.shape.context)
        if run.reasons[number] == CANCELLED:
            assert run.texts[number] == text[: len(run.texts[number])] and reason
        else:
            assert (run.texts[number], run.reasons[number]) == (text, reason)
    assert sum(slot.epoch for slot in run.state.slots) == len(run.admitted)


@pytest.mark.parametrize("seed", range(0, RUNS, 10))
def test_the_same_events_lead_to_the_same_launches(seed: int) -> None:
    run = random_run(seed)
    state = initial_state(run.config)
    for event, expected in run.steps:
        result = step(state, event)
        assert result == expected and hash(result.state) == hash(expected.state)
        state = result.state
    assert state == run.state


def test_random_runs_reach_every_case() -> None:
    """So that the texts above are compared in company, at every end, in slots used again."""
    runs = [random_run(seed) for seed in range(0, RUNS, 2)]
    assert {r for run in runs for r in run.reasons.values()} == {CANCELLED, CONTEXT, LENGTH, STOP}
    launches = [launch for run in runs for launch in run.device.launches]
    windows = [launch for launch in launches if launch.table.kind == "exec"]
    assert {len(launch.table.segments) for launch in windows} >= {1, 2, 3, 4, 5}
    assert max(slot.epoch for run in runs for slot in run.state.slots) > 4
    draining = [s for run in runs for _, r in run.steps for s in r.state.slots]
    assert any(s.phase is Phase.DRAINING and s.in_flight > 1 for s in draining)
    finished = {len(result.finished) for run in runs for _, result in run.steps}
    assert finished >= {0, 1, 2}


@pytest.mark.parametrize("seed", range(0, RUNS, 10))
def test_chunks_end_before_the_last_prompt_token(seed: int) -> None:
    """It is row 0 of the first window; chunks hold all others, within their limit."""
    run = random_run(seed)
    limit = run.config.chunk_rows or run.config.shape.prompt_sizes[-1]
    chunks: dict[int, list[int]] = {number: [] for number in run.requests}
    windows: dict[int, list[int]] = {number: [] for number in run.requests}
    for launch in run.device.launches:
        if launch.stage == 0:
            into = chunks if launch.table.kind == "prompt" else windows
            assert into is windows or len(launch.table.rows) <= limit
            for row in launch.table.rows:
                into[row.sampling.seed].append(row.position)
    for number, request in run.requests.items():
        last = len(request.prompt) - 1
        assert chunks[number] == [*range(len(chunks[number]))]
        assert len(chunks[number]) == last or not windows[number]
        assert windows[number] == [*range(last, last + len(windows[number]))]


@pytest.mark.parametrize("seed", range(0, RUNS, 10))
def test_a_launch_waits_for_the_stage_before_and_for_who_reads_its_handoff(seed: int) -> None:
    run = random_run(seed)
    stages, shape = run.config.stages, run.config.shape
    before: dict[tuple[int, int], Launch] = {}
    for launch in run.device.launches:
        context = launch.table.context
        expected = {launch.id - 1} if launch.stage else set()
        if launch.stage < stages - 1 and (reader := before.get((context, launch.stage + 1))):
            expected.add(reader.id)
        assert {*launch.waits} == expected and len(launch.waits) == len(expected)
        before[context, launch.stage] = launch
    assert max(context for context, _ in before) < shape.groups + shape.prompt_contexts


def test_a_window_stands_in_all_queues_at_once() -> None:
    run = make_run(3, make_shape(2, 2))
    run.submit(tokens(1), 2)
    run.submit(tokens(1), 2)
    found = [(launch.id, launch.stage, launch.program) for launch in run.device.launches]
    assert found == [(n, (n - 1) % 3, "exec.r1") for n in range(1, 7)]
    assert [launch.table.context for launch in run.device.launches] == [0, 0, 0, 1, 1, 1]


def test_as_many_windows_and_chunks_as_there_are_contexts() -> None:
    run = make_run(2, make_shape(6, 2))
    for seed in range(3):
        run.submit(tokens(100, seed), 4)
    assert [*run.device.live] == [2, 3]
    for seed in range(3):
        run.submit(tokens(1, seed), 4)
    assert sorted(run.device.live) == [0, 1, 2, 3]
    run.drain()


def test_slots_are_given_in_the_order_of_arrival() -> None:
    run = make_run(2, make_shape(2, 1))
    for seed in range(7):
        run.submit(tokens(1 + 3 * seed, seed), 1 + seed % 3)
    assert run.admitted == [1, 2] and [r.id for r, _ in run.state.waiting] == [3, 4, 5, 6, 7]
    run.cancel(4)
    run.drain()
    assert run.admitted == [1, 2, 3, 5, 6, 7]
    assert sum(slot.epoch for slot in run.state.slots) == 6


def test_a_cancelled_slot_drains_before_it_is_given_away() -> None:
    run = make_run(2, make_shape(1, 1))
    run.submit(tokens(40), 5)
    run.submit(tokens(3, 1), 2)
    run.cancel(1)
    assert run.state.slots[0].phase is Phase.DRAINING and run.state.slots[0].in_flight == 3
    queued = len(run.device.launches)
    while run.state.slots[0].phase is Phase.DRAINING:
        assert len(run.device.launches) == queued
        run.complete()
    assert run.state.slots[0].epoch == 2 and len(run.device.launches) > queued
    run.drain()
    assert run.reasons == {1: CANCELLED, 2: LENGTH}


def test_cancelling_what_is_not_there_changes_nothing() -> None:
    run = make_run(1, make_shape(1, 1))
    run.submit(tokens(2), 1)
    run.drain()
    for number in (1, 99):
        result = step(run.state, Cancelled(number))
        assert (result.state, result.launches, result.finished) == (run.state, (), ())


def test_a_waiting_request_is_cancelled_without_a_launch() -> None:
    run = make_run(1, make_shape(1, 1))
    run.submit(tokens(1), 2)
    run.submit(tokens(1), 2)
    queued = len(run.device.launches)
    run.cancel(2)
    assert len(run.device.launches) == queued and not run.state.waiting
    run.drain()
    assert run.admitted == [1]


def test_time_enters_as_data_only() -> None:
    state = initial_state(Config(1, make_shape(2, 1)))
    results = [step(state, Submitted(make_request(1, (1, 2), 3), time)) for time in (0.0, 9.5)]
    assert results[0] == results[1] and results[0].launches
