"""Every step of `sample` alone, on small logits with exact expectations."""

from __future__ import annotations

import dataclasses
import math

import pytest

from draw_cases import Row, draw, draw_many

INF = math.inf


def below(value: float) -> float:
    """The next smaller float32, for values with a short mantissa."""
    return value - 2.0 ** (math.floor(math.log2(abs(value))) - 23) if value else -(2.0**-149)


def assert_becomes(row: Row, token: int, value: float) -> None:
    """The row's logit of `token` becomes exactly `value`, by the way that ties go.

    Token 0 is a rival without a penalty: at `value` it wins as the lower id, just below it loses.
    """
    rivals = [value, below(value)]
    logits = [[rival, *row.logits[1:]] for rival in rivals]
    assert draw(*(dataclasses.replace(row, logits=x) for x in logits)) == [0, token]


def test_greedy_takes_the_largest() -> None:
    rows = [Row([1.0, 3.0, 2.0]), Row([-5.0, -3.0, -9.0]), Row([-INF, -1e30, -INF])]
    assert draw(*rows) == [1, 1, 1]


def test_greedy_ties_go_to_the_lower_id() -> None:
    wide = [0.0] * 133
    wide[40] = wide[77] = wide[132] = 2.5
    assert draw(Row(wide)) == [40]
    assert draw(Row([0.0] * 133)) == [0]
    assert draw(Row([-1.0, 0.0, -0.0])) == [1]


@pytest.mark.parametrize("seed", [0, 1, -7])
def test_greedy_ignores_the_seed_and_the_filters(seed: int) -> None:
    fields = {"seed_low": seed, "seed_high": seed, "top_k": 1, "top_p": 0.1, "min_p": 0.9}
    assert draw(*(Row([1.0, 3.0, 2.0], fields, position=p) for p in range(8))) == [1] * 8


def test_bias_is_added() -> None:
    assert_becomes(Row([0.0, 1.0, -9.0], bias=[0.0, 0.75, 0.0]), 1, 1.75)
    assert draw(Row([3.0, 1.0, 2.0], bias=[-INF, 0.0, 0.0])) == [2]


def test_bias_is_of_the_rows_own_entry() -> None:
    logits = [0.0, 0.0, 0.0]
    rows = [Row(logits, bias=[0.0, 1.0, 0.0]), Row(logits), Row(logits, bias=[0.0, 0.0, 1.0])]
    assert draw(*rows) == [1, 0, 2]


def penalised(logits: list[float], tokens: list[int], **fields: float) -> Row:
    """A row that looks at its last four tokens."""
    return Row(logits, {"penalty_last": 4, **fields}, tokens=tokens)


def test_repetition_divides_positive_and_multiplies_negative_logits() -> None:
    assert_becomes(penalised([0.0, 4.0, -9.0], [1, 1, 1, 1], repeat_penalty=2.0), 1, 2.0)
    assert_becomes(penalised([0.0, -4.0, -99.0], [1, 1, 1, 1], repeat_penalty=2.0), 1, -8.0)
    assert_becomes(penalised([0.0, 3.0, -9.0], [2, 2, 2, 2], repeat_penalty=2.0), 1, 3.0)


def test_presence_is_subtracted_once() -> None:
    assert_becomes(penalised([0.0, 4.0, -9.0], [2, 1, 1, 1], presence_penalty=0.5), 1, 3.5)
    assert_becomes(penalised([0.0, 4.0, -9.0], [2, 2, 2, 2], presence_penalty=0.5), 1, 4.0)


def test_frequency_is_subtracted_for_each_time() -> None:
    assert_becomes(penalised([0.0, 4.0, -9.0], [2, 1, 1, 1], frequency_penalty=0.5), 1, 2.5)
    assert_becomes(penalised([0.0, 4.0, -9.0], [1, 2, 2, 2], frequency_penalty=-0.5), 1, 4.5)


def test_penalties_come_in_order() -> None:
    """(4 / 2) - 2 · 0.25 - 0.5, and not (4 - ...) / 2."""
    fields = {"repeat_penalty": 2.0, "frequency_penalty": 0.25, "presence_penalty": 0.5}
    assert_becomes(penalised([0.0, 4.0, -9.0], [2, 1, 2, 1], **fields), 1, 1.0)


def test_penalties_come_after_the_bias() -> None:
    """(-1 + 2) / 2, and not -1 · 2 + 2."""
    row = dataclasses.replace(
        penalised([0.0, -1.0, -9.0], [1, 1, 1, 1], repeat_penalty=2.0), bias=[0.0, 2.0, 0.0]
    )
    assert_becomes(row, 1, 0.5)


