"""Where a text is cut, and which requests are refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from strata_runtime.errors import RequestError
from strata_runtime.launch import Sampling
from strata_runtime.request import CONTEXT, LENGTH, STOP, Request, check_request, cut

REQUEST = Request(1, (5, 6, 7), 10, frozenset({0, 2}))
WIDE = 1000


def test_a_text_goes_on() -> None:
    assert cut(REQUEST, 0, [9], WIDE) == ((9,), None)
    assert cut(REQUEST, 6, [9, 8, 7], WIDE) == ((9, 8, 7), None)


@pytest.mark.parametrize("end", [0, 2])
def test_an_end_token_belongs_to_the_text(end: int) -> None:
    assert cut(REQUEST, 3, [end], WIDE) == ((end,), STOP)


def test_nothing_after_the_end_token() -> None:
    assert cut(REQUEST, 0, [9, 2, 8, 0], WIDE) == ((9, 2), STOP)


def test_an_end_token_of_the_prompt_ends_nothing() -> None:
    assert cut(replace(REQUEST, prompt=(2, 0)), 0, [9], WIDE) == ((9,), None)


@pytest.mark.parametrize(
    ("generated", "drawn", "kept"),
    [(9, [4], 1), (8, [4, 5], 2), (7, [4, 5, 6, 7, 8], 3), (0, [4] * 10, 10)],
)
def test_a_text_ends_at_its_length(generated: int, drawn: list[int], kept: int) -> None:
    assert cut(REQUEST, generated, drawn, WIDE) == (tuple(drawn[:kept]), LENGTH)


def test_one_token_short_of_its_length() -> None:
    assert cut(REQUEST, 7, [4, 5], WIDE) == ((4, 5), None)


@pytest.mark.parametrize(("generated", "kept"), [(0, 3), (1, 2), (2, 1)])
def test_a_text_ends_with_the_first_token_past_the_context(generated: int, kept: int) -> None:
    """Positions 0..4 hold prompt and two tokens; the third has no row of its own."""
    assert cut(REQUEST, generated, [4] * 5, 5) == ((4,) * kept, CONTEXT)


def test_a_prompt_that_fills_the_context_has_one_token() -> None:
    assert cut(REQUEST, 0, [4], 3) == ((4,), CONTEXT)
    assert cut(REQUEST, 0, [4], 4) == ((4,), None)


def test_the_better_reason_is_given() -> None:
    """An end token is an end whatever else holds; a wanted length is no lack of context."""
    assert cut(REQUEST, 9, [2], 3) == ((2,), STOP)
    assert cut(REQUEST, 9, [4], 12) == ((4,), LENGTH)


def test_nothing_drawn() -> None:
    assert cut(REQUEST, 3, [], WIDE) == ((), None)


def test_cuts_do_not_depend_on_how_many_tokens_come_at_once() -> None:
    drawn = [9, 8, 7, 9, 8, 7, 2, 9, 8, 7, 9]
    for context in (4, 8, WIDE):
        whole = cut(REQUEST, 0, drawn, context)
        kept: list[int] = []
        for token in drawn:
            more, reason = cut(REQUEST, len(kept), [token], context)
            kept += more
            if reason:
                break
        assert whole == (tuple(kept), reason)


def test_what_can_be_served() -> None:
    check_request(REQUEST, vocab=8, context=3)
    edge = Sampling(
        temperature=1e4, top_p=1.0, min_p=1.0, repeat_penalty=0.5, seed=2**64 - 1, penalty_last=64
    )
    request = Request(1, (0, 7), 1, sampling=edge)
    check_request(request, vocab=8, context=2)
    assert cut(request, 0, [3], 2) == ((3,), LENGTH)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prompt": ()}, "prompt is empty"),
        ({"prompt": (1, 8)}, "token 8 is not in the vocabulary of 8"),
        ({"prompt": (-1,)}, "token -1"),
        ({"prompt": (1,) * 9}, "9 tokens, the context holds 8"),
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"max_tokens": -3}, "max_tokens is -3"),
    ],
)
def test_what_cannot_be_served(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        check_request(replace(REQUEST, **changes), vocab=8, context=8)


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("temperature", (-0.1, float("inf"), float("nan"))),
        ("top_k", (-1, 1 << 31)),
        ("top_p", (0.0, -0.5, 1.1, float("nan"))),
        ("min_p", (-0.1, 1.1, float("nan"))),
        ("repeat_penalty", (0.0, -1.0, float("inf"), float("nan"))),
        ("presence_penalty", (float("inf"), float("-inf"), float("nan"))),
        ("frequency_penalty", (float("inf"), float("nan"))),
        ("penalty_last", (-1, 1 << 31)),
        ("seed", (-1, 1 << 64)),
    ],
)
def test_sampling_out_of_range(field: str, values: tuple[float, ...]) -> None:
    for value in values:
        changes: dict[str, Any] = {field: value}
        request = replace(REQUEST, sampling=replace(Sampling(), **changes))
        with pytest.raises(RequestError, match=f"^{field} is .*out of range"):
            check_request(request, vocab=8, context=8)
