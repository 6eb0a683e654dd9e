"""What the scheduler has measured: the times of programs, and how often drafts hold."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import inf, sqrt
from statistics import median
from typing import NamedTuple

#: Times of a program that are kept: their median shrugs off a run that something else slowed down.
SAMPLES = 5
#: Launches after which a program that has not run again is unknown: what it costs may have changed.
FORGET = 20_000
#: What one more trial takes off the weight of those before it: some two hundred count. What is not
#: tried any more is forgotten too, though slowly, so that it gets another chance.
DECAY, FADE = 0.995, 0.9995


@dataclass(frozen=True)
class Timing:
    """One run of a stage's program, in milliseconds; a chain's `rows` are its steps."""

    stage: int
    kind: str
    rows: int
    ms: float


@dataclass(frozen=True)
class Cost:
    """The last times of a program in ms, the newest last; `launch` is when it ran last.

    The first run of a program is cold and not kept, so that one that ran once is not known yet.
    """

    stage: int
    kind: str
    rows: int
    times: tuple[float, ...] = ()
    launch: int = 0

    @property
    def key(self) -> tuple[int, str, int]:
        """Which program it is."""
        return self.stage, self.kind, self.rows

    @cached_property
    def ms(self) -> float:
        """The usual time."""
        return median(self.times)


@dataclass(frozen=True)
class Costs:
    """The programs that have run, the last one last, and which of their times are `known`.

    What a number of rows costs follows from the others' times: it is taken for granted that more
    rows never cost less, and never cost more each.
    """

    entries: tuple[Cost, ...] = ()
    known: frozenset[tuple[int, str, int]] = frozenset()

    def measured(self, timing: Timing, launch: int) -> Costs:
        """These times and one more; `launch` is the number of launches so far."""
        key, kept, known = (timing.stage, timing.kind, timing.rows), self.entries, self.known
        for place in range(len(kept) - 1, -1, -1):
            if kept[place].key == key:
                times = (*kept[place].times, timing.ms)[-SAMPLES:]
                kept = kept[:place] + kept[place + 1 :]
                break
        else:
            times = ()
        while kept and launch - kept[0].launch > FORGET:
            known, kept = known - {kept[0].key}, kept[1:]
        if times and key not in known:
            known |= {key}
        return Costs((*kept, Cost(*key, times, launch)), known)

    def at_least(self, stage: int, kind: str, rows: int) -> float | None:
        """What a program costs at the least, in ms: a guess that makes what is unknown worth a try.

        None where no program of the kind is known.
        """
        known = self._by_kind.get((stage, kind), ())
        return max((ms * min(1.0, rows / n) for n, ms in known), default=None)

    def at_most(self, stage: int, kind: str, rows: int) -> float | None:
        """What a program costs in ms, or, as long as that is not known, at the most."""
        known = dict(self._by_kind.get((stage, kind), ()))
        return known.get(
            rows, min((ms * max(1.0, rows / n) for n, ms in known.items()), default=None)
        )

    @cached_property
    def _by_kind(self) -> dict[tuple[int, str], list[tuple[int, float]]]:
        """Rows and ms of what is known, by stage and kind."""
        found: dict[tuple[int, str], list[tuple[int, float]]] = {}
        for cost in self.entries:
            if cost.times:
                found.setdefault((cost.stage, cost.kind), []).append((cost.rows, cost.ms))
        return found


class Chance(NamedTuple):
    """A probability as it was `seen`, and what may be `hoped` for: one standard error more."""

    seen: float
    hoped: float


@dataclass(frozen=True)
class Odds:
    """How often the first, second, ... trial of a row succeeded, given that those before it did.

    (trials, successes) by index, of which older ones count for less.
    """

    counts: tuple[tuple[float, float], ...] = ()

    def seen(self, tried: int, succeeded: int) -> Odds:
        """These odds and one more row of `tried` trials, the first `succeeded` of which did."""
        missing, reached = tried - len(self.counts), min(tried, succeeded + 1)
        counts = []
        for i, (trials, successes) in enumerate((*self.counts, *((0.0, 0.0),) * missing)):
            if i < reached:
                counts.append((trials * DECAY + 1, successes * DECAY + (i < succeeded)))
            else:
                counts.append((trials * FADE, successes * FADE))
        return Odds(tuple(counts))

    def less(self, some: Odds) -> Odds:
        """These odds without `some` of the rows that they have seen."""
        counts = []
        for (trials, successes), (n, k) in zip(self.counts, some.counts, strict=False):
            left = max(0.0, trials - n)
            counts.append((left, min(left, max(0.0, successes - k))))
        return Odds((*counts, *self.counts[len(counts) :]))

    def chance(self, index: int, guess: float, weight: float, most: float = inf) -> Chance:
        """Of trial `index`; `guess` counts as `weight` trials, all that were seen as `most`."""
        trials, successes = self.counts[index] if index < len(self.counts) else (0.0, 0.0)
        if trials > most:
            trials, successes = most, successes * most / trials
        total = trials + weight
        seen = (successes + weight * guess) / total
        return Chance(seen, min(1.0, seen + sqrt(seen * (1 - seen) / total)))


#: Nothing seen, nothing measured.
UNSEEN, UNMEASURED = Odds(), Costs()
