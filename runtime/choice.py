"""Choosing: how many windows in flight, and how many drafts each slot gets.

A round is one window of every group. Its time is that of the busiest stage, or, where there are
too few windows to keep it busy, that of a window on its way through all stages:

    tokens / s = sum over slots (1 + p1 + p1 p2 + ...) / max(max over stages sum over windows t, max
                                                              over windows sum over stages t)

p are the measured chances that a draft is there and holds, t the measured times. A time that is not
known yet is taken to be as short as it can be, so that what may pay is tried.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from strata_runtime.drafters import DEVICE_DRAFTERS
from strata_runtime.state import DECODING, Choice, State

#: A choice that predicts this share of the best is as good: then fewer windows, then fewer rows.
AS_GOOD = 0.99
#: The chance of a draft before any has been seen: high, so that drafts are tried.
FIRST_CHANCE = 0.8
#: How many trials the chance of the draft before, and that of all slots, count for.
NEW_WEIGHT, SLOT_WEIGHT = 2.0, 8.0
#: Windows of a slot between two looks at whether drafts that did not pay would hold by now.
PROBE = 128
#: Windows after which the choice is made again, whatever happens.
STALE = 32

def refreshed(state: State) -> State:
    """The state with a choice that fits who is decoding and what has been measured."""
    live = tuple((i, s.epoch) for i, s in enumerate(state.slots) if s.phase in DECODING)
    before, known = state.choice, state.costs.known
    fresh = state.windows - before.made < STALE and (before.live, before.known) == (live, known)
    if fresh or not live:
        return state
    chosen = choose(state, tuple(i for i, _ in live))
    return replace(state, choice=replace(chosen, live=live, known=known, made=state.windows))


def choose(state: State, live: tuple[int, ...]) -> Choice:
    """The choice for these slots that predicts most tokens a second, within the schedule."""
    found = list(_choices(state, live))
    best = max(choice.rate for choice in found)
    return next(choice for choice in found if choice.rate >= AS_GOOD * best)


def allowed(state: State, index: int, ahead: int = 0) -> int:
    """Drafts that the slot's next window may have, or the one that is `ahead` of that.

    Where none pay, one is tried now and then.
    """
    slot = state.slots[index]
    chosen = state.choice.drafts[index] if state.choice.drafts else 0
    probed = state.config.most_drafts and state.config.drafts is None
    probe = probed and (slot.windows + ahead) % PROBE == PROBE - 1
    return max(chosen, 1) if probe else chosen


def share(state: State) -> int:
    """Slots of a window: those that decode, spread over the windows in flight."""
    config = state.config
    most = min(config.shape.row_limit, config.schedule.slots or config.shape.row_limit)
    return min(-(-state.decoding // state.choice.windows), most)


def _choices(state: State, live: tuple[int, ...]) -> Iterator[Choice]:
    """Every choice, those with fewer windows and fewer rows first."""
    config = state.config
    most = min(config.schedule.windows or config.shape.groups, config.shape.groups, len(live))
    ranked = _ranked(state, live)
    for windows in (most,) if config.schedule.windows else range(1, most + 1):
        sizes = _sizes(state, windows, len(live))
        for extra in _extras(state, sizes[0]):
            yield _predicted(state, live, sizes, extra, ranked[: extra * windows])


def _sizes(state: State, windows: int, live: int) -> list[int]:
    """Slots of each window of a round; where they do not all fit, they take turns."""
    limit = state.config.shape.row_limit
    most = min(limit, state.config.schedule.slots or limit)
    small, larger = divmod(live, windows)
    return [min(small + (i < larger), most) for i in range(windows)]


def _extras(state: State, slots: int) -> Iterable[int]:
    """How many rows of a window may be drafts."""
    room, fixed = state.config.shape.row_limit - slots, state.config.drafts
    if fixed is None:
        return range(min(room, slots * state.config.most_drafts) + 1)
    return (min(room, slots * fixed),)


@dataclass(frozen=True)
class _Draft:
    """A draft of a slot: the chance that it is there, and that it is and holds."""

    slot: int
    index: int
    there: float
    worth: float


def _ranked(state: State, live: tuple[int, ...]) -> list[_Draft]:
    """All drafts that the slots may have, the best first; a slot's own stay in order."""
    drafts = [draft for slot in live for draft in _drafts(state, slot)]
    return sorted(drafts, key=lambda d: (-d.worth, d.index, d.slot))


