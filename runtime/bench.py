"""Benchmarks: equal requests under several settings, on one device, one setting after the other.

Every setting keeps its engine, and so what its scheduler has measured, from run to run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from strata_runtime.bench_figures import Arrival, Beside, Record
from strata_runtime.bundle_format import Manifest
from strata_runtime.device import Device, Done
from strata_runtime.drafters import Drafter, NoDrafter, ReplayDrafter, acceptance
from strata_runtime.engine import Engine, Update
from strata_runtime.errors import RequestError
from strata_runtime.launch import Launch, Segment, Tokens
from strata_runtime.request import Request
from strata_runtime.schedule import Schedule

#: Tokens that each stream decodes before a setting is measured.
WARM_TOKENS = 8
#: A prompt beside the streams is submitted once this part of their tokens is there: one in so many.
BESIDE_AFTER = 3


@dataclass(frozen=True)
class Setting:
    """What a run may do: most drafts a slot, windows in flight, slots a window; None: any."""

    drafts: int | None = None
    groups: int | None = None
    slots: int | None = None

    @property
    def schedule(self) -> Schedule:
        """The setting as the engine takes it."""
        return Schedule(windows=self.groups, slots=self.slots, drafts=self.drafts)

    def __str__(self) -> str:
        """As a message names it."""
        return f"drafts {named(self.drafts)}, groups {named(self.groups)}"


def named(bound: int | None) -> int | str:
    """A bound as it is reported: auto where the scheduler chooses."""
    return "auto" if bound is None else bound


#: A stream by itself, without drafts: what every text is compared with.
ALONE = Setting(drafts=0, groups=1, slots=1)


@dataclass(frozen=True)
class Text:
    """What a stream decoded: its tokens, a hash of each one's logits, and the engine's hash of all.

    `hashes` is empty where the rows of a window could not be told apart.
    """

    tokens: Tokens
    hashes: tuple[int, ...]
    logits_hash: str | None


@dataclass(frozen=True)
class Run:
    """A run: what was heard, what each stream decoded, and what the scheduler said half-way."""

    record: Record
    texts: tuple[Text, ...]
    choice: str = ""


@dataclass
class _Stream:
    """A text of `wanted` tokens as it grows; `end` is the update that ended it."""

    index: int
    wanted: int
    tokens: list[int] = field(default_factory=list)
    hashes: list[int] = field(default_factory=list)
    end: Update | None = None

    def take(self, update: Update, hashes: Sequence[int]) -> None:
        """What a window brought, and the hashes of its rows."""
        self.tokens += update.tokens
        self.hashes += hashes
        if update.finish is not None:
            self.end = update

    def text(self) -> Text:
        """The whole text; RequestError where it is shorter than it was to be."""
        assert self.end is not None, "an engine ends every text"
        if (count := len(self.tokens)) != self.wanted:
            reason = f"after {count} of {self.wanted} tokens: {self.end.finish}"
            raise RequestError(f"stream {self.index} ended {reason}")
        hashes = tuple(self.hashes) if len(self.hashes) == count else ()
        return Text(tuple(self.tokens), hashes, self.end.logits_hash)


class _Waiting:
    """A device, and the seconds for which the host has waited for it."""

    def __init__(self, device: Device) -> None:
        self._device, self.waited = device, 0.0
        self.submit, self.verdict, self.drafts = device.submit, device.verdict, device.drafts
        self.close = device.close

    def wait(self) -> Done:
        """The next completion."""
        start = time.perf_counter()
        done = self._device.wait()
        self.waited += time.perf_counter() - start
        return done


class Runner:
    """One engine under one setting; its runs are one after the other."""

    def __init__(
        self,
        manifest: Manifest,
        device: Device,
        setting: Setting,
        drafter: Callable[[Request], Drafter] | None = None,
    ) -> None:
        """`drafter` drafts in place of the bundle's, where that is on the host."""
        self._device, self._last_stage = _Waiting(device), len(manifest.stages) - 1
        self._engine = Engine(
            manifest,
            self._device,
            drafter=drafter,
            schedule=setting.schedule,
            observe=self._observe,
        )
        self._record = Record()
        self._streams: dict[int, _Stream] = {}
        self._owners: dict[tuple[int, int], int] = {}
        self._window: tuple[Launch, list[list[int]]] | None = None

    def decode(self, requests: Sequence[Request], beside: Request | None = None) -> Run:
        """Submit requests together, and run until the last token of each.

        With a third of the tokens there, `beside` is submitted, too. RequestError where a text
        ends before its length.
        """
        self._record = record = Record(time.perf_counter())
        self._device.waited = 0.0
        self._owners = {}
        streams = [_Stream(i, request.max_tokens) for i, request in enumerate(requests)]
        numbers = (self._engine.submit(request) for request in requests)
        self._streams = dict(zip(numbers, streams, strict=True))
        wanted, choice = sum(stream.wanted for stream in streams), ""
        while self._engine.busy:
            if beside is not None and BESIDE_AFTER * record.tokens >= wanted:
                self._engine.submit(beside)
                record.beside, beside = Beside(len(beside.prompt), time.perf_counter()), None
            if not choice and 2 * record.tokens >= wanted:
                choice = self._engine.choice
            self._pump()
        record.host_s = time.perf_counter() - record.submitted - self._device.waited
        return Run(record, tuple(stream.text() for stream in streams), choice)

    def _pump(self) -> None:
        """Take one completion; a request that is no stream's is the one beside them."""
        updates, now = self._engine.pump(), time.perf_counter()
        rows = self._rows(updates)
        for update in updates:
            stream = self._streams.get(update.request_id)
            if stream is not None:
                stream.take(update, rows.get(update.request_id, []))
                arrival = Arrival(stream.index, now, update.tokens, update.drafted)
                self._record.arrivals.append(arrival)
            elif self._record.beside is not None:
                self._record.beside = replace(self._record.beside, answered=now)

    def _observe(self, launch: Launch, done: Done) -> None:
        """Keep a launch; of a window that is whole, the words that say what each row was."""
        self._record.launches.append((launch, done))
        self._window = None
        if launch.table.kind == "exec" and launch.stage == self._last_stage:
            self._window = launch, self._device.verdict(launch.table.context).tolist()

    def _rows(self, updates: Sequence[Update]) -> dict[int, list[int]]:
        """For each request that the window brought tokens, the hashes of their rows' logits.

        Updates come in the order of the window's segments. A slot and an epoch are one request's,
        whose first window always brings something; later ones are found by that.
        """
        if self._window is None:
            return {}
        launch, words = self._window
        tokens = {update.request_id: len(update.tokens) for update in updates}
        fresh = [number for number in tokens if number not in self._owners.values()]
        found: dict[int, list[int]] = {}
        for segment in launch.table.segments:
            key = segment.slot, segment.epoch
            if key not in self._owners and fresh:
                self._owners[key] = fresh.pop(0)
            if (number := self._owners.get(key)) in tokens:
                found[number] = _hashes(segment, words)[: tokens[number]]
        return found


