"""Choosing: how many windows in flight, and how many drafts each slot gets.

A round is one window of every group; windows do not overtake each other. Its time is that of the
busiest stage, or, where there are too few windows to keep it busy, that of the longest window on
its way through all stages:

    tokens / s = sum over slots (1 + p1 + p1 p2 + ...) / max(max over stages sum over windows t, max
                                                              over windows sum over stages t)

p are the measured chances that a draft is there and holds, t the measured times. A time that is not
known yet is taken to be as short as it can be, so that what may pay is tried. A chance is taken as
it was seen, which may have been bad luck: drafts that would pay if their chances were one standard
error better are seen again in probes, which may cost a small part of the time.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from typing import NamedTuple

from strata_runtime.drafters import DEVICE_DRAFTERS
from strata_runtime.evolve import evolve
from strata_runtime.measures import Chance
from strata_runtime.state import DECODING, Choice, State

#: An option that predicts this share of the best is as good, if it has fewer windows.
AS_GOOD = 0.99
#: The chance of a draft before any has been seen: high, so that drafts are tried.
FIRST_CHANCE = 0.8
#: How many trials a guess of a chance counts for: enough that one draft that failed proves nothing.
WEIGHT = 8.0
#: How many trials other texts count for at most, however many they had: this one may be different.
OTHERS = 16.0
#: What probes may cost, as part of a window for each window.
SPARE = 0.01
#: Windows after which the choice is made again, whatever happens; it lasts twice as long each time
#: that it stays the same, up to the most.
STALE, MOST_STALE = 8, 32


def refreshed(state: State) -> State:
    """The state with a choice that fits who is decoding and what has been measured."""
    live = tuple((i, s.epoch) for i, s in enumerate(state.slots) if s.phase in DECODING)
    before, known = state.choice, state.costs.known
    age = state.windows - before.made
    fresh = age < before.lasts and (before.live, before.known) == (live, known)
    if fresh or not live:
        return state
    chosen = choose(state, tuple(i for i, _ in live), before.spare + age * SPARE)
    lasts = chosen.lasts
    if chosen.asked == before.asked and not chosen.probe:
        lasts = max(lasts, min(2 * before.lasts, MOST_STALE))
    chosen = evolve(chosen, lasts=lasts, live=live, known=known, made=state.windows)
    return evolve(state, choice=chosen)


def choose(state: State, live: tuple[int, ...], spare: float = 0.0) -> Choice:
    """The choice for these slots that predicts most tokens a second, within the schedule.

    Or a probe, where one is worth what it costs, and that is to spare.
    """
    options = [*_Forecast(state, live).options()]
    best = _best(options)
    if state.config.drafts is None and (probe := _probe(options, best, spare)):
        return probe
    return Choice(best.windows, best.drafts, best.extra, best.rate, spare=spare, lasts=STALE)


def share(state: State) -> int:
    """Slots of a window: those that decode, spread over the windows in flight."""
    config = state.config
    most = min(config.shape.row_limit, config.schedule.slots or config.shape.row_limit)
    return min(-(-state.decoding // state.choice.windows), most)


def draft_chances(state: State, index: int) -> Iterator[Chance]:
    """For each draft of a slot, the chance that it holds where those before it do.

    What is not known of the slot is guessed from the other slots, and that from the draft before.
    """
    mine, before = state.slots[index].holds, FIRST_CHANCE
    others = state.holds.less(mine)
    for i in range(state.config.most_drafts):
        guess = others.chance(i, before, WEIGHT, OTHERS).seen
        chance = mine.chance(i, guess, WEIGHT)
        before = chance.seen
        yield chance


class _Option(NamedTuple):
    """What may be chosen, the tokens a second that it predicts, and those that may be hoped for.

    A window takes `ms`, `chain` of which is the chain of drafts behind it.
    """

    windows: int
    drafts: int
    extra: int
    rate: float
    hoped: float
    ms: float
    chain: float


def _best(options: list[_Option]) -> _Option:
    """What predicts most; of those that are as good, one with the fewest windows."""
    best = _best_by_windows(options)
    most = max(option.rate for option in best.values())
    return next(option for option in best.values() if option.rate >= AS_GOOD * most)


def _best_by_windows(options: list[_Option]) -> dict[int, _Option]:
    """By windows in flight, fewer first, what predicts most; of equals, fewer drafts."""
    best: dict[int, _Option] = {}
    for option in options:
        rival = best.get(option.windows)
        if rival is None or option.rate > rival.rate:
            best[option.windows] = option
    return best


def _probe(options: list[_Option], best: _Option, spare: float) -> Choice | None:
    """Of what may turn out better than the best, what predicts most, if its cost is to spare.

    The first round of a probe only makes longer chains; those that look at their drafts follow,
    as many as cost what the first one does.
    """
    hopeful = [option for option in options if AS_GOOD * option.hoped > best.hoped]
    if not hopeful:
        return None
    probe = max(hopeful, key=lambda option: option.rate)
    lead = max(0.0, probe.chain - best.chain)
    each = max(0.0, probe.ms * (1 - probe.rate / best.rate))
    rounds = max(1, int(min(STALE / probe.windows, lead / max(each, 1e-6))))
    left = spare - probe.windows * (lead + rounds * each) / best.ms
    lasts = probe.windows * (rounds + (probe.drafts > best.drafts))
    if left < 0:
        return None
    return Choice(probe.windows, probe.drafts, probe.extra, probe.rate, True, left, lasts)


class _Hopes(NamedTuple):
    """Of the n best drafts, by n: how many are there and hold, may do so, or are there."""

    worth: tuple[float, ...]
    hoped: tuple[float, ...]
    there: tuple[float, ...]


class _Window(NamedTuple):
    """What a window brings, what it may bring, and the milliseconds of each stage."""

    tokens: float
    hoped: float
    ms: tuple[float, ...]


class _Forecast:
    """Predicts what options for the slots `live` bring; nothing is worked out twice."""

    def __init__(self, state: State, live: tuple[int, ...]) -> None:
        """As far as is known now."""
        self._state, self._config, self._live = state, state.config, len(live)
        self._limit, last = state.config.shape.row_limit, state.config.stages - 1
        from_device = state.config.shape.drafter in DEVICE_DRAFTERS
        most = state.config.most_drafts
        self._exec = [self._prices(i, "exec", self._limit, 1.0) for i in range(last + 1)]
        self._chain = self._prices(last, "draft", most) if from_device else [0.0] * (most + 1)
        self._hopes = _hopes([[*_drafts(state, slot)] for slot in live], most)
        self._windows: dict[tuple[int, int, int], _Window] = {}

    def _prices(self, stage: int, kind: str, most: int, unknown: float = 0.0) -> list[float]:
        """Of a program, by rows; before any time is known, all numbers of rows are alike."""
        times = (self._state.costs.at_least(stage, kind, rows) for rows in range(most + 1))
        return [unknown if time is None else time for time in times]

    def options(self) -> Iterator[_Option]:
        """Every option, those with fewer windows, drafts and rows first."""
        config = self._config
        most = min(config.schedule.windows or config.shape.groups, config.shape.groups, self._live)
        fewest = max(1, most) if config.schedule.windows else 1
        for windows in range(fewest, most + 1):
            sizes = self._sizes(windows)
            for drafts, extra in self._settings(sizes):
                yield self._option(sizes, drafts, extra)

    def _option(self, sizes: list[tuple[int, int]], drafts: int, extra: int) -> _Option:
        """A round: what its windows bring, and until the busiest stage and the longest are through.

        `sizes` are slots of a window, and how many windows have so many.
        """
        count, tokens, hoped, paths, busy = 0, 0.0, 0.0, [1e-6], [0.0] * len(self._exec)
        for slots, times in sizes:
            window = self._window(slots, drafts, min(extra, self._limit - slots))
            count, tokens = count + times, tokens + times * window.tokens
            hoped, paths = hoped + times * window.hoped, [*paths, sum(window.ms)]
            busy = [sum_ + times * ms for sum_, ms in zip(busy, window.ms, strict=True)]
        round_ms = max(*busy, *paths)
        rate, hoped = 1e3 * tokens / round_ms, 1e3 * hoped / round_ms
        return _Option(count, drafts, extra, rate, hoped, round_ms / count, self._chain[drafts])

    def _sizes(self, windows: int) -> list[tuple[int, int]]:
        """Slots of a round's windows, the largest first, and how many windows have so many.

        Where the slots do not all fit, they take turns.
        """
        most = min(self._limit, self._config.schedule.slots or self._limit)
        small, larger = divmod(self._live, windows)
        sizes = [(min(small + 1, most), larger), (min(small, most), windows - larger)]
        return [(slots, times) for slots, times in sizes if times]

    def _settings(self, sizes: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
        """How many drafts a slot may have, and how many rows of a window may be drafts."""
        room, fixed = self._limit - sizes[-1][0], self._config.drafts
        if fixed is not None:
            yield fixed, min(room, sizes[0][0] * fixed)
            return
        yield 0, 0
        for drafts in range(1, self._config.most_drafts + 1):
            for extra in range(drafts, min(room, sizes[0][0] * drafts) + 1):
                yield drafts, extra

    def _window(self, slots: int, drafts: int, extra: int) -> _Window:
        key = (slots, drafts, min(extra, slots * drafts))
        window = self._windows.get(key)
        if window is None:
            window = self._windows[key] = self._worked_out(*key)
        return window

    def _worked_out(self, slots: int, drafts: int, extra: int) -> _Window:
        """A window of so many slots, with `extra` rows for drafts and a chain of `drafts`.

        Which slots is not known, so that it gets its part of the best drafts of all.
        """
        part = slots / self._live
        worth, hoped, there = (part * _at(sums, extra / part) for sums in self._hopes[drafts])
        filled, full = there / extra if extra else 0.0, slots + extra
        times = [ms[slots] + filled * (ms[full] - ms[slots]) for ms in self._exec]
        times[-1] += self._chain[drafts]
        for stage, commits in enumerate(self._config.commits):
            times[stage] += self._commit_ms(stage, slots, worth) if commits else 0.0
        return _Window(slots + worth, slots + hoped, tuple(times))

    def _commit_ms(self, stage: int, slots: int, drafts: float) -> float:
        """Early: the real tokens at once, then accepted drafts one by one; else all at once."""
        costs = self._state.costs
        if not self._config.schedule.early_commits:
            return costs.at_least(stage, "commit", slots + round(drafts)) or 0.0
        one = costs.at_least(stage, "commit_row", 1) or 0.0
        return (costs.at_least(stage, "commit", slots) or 0.0) + drafts / slots * one


def _hopes(drafts: list[list[tuple[float, float, float]]], most: int) -> list[_Hopes]:
    """The best first, where each slot may have 0, 1, ... `most`; a slot's own stay in order."""
    found = []
    for depth in range(most + 1):
        ranked = sorted((draft for mine in drafts for draft in mine[:depth]), reverse=True)
        columns = [*zip(*ranked, strict=True)] or [()] * 3
        found.append(_Hopes(*(tuple(accumulate(column, initial=0.0)) for column in columns)))
    return found


