"""Templates with one of their barriers taken out: the comparison must see it."""

from __future__ import annotations

from emulation import Library
from strata_kernels.render import Entry, render_unit

BARRIER = "  barrier();"


def without_barrier(entry: Entry, number: int, namespace: str | None = None) -> Library:
    """The unit without the `number`-th barrier behind where a namespace begins: the entry's own."""
    head, opening, body = render_unit([entry], "host").partition(
        f"namespace {namespace or entry.name + '_'} {{"
    )
    parts = body.split(BARRIER)
    assert 0 <= number < len(parts) - 1
    before, after = parts[: number + 1], parts[number + 1 :]
    return Library(head + opening + BARRIER.join(before) + "  ;" + BARRIER.join(after))
