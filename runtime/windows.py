"""What goes into the next window or prompt chunk, and its launches on all stages."""

from __future__ import annotations

import operator
from collections import Counter
from itertools import accumulate

from strata_runtime.choice import draft_chances, refreshed, share
from strata_runtime.commits import Queued, early_commits
from strata_runtime.drafters import DEVICE_DRAFTERS
from strata_runtime.evolve import evolve
from strata_runtime.launch import Launch, Row, Segment, Table
from strata_runtime.request import Request
from strata_runtime.state import Context, Phase, Slot, State


def window(state: State) -> Queued:
    """The next window, if one more may be in flight and a slot is ready; else no launches.

    Live slots are spread over the windows in flight, those served longest ago first. Each gets a
    row for its real token, then the rows that are left are shared out among drafts.
    """
    shape = state.config.shape
    ready = [i for i, s in enumerate(state.slots) if s.phase is Phase.READY]
    if not ready:
        return state, ()
    state = refreshed(state)
    free = [i for i in range(shape.groups) if state.contexts[i].table is None]
    if shape.groups - len(free) >= state.choice.windows:
        return state, ()
    oldest = sorted(ready, key=lambda i: (state.slots[i].served, i))[: share(state)]
    taken, context = tuple(sorted(oldest)), free[0]
    table = _window_table(state, taken, context)
    for slot in taken:
        s = state.slots[slot]
        s = evolve(s, phase=Phase.WINDOW, in_flight=s.in_flight + 1)
        state = state.with_slot(slot, evolve(s, served=state.next_id))
    state = evolve(state, windows=state.windows + 1)
    state, launches = _launch(state, len(table.rows), table)
    state, chain = _chain(state, table)
    state, commits = early_commits(state, table)
    return state, (*launches, *chain, *commits)


def _window_table(state: State, taken: tuple[int, ...], context: int) -> Table:
    """The rows of these slots: real token, then drafts, one slot after the other."""
    shape, rows, segments = state.config.shape, list[Row](), list[Segment]()
    base = context * shape.row_limit
    for slot, drafts in zip(taken, _shared_out(state, taken), strict=True):
        first = len(rows)
        rows += _segment_rows(state, slot, drafts, first, base + first)
        depth = _depth(state, slot) if shape.drafter in DEVICE_DRAFTERS else 0
        epoch = state.slots[slot].epoch
        segments.append(Segment(slot, epoch, first, 1 + drafts, depth, base + first))
    return Table("exec", context, tuple(rows), tuple(segments))


def _chain(state: State, table: Table) -> Queued:
    """The draft program right behind the last stage's exec, if any slot wants drafts.

    The chain reads the verdict on the device, so that nobody waits for the host in between.
    """
    steps = max(segment.depth for segment in table.segments)
    if not steps:
        return state, ()
    number, context = state.next_id, state.contexts[table.context]
    stage = state.config.stages - 1
    chain = Launch(number, stage, f"draft.r{steps}", evolve(table, kind="draft"))
    state = evolve(state, next_id=number + 1)
    return state.with_context(table.context, evolve(context, chain=number)), (chain,)


def _depth(state: State, index: int) -> int:
    """Drafts that are of use behind a window that accepts none: a window later fewer may be."""
    shape, slot = state.config.shape, state.slots[index]
    if not slot.drafting:
        return 0
    room = shape.context - 2 - slot.length
    left = _request(slot).max_tokens - slot.generated - 2
    return max(0, min(state.choice.drafts, room, left))


def _shared_out(state: State, taken: tuple[int, ...]) -> list[int]:
    """How many drafts each slot's segment gets: the likeliest to hold first, while rows last.

    None is worth anything behind the last token that the request may have, and none stands at or
    past `context`.
    """
    granted = [_drafts_of_use(state, slot) for slot in taken]
    left = min(state.config.shape.row_limit - len(taken), state.choice.extra)
    if sum(granted) <= left:
        return granted
    ranked = []
    for place, (slot, most) in enumerate(zip(taken, granted, strict=True)):
        worth = accumulate((c.seen for c in draft_chances(state, slot)), operator.mul)
        ranked += [(-w, i, place) for i, w in zip(range(most), worth, strict=False)]
    counts = Counter(place for _, _, place in sorted(ranked)[:left])
    return [counts[place] for place in range(len(taken))]


