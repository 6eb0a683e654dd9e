"""Host drafters: what they propose of a text."""

from __future__ import annotations

from strata_runtime.drafters import NgramDrafter, NoDrafter, ReplayDrafter


def test_look_up_drafts() -> None:
    """What followed the same tokens before; the longest match, and its latest place, decide."""
    drafter = NgramDrafter()
    drafter.extend([1, 2, 3, 4, 1, 2])
    assert drafter.propose(3) == (3, 4, 1)
    drafter.extend([9])
    assert drafter.propose(3) == ()
    drafter.extend([4, 1, 2])
    assert drafter.propose(7) == (9, 4, 1, 2)
    drafter.extend([3, 4, 1, 2])
    assert drafter.propose(2) == (9, 4)  # behind 4 1 2, not behind 1 2


def test_a_text_that_is_too_short_has_no_drafts() -> None:
    drafter = NgramDrafter()
    assert drafter.propose(3) == ()
    drafter.extend([5])
    assert drafter.propose(3) == ()
    drafter.extend([5])
    assert drafter.propose(3) == ()


def test_replayed_drafts() -> None:
    """The record's tokens; where one does not hold, the next id, which wraps."""
    drafter = ReplayDrafter([7, 3, 9, 2, 5], 10, lambda place: place != 2)
    drafter.extend([7])
    assert drafter.propose(3) == (3, 0, 2)
    drafter.extend([3, 9, 2])
    assert drafter.propose(3) == (5,)
    drafter.extend([5, 1])
    assert drafter.propose(3) == ()


def test_no_drafts() -> None:
    drafter = NoDrafter()
    drafter.extend([1, 2, 1])
    assert drafter.propose(7) == ()
