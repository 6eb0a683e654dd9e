"""Times and odds as the scheduler keeps them: what is known, guessed and forgotten."""

from __future__ import annotations

import pytest

from strata_runtime.measures import (
    DECAY,
    FADE,
    FORGET,
    SAMPLES,
    UNMEASURED,
    UNSEEN,
    Costs,
    Odds,
    Timing,
)


def measured(costs: Costs, rows: int, *times: float, kind: str = "exec", launch: int = 0) -> Costs:
    """These costs and runs of a program of stage 0, the first of which is cold."""
    for ms in times:
        costs = costs.measured(Timing(0, kind, rows, ms), launch)
    return costs


def seen(*rows: tuple[int, int]) -> Odds:
    """The odds after rows of (tried, succeeded)."""
    odds = UNSEEN
    for row in rows:
        odds = odds.seen(*row)
    return odds


def test_the_first_run_is_cold() -> None:
    costs = measured(UNMEASURED, 2, 900.0)
    assert not costs.known and costs.at_least(0, "exec", 2) is None
    costs = measured(costs, 2, 10.0)
    assert costs.known == {(0, "exec", 2)} and costs.at_least(0, "exec", 2) == 10.0


def test_a_slow_run_does_not_count() -> None:
    costs = measured(UNMEASURED, 2, 0.0, 10.0, 11.0, 500.0, 12.0)
    assert costs.at_most(0, "exec", 2) == 11.5
    costs = measured(costs, 2, *(20.0,) * SAMPLES)
    assert costs.at_most(0, "exec", 2) == 20.0 and len(costs.entries) == 1


def test_more_rows_cost_no_less_and_no_more_each() -> None:
    costs = measured(measured(UNMEASURED, 2, 0.0, 10.0), 4, 0.0, 12.0)
    assert [costs.at_least(0, "exec", n) for n in (1, 2, 3, 4, 8)] == [5.0, 10.0, 10.0, 12.0, 12.0]
    assert [costs.at_most(0, "exec", n) for n in (1, 2, 3, 4, 8)] == [10.0, 10.0, 12.0, 12.0, 24.0]
    assert costs.at_least(0, "draft", 2) is None and costs.at_most(1, "exec", 2) is None


def test_what_has_not_run_for_long_is_unknown() -> None:
    costs = measured(measured(UNMEASURED, 1, 0.0, 5.0, launch=1), 2, 0.0, 10.0, launch=50)
    for launch in (1 + FORGET, 2 + FORGET):
        costs = measured(costs, 4, 20.0, launch=launch)
        assert ((0, "exec", 1) in costs.known) is (launch == 1 + FORGET)
    assert costs.known == {(0, "exec", 2), (0, "exec", 4)}
    assert {cost.rows for cost in costs.entries} == {2, 4}


def test_known_is_what_has_times() -> None:
    costs = UNMEASURED
    for launch in range(0, 4 * FORGET, FORGET // 3):
        costs = measured(costs, 1 + launch % 5, 3.0, launch=launch)
        costs = measured(costs, 6, 3.0, kind="commit", launch=launch)
        assert costs.known == {cost.key for cost in costs.entries if cost.times}
        assert hash(costs) == hash(Costs(costs.entries, costs.known))


def test_odds_count_what_was_reached() -> None:
    """Of three drafts the first held: nothing is known about the third."""
    odds = seen((3, 1))
    assert odds.counts == ((1.0, 1.0), (1.0, 0.0), (0.0, 0.0))
    odds = odds.seen(1, 0)
    assert odds.counts[0] == pytest.approx((1 + DECAY, DECAY))
    assert odds.counts[1] == pytest.approx((FADE, 0.0))


def test_odds_follow_what_is_new() -> None:
    old, new = seen(*((1, 0),) * 2000), seen(*((1, 0),) * 2000, *((1, 1),) * 500)
    assert old.chance(0, 0.8, 8.0).seen < 0.05 and new.chance(0, 0.8, 8.0).seen > 0.85


def test_what_is_not_tried_fades_to_the_guess() -> None:
    odds = seen(*((1, 0),) * 100)
    before = odds.chance(0, 0.8, 8.0)
    for _ in range(20_000):
        odds = odds.seen(0, 0)
    assert before.seen < 0.1 and odds.chance(0, 0.8, 8.0).seen == pytest.approx(0.8, abs=1e-3)


@pytest.mark.parametrize("count", [0, 1, 10, 100])
def test_what_may_be_hoped_for_is_a_standard_error_more(count: int) -> None:
    chance = seen(*((1, i % 2) for i in range(count))).chance(0, 0.5, 8.0)
    trials = 8 + (1 - DECAY**count) / (1 - DECAY)
    assert chance.seen == pytest.approx(0.5, abs=0.06)
    assert chance.hoped - chance.seen == pytest.approx(0.5 / trials**0.5, rel=0.02)
    assert seen((1, 1)).chance(0, 1.0, 8.0) == (1.0, 1.0)


def test_one_failure_proves_little() -> None:
    assert seen((1, 0)).chance(0, 0.9, 8.0).seen == pytest.approx(0.8)
    assert UNSEEN.chance(5, 0.9, 8.0).seen == pytest.approx(0.9)


def test_many_trials_may_count_for_few() -> None:
    odds = seen(*((1, 0),) * 300)
    assert odds.chance(0, 0.8, 8.0, 8.0).seen == pytest.approx(0.4)
    assert seen((1, 0)).chance(0, 0.8, 8.0, 8.0) == seen((1, 0)).chance(0, 0.8, 8.0)


def test_without_a_text_all_odds_are_those_of_the_others() -> None:
    """Exactly, where there is no other; in general within what is forgotten."""
    mine = [(3, 3), (3, 1), (2, 0), (4, 4)]
    assert all(pair == (0.0, 0.0) for pair in seen(*mine).less(seen(*mine)).counts)
    others = [(1, 1), (1, 0), (4, 2)]
    left = seen(*mine, *others).less(seen(*mine))
    assert [n for n, _ in left.counts] == pytest.approx([3, 1, 1, 0], abs=0.1)
    assert [k for _, k in left.counts] == pytest.approx([2, 1, 0, 0], abs=0.1)
    assert seen((2, 2)).less(UNSEEN) == seen((2, 2)) and UNSEEN.less(seen((2, 2))) == UNSEEN


def test_less_is_never_less_than_nothing() -> None:
    """Another slot's rows make all odds forget faster than the slot's own do."""
    mine = seen(*((2, 2),) * 400)
    everything = seen(*((2, 2), (1, 0), (1, 0)) * 400)
    for n, k in everything.less(mine).counts:
        assert 0 <= k <= n
