"""strata-inspect --simulate: a bundle's schedule on the clock, and what it would bring.

The engine and the scheduler are the real ones; only the device is simulated. A bundle's shape is
enough: no weights are opened.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise

from rich.console import Group, RenderableType
from rich.table import Table

from strata_runtime.bundle_format import Manifest
from strata_runtime.clock import ClockDevice
from strata_runtime.device import Done
from strata_runtime.drafters import HOST_DRAFTERS, NoDrafter
from strata_runtime.engine import Engine, Update
from strata_runtime.launch import Launch, Sampling
from strata_runtime.request import Request
from strata_runtime.schedule import CHOSEN, Schedule
from strata_runtime.times import Times


@dataclass(frozen=True)
class Simulation:
    """What a simulated run brought, in virtual time.

    The first fields are of the whole run; from `span_ms` on they are of the part of it in which
    every slot that the streams can fill was decoding (of the whole run, where there is none).
    Rates are per second. `windows_by_rows` counts windows by the rows of their exec. `exec_ms` and
    `draft_ms` are the last stage's mean times a window: no schedule of these windows brings more
    than `bound_tokens_per_s` = `tokens_per_window` / (exec + draft). `longest_gap_ms` is the
    longest time between two windows' tokens of one stream.
    """

    stages: int
    slots: int
    groups: int
    drafter: str
    draft_depth: int
    streams: int
    tokens: int
    elapsed_ms: float
    longest_gap_ms: float
    span_ms: float
    span_tokens: int
    tokens_per_s: float
    tokens_per_s_and_stream: float
    windows: int
    windows_by_rows: Mapping[str, int]
    tokens_per_window: float
    drafted: int
    accepted: int
    stage_busy: tuple[float, ...]
    exec_ms: float
    draft_ms: float
    bound_tokens_per_s: float


def simulate(
    manifest: Manifest,
    times: Times,
    schedule: Schedule = CHOSEN,
    observe: Callable[[Launch, Done], None] = lambda launch, done: None,
    seed: int = 0,
) -> Simulation:
    """Decode the streams that `times` ask for, all submitted at once; `seed` makes other texts.

    OptionError where `times` are for another number of stages, RequestError where the bundle's
    context cannot hold a prompt.
    """
    device = ClockDevice(manifest, times, seed)
    record = _Record()

    def heard(launch: Launch, done: Done) -> None:
        record.launches.append((launch, done))
        observe(launch, done)

    from_host = HOST_DRAFTERS[manifest.shape.drafter] is not NoDrafter
    drafter = device.drafter if from_host else None
    engine = Engine(manifest, device, drafter=drafter, schedule=schedule, observe=heard)
    streams = times.streams or manifest.shape.slots
    for stream in range(streams):
        prompt = tuple(device.text.token(stream, i) for i in range(times.prompt_tokens))
        engine.submit(Request(0, prompt, times.max_tokens, sampling=Sampling(seed=stream)))
    while engine.busy:
        record.updates += [(device.now, update) for update in engine.pump()]
    device.close()
    return _summary(manifest, streams, record)


class _Record:
    """Everything that was heard: completed launches, and updates with their time in ms."""

    def __init__(self) -> None:
        self.launches: list[tuple[Launch, Done]] = []
        self.updates: list[tuple[float, Update]] = []

    def span(self, full: int) -> tuple[float, float]:
        """From when `full` streams have had tokens until fewer than that are left, in ms.

        The whole run where there is no such time.
        """
        firsts: dict[int, float] = {}
        for at, update in self.updates:
            firsts.setdefault(update.request_id, at)
        ends = sorted(at for at, update in self.updates if update.finish is not None)
        begin, end = sorted(firsts.values())[full - 1], ends[len(ends) - full]
        return (begin, end) if begin < end else (0.0, self.updates[-1][0])

    def within(self, begin: float, end: float) -> _Record:
        """What was heard after `begin`, until `end`."""
        part = _Record()
        part.launches = [x for x in self.launches if begin < _end(x[1]) <= end]
        part.updates = [x for x in self.updates if begin < x[0] <= end]
        return part

    def tokens(self) -> int:
        """All streams' tokens."""
        return sum(len(update.tokens) for _, update in self.updates)

    def of(self, stage: int, kind: str) -> list[tuple[Launch, Done]]:
        """Launches of a stage and a kind."""
        return [x for x in self.launches if (x[0].stage, x[0].table.kind) == (stage, kind)]


def _end(done: Done) -> float:
    return done.start * 1e3 + done.elapsed_ms


