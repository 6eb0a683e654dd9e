"""The engine: requests in, tokens out; it drives the scheduler with what the device reports."""

from __future__ import annotations

import hashlib
import logging
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from strata_runtime.bundle_format import Manifest
from strata_runtime.choice import explain
from strata_runtime.device import Device, Done
from strata_runtime.drafters import HOST_DRAFTERS, Drafter, NoDrafter
from strata_runtime.errors import DeviceError
from strata_runtime.launch import Launch, Segment, Tokens
from strata_runtime.measures import Timing
from strata_runtime.request import FAILED, STOP, Request, check_request, cut
from strata_runtime.schedule import CHOSEN, Schedule
from strata_runtime.scheduler import (
    Cancelled,
    ChunkDone,
    Drafts,
    Event,
    Outcome,
    Submitted,
    Verdict,
    step,
)
from strata_runtime.state import Config, initial_state

LOG = logging.getLogger("strata")


@dataclass(frozen=True)
class Update:
    """New tokens of one request; `finish` says why its text ends with them, if it does.

    `logits_hash`, at the end, is a hash of all logits that the text's tokens were drawn from. Of
    `drafted` drafts that stood in the window, one less than there are tokens was accepted.
    """

    request_id: int
    tokens: tuple[int, ...]
    finish: str | None = None
    logits_hash: str | None = None
    drafted: int = 0


@dataclass
class _Live:
    """What the engine keeps of a request: its drawn tokens, and the hash of their logits."""

    request: Request
    watch: Callable[[int], bool]
    drafter: Drafter
    generated: int = 0
    digest: hashlib.blake2b = field(default_factory=lambda: hashlib.blake2b(digest_size=8))