@pytest.mark.parametrize(("last", "value"), [(0, 4.0), (1, 4.0), (2, 3.0), (3, 3.0), (5, 2.0)])
def test_penalties_look_at_the_last_tokens(last: int, value: float) -> None:
    """The row's own token counts; older ones than `penalty_last` do not."""
    row = Row(
        [0.0, 4.0, -9.0],
        {"penalty_last": last, "frequency_penalty": 1.0},
        tokens=[1, 2, 2, 1, 2] if last else [1, 1, 1, 1, 1],
    )
    assert_becomes(row, 1, value)


def test_penalties_cross_chunks_and_stop_at_the_first_position() -> None:
    long = Row([-9.0, 70.0, 0.0], {"penalty_last": 200, "frequency_penalty": 1.0})
    tokens = [1] * 66
    assert_becomes(dataclasses.replace(long, position=65, tokens=tokens), 1, 4.0)
    assert_becomes(dataclasses.replace(long, position=0, tokens=[1]), 1, 69.0)


def test_masked_tokens_are_impossible() -> None:
    logits = [float(i) for i in range(70)]
    rows = [Row(logits, allowed=a) for a in ([3, 31, 5], [32, 1], [64, 63], [0], range(70))]
    assert draw(*rows) == [31, 32, 64, 0, 69]


def test_a_mask_selects_away_what_is_not_finite() -> None:
    for bad in (math.nan, INF):
        for temperature in (0.0, 1.0):
            row = Row([bad, 1.0, 2.0, bad], {"temperature": temperature}, allowed=[2])
            assert draw(row) == [2]


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_impossible_rows_give_minus_one(temperature: float) -> None:
    fields = {"temperature": temperature}
    rows = [
        Row([1.0, 2.0, 3.0], fields, allowed=[]),
        Row([1.0, 2.0, 3.0], fields),
        Row([1.0, math.nan, 3.0], fields),
        Row([-INF, -INF, -INF], fields),
        Row([1.0, 2.0, 3.0], fields, bias=[-INF, -INF, -INF]),
    ]
    found = draw(*rows)
    assert [found[i] for i in (0, 2, 3, 4)] == [-1] * 4
    assert found[1] in (0, 1, 2)


def support(logits: list[float], **fields: float) -> set[int]:
    """The tokens that 400 draws give."""
    return set(draw_many(logits, 400, **{"temperature": 1.0, **fields}))


def test_top_k() -> None:
    logits = [0.0, 0.3, 0.1, 0.2]
    assert [support(logits, top_k=k) for k in (1, 2, 3, 4, 5, 0)] == [
        {1}, {1, 3}, {1, 2, 3}, {0, 1, 2, 3}, {0, 1, 2, 3}, {0, 1, 2, 3},
    ]  # fmt: skip
    assert support([0.0] * 6, top_k=2) == {0, 1}  # ties: the lower ids


def test_top_p() -> None:
    """The fewest tokens whose probability reaches it: 0.5, 0.3 and 0.2 here."""
    logits = [math.log(0.2), math.log(0.5), math.log(0.3)]
    wanted = {0.01: {1}, 0.49: {1}, 0.51: {1, 2}, 0.79: {1, 2}, 0.81: {0, 1, 2}, 1.0: {0, 1, 2}}
    assert {p: support(logits, top_p=p) for p in wanted} == wanted
    assert support([0.0] * 4, top_p=0.5) == {0, 1}  # reached exactly
    assert support([0.0] * 4, top_p=0.75) == {0, 1, 2}


def test_min_p() -> None:
    """Relative to the most probable token: 1, 0.6 and 0.4 here."""
    logits = [math.log(0.2), math.log(0.5), math.log(0.3)]
    wanted = {0.0: {0, 1, 2}, 0.39: {0, 1, 2}, 0.41: {1, 2}, 0.59: {1, 2}, 0.61: {1}, 1.0: {1}}
    assert {p: support(logits, min_p=p) for p in wanted} == wanted
    assert support([2.0, 1.0, 2.0], min_p=1.0) == {0, 2}  # reached exactly


def test_temperature_comes_before_the_filters() -> None:
    logits = [math.log(0.9), math.log(0.1)]
    assert support(logits, top_p=0.8) == {0}
    assert support(logits, top_p=0.8, temperature=10.0) == {0, 1}
    assert support(logits, min_p=0.5) == {0}
    assert support(logits, min_p=0.5, temperature=10.0) == {0, 1}


def test_top_k_comes_before_top_p() -> None:
    """Half of two tokens is one, half of all four would be two."""
    assert support([0.0] * 4, top_k=2, top_p=0.5) == {0}


@pytest.mark.parametrize("temperature", [1e-3, 1e-20, 1e-37, 1e-40])
def test_small_temperatures_approach_greedy(temperature: float) -> None:
    for logits in ([1.0, 40.0, 2.0], [-30.0, -20.0, -40.0]):
        assert support(logits, temperature=temperature) == {1}


def test_tokens_of_no_weight_are_never_drawn() -> None:
    assert support([0.0, -INF, 0.0, -200.0]) == {0, 2}
    assert support([-INF, 0.0, -INF]) == {1}
