"""What the scheduler has measured: the times of programs, and how often drafts hold."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from statistics import median

#: Times of a program that are kept: their median shrugs off a run that something else slowed down.
SAMPLES = 5
#: Launches after which a program that has not run again is unknown: what it costs may have changed.
FORGET = 20_000
#: What one more trial takes off the weight of those before it: some fifty count.
DECAY = 0.98


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
    def ms(self) -> float:
        """The usual time."""
        return median(self.times)


@dataclass(frozen=True)
class Costs:
    """The programs that have run; what a number of rows costs follows from the others' times.

    It is taken for granted that more rows never cost less, and never cost less each.
    """

    entries: tuple[Cost, ...] = ()

    def measured(self, timing: Timing, launch: int) -> Costs:
        """These times and one more; `launch` is the number of launches so far."""
        key = (timing.stage, timing.kind, timing.rows)
        kept, mine = [], None
        for cost in self.entries:
            if (cost.stage, cost.kind, cost.rows) == key:
                mine = cost
            elif launch - cost.launch <= FORGET:
                kept.append(cost)
        if mine is None:
            mine = Cost(*key, launch=launch)
        else:
            times = (*mine.times, timing.ms)[-SAMPLES:]
            mine = replace(mine, times=times, launch=launch)
        return Costs((*kept, mine))

    @cached_property
    def known(self) -> frozenset[tuple[int, str, int]]:
        """The programs whose time is known."""
        return frozenset((c.stage, c.kind, c.rows) for c in self.entries if c.times)

    def at_least(self, stage: int, kind: str, rows: int) -> float | None:
        """What a program costs at the least, in ms: a guess that makes what is unknown worth a try.

        None where no program of the kind is known.
        """
        known = self._of(stage, kind)
        return max((ms * min(1.0, rows / n) for n, ms in known), default=None)

    def at_most(self, stage: int, kind: str, rows: int) -> float | None:
        """What a program costs in ms, or, as long as that is not known, at the most."""
        known = dict(self._of(stage, kind))
        return known.get(
            rows, min((ms * max(1.0, rows / n) for n, ms in known.items()), default=None)
        )

    def _of(self, stage: int, kind: str) -> list[tuple[int, float]]:
        known = (c for c in self.entries if (c.stage, c.kind) == (stage, kind) and c.times)
        return [(c.rows, c.ms) for c in known]


@dataclass(frozen=True)
class Odds:
    """How often the first, second, ... trial of a row succeeded, given that those before it did.

    (trials, successes) by index, of which older ones count for less.
    """

    counts: tuple[tuple[float, float], ...] = ()

    def seen(self, tried: int, succeeded: int) -> Odds:
        """These odds and one more row of `tried` trials, the first `succeeded` of which did."""
        counts = [*self.counts, *((0.0, 0.0) for _ in range(tried - len(self.counts)))]
        for i in range(min(tried, succeeded + 1)):
            trials, successes = counts[i]
            counts[i] = (trials * DECAY + 1, successes * DECAY + (i < succeeded))
        return Odds(tuple(counts))

    def chance(self, index: int, prior: float, weight: float) -> float:
        """The probability of trial `index`; `prior` counts as that of `weight` trials."""
        trials, successes = self.counts[index] if index < len(self.counts) else (0.0, 0.0)
        return (successes + weight * prior) / (trials + weight)


#: Nothing seen, nothing measured.
UNSEEN, UNMEASURED = Odds(), Costs()