class Engine:
    """One bundle on one device. Not for several threads."""

    def __init__(
        self,
        manifest: Manifest,
        device: Device,
        chunk_rows: int | None = None,
        drafter: Callable[[Request], Drafter] | None = None,
        schedule: Schedule = CHOSEN,
        observe: Callable[[Launch, Done], None] = lambda launch, done: None,
        forced: tuple[int, ...] = (),
    ) -> None:
        """An engine without requests; `schedule` bounds how they will share windows.

        `drafter` makes a host drafter for a request in place of the bundle's; a layer on the
        device drafts on. `observe` hears of every launch that is complete. For `chunk_rows` and
        `forced` see `Config`.
        """
        self._observe = observe
        self._shape = manifest.shape
        self._drafter = drafter or (lambda request: HOST_DRAFTERS[manifest.shape.drafter]())
        self._vocab = manifest.model.vocab
        self._device = device
        commits = tuple("commit.r1" in stage.programs for stage in manifest.stages)
        stages, shape = len(manifest.stages), manifest.shape
        config = Config(stages, shape, chunk_rows, schedule, commits, forced)
        self._state = initial_state(config)
        self._live: dict[int, _Live] = {}
        self._in_flight: dict[int, Launch] = {}
        self._timings: list[Timing] = []
        self._heard: list[Update] = []
        self._failed: DeviceError | None = None
        self._next_request = 1

    @property
    def choice(self) -> str:
        """What the scheduler chose last, and why."""
        return explain(self._state)

    @property
    def busy(self) -> bool:
        """Is any request unfinished, or anything in flight?"""
        return bool(self._in_flight) or not self._state.idle

    def submit(self, request: Request, watch: Callable[[int], bool] | None = None) -> int:
        """Take a request in, under a new id; RequestError where it cannot be served.

        `watch` sees every token of the text in order, and returns True where the text ends.
        """
        check_request(request, vocab=self._vocab, context=self._shape.context)
        number, self._next_request = self._next_request, self._next_request + 1
        request = Request(
            number, request.prompt, request.max_tokens, request.end_tokens, request.sampling
        )
        live = _Live(request, watch or (lambda token: False), self._drafter(request))
        self._live[number] = live
        drafts = self._propose(live, request.prompt)
        self._step(Submitted(request, time.monotonic(), drafts))
        return number

    def _propose(self, live: _Live, tokens: Tokens) -> Tokens:
        """What the request's drafter thinks may follow its text, which these tokens now end.

        One that fails is not asked again: its text goes on without drafts.
        """
        try:
            live.drafter.extend(tokens)
            drafts = live.drafter.propose(self._shape.draft_depth)[: self._shape.draft_depth]
            if any(not 0 <= token < self._vocab for token in drafts):
                raise ValueError(f"proposed {drafts}, of a vocabulary of {self._vocab}")
        except Exception as error:
            live.drafter = NoDrafter()
            _without_drafts(live.request.id, error)
            return ()
        return drafts

    def cancel(self, request_id: int) -> None:
        """End a request; what it has in flight drains. Nothing more is heard of it."""
        self._live.pop(request_id, None)
        self._heard = [u for u in self._heard if u.request_id != request_id]
        self._step(Cancelled(request_id, time.monotonic()))

    def updates(self) -> Iterator[Update]:
        """Run until nothing is left to do, and give out tokens as they are drawn."""
        while self.busy or self._heard:
            if not self._heard:
                self._take()
            while self._heard:
                yield self._heard.pop(0)

    def pump(self) -> list[Update]:
        """Take one completion from the device; what it brought, if anything."""
        self._take()
        heard, self._heard = self._heard, []
        return heard

    def _take(self) -> None:
        """DeviceError once a launch has failed, and for ever: what ran behind it read garbage."""
        if self._failed is not None:
            raise self._failed
        done = self._device.wait()
        launch = self._in_flight.pop(done.launch_id)
        self._observe(launch, done)
        kind, rows = launch.program.split(".r")
        if done.error is None:
            self._timings.append(Timing(done.stage, kind, int(rows), done.elapsed_ms))
        elif kind != "draft":
            self._failed = DeviceError(
                f"stage {done.stage}, {launch.program}: {type(done.error).__name__}: {done.error}"
            )
            raise self._failed from done.error
        if kind == "draft":
            self._chain_done(launch, done.error)
        elif kind == "exec" and self._is_last(launch):
            self._window_done(launch)
        elif kind == "prompt" and self._is_last(launch):
            self._step(ChunkDone(launch.table.context, time.monotonic(), self._timed()))

    def _timed(self) -> tuple[Timing, ...]:
        """The times of what has been completed since this was asked last."""
        timings, self._timings = self._timings, []
        return tuple(timings)

    def _chain_done(self, launch: Launch, error: BaseException | None) -> None:
        """Each segment's drafts, with what the device counted of them; none where it failed."""
        context, segments = launch.table.context, launch.table.segments
        drafts: tuple[Tokens, ...] = ((),) * len(segments)
        if error is None:
            words = self._device.drafts(context)
            drafts = tuple(tuple(line[1 : 1 + 2 * line[0] : 2].tolist()) for line in words)
        else:
            for segment in segments:
                slot = self._state.slots[segment.slot]
                if slot.request is not None and slot.epoch == segment.epoch and slot.drafting:
                    _without_drafts(slot.request.id, error)
        event = Drafts(context, drafts[: len(segments)], time.monotonic(), error is not None)
        self._step(replace(event, timings=self._timed()))

    def _is_last(self, launch: Launch) -> bool:
        return launch.id == self._state.contexts[launch.table.context].last_launch

    def _window_done(self, launch: Launch) -> None:
        """Judge every segment; a watcher that raises is heard of after all of them."""
        words = self._device.verdict(launch.table.context)
        outcomes: list[Outcome] = []
        raised: list[Exception] = []
        for i, segment in enumerate(launch.table.segments):
            outcome, update = self._judge(segment, launch, words[i], words, raised)
            outcomes.append(outcome)
            if update is not None:
                self._heard.append(update)
        event = Verdict(launch.table.context, tuple(outcomes), time.monotonic(), self._timed())
        self._step(event)
        if raised:
            raise raised[0]

    def _judge(
        self,
        segment: Segment,
        launch: Launch,
        verdict: npt.NDArray[np.int32],
        words: npt.NDArray[np.int32],
        raised: list[Exception],
    ) -> tuple[Outcome, Update | None]:
        """Cut a segment's tokens where the text ends, and add their logits to its hash."""
        request = self._state.slots[segment.slot].request
        if request is None or self._state.slots[segment.slot].epoch != segment.epoch:
            return Outcome(segment.slot, ()), None
        live, first = self._live[request.id], segment.first_row
        accepted, token = int(verdict[0]), int(verdict[1])
        if token < 0:
            return self._ended(segment, live, (), FAILED)
        drafts = [launch.table.rows[first + i].token for i in range(1, accepted + 1)]
        kept, finish = cut(request, live.generated, [*drafts, token], self._shape.context)
        try:
            kept, finish = _watched(live.watch, kept, finish)
        except Exception as error:
            raised.append(error)
            kept, finish = (), FAILED
        if request.id not in self._live:  # cancelled by its watcher
            return Outcome(segment.slot, ()), None
        for i in range(len(kept)):
            live.digest.update(struct.pack("<2i", *words[first + i, 2:].tolist()))
        live.generated += len(kept)
        counted = (segment.count - 1, accepted)
        if finish is not None:
            return self._ended(segment, live, kept, finish, *counted)
        outcome = Outcome(segment.slot, kept, None, self._propose(live, kept), *counted)
        return outcome, Update(request.id, kept, drafted=segment.count - 1)

    def _ended(
        self,
        segment: Segment,
        live: _Live,
        kept: Tokens,
        finish: str,
        drafted: int = 0,
        accepted: int = 0,
    ) -> tuple[Outcome, Update]:
        """The last outcome of a slot's text; the other slots go on."""
        number = live.request.id
        del self._live[number]
        update = Update(number, kept, finish, live.digest.hexdigest(), segment.count - 1)
        return Outcome(segment.slot, kept, finish, (), drafted, accepted), update

    def _step(self, event: Event) -> None:
        before, result = self._state.choice, step(self._state, event)
        self._state = result.state
        if result.state.choice != before and LOG.isEnabledFor(logging.INFO):
            LOG.info("%s", self.choice)
        for launch in result.launches:
            self._in_flight[launch.id] = launch
            self._device.submit(launch)


def _without_drafts(request_id: int, error: BaseException) -> None:
    """Say once that a text goes on without drafts."""
    reason = f"{type(error).__name__}: {error}"
    LOG.warning("request %d goes on without drafts: %s", request_id, reason)


def _watched(
    watch: Callable[[int], bool], kept: tuple[int, ...], finish: str | None
) -> tuple[tuple[int, ...], str | None]:
    """End the text at the token where its watcher says so."""
    for i, token in enumerate(kept):
        if watch(token):
            return kept[: i + 1], STOP
    return kept, finish