def _summary(manifest: Manifest, streams: int, record: _Record) -> Simulation:
    stages, shape = len(manifest.stages), manifest.shape
    full = min(streams, shape.slots)
    begin, end = record.span(full)
    span_ms, part = end - begin, record.within(begin, end)
    windows, drafts = part.of(stages - 1, "exec"), part.of(stages - 1, "draft")
    rate, per_window = _ratio(part.tokens(), span_ms) * 1e3, _ratio(part.tokens(), len(windows))
    exec_ms, draft_ms = (
        _ratio(sum(done.elapsed_ms for _, done in some), len(windows)) for some in (windows, drafts)
    )
    counts = Counter(len(launch.table.rows) for launch, _ in windows)
    return Simulation(
        stages=stages,
        slots=shape.slots,
        groups=shape.groups,
        drafter=shape.drafter,
        draft_depth=shape.draft_depth,
        streams=streams,
        tokens=record.tokens(),
        elapsed_ms=record.updates[-1][0],
        longest_gap_ms=_longest_gap(record.updates),
        span_ms=span_ms,
        span_tokens=part.tokens(),
        tokens_per_s=rate,
        tokens_per_s_and_stream=rate / full,
        windows=len(windows),
        windows_by_rows={str(rows): counts[rows] for rows in sorted(counts)},
        tokens_per_window=per_window,
        drafted=sum(update.drafted for _, update in part.updates),
        accepted=sum(max(len(update.tokens) - 1, 0) for _, update in part.updates),
        stage_busy=tuple(_busy(record, stage, begin, end) for stage in range(stages)),
        exec_ms=exec_ms,
        draft_ms=draft_ms,
        bound_tokens_per_s=_ratio(per_window, exec_ms + draft_ms) * 1e3,
    )


def _ratio(part: float, whole: float) -> float:
    """0 where there is nothing to divide by, as where all launches are free."""
    return part / whole if whole else 0.0


def _busy(record: _Record, stage: int, begin: float, end: float) -> float:
    """Which part of a span a stage has worked: 0 to 1."""
    overlaps = (
        min(_end(done), end) - max(done.start * 1e3, begin)
        for _, done in record.launches
        if done.stage == stage
    )
    return min(1.0, _ratio(sum(ms for ms in overlaps if ms > 0), end - begin))


def _longest_gap(updates: Iterable[tuple[float, Update]]) -> float:
    """In ms; 0 where no stream has had tokens twice."""
    at: dict[int, list[float]] = {}
    for time, update in updates:
        at.setdefault(update.request_id, []).append(time)
    return max((b - a for ats in at.values() for a, b in pairwise(ats)), default=0.0)


def simulation_tables(found: Simulation) -> RenderableType:
    """The record for people."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    table.add_column()
    table.add_column(overflow="fold")
    for name, text in _lines(found):
        table.add_row(name, text)
    note = (
        "\nRates, windows and shares are of the time in which all slots that the streams can fill "
        "were decoding. The bound is what the last stage brings if it never waits: tokens a window "
        "/ (exec + draft)."
    )
    return Group(table, note)


def _lines(found: Simulation) -> list[tuple[str, str]]:
    share = 100 * _ratio(found.tokens_per_s, found.bound_tokens_per_s)
    accepted = 100 * _ratio(found.accepted, found.drafted)
    rows = ", ".join(f"{rows} rows {n}" for rows, n in found.windows_by_rows.items())
    busy = ", ".join(f"stage {i} {100 * part:.1f} %" for i, part in enumerate(found.stage_busy))
    drafter = f"{found.drafter}, at most {found.draft_depth} drafts"
    return [
        ("simulated", f"{found.stages} stages, {found.slots} slots, {found.groups} groups"),
        ("drafter", drafter if found.draft_depth else found.drafter),
        ("run", f"{found.streams} streams, {found.tokens} tokens in {found.elapsed_ms:,.1f} ms"),
        ("measured", f"{found.span_tokens} tokens in {found.span_ms:,.1f} ms"),
        ("tokens/s", f"{found.tokens_per_s:,.2f}"),
        ("a stream", f"{found.tokens_per_s_and_stream:,.2f}"),
        ("bound", f"{found.bound_tokens_per_s:,.2f}, of which {share:.1f} % are reached"),
        ("last stage", f"{found.exec_ms:.3f} ms exec + {found.draft_ms:.3f} ms draft a window"),
        ("a window", f"{found.tokens_per_window:.3f} tokens"),
        ("windows", f"{found.windows}: {rows}"),
        ("drafts", f"{found.accepted} of {found.drafted} accepted ({accepted:.1f} %)"),
        ("busy", busy),
        ("longest gap", f"{found.longest_gap_ms:,.2f} ms"),
    ]
