"""Drives the scheduler over a `FakeDevice`, as an engine does, and checks every step."""

from __future__ import annotations

from fake_device import FakeDevice, end_of
from strata_runtime.launch import Launch, Sampling
from strata_runtime.measures import Timing
from strata_runtime.request import CANCELLED, Request
from strata_runtime.scheduler import (
    Cancelled,
    ChunkDone,
    Event,
    Outcome,
    Step,
    Submitted,
    Verdict,
    step,
)
from strata_runtime.state import Config, Phase, State, initial_state


def make_request(
    number: int, prompt: tuple[int, ...], max_tokens: int, ends: frozenset[int] = frozenset()
) -> Request:
    """A request whose sampling seed is its id: what `FakeDevice` knows it by."""
    return Request(number, prompt, max_tokens, ends, Sampling(seed=number))


class SchedulerRun:
    """State, device and texts of one run; `steps` holds every event with what it led to.

    Requests are numbered from 1 in the order of arrival.
    """

    def __init__(self, config: Config, device: FakeDevice) -> None:
        self.config, self.device = config, device
        self.state: State = initial_state(config)
        self.steps: list[tuple[Event, Step]] = []
        self.requests: dict[int, Request] = {}
        self.texts: dict[int, list[int]] = {}
        self.reasons: dict[int, str] = {}
        self.admitted: list[int] = []
        self.in_flight: dict[int, Launch] = {}
        self.timings: list[Timing] = []

    def submit(
        self, prompt: tuple[int, ...], max_tokens: int, ends: frozenset[int] = frozenset()
    ) -> int:
        """A request arrives; returns its id."""
        number = len(self.requests) + 1
        request = self.device.expect(make_request(number, prompt, max_tokens, ends))
        self.requests[number], self.texts[number] = request, []
        self._step(Submitted(request))
        return number

    def cancel(self, number: int) -> None:
        """A request is no longer wanted, or never was there."""
        known = number in self.requests and number not in self.reasons
        finished = self._step(Cancelled(number)).finished
        assert [(f.request_id, f.reason) for f in finished] == [(number, CANCELLED)] * known

    def complete(self) -> None:
        """One launch completes."""
        done = self.device.wait()
        launch = self.in_flight.pop(done.launch_id)
        kind, rows = launch.program.split(".r")
        self.timings.append(Timing(done.stage, kind, int(rows), done.elapsed_ms))
        if launch.stage < self.config.stages - 1:
            return
        context = launch.table.context
        if launch.table.kind == "prompt":
            assert not self._step(ChunkDone(context, timings=self._timed())).finished
            return
        words = self.device.verdict(context).tolist()
        outcomes = [self._outcome(launch, i, line) for i, line in enumerate(words)]
        ended = {o.slot: o.finish for o in outcomes if o is not None and o.finish}
        owners = {s: r.id for s in ended if (r := self.state.slots[s].request)}
        event = Verdict(context, tuple(o for o in outcomes if o is not None), 0.0, self._timed())
        finished = self._step(event).finished
        assert {f.request_id: f.reason for f in finished} == {owners[s]: ended[s] for s in ended}

    def drain(self) -> None:
        """Complete everything; then nothing is left anywhere."""
        while self.in_flight:
            self.complete()
        assert self.state.idle and not self.device.live
        assert not any(c.slots for c in self.state.contexts)
        assert self.reasons.keys() == self.requests.keys()

    def _outcome(self, launch: Launch, index: int, words: list[int]) -> Outcome | None:
        """What line `index` of the verdict says of its segment, if there is one."""
        if index >= len(launch.table.segments):
            return None
        segment = launch.table.segments[index]
        number = launch.table.rows[segment.first_row].sampling.seed
        if number in self.reasons:
            return Outcome(segment.slot, ())
        text = self.texts[number]
        text.append(words[1])
        finish = end_of(self.requests[number], text, self.config.shape.context)
        return Outcome(segment.slot, (words[1],), finish)

    def _timed(self) -> tuple[Timing, ...]:
        timings, self.timings = self.timings, []
        return tuple(timings)

    def _step(self, event: Event) -> Step:
        before, key = self.state, hash(self.state)
        result = step(before, event)
        assert hash(before) == key, "the state was changed in place"
        self.state = result.state
        self.steps.append((event, result))
        for finished in result.finished:
            assert finished.request_id not in self.reasons, "finished twice"
            self.reasons[finished.request_id] = finished.reason
        for launch in result.launches:
            self.in_flight[launch.id] = launch
            self.device.submit(launch)
        self._check_admission(before)
        return result

    def _check_admission(self, before: State) -> None:
        """First come, first served; an admission begins the slot's next epoch."""
        pairs = list(zip(before.slots, self.state.slots, strict=True))
        fresh = [new for old, new in pairs if new.epoch != old.epoch]
        assert all(new.epoch - old.epoch in (0, 1) for old, new in pairs)
        self.admitted += sorted(slot.request.id for slot in fresh if slot.request)
        assert self.admitted == sorted(self.admitted)
        waiting = [request.id for request, _ in self.state.waiting]
        assert waiting == sorted(waiting) and all(n not in self.admitted for n in waiting)
        assert not waiting or not self.admitted or waiting[0] > self.admitted[-1]
        assert not waiting or all(slot.phase is not Phase.FREE for slot in self.state.slots)