def _drafts(state: State, index: int) -> Iterator[_Draft]:
    slot, there, worth, offer = state.slots[index], 1.0, 1.0, 1.0
    chances = draft_chances(state, index)
    for i, chance in enumerate(chances):
        offer = state.offers.chance(i, offer, NEW_WEIGHT)
        given = slot.offers.chance(i, offer, SLOT_WEIGHT)
        there, worth = there * given, worth * given * chance
        yield _Draft(index, i, there, worth)


def draft_chances(state: State, index: int) -> Iterator[float]:
    """For each draft of a slot, the chance that it holds where those before it do."""
    slot, prior = state.slots[index], FIRST_CHANCE
    for i in range(state.config.most_drafts):
        prior = state.holds.chance(i, prior, NEW_WEIGHT)
        yield slot.holds.chance(i, prior, SLOT_WEIGHT)


def _predicted(
    state: State, live: tuple[int, ...], sizes: list[int], extra: int, taken: list[_Draft]
) -> Choice:
    """What a choice brings: windows of these sizes, each with so many rows for drafts."""
    fixed, counts = state.config.drafts, Counter(draft.slot for draft in taken)
    drafts = tuple(counts[i] if fixed is None else fixed for i in range(len(state.slots)))
    there = sum(draft.there for draft in taken) / max(1, len(taken))
    tokens = 1 + sum(draft.worth for draft in taken) / len(live)
    limit = state.config.shape.row_limit
    windows = [_Window(n, min(extra, limit - n), there, max(drafts), tokens) for n in sizes]
    rate = sum(sizes) * tokens / _round_ms(state, windows) * 1e3
    return Choice(len(sizes), drafts, rate)


@dataclass(frozen=True)
class _Window:
    """A window of a choice: its slots, its draft rows and how often they are there.

    A chain of `steps` follows it; it brings `tokens` a slot.
    """

    slots: int
    extra: int
    there: float
    steps: int
    tokens: float


def _round_ms(state: State, windows: list[_Window]) -> float:
    """Milliseconds of a round: until the busiest stage is through, and the longest window."""
    stages = range(state.config.stages)
    times = {w: [_stage_ms(state, stage, w) for stage in stages] for w in {*windows}}
    busiest = max(sum(times[w][stage] for w in windows) for stage in stages)
    return max(busiest, *(sum(row) for row in times.values()), 1e-6)


def _stage_ms(state: State, stage: int, window: _Window) -> float:
    """What a window keeps a stage busy with: exec, commits, and on the last stage the chain."""
    bare = _ms(state, stage, "exec", window.slots, 1.0)
    full = _ms(state, stage, "exec", window.slots + window.extra, 1.0)
    total = bare + window.there * (full - bare)
    if stage == state.config.stages - 1 and state.config.shape.drafter in DEVICE_DRAFTERS:
        total += _ms(state, stage, "draft", window.steps, 0.0) if window.steps else 0.0
    if stage < len(state.config.commits) and state.config.commits[stage]:
        total += _commit_ms(state, stage, window)
    return total


def _commit_ms(state: State, stage: int, window: _Window) -> float:
    """Early: the real tokens at once, then accepted drafts one by one; else all of them at once."""
    kept = round(window.slots * window.tokens)
    if not state.config.schedule.early_commits:
        return _ms(state, stage, "commit", kept, 0.0)
    rest = window.tokens - 1
    one = _ms(state, stage, "commit_row", 1, 0.0)
    return _ms(state, stage, "commit", window.slots, 0.0) + rest * one


def _ms(state: State, stage: int, kind: str, rows: int, unknown: float) -> float:
    """A program's time as far as it is known; before anything is, every number of rows is alike."""
    time = state.costs.at_least(stage, kind, rows)
    return unknown if time is None else time


def explain(state: State) -> str:
    """Why the choice is what it is, on one line."""
    choice = state.choice
    live = tuple(i for i, _ in choice.live)
    drafts = ", ".join(str(choice.drafts[i]) for i in live)
    best: dict[int, float] = {}
    for other in _choices(state, live):
        best[other.windows] = max(other.rate, best.get(other.windows, 0.0))
    rest = ", ".join(f"{n}: {rate:.1f}" for n, rate in best.items())
    return (
        f"{len(live)} live: windows in flight {choice.windows}, drafts {drafts}; "
        f"predicted {choice.rate:.1f} tokens/s (best by windows in flight: {rest})"
    )
