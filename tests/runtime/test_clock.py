"""The simulated device: times by hand, texts and drafts, whole runs of the engine on it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from clock_case import (
    DRAFT,
    ROW_LIMIT,
    VOCAB,
    Queue,
    make_manifest,
    make_table,
    make_times,
)
from strata_runtime.clock import ClockDevice, SyntheticText
from strata_runtime.device import Done
from strata_runtime.engine import Engine
from strata_runtime.errors import DeviceError, OptionError
from strata_runtime.launch import Launch, Sampling, Tokens
from strata_runtime.request import Request
from strata_runtime.trace import Trace


def make_queue(count: int, **keys: Any) -> Queue:
    """A clock of `count` stages with these times, on which nothing is queued."""
    return Queue(ClockDevice(make_manifest(count), make_times(**keys)))


def test_a_stage_runs_its_queue_in_order() -> None:
    queue = make_queue(1, draft=DRAFT)
    for program in ("exec.r4", "draft.r3", "exec.r1", "commit.r1"):
        queue.put(0, program)
    ends = [(1, 0.0, 13.0), (2, 13.0, 16.1), (3, 16.1, 26.1), (4, 26.1, 26.1)]
    assert queue.take(4) == ends
    assert queue.device.now == pytest.approx(26.1)
    assert queue.device.busy_ms == [pytest.approx(26.1)]
    assert queue.device.stage_busy(0) == pytest.approx(1.0)


def test_a_launch_starts_when_all_that_it_waits_for_has_ended() -> None:
    """Two windows in two stages; the second is narrow, and stands behind the first."""
    queue = make_queue(2, stages=[{}, {"exec": {"1": 30}}])
    queue.put(0, "exec.r8")  # 0 to 19
    queue.put(1, "exec.r8", 1)  # 19 to 49
    queue.put(0, "exec.r1")  # 19 to 29
    queue.put(1, "exec.r1", 3)  # 49 to 79
    queue.put(0, "exec.r1", 2, 3)  # its hand-off is read until 49: 49 to 59
    found = queue.take(5)
    assert found == [(1, 0, 19), (3, 19, 29), (2, 19, 49), (5, 49, 59), (4, 49, 79)]
    assert [queue.device.stage_busy(stage) for stage in (0, 1)] == [39 / 79, 60 / 79]


def test_nothing_starts_before_it_is_submitted() -> None:
    queue = make_queue(2)
    queue.put(0, "exec.r1")
    assert queue.take(1) == [(1, 0, 10)]
    queue.put(1, "exec.r1", 1)
    queue.put(1, "exec.r2")
    assert queue.take(2) == [(2, 10, 20), (3, 20, 31)]
    queue.put(0, "exec.r1", 1, 2)  # the stage was free from 10 on
    assert queue.take(1) == [(4, 31, 41)]


def test_of_several_completions_the_first_submitted_comes_first() -> None:
    queue = make_queue(3)
    for stage in (2, 0, 1):
        queue.put(stage, "exec.r1")
    queue.put(0, "copy.r64", 3)
    queue.put(2, "copy.r64")
    found = [(1, 0, 10), (2, 0, 10), (3, 0, 10), (4, 10, 10), (5, 10, 10)]
    assert queue.take(5) == found


def test_the_host_takes_its_time_once_a_completion() -> None:
    queue = make_queue(2, host_ms=0.5)
    queue.put(0, "exec.r1")
    queue.put(0, "exec.r1")
    assert queue.take(1) == [(1, 0, 10)]  # what comes first waits for no completion
    queue.put(1, "exec.r1")
    queue.put(1, "exec.r1")
    assert queue.take(3) == [(2, 10, 20), (3, 10.5, 20.5), (4, 20.5, 30.5)]
    queue.put(0, "exec.r1")
    assert queue.take(1) == [(5, 31, 41)]


def test_a_host_that_lags_behind_loses_nothing() -> None:
    """Both ended at 10; the second is heard of when the first has been seen to, at 17."""
    queue = make_queue(2, host_ms=7)
    queue.put(0, "exec.r1")
    queue.put(1, "exec.r1")
    assert queue.take(1) == [(1, 0, 10)]
    queue.put(0, "exec.r1")
    assert queue.take(1) == [(2, 0, 10)]
    assert queue.device.now == 17
    queue.put(1, "exec.r1")
    assert queue.take(2) == [(3, 17, 27), (4, 24, 34)]


def test_what_would_wait_for_ever_is_an_error() -> None:
    queue = make_queue(1)
    with pytest.raises(DeviceError, match="nothing is in flight"):
        queue.take(1)
    with pytest.raises(DeviceError, match="launch 1 waits for 2, which is queued later"):
        queue.put(0, "exec.r1", 2)


def test_times_of_another_number_of_stages() -> None:
    with pytest.raises(OptionError, match="stages has 3 items, the bundle has 2 stages"):
        make_queue(2, stages=[{}, {}, {}])


def frequency(text: SyntheticText, stream: int, index: int) -> float:
    places = range(2000)
    return sum(text.draft(stream, p, index) == text.token(stream, p) for p in places) / len(places)


@pytest.mark.parametrize("seed", [0, 1, -5])
def test_drafts_hold_as_often_as_is_asked_for(seed: int) -> None:
    text = SyntheticText(VOCAB, (0.9, 0.5, 0.0), seed)
    for index, probability in enumerate((0.9, 0.5, 0.0, 0.0)):
        for stream in (0, 7, (1 << 64) - 1):
            assert frequency(text, stream, index) == pytest.approx(probability, abs=0.04)
        assert text.probability(index) == probability
    assert frequency(SyntheticText(VOCAB, (1.0,), seed), 3, 6) == 1.0


def test_texts_differ_by_stream_and_seed() -> None:
    texts = {
        tuple(SyntheticText(VOCAB, (0.5,), seed).token(stream, p) for p in range(20))
        for seed in (0, 1)
        for stream in range(3)
    }
    assert len(texts) == 6


def test_verdict_and_drafts_by_hand() -> None:
    queue = make_queue(1, acceptance=[0.9, 0.4])
    text = queue.device.text
    right = [text.token(5, p) for p in range(20)]
    tokens = [right[10], right[11], right[12] + 1, right[13]]
    queue.put(0, "exec.r4", table=make_table("exec", 10, tokens, stream=5))
    queue.put(0, "draft.r3", table=make_table("draft", 10, tokens, stream=5, depth=2))
    queue.take(2)
    verdict = queue.device.verdict(0)
    assert verdict.shape == (ROW_LIMIT, 4) and verdict.dtype == np.int32
    assert verdict[0, :2].tolist() == [1, right[12]]  # one draft holds; 12 is drawn in its place
    assert verdict[:4, 2:].tolist() == [[*text.logits_hash(5, p)] for p in (11, 12, 13, 14)]
    drafts = queue.device.drafts(0)
    assert drafts.shape == (ROW_LIMIT, 1 + 2 * (ROW_LIMIT - 1)) and drafts.dtype == np.int32
    assert drafts[0, [0, 1, 3]].tolist() == [2, text.draft(5, 13, 0), text.draft(5, 14, 1)]
    assert drafts[0, [2, 4]].view(np.float32).tolist() == pytest.approx([0.9, 0.4])
    assert not drafts[0, 5:].any() and not drafts[1:].any()


def run(
    device: ClockDevice, engine: Engine, streams: int, prompt: int = 1
) -> tuple[list[Tokens], int, int]:
    """The texts of some streams, the drafts that stood in windows, and those that held."""
    texts: dict[int, Tokens] = {}
    drafted = accepted = 0
    for stream in range(streams):
        tokens = tuple(device.text.token(stream, i) for i in range(prompt))
        number = engine.submit(Request(0, tokens, 60 + stream, sampling=Sampling(seed=stream)))
        texts[number] = ()
    for update in engine.updates():
        texts[update.request_id] += update.tokens
        drafted, accepted = drafted + update.drafted, accepted + max(len(update.tokens) - 1, 0)
    return list(texts.values()), drafted, accepted


def make_engine(
    drafter: str,
    acceptance: float = 0.8,
    observe: Callable[[Launch, Done], None] = lambda launch, done: None,
) -> tuple[ClockDevice, Engine]:
    """Three stages, six slots, two windows in flight; drafts from the device, the host, or none."""
    manifest = make_manifest(3, 6, 2, drafter, 3 * (drafter != "none"))
    times = make_times(
        draft=DRAFT, prompt={"32": 40, "128": 90}, acceptance=acceptance, host_ms=0.1
    )
    device = ClockDevice(manifest, times)
    host = device.drafter if drafter == "ngram" else None
    return device, Engine(manifest, device, drafter=host, observe=observe)


@pytest.mark.parametrize("drafter", ["none", "mtp", "ngram"])
def test_runs_are_the_same_every_time(drafter: str) -> None:
    traces = [Trace(), Trace()]
    for trace in traces:
        run(*make_engine(drafter, observe=trace.add), streams=8, prompt=50)
    assert traces[0].events() == traces[1].events() and len(traces[0].events()) > 100


@pytest.mark.parametrize("drafter", ["none", "mtp", "ngram"])
@pytest.mark.parametrize("acceptance", [0.0, 0.8, 1.0])
def test_texts_are_the_streams_own(drafter: str, acceptance: float) -> None:
    """Whoever drafts, and however well: the tokens behind the prompt are those of the stream."""
    device, engine = make_engine(drafter, acceptance)
    texts, drafted, accepted = run(device, engine, streams=8, prompt=40)
    for stream, found in enumerate(texts):
        assert found == tuple(device.text.token(stream, 40 + i) for i in range(60 + stream))
    assert drafted > 0 or drafter == "none" or acceptance == 0
    assert accepted == {0.0: 0, 1.0: drafted}.get(acceptance, accepted)
