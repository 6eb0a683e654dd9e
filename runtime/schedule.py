"""A schedule as data: how many windows are in flight, who shares one, how many drafts follow."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Schedule:
    """Bounds on what the scheduler may do; None leaves a number to it: whatever measures best.

    `windows` may be in flight at once, with `slots` in each; `drafts` follow each slot's real
    token. With `early_commits`, a window's real tokens are made permanent right behind its exec,
    and each accepted draft at the verdict; otherwise all of them at once, at the verdict.
    """

    windows: int | None = None
    slots: int | None = None
    drafts: int | None = None
    early_commits: bool = True


#: Everything is left to the scheduler.
CHOSEN = Schedule()
#: One window in flight, all slots in it: the schedule of engines without a pipeline.
SERIAL = Schedule(windows=1)
#: As many windows in flight as there may be, and no drafts.
PLAIN_PIPELINE = Schedule(drafts=0)
#: Every slot has a window of its own.
LANES = Schedule(slots=1)
