"""verdict: accepted drafts, the token after them, and the rows' hashes."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from kernel_case import POISON_INT, Case, Segment, bind, make_table
from strata_kernels import verdict


def judge(rows: int, segments: Sequence[Segment], draws: Sequence[int], context: int = 0) -> Case:
    """Run a verdict with given draws."""
    table = make_table(rows, segments, context=context)
    values = {"draws": torch.tensor([*draws, *[-1] * (8 - len(draws))], dtype=torch.int32)}
    return bind(verdict.SPEC, verdict.Params(rows, 2), table, values).run()


def words(case: Case, context: int = 0) -> list[list[int]]:
    """Accepted and token of each of the 8 segments."""
    return case["verdict"][context, :, :2].tolist()


@pytest.mark.parametrize("accepted", range(5))
def test_drafts_count_up_to_the_first_difference(accepted: int) -> None:
    """Four drafts 11..14; the draws agree with the first few."""
    draws = [11, 12, 13, 14, 15]
    if accepted < 4:
        draws[accepted] = 99  # later draws agree again, and must not count
    case = judge(5, [Segment(2, 7, (10, 11, 12, 13, 14))], draws)
    assert words(case) == [[accepted, 99 if accepted < 4 else 15], *[[0, 0]] * 7]


def test_a_row_alone_has_no_drafts() -> None:
    assert words(judge(1, [Segment(2, 7, (10,))], [10]))[0] == [0, 10]


@pytest.mark.parametrize(("forced", "accepted"), [(-1, 3), (0, 0), (1, 1), (2, 2), (3, 3), (9, 3)])
def test_forced_bounds_what_is_accepted(forced: int, accepted: int) -> None:
    """The token is still the draw after the accepted ones: a text does not depend on it."""
    segment = Segment(2, 7, (10, 11, 12, 13), fields={"forced": (forced, -1, -1, -1)})
    case = judge(4, [segment], [11, 12, 13, 14])
    assert words(case)[0] == [accepted, 11 + accepted]


def test_forced_accepts_nothing_that_differs() -> None:
    segment = Segment(2, 7, (10, 11, 12), fields={"forced": 2})
    assert words(judge(3, [segment], [11, 77, 13]))[0] == [1, 77]


def test_segments_are_judged_apart() -> None:
    """Three slots with an inert row between; a segment does not run into the next one."""
    segments = [
        Segment(3, 4, (10, 11)),
        Segment(0, 0, (12, 13, 14), gap=1, fields={"forced": (1, -1, -1)}),
        Segment(1, 90, (15, 16)),
    ]
    case = judge(8, segments, [11, 12, -1, 13, 14, 15, 20, 16])
    assert words(case) == [[1, 12], [1, 14], [0, 20], *[[0, 0]] * 5]


def test_eight_segments() -> None:
    segments = [Segment(slot, 5, (slot,)) for slot in range(8)]
    assert words(judge(8, segments, range(20, 28))) == [[0, 20 + i] for i in range(8)]


def test_an_impossible_draw_accepts_nothing() -> None:
    assert words(judge(3, [Segment(2, 7, (10, 11, 12))], [-1, 12, 13]))[0] == [0, -1]


def test_no_rows_give_zeros() -> None:
    assert words(judge(3, [], [1, 2, 3])) == [[0, 0]] * 8


@pytest.mark.parametrize("context", [0, 2])
def test_words_stand_at_their_context(context: int) -> None:
    case = judge(2, [Segment(2, 7, (10, 11))], [11, 12], context)
    assert words(case, context)[0] == [1, 12]
    others = case["verdict"][[c for c in range(3) if c != context]]
    assert set(others.flatten().tolist()) == {POISON_INT}


def test_hashes_come_back_low_word_first() -> None:
    case = judge(3, [Segment(2, 7, (10, 11))], [1, 2])
    low, high = case["verdict"][0, :, 2].long(), case["verdict"][0, :, 3].long()
    assert ((high << 32) | (low & 0xFFFFFFFF)).tolist() == case["hashes"].sum(-1).tolist()


def test_the_verdict_does_not_depend_on_company() -> None:
    """One segment's words in every place of windows of 3 to 8 rows, among other segments."""
    own = Segment(2, 7, (10, 11, 12))
    for before in range(6):
        others = [Segment(0, 3, (11,) * before)] if before else []
        after = [Segment(1, 3, (11,) * (5 - before))] if before < 5 else []
        case = judge(8, [*others, own, *after], [*[11] * before, 11, 12, 5, *[12] * (5 - before)])
        assert words(case)[len(others)] == [2, 5]
