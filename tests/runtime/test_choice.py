"""What the scheduler chooses by itself: by hand, and against every fixed setting on the clock."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from clock_case import EXEC, make_manifest, make_times
from strata_compile.debug.simulate import Simulation, simulate
from strata_runtime.bundle_format import Manifest
from strata_runtime.choice import (
    MOST_STALE,
    SPARE,
    STALE,
    choose,
    draft_chances,
    explain,
    refreshed,
    share,
)
from strata_runtime.clock import ClockDevice
from strata_runtime.device import Done
from strata_runtime.engine import Engine
from strata_runtime.launch import Launch
from strata_runtime.measures import UNMEASURED, UNSEEN, Costs, Odds, Timing
from strata_runtime.request import Request
from strata_runtime.schedule import CHOSEN, SERIAL, Schedule
from strata_runtime.state import FIRST_SPARE, Choice, Config, Phase, Slot, State, initial_state

DEPTH = 7
TABLES: dict[str, Mapping[str, float]] = {
    "flat": {"1": 10},
    "cheap": EXEC,
    "dear": {"1": 18.2, "2": 34.8, "3": 44.4, "4": 54},
}
ACCEPTANCES = (0.3, 0.65, 0.9)
#: Stages, slots, groups.
Rig = tuple[int, int, int]
#: Tokens of a stream: the scheduler knows nothing at first, and what it pays for that counts.
LONG, SHORT = 1200, 150


def auto_manifest(rig: Rig) -> Manifest:
    """A rig whose drafts are the scheduler's choice."""
    manifest = make_manifest(*rig, "mtp", DEPTH)
    return replace(manifest, shape=replace(manifest.shape, draft_auto=True))


def run(
    rig: Rig,
    exec_ms: Mapping[str, float],
    acceptance: float,
    schedule: Schedule = CHOSEN,
    tokens: int = LONG,
    observe: Callable[[Launch, Done], None] = lambda launch, done: None,
    **keys: Any,
) -> Simulation:
    """A run on the clock; a chain of n drafts costs 1 + 0.7 n ms."""
    keys |= {
        "exec": exec_ms,
        "draft": {"1": 1.7, "2": 2.4},
        "acceptance": acceptance,
        "max_tokens": tokens,
    }
    return simulate(auto_manifest(rig), make_times(**keys), schedule, observe)


def best_fixed(rig: Rig, exec_ms: Mapping[str, float], acceptance: float) -> float:
    """Tokens/s of the best of all settings; a short run tells which two it may be."""
    settings = [Schedule(windows=w + 1, drafts=d) for w in range(rig[2]) for d in range(DEPTH + 1)]
    rates = {s: run(rig, exec_ms, acceptance, s, SHORT).tokens_per_s for s in settings}
    finalists = sorted(settings, key=lambda s: rates[s])[-2:]
    return max(run(rig, exec_ms, acceptance, s).tokens_per_s for s in finalists)


def best_without_drafts(rig: Rig, exec_ms: Mapping[str, float]) -> float:
    """Tokens/s; they do not depend on the text."""
    settings = [Schedule(windows=w + 1, drafts=0) for w in range(rig[2])]
    return max(run(rig, exec_ms, 0.0, s, SHORT).tokens_per_s for s in settings)


@pytest.mark.parametrize("acceptance", ACCEPTANCES)
@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize(
    "rig",
    [
        (2, 2, 2),
        *(
            pytest.param(rig, marks=pytest.mark.soak)
            for rig in ((1, 1, 1), (2, 4, 2), (4, 4, 4), (3, 3, 3))
        ),
    ],
)
def test_as_good_as_the_best_setting(rig: Rig, table: str, acceptance: float) -> None:
    """And no worse than no drafts, wherever those are best."""
    rate = run(rig, TABLES[table], acceptance).tokens_per_s
    assert rate >= 0.97 * best_fixed(rig, TABLES[table], acceptance)
    assert rate >= 0.98 * best_without_drafts(rig, TABLES[table])


