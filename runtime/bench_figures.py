"""What a run of strata-bench was: figures from the launches and tokens that were heard of."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median

from strata_runtime.device import Done
from strata_runtime.launch import Launch, Tokens

Ran = tuple[Launch, Done]


@dataclass(frozen=True)
class Arrival:
    """What a window brought a stream, at a time in seconds of the host's clock.

    `drafted` drafts stood in it; one less than there are tokens was accepted.
    """

    stream: int
    time: float
    tokens: Tokens
    drafted: int = 0


@dataclass(frozen=True)
class Beside:
    """A prompt of `tokens` tokens, read beside the streams from its submission to its answer, s."""

    tokens: int
    submitted: float
    answered: float = 0.0


@dataclass
class Record:
    """A run as it was heard: submitted at a time in s, then arrivals and launches in order.

    `host_s` is what the host took for itself: all the time but that in which it waited.
    """

    submitted: float = 0.0
    arrivals: list[Arrival] = field(default_factory=list)
    launches: list[Ran] = field(default_factory=list)
    beside: Beside | None = None
    host_s: float = 0.0

    @property
    def tokens(self) -> int:
        """Tokens that have arrived, of all streams."""
        return sum(len(arrival.tokens) for arrival in self.arrivals)


@dataclass(frozen=True)
class Figures:
    """One run in numbers.

    `tokens_per_s`: all tokens that come after every stream has its first one and until one has its
    last, over that time; of the whole run where there is no such time. `elapsed_s`: from the
    submission to the last token. `per_stream`: each stream's tokens after its first arrival, over
    the time from that to its last. `drafted` drafts stood in windows, `accepted` of them held;
    item i of `drafted_by_position` counts the segments (a stream's rows in a window) that had more
    than i drafts, of `accepted_by_position` those that accepted more than i. `tokens_per_window`
    are all streams', `tokens_per_segment` one's. `stage_busy`: the part of the time from the first
    launch to the last end that a stage was running. `longest_gap_ms`: between two arrivals of one
    stream (None where all have one). `host_us`: the host's own time, by window and stage. With a
    prompt beside: its tokens over the time from its submission to its answer, and the longest gap
    that lies in that time, or reaches into it.
    """

    tokens_per_s: float
    elapsed_s: float
    per_stream: tuple[float, ...]
    drafted: int
    accepted: int
    drafted_by_position: tuple[int, ...]
    accepted_by_position: tuple[int, ...]
    tokens_per_window: float
    tokens_per_segment: float
    stage_busy: tuple[float, ...]
    longest_gap_ms: float | None
    host_us: float
    prompt_tokens_per_s: float | None = None
    longest_gap_beside_ms: float | None = None


def figures(record: Record) -> Figures:
    """The figures of one run; every stream has at least one arrival."""
    arrivals = record.arrivals
    drafted = [arrival.drafted for arrival in arrivals]
    accepted = [len(arrival.tokens) - 1 for arrival in arrivals]
    depth, windows = max(drafted, default=0), sum(1 for _ in _windows(record.launches))
    busy = _stage_busy(record.launches)
    return Figures(
        tokens_per_s=_tokens_per_s(record),
        elapsed_s=arrivals[-1].time - record.submitted,
        per_stream=tuple(_stream_rate(items, record.submitted) for items in _streams(arrivals)),
        drafted=sum(drafted),
        accepted=sum(accepted),
        drafted_by_position=_by_position(drafted, depth),
        accepted_by_position=_by_position(accepted, depth),
        tokens_per_window=record.tokens / max(1, windows),
        tokens_per_segment=record.tokens / len(arrivals),
        stage_busy=busy,
        longest_gap_ms=_longest_gap_ms(arrivals),
        host_us=record.host_s * 1e6 / max(1, windows * len(busy)),
        **_beside(record),
    )


def _beside(record: Record) -> dict[str, float | None]:
    if (beside := record.beside) is None:
        return {}
    start, end = beside.submitted, beside.answered
    return {
        "prompt_tokens_per_s": beside.tokens / (end - start),
        "longest_gap_beside_ms": _longest_gap_ms(record.arrivals, start, end),
    }


def _streams(arrivals: Iterable[Arrival]) -> list[list[Arrival]]:
    """Each stream's arrivals, in order."""
    found: dict[int, list[Arrival]] = defaultdict(list)
    for arrival in arrivals:
        found[arrival.stream].append(arrival)
    return [found[stream] for stream in sorted(found)]


def _tokens_per_s(record: Record) -> float:
    """While all streams decode; of the whole run where they never do."""
    streams = _streams(record.arrivals)
    start, end = max(s[0].time for s in streams), min(s[-1].time for s in streams)
    if start >= end:
        start, end = record.submitted, record.arrivals[-1].time
    return sum(len(a.tokens) for a in record.arrivals if start < a.time <= end) / (end - start)


def _stream_rate(arrivals: Sequence[Arrival], submitted: float) -> float:
    """From the first arrival on; from the submission where there is no other."""
    start, tokens = arrivals[0].time, sum(len(arrival.tokens) for arrival in arrivals[1:])
    if not tokens:
        start, tokens = submitted, len(arrivals[0].tokens)
    return tokens / (arrivals[-1].time - start)


def _by_position(counts: Sequence[int], depth: int) -> tuple[int, ...]:
    """How many of the counts are more than 0, 1, ..."""
    return tuple(sum(count > i for count in counts) for i in range(depth))


def _longest_gap_ms(
    arrivals: Iterable[Arrival], start: float = float("-inf"), end: float = float("inf")
) -> float | None:
    """Of the gaps that share a moment with the time from `start` to `end`."""
    gaps = [
        after.time - before.time
        for items in _streams(arrivals)
        for before, after in pairwise(items)
        if before.time < end and after.time > start
    ]
    return max(gaps) * 1e3 if gaps else None


def _end(done: Done) -> float:
    """When a launch was complete, in seconds of the device's clock."""
    return done.start + done.elapsed_ms / 1e3


def _stage_busy(launches: Sequence[Ran]) -> tuple[float, ...]:
    if not launches:
        return ()
    span = max(_end(done) for _, done in launches) - min(done.start for _, done in launches)
    busy = [0.0] * (1 + max(done.stage for _, done in launches))
    for _, done in launches:
        busy[done.stage] += done.elapsed_ms / 1e3
    return tuple(seconds / span if span else 0.0 for seconds in busy)


def combined(runs: Sequence[Figures]) -> Figures:
    """One setting's repeats: medians of times and rates, counts of the repeat of median speed."""
    usual = sorted(runs, key=lambda run: run.tokens_per_s)[(len(runs) - 1) // 2]
    return Figures(
        tokens_per_s=median(run.tokens_per_s for run in runs),
        elapsed_s=median(run.elapsed_s for run in runs),
        per_stream=_medians([run.per_stream for run in runs]),
        drafted=usual.drafted,
        accepted=usual.accepted,
        drafted_by_position=usual.drafted_by_position,
        accepted_by_position=usual.accepted_by_position,
        tokens_per_window=usual.tokens_per_window,
        tokens_per_segment=usual.tokens_per_segment,
        stage_busy=_medians([run.stage_busy for run in runs]),
        longest_gap_ms=_median_known(run.longest_gap_ms for run in runs),
        host_us=median(run.host_us for run in runs),
        prompt_tokens_per_s=_median_known(run.prompt_tokens_per_s for run in runs),
        longest_gap_beside_ms=_median_known(run.longest_gap_beside_ms for run in runs),
    )


def _medians(lines: Sequence[Sequence[float]]) -> tuple[float, ...]:
    return tuple(median(column) for column in zip(*lines, strict=True))


def _median_known(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


#: Milliseconds by stage, kind and rows.
ProgramTimes = Mapping[tuple[int, str, int], float]


def program_ms(records: Iterable[Record]) -> ProgramTimes:
    """The median time of each stage's program, over all its launches."""
    found: dict[tuple[int, str, int], list[float]] = defaultdict(list)
    for record in records:
        for launch, done in record.launches:
            kind, rows = launch.program.split(".r")
            found[launch.stage, kind, int(rows)].append(done.elapsed_ms)
    return {key: median(found[key]) for key in sorted(found)}


def window_ms(records: Iterable[Record]) -> dict[int, float]:
    """By rows, the median time of a window from its first stage's start to its last one's end."""
    found: dict[int, list[float]] = defaultdict(list)
    for record in records:
        for rows, ms in _windows(record.launches):
            found[rows].append(ms)
    return {rows: median(found[rows]) for rows in sorted(found)}


def _windows(launches: Iterable[Ran]) -> Iterator[tuple[int, float]]:
    """Rows and ms of each window: all stages take windows in one order, that of their ids."""
    queues: dict[int, list[Ran]] = defaultdict(list)
    for launch, done in sorted(launches, key=lambda ran: ran[0].id):
        if launch.table.kind == "exec":
            queues[launch.stage].append((launch, done))
    stages = [queues[stage] for stage in sorted(queues)]
    for window in zip(*stages, strict=True):
        (launch, first), (_, last) = window[0], window[-1]
        yield int(launch.program.split(".r")[1]), (_end(last) - first.start) * 1e3
