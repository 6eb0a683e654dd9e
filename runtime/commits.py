"""What makes rows permanent, in models with state: the launches of commit and commit_row.

Early, a commit of the real tokens follows its window's exec on every stage, which is always right
and waits for nobody; each accepted draft is committed by itself once the verdict is there. Or one
commit of all accepted rows is queued at the verdict. Rejected rows are never committed. A stage's
queue has all of it before the slot's next window, and before those saved rows are rewritten.
"""

from __future__ import annotations

from collections.abc import Mapping

from strata_runtime.evolve import evolve
from strata_runtime.launch import Launch, Row, Segment, Table
from strata_runtime.state import State

Queued = tuple[State, tuple[Launch, ...]]


def early_commits(state: State, table: Table) -> Queued:
    """Right behind a window's exec: the real token of each of its slots, on every stage."""
    if not state.config.schedule.early_commits:
        return state, ()
    return _launched(state, table, {s.slot: range(1) for s in table.segments}, "commit")


def late_commits(state: State, table: Table, kept: Mapping[int, int]) -> Queued:
    """At the verdict: what is not permanent yet of the rows that each slot keeps."""
    if not state.config.schedule.early_commits:
        return _launched(state, table, {s: range(n) for s, n in kept.items()}, "commit")
    launches: list[Launch] = []
    for index in range(1, max(kept.values(), default=0)):
        rows = {slot: range(index, index + 1) for slot, n in kept.items() if n > index}
        state, more = _launched(state, table, rows, "commit_row")
        launches += more
    return state, tuple(launches)


def _launched(state: State, table: Table, kept: Mapping[int, range], kind: str) -> Queued:
    """A commit of rows of a window, by slot and index in it, on every stage that has state."""
    stages = [stage for stage, has in enumerate(state.config.commits) if has]
    if not stages:
        return state, ()
    rows, segments = list[Row](), list[Segment]()
    for segment in table.segments:
        if indices := kept.get(segment.slot):
            first, start = len(rows), segment.first_row
            mine = [table.rows[start + i] for i in indices]
            rows += [evolve(row, first_row=first, index=i) for i, row in enumerate(mine)]
            saved, count = mine[0].saved_row, len(mine)
            segments.append(Segment(segment.slot, segment.epoch, first, count, 0, saved))
    if not rows:
        return state, ()
    commit = Table(kind, table.context, tuple(rows), tuple(segments))
    program = f"{kind}.r{len(rows) if kind == 'commit' else 1}"
    launches = [Launch(state.next_id + i, s, program, commit) for i, s in enumerate(stages)]
    return evolve(state, next_id=state.next_id + len(launches)), tuple(launches)