def _hashes(segment: Segment, words: Sequence[Sequence[int]]) -> list[int]:
    """The 64-bit hash of each row of a segment, from its low and its high word."""
    lines = words[segment.first_row : segment.first_row + segment.count]
    return [(line[2] & 0xFFFFFFFF) | (line[3] & 0xFFFFFFFF) << 32 for line in lines]


def solo(manifest: Manifest, device: Device, requests: Sequence[Request]) -> list[Text]:
    """Each request by itself, without drafts."""
    runner = Runner(manifest, device, ALONE, lambda request: NoDrafter())
    return [runner.decode([request]).texts[0] for request in requests]


def replay(
    requests: Sequence[Request], texts: Sequence[Text], vocab: int, spec: str
) -> Callable[[Request], Drafter]:
    """What makes drafters that replay these texts; `acceptance` reads the `spec` for each.

    A request that is not among them gets no drafts.
    """
    records = {
        (request.prompt, request.sampling): ((*request.prompt, *text.tokens), i)
        for i, (request, text) in enumerate(zip(requests, texts, strict=True))
    }

    def drafter(request: Request) -> Drafter:
        record, index = records.get((request.prompt, request.sampling), (None, 0))
        if record is None:
            return NoDrafter()
        return ReplayDrafter(record, vocab, acceptance(spec, request.sampling.seed + index))

    return drafter


def measure(
    runners: Sequence[Runner],
    requests: Sequence[Request],
    repeats: int,
    beside: Request | None = None,
) -> list[list[Run]]:
    """Every runner's runs, `repeats` of each: warmed up first, then all of them in turn.

    What slows the machine down for a while so slows all settings down.
    """
    short = [replace(r, max_tokens=min(r.max_tokens, WARM_TOKENS)) for r in requests]
    for runner in runners:
        runner.decode(short, beside)
    turns = [[runner.decode(requests, beside) for runner in runners] for _ in range(repeats)]
    return [list(runs) for runs in zip(*turns, strict=True)]


def difference(text: Text, alone: Text) -> str | None:
    """How a text differs from the one that it should be, or None: it is the same in every bit."""
    pairs = zip(text.tokens, alone.tokens, strict=True)
    token = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
    both = zip(text.hashes, alone.hashes, strict=False)  # none of either where they are not known
    logits = next((i for i, (a, b) in enumerate(both) if a != b), None)
    where = "" if logits is None else f", logits differ from token {logits} on"
    if token is not None:
        return f"token {token} is {text.tokens[token]}, alone {alone.tokens[token]}{where}"
    if logits is None and text.logits_hash == alone.logits_hash:
        return None
    return f"logits hash differs, tokens equal{where}"
