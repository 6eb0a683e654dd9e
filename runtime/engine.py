"""The engine: requests in, tokens out; it drives the scheduler with what the device reports."""

from __future__ import annotations

import hashlib
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from strata_runtime.bundle_format import Manifest
from strata_runtime.device import Device, Done
from strata_runtime.drafters import HOST_DRAFTERS, Drafter
from strata_runtime.errors import DeviceError
from strata_runtime.launch import Launch, Segment, Tokens
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
    ) -> None:
        """Tests and benchmarks may bound the live rows of a prompt chunk by `chunk_rows`.

        `drafter` makes a host drafter for a request in place of the bundle's; a layer on the
        device drafts on. `observe` hears of every launch that is complete.
        """
        self._observe = observe
        self._shape = manifest.shape
        self._drafter = drafter or (lambda request: HOST_DRAFTERS[manifest.shape.drafter]())
        self._vocab = manifest.model.vocab
        self._device = device
        config = Config(len(manifest.stages), manifest.shape, chunk_rows, schedule)
        self._state = initial_state(config)
        self._live: dict[int, _Live] = {}
        self._in_flight: dict[int, Launch] = {}
        self._chunk_ms: dict[int, float] = {}
        self._heard: list[Update] = []
        self._failed: DeviceError | None = None
        self._next_request = 1

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
        live.drafter.extend(request.prompt)
        self._live[number] = live
        self._step(Submitted(request, time.monotonic(), self._propose(live)))
        return number

    def _propose(self, live: _Live) -> Tokens:
        """What the request's drafter thinks may follow its text."""
        return live.drafter.propose(self._shape.draft_depth)

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
        if done.error is not None:
            self._failed = DeviceError(
                f"stage {done.stage}, {launch.program}: {type(done.error).__name__}: {done.error}"
            )
            raise self._failed from done.error
        if launch.table.kind == "exec":
            self._window_done(launch)
        elif launch.table.kind == "draft":
            self._chain_done(launch)
        else:
            self._chunk_done(launch, done)

    def _chunk_done(self, launch: Launch, done: Done) -> None:
        """A chunk costs what its slowest stage takes."""
        context = launch.table.context
        slowest = max(self._chunk_ms.get(context, 0.0), done.elapsed_ms)
        self._chunk_ms[context] = slowest
        if self._is_last(launch):
            del self._chunk_ms[context]
            self._step(ChunkDone(context, slowest, time.monotonic()))

    def _chain_done(self, launch: Launch) -> None:
        """Each segment's drafts, with what the device counted of them."""
        context, segments = launch.table.context, launch.table.segments
        words = self._device.drafts(context)
        drafts = tuple(tuple(line[1 : 1 + 2 * line[0] : 2].tolist()) for line in words)
        self._step(Drafts(context, drafts[: len(segments)], time.monotonic()))

    def _is_last(self, launch: Launch) -> bool:
        return launch.id == self._state.contexts[launch.table.context].last_launch

    def _window_done(self, launch: Launch) -> None:
        """Judge every segment; a watcher that raises is heard of after all of them."""
        if not self._is_last(launch):
            return
        words = self._device.verdict(launch.table.context)
        outcomes: list[Outcome] = []
        raised: list[Exception] = []
        for i, segment in enumerate(launch.table.segments):
            outcome, update = self._judge(segment, launch, words[i], words, raised)
            outcomes.append(outcome)
            if update is not None:
                self._heard.append(update)
        self._step(Verdict(launch.table.context, tuple(outcomes), time.monotonic()))
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
        if finish is not None:
            return self._ended(segment, live, kept, finish)
        live.drafter.extend(kept)
        outcome = Outcome(segment.slot, kept, drafts=self._propose(live))
        return outcome, Update(request.id, kept, drafted=segment.count - 1)

    def _ended(
        self, segment: Segment, live: _Live, kept: tuple[int, ...], finish: str
    ) -> tuple[Outcome, Update]:
        """The last outcome of a slot's text; the other slots go on."""
        number = live.request.id
        del self._live[number]
        update = Update(number, kept, finish, live.digest.hexdigest(), segment.count - 1)
        return Outcome(segment.slot, kept, finish), update

    def _step(self, event: Event) -> None:
        result = step(self._state, event)
        self._state = result.state
        for launch in result.launches:
            self._in_flight[launch.id] = launch
            self._device.submit(launch)


def _watched(
    watch: Callable[[int], bool], kept: tuple[int, ...], finish: str | None
) -> tuple[tuple[int, ...], str | None]:
    """End the text at the token where its watcher says so."""
    for i, token in enumerate(kept):
        if watch(token):
            return kept[: i + 1], STOP
    return kept, finish