def _drafts(state: State, index: int) -> Iterator[tuple[float, float, float]]:
    """Of each draft of a slot: the chance that it is there and holds, what that may be, and the
    chance that it is there."""
    mine, offer, there, holds, may = state.slots[index].offers, 1.0, 1.0, 1.0, 1.0
    others = state.offers.less(mine)
    for i, chance in enumerate(draft_chances(state, index)):
        offer = mine.chance(i, others.chance(i, offer, WEIGHT, OTHERS).seen, WEIGHT).seen
        there, holds, may = there * offer, holds * chance.seen, may * chance.hoped
        yield there * holds, there * may, there


def _at(sums: tuple[float, ...], place: float) -> float:
    """The sum at a place that may lie between two."""
    low = int(place)
    if low + 1 >= len(sums):
        return sums[-1]
    return sums[low] + (place - low) * (sums[low + 1] - sums[low])


def explain(state: State) -> str:
    """Why the choice is what it is, on one line."""
    choice = state.choice
    best = _best_by_windows([*_Forecast(state, tuple(i for i, _ in choice.live)).options()])
    rest = ", ".join(f"{n}: {option.rate:.1f}" for n, option in best.items())
    return (
        f"{len(choice.live)} live: windows in flight {choice.windows}, "
        f"drafts {choice.drafts} at most, {choice.extra} of them a window"
        f"{' (a probe)' if choice.probe else ''}; "
        f"predicted {choice.rate:.1f} tokens/s (best by windows in flight: {rest})"
    )
