"""Templates with one of their barriers taken out: the comparison must see it."""

from __future__ import annotations

from emulation import Library
from strata_kernels.render import Entry, render_unit

BARRIER = "  barrier();"


def without_barrier(entry: Entry, number: int) -> Library:
    """The entry's unit without its `number`-th barrier, shared parts counted from the first."""
    parts = render_unit([entry], "host").split(BARRIER)
    assert 0 <= number < len(parts) - 1
    before, after = parts[: number + 1], parts[number + 1 :]
    return Library(BARRIER.join(before) + "  ;" + BARRIER.join(after))