@pytest.mark.parametrize(
    ("rig", "acceptance", "schedule"),
    [
        ((2, 2, 2), 0.3, CHOSEN),
        ((2, 2, 2), 0.65, CHOSEN),
        ((2, 4, 2), 0.3, CHOSEN),
        ((4, 4, 4), 0.3, Schedule(drafts=0)),
        ((3, 3, 3), 0.9, Schedule(drafts=1)),
    ],
)
def test_one_window_where_rows_cost_nothing(
    rig: Rig, acceptance: float, schedule: Schedule
) -> None:
    """All slots in it, once it is known that rows cost nothing, and how often drafts hold."""
    slots = []

    def observe(launch: Launch, done: Done) -> None:
        if launch.table.kind == "exec" and launch.stage == 0:
            slots.append(len(launch.table.segments))

    run(rig, TABLES["flat"], acceptance, schedule, 400, observe)
    steady = slots[len(slots) // 3 : -len(slots) // 6]  # at the end streams are missing
    assert steady.count(rig[1]) >= 0.97 * len(steady)


@pytest.mark.parametrize("schedule", [CHOSEN, Schedule(drafts=0), Schedule(drafts=3)])
@pytest.mark.parametrize("table", ["cheap", "dear"])
def test_a_stream_alone_is_as_fast_as_in_a_bundle_of_its_own(
    table: str, schedule: Schedule
) -> None:
    rates = [
        run((2, slots, groups), TABLES[table], 0.65, schedule, 600, streams=1).tokens_per_s
        for slots, groups in ((1, 1), (4, 2), (4, 4))
    ]
    assert rates[1:] == pytest.approx([rates[0]] * 2, rel=0.03)


def test_drafts_are_found_out_once_the_text_gets_better(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing holds at first, and no drafts is best; from the middle on nearly everything does."""
    monkeypatch.setattr(
        "strata_runtime.clock.SyntheticText.draft",
        lambda self, stream, position, index: self.token(stream, position) + (position < 600),
    )
    found = run((1, 1, 1), EXEC, 0.0, tokens=1200)
    ideal = 600 * 10 + 600 / (DEPTH + 1) * (19 + 5.9)
    assert found.elapsed_ms < 1.25 * ideal


# By hand: a choice for a state.


def make_costs(stages: int, exec_ms: Callable[[int], float], rows: range = range(1, 9)) -> Costs:
    """Costs in which these numbers of rows are known, and every chain."""
    timings = [Timing(stage, "exec", n, exec_ms(n)) for stage in range(stages) for n in rows]
    timings += [Timing(stages - 1, "draft", n, 1 + 0.7 * n) for n in range(1, DEPTH + 1)]
    costs = UNMEASURED
    for timing in (*timings, *timings):  # the first run is cold
        costs = costs.measured(timing, 0)
    return costs


def make_odds(*chances: float, trials: float = 100.0) -> Odds:
    """These chances, of so many trials each."""
    return Odds(tuple((trials, trials * chance) for chance in chances))


def make_state(
    rig: Rig,
    exec_ms: Callable[[int], float],
    *holds: Odds,
    schedule: Schedule = CHOSEN,
    live: int | None = None,
    rows: range = range(1, 9),
) -> State:
    """A state with `live` slots that are ready (None: all), whose drafts held so often."""
    state = initial_state(Config(rig[0], auto_manifest(rig).shape, schedule=schedule))
    for i in range(rig[1] if live is None else live):
        odds = holds[i % len(holds)] if holds else UNSEEN
        state = state.with_slot(i, Slot(epoch=1, phase=Phase.READY, holds=odds))
    return replace(
        state, costs=make_costs(rig[0], exec_ms, rows), holds=holds[0] if holds else UNSEEN
    )


def made(state: State, spare: float = 0.0) -> Choice:
    """The choice for the slots that are ready."""
    return choose(
        state, tuple(i for i, s in enumerate(state.slots) if s.phase is Phase.READY), spare
    )


def flat(rows: int) -> float:
    """Rows cost nothing."""
    return 10.0


def even(rows: int) -> float:
    """Each row costs the same."""
    return 10.0 * rows


cheap, dear = (make_times(exec=TABLES[name]).curves["exec"].at for name in ("cheap", "dear"))
NEVER, ALWAYS = (make_odds(*(chance,) * DEPTH, trials=1e6) for chance in (0.0, 1.0))


def test_rows_that_cost_nothing_go_into_one_window() -> None:
    assert made(make_state((2, 2, 2), flat, NEVER)).asked == (1, 0, 0)
    assert made(make_state((2, 2, 2), flat, ALWAYS)).asked == (2, 7, 7)  # one has too few rows
    assert made(make_state((4, 4, 4), flat, NEVER)).asked == (1, 0, 0)


def test_rows_that_cost_all_the_same_go_into_as_many_windows_as_there_may_be() -> None:
    for groups, chosen in ((1, 1), (2, 2), (3, 2), (4, 4)):  # of three, one would have two slots
        assert made(make_state((4, 4, groups), even, NEVER)).asked == (chosen, 0, 0)
    assert made(make_state((4, 4, 4), even, NEVER, live=2)).windows == 2


@pytest.mark.parametrize("chance", [0.3, 0.5, 0.7, 0.9, 0.97])
def test_as_many_drafts_as_pay(chance: float) -> None:
    """One stream: the next one must bring more than its row and its step cost."""
    choice = made(make_state((1, 1, 1), cheap, make_odds(*(chance,) * DEPTH, trials=1e9)))

    def rate(drafts: int) -> float:
        tokens = sum(chance**i for i in range(drafts + 1))
        return 1e3 * tokens / (cheap(1 + drafts) + (1 + 0.7 * drafts if drafts else 0))

    best = max(range(DEPTH + 1), key=rate)
    assert choice.asked == (1, best, best) and choice.rate == pytest.approx(rate(best), rel=1e-3)


def test_a_round_of_windows_that_are_not_alike() -> None:
    """Four slots in three windows: one of them has two slots, and the fewest rows to spare."""
    odds = make_odds(*(0.9,) * DEPTH, trials=1e9)
    choice = made(make_state((4, 4, 4), flat, odds, schedule=Schedule(windows=3)))
    assert choice.asked == (3, 7, 7)
    alone, paired = (sum(0.9**i for i in range(n + 1)) for n in (7, 3))
    busiest = 3 * (10 + 1 + 0.7 * 7)
    assert choice.rate == pytest.approx(1e3 * 2 * (alone + paired) / busiest, rel=1e-3)


def test_the_schedule_is_a_bound() -> None:
    def asked(schedule: Schedule, live: int | None = None) -> tuple[int, int, int]:
        return made(make_state((2, 4, 4), even, ALWAYS, schedule=schedule, live=live)).asked

    assert asked(Schedule(windows=3, drafts=0)) == (3, 0, 0)
    assert asked(Schedule(windows=9, drafts=0)) == (4, 0, 0)
    assert asked(Schedule(windows=3, drafts=0), live=2) == (2, 0, 0)
    assert asked(SERIAL)[0] == 1
    assert asked(Schedule(windows=4, drafts=9)) == (4, 7, 7)
    assert asked(Schedule(windows=2, drafts=2)) == (2, 2, 4)
    assert asked(Schedule(windows=1, drafts=2)) == (1, 2, 4)  # eight rows, four of them are taken


def test_slots_that_do_not_fit_take_turns() -> None:
    state = make_state((2, 20, 2), flat, ALWAYS)
    choice = made(state)
    assert choice.asked == (2, 0, 0) and choice.rate == pytest.approx(1e3 * 16 / 20)
    state = make_state((2, 4, 2), flat, ALWAYS, schedule=Schedule(slots=1))
    state = replace(state, choice=made(state))
    assert state.choice.asked == (2, 7, 7) and share(state) == 1


def test_slots_are_spread_over_the_windows() -> None:
    state = make_state((2, 5, 4), even, NEVER)
    assert [share(replace(state, choice=Choice(windows=n))) for n in (1, 2, 3, 4)] == [5, 3, 2, 2]


def test_a_number_of_rows_that_never_ran_is_tried() -> None:
    """Eight rows may cost what one does, as far as is known; once it is known, they do not."""
    odds = make_odds(*(0.7,) * DEPTH)
    unknown = make_state((1, 1, 1), even, odds, rows=range(1, 2))
    assert made(unknown).drafts > 2
    assert made(make_state((1, 1, 1), even, odds)).drafts == 0
    assert made(replace(unknown, costs=UNMEASURED)).drafts == DEPTH


def test_what_drafts_offer_counts() -> None:
    """Drafts that hold, but are hardly ever there."""
    state = make_state((1, 1, 1), cheap, ALWAYS)
    assert made(state).drafts == DEPTH
    assert made(state.with_slot(0, replace(state.slots[0], offers=NEVER))).drafts == 0


@pytest.mark.parametrize(("early", "commit_ms"), [(True, 2.5 + 3 * 1.5), (False, 2.5)])
def test_commits_count(early: bool, commit_ms: float) -> None:
    """Early, each accepted draft is committed by itself; late, all rows at once."""
    schedule = Schedule(early_commits=early, drafts=3)
    state = make_state((1, 1, 1), flat, ALWAYS, schedule=schedule)
    costs = state.costs
    for timing in (Timing(0, "commit", 1, 2.5), Timing(0, "commit_row", 1, 1.5)) * 2:
        costs = costs.measured(timing, 0)
    state = replace(state, costs=costs, config=replace(state.config, commits=(True,)))
    assert made(state).rate == pytest.approx(1e3 * 4 / (10 + 3.1 + commit_ms), rel=1e-3)


def test_a_slot_is_judged_by_its_own_text_in_the_end() -> None:
    state = make_state((1, 2, 1), flat, *(make_odds(p, trials=100.0) for p in (1.0, 0.0)))
    state = replace(state, holds=make_odds(*(0.5,) * DEPTH, trials=200.0))
    good, bad = (next(draft_chances(state, slot)).seen for slot in (0, 1))
    assert good > 0.9 and bad < 0.1


def test_a_new_text_is_guessed_from_the_others_and_from_the_draft_before() -> None:
    state = make_state((1, 1, 1), flat)
    first = [chance.seen for chance in draft_chances(state, 0)]
    assert first == pytest.approx([0.8] * DEPTH)
    state = replace(state, holds=make_odds(0.2, trials=200.0))
    chances = [chance.seen for chance in draft_chances(state, 0)]
    assert 0.3 < chances[0] < 0.5 and chances[1:] == pytest.approx([chances[0]] * (DEPTH - 1))


# Probes: seeing again what looked worse.


def unlucky(trials: float) -> State:
    """One stream, rows cost much; the drafts looked a little too bad to pay."""
    return make_state((1, 1, 1), dear, make_odds(*(0.8,) * DEPTH, trials=trials))


def test_what_may_have_been_bad_luck_is_probed_if_that_is_to_spare() -> None:
    choice = made(unlucky(10.0), spare=3.0)
    assert choice.probe and choice.drafts > 0 and 0 <= choice.spare < 3.0
    assert choice.lasts == 2  # one window to make drafts, one to judge them
    without = made(unlucky(10.0), spare=0.0)
    assert without.asked == (1, 0, 0) and not without.probe and without.spare == 0.0


def test_what_was_seen_often_or_is_fixed_is_not_probed() -> None:
    assert made(unlucky(10_000.0), spare=99.0).asked == (1, 0, 0)
    assert not made(make_state((1, 1, 1), even, NEVER), spare=99.0).probe
    state = unlucky(10.0)
    fixed = replace(state, config=replace(state.config, schedule=Schedule(drafts=2)))
    assert made(fixed, spare=99.0).asked == (1, 2, 2) and not made(fixed, spare=99.0).probe


def test_a_probe_costs_what_it_is_predicted_to_lose() -> None:
    state = unlucky(10.0)
    choice, best = made(state, spare=9.0), made(state)
    chain = 1 + 0.7 * choice.drafts
    lost = chain + (dear(1 + choice.drafts) + chain) * (1 - choice.rate / best.rate)
    assert 9.0 - choice.spare == pytest.approx(lost / 18.2)


# When the choice is made again.


def test_a_choice_lasts_longer_each_time_that_it_stays() -> None:
    state, lasted = make_state((2, 2, 2), even, NEVER), []
    for _ in range(5):
        state = refreshed(state)
        for age in range(state.choice.lasts):
            assert refreshed(replace(state, windows=state.windows + age)).choice == state.choice
        lasted.append(state.choice.lasts)
        state = replace(state, windows=state.windows + state.choice.lasts)
    assert lasted == [STALE, 2 * STALE, MOST_STALE, MOST_STALE, MOST_STALE]
    assert state.choice.spare == pytest.approx(FIRST_SPARE + SPARE * sum(lasted[:-1]))


def test_a_choice_that_changes_is_short() -> None:
    state = refreshed(make_state((2, 2, 2), even, NEVER))
    slots = tuple(replace(slot, holds=ALWAYS) for slot in state.slots)
    state = replace(state, costs=make_costs(2, flat), slots=slots, holds=ALWAYS, windows=STALE)
    state = refreshed(state)
    assert state.choice.drafts == DEPTH and state.choice.lasts == STALE


def test_the_choice_is_made_again_for_others_and_for_new_times() -> None:
    state = refreshed(make_state((2, 3, 2), even, NEVER, live=2, rows=range(1, 3)))
    assert refreshed(state) is state
    joined = refreshed(state.with_slot(2, Slot(epoch=1, phase=Phase.READY)))
    assert [index for index, _ in joined.choice.live] == [0, 1, 2]
    following = refreshed(state.with_slot(0, replace(state.slots[0], epoch=2)))
    assert following.choice.live[0] == (0, 2)
    measured = refreshed(replace(state, costs=make_costs(2, even)))
    assert len(measured.choice.known) == 2 * 8 + DEPTH > len(state.choice.known)
    prompts = tuple(replace(slot, phase=Phase.PROMPT) for slot in state.slots)
    assert refreshed(replace(state, slots=prompts)).choice == state.choice


def test_the_choice_is_explained() -> None:
    text = explain(refreshed(make_state((2, 2, 2), even, NEVER)))
    assert text == (
        "2 live: windows in flight 2, drafts 0 at most, 0 of them a window; "
        "predicted 100.0 tokens/s (best by windows in flight: 1: 50.0, 2: 100.0)"
    )
    assert " (a probe);" in explain(refreshed(unlucky(10.0)))


@pytest.mark.parametrize("schedule", [CHOSEN, SERIAL])
def test_an_engine_that_has_nothing_to_do_explains_itself(schedule: Schedule) -> None:
    manifest = auto_manifest((2, 2, 2))
    engine = Engine(manifest, ClockDevice(manifest, make_times()), schedule=schedule)
    assert engine.choice.startswith("0 live")
    engine.submit(Request(0, (1,), 3))
    assert engine.choice.startswith("1 live")