def _drafts_of_use(state: State, index: int) -> int:
    slot = state.slots[index]
    room = state.config.shape.context - 1 - slot.length
    left = _request(slot).max_tokens - slot.generated - 1
    return min(len(slot.drafts), state.choice.drafts, room, left)


def _segment_rows(state: State, index: int, drafts: int, first: int, place: int) -> list[Row]:
    """A slot's real token and its drafts, at the positions behind its committed length.

    `place` is the first of the context's hand-off rows and saved rows that are theirs.
    """
    slot, forced = state.slots[index], state.config.forced
    row = _row(state, index, slot.length, first, 0, place)
    if forced:
        row = evolve(row, forced=forced[state.windows % len(forced)])
    tokens = (row.token, *slot.drafts[:drafts])
    return [
        evolve(
            row,
            position=slot.length + i,
            token=token,
            index=i,
            handoff_row=place + i,
            saved_row=place + i,
        )
        for i, token in enumerate(tokens)
    ]


def prompt_chunk(state: State) -> Queued:
    """The next chunk of the oldest prompt that is not queued, if a context is free.

    The last prompt token is left: it is row 0 of the slot's first window.
    """
    shape = state.config.shape
    reading = [i for i, s in enumerate(state.slots) if s.phase is Phase.PROMPT]
    chunks = range(shape.groups, len(state.contexts))
    free = [i for i in chunks if state.contexts[i].table is None]
    if not reading or not free:
        return state, ()
    index, context = min(reading, key=lambda i: _arrival(state.slots[i])), free[0]
    slot = state.slots[index]
    remaining = len(_request(slot).prompt) - 1 - slot.length
    size = _prompt_size(state, remaining)
    count = min(size, remaining, state.config.chunk_rows or remaining)
    first = shape.groups * shape.row_limit + (context - shape.groups) * shape.prompt_sizes[-1]
    rows = tuple(_row(state, index, slot.length + i, 0, i, first + i) for i in range(count))
    table = Table("prompt", context, rows, (Segment(index, slot.epoch, 0, count),))
    slot = evolve(
        slot,
        phase=Phase.PROMPT if count < remaining else Phase.READY,
        length=slot.length + count,
        in_flight=slot.in_flight + 1,
    )
    return _launch(state.with_slot(index, slot), size, table)


def _request(slot: Slot) -> Request:
    assert slot.request is not None
    return slot.request


def _arrival(slot: Slot) -> int:
    return _request(slot).id


def _row(state: State, index: int, position: int, first: int, lane: int, handoff: int) -> Row:
    """A row of a slot: its prompt's token where there is one, else the token drawn last."""
    slot = state.slots[index]
    request = _request(slot)
    token = request.prompt[position] if position < len(request.prompt) else slot.token
    return Row(
        index, position, token, first, lane, handoff, index, index, sampling=request.sampling
    )


def _prompt_size(state: State, remaining: int) -> int:
    """The largest prompt program that is full, and short enough for the slots that decode."""
    sizes = state.config.shape.prompt_sizes
    full = [n for n in sizes if n <= remaining] or [sizes[0]]
    if state.decoding:
        budget = state.config.shape.max_gap_ms / state.config.shape.prompt_contexts
        full = [n for n in full if _estimate(state, n) <= budget] or [sizes[0]]
    return full[-1]


def _estimate(state: State, rows: int) -> float:
    """Milliseconds of a prompt program where it takes longest, at the most."""
    stages = range(state.config.stages)
    times = [state.costs.at_most(stage, "prompt", rows) for stage in stages]
    return max(float("inf") if time is None else time for time in times)


def _launch(state: State, rows: int, table: Table) -> Queued:
    """One launch a stage. It waits for the stage before, and for the reader of what it rewrites."""
    readers, first = state.readers[table.context], state.next_id
    stages = state.config.stages
    launches = []
    for stage in range(stages):
        waits = [first + stage - 1] if stage else []
        if stage < stages - 1 and readers[stage]:
            waits.append(readers[stage])
        program = f"{table.kind}.r{rows}"
        launches.append(Launch(first + stage, stage, program, table, tuple(waits)))
    all_readers = list(state.readers)
    all_readers[table.context] = tuple(first + stage for stage in range(1, stages))
    state = evolve(state, readers=tuple(all_readers), next_id=first + stages)
    context = Context(table, first + stages - 1)
    return state.with_context(table.context, context), tuple(launches)
